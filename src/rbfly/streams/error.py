"""The errors of :mod:`rbfly.error`, also importable from here."""

from ..error import *  # noqa: F403
from ..error import __all__ as __all__
