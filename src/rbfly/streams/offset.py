"""Where a subscription starts."""

from ..protocol.offset import Offset, OffsetType

__all__ = ['Offset', 'OffsetType']
