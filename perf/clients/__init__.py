"""The code of lanes: each module does the work with one library, or as a floor with none."""

import importlib
from typing import TYPE_CHECKING

from ..lanes import Lane

if TYPE_CHECKING:
    from .base import Target, Work


def make(lane: Lane, target: 'Target') -> 'Work':
    """Create the work of a lane; imports its library."""
    module = importlib.import_module(f'.{lane.use.module}', __name__)
    work: Work = module.make(lane.kind, target, **lane.use.options)
    return work
