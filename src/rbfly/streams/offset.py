"""Where in a stream a subscription starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from .const import OffsetCode
from .error import ArgumentOverflowError

__all__ = ['Offset', 'OffsetType']


class OffsetType(IntEnum):
    """Kinds of an offset; all but `REFERENCE` are those of the stream protocol."""

    FIRST = OffsetCode.FIRST
    LAST = OffsetCode.LAST
    NEXT = OffsetCode.NEXT
    OFFSET = OffsetCode.OFFSET
    TIMESTAMP = OffsetCode.TIMESTAMP
    REFERENCE = 0xFFFF


@dataclass(frozen=True, repr=False)
class Offset:
    """Where in a stream a subscription starts.

    Use the constants and the static methods:

    * `Offset.FIRST`: the first message of the stream;
    * `Offset.LAST`: the first message of the last chunk;
    * `Offset.NEXT`: messages published from now on;
    * :meth:`Offset.offset`: an absolute offset;
    * :meth:`Offset.timestamp`: a point in time;
    * :meth:`Offset.reference`: behind the offset stored under a reference.
    """

    type: OffsetType
    value: int | float | str | None = None

    FIRST: ClassVar[Offset]
    LAST: ClassVar[Offset]
    NEXT: ClassVar[Offset]

    @staticmethod
    def offset(offset: int) -> Offset:
        """Start exactly at a message.

        :param offset: absolute offset, 0 to 2**64 - 1.
        :raises OverflowError: out of range.
        """
        if not 0 <= offset < 2**64:
            raise ArgumentOverflowError(f'offset must be in 0 to 2**64 - 1, not {offset}')
        return Offset(OffsetType.OFFSET, offset)

    @staticmethod
    def timestamp(timestamp: float) -> Offset:
        """Start at the first chunk written at that time or later.

        :param timestamp: seconds since the epoch (UTC); chunks, not messages, carry a time.
        :raises OverflowError: out of range: the protocol has 64-bit milliseconds.
        """
        if not -(2**63) <= timestamp * 1000 < 2**63:
            raise ArgumentOverflowError(f'timestamp is out of range: {timestamp}')
        return Offset(OffsetType.TIMESTAMP, timestamp)

    @staticmethod
    def reference(reference: str) -> Offset:
        """Start behind the offset stored with `write_offset`; at the first message if none is.

        :param reference: name of the stored offset, at most 255 bytes of UTF-8.
        """
        return Offset(OffsetType.REFERENCE, reference)

    def __repr__(self) -> str:
        value = '' if self.value is None else f'({self.value})'
        return f'Offset.{self.type.name}{value}'


Offset.FIRST = Offset(OffsetType.FIRST)
Offset.LAST = Offset(OffsetType.LAST)
Offset.NEXT = Offset(OffsetType.NEXT)
