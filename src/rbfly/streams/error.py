"""The errors of :mod:`rbfly.error`, also importable from here."""

from ..error import *  # noqa: F403
from ..error import __all__ as __all__


def __dir__() -> list[str]:
    return __all__
