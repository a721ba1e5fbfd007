"""Where a subscription starts; also importable from :mod:`rbfly.streams`."""

from ..protocol.offset import Offset, OffsetType

__all__ = ['Offset', 'OffsetType']


def __dir__() -> list[str]:
    return __all__
