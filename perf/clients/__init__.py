"""The code of lanes: each module does the work with one library, or as a floor with none."""

import importlib

from ..lanes import Lane
from .base import Target, Work
from .codec import Codec


def make(lane: Lane, target: Target) -> Work:
    """Create the work of a lane; imports its library."""
    module = importlib.import_module(f'.{lane.use.module}', __name__)
    if not lane.broker:
        return Codec(module.case, lane.kind, target)
    work: Work = module.make(lane.kind, target, **lane.use.options)
    return work
