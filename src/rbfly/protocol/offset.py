"""Where a subscription starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import ClassVar

from ..checks import number_text
from ..error import ArgumentError, ArgumentOverflowError, ArgumentTypeError
from ..later import datetime
from ..record import CheckedRecord

OFFSET_MAX = 2**64 - 1


class OffsetType(IntEnum):
    """Types of offsets; the protocol has all but `LAST_MESSAGES` and `REFERENCE`."""

    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5
    LAST_MESSAGES = 0xFFFE
    REFERENCE = 0xFFFF


VALUES: dict[OffsetType, tuple[type, ...]] = {
    OffsetType.OFFSET: (int,),
    OffsetType.TIMESTAMP: (int, float),
    OffsetType.LAST_MESSAGES: (int,),
    OffsetType.REFERENCE: (str,),
}


class Offset(CheckedRecord):
    """Where in a stream a subscription starts.

    Use the constants and the static methods:

    * `Offset.FIRST`: the first message of the stream;
    * `Offset.LAST`: the first message of the last chunk of messages;
    * `Offset.NEXT`: messages published from now on;
    * :meth:`Offset.offset`: an absolute offset;
    * :meth:`Offset.timestamp`: a point in time;
    * :meth:`Offset.last_messages`: the last messages of the stream;
    * :meth:`Offset.reference`: after the offset stored under a reference.

    The first attempt to subscribe determines the last chunk and the stored offset.  If the
    connection is lost before the first message, the subscription starts at the same message after
    the reconnect, whatever was published in the meantime.  `LAST` may start earlier if offsets were
    stored after the last chunk of messages.  The client's clock does not matter: only the broker
    compares times.
    """

    type: OffsetType
    value: int | float | str | None = None
    default: Offset | None = None  # if nothing is stored under the reference

    def __post_init__(self) -> None:
        if not isinstance(self.type, OffsetType):
            raise ArgumentTypeError(f'type must be OffsetType, not {type(self.type).__name__}')
        if self.default is not None and (
            self.type != OffsetType.REFERENCE
            or not isinstance(self.default, Offset)
            or self.default.type == OffsetType.REFERENCE
        ):
            raise ArgumentTypeError(
                'only a reference offset can have a default, an Offset of another type'
            )
        kinds = VALUES.get(self.type, ())
        if not isinstance(self.value, kinds or type(None)) or isinstance(self.value, bool):
            names = ' or '.join(kind.__name__ for kind in kinds) or 'None'
            if self.type == OffsetType.TIMESTAMP:
                names = f'seconds since the epoch ({names})'
            found = type(self.value).__name__
            raise ArgumentTypeError(f'{self.type.name} offset takes {names}, not {found}')
        if isinstance(self.value, int | float):
            low, high, unit = (0, 2**64, 1)
            if self.type == OffsetType.TIMESTAMP:
                low, high, unit = (-(2**63), 2**63, 1000)
            if not low <= self.value * unit < high:
                raise ArgumentOverflowError(
                    f'{self.type.name.lower()} is out of range: {number_text(self.value)}'
                )

    FIRST: ClassVar[Offset]
    LAST: ClassVar[Offset]
    NEXT: ClassVar[Offset]

    @staticmethod
    def offset(offset: int) -> Offset:
        """Start at the message with this offset, or at the next one if retention has removed it.

        Until the first message is received, the offset belongs to the name of the stream: if the
        stream is deleted and created again, and the client does not notice, the subscription starts
        at that offset of the new stream.  If it notices, it raises
        :class:`~rbfly.error.StreamDoesNotExist`, and then starts at the first message.

        :param offset: absolute offset, 0 to 2**64 - 1.
        :raises OverflowError: the offset is out of range.
        """
        return Offset(OffsetType.OFFSET, offset)

    @staticmethod
    def timestamp(timestamp: datetime.datetime | float) -> Offset:
        """Start at the first chunk written at that time or later, by the broker's clock.

        If the time is ahead of the broker's clock, start with messages published from now on.

        :param timestamp: an aware datetime, or seconds since the epoch (UTC); the broker compares
            it with chunks, since messages have no time of their own.
        :raises ValueError: the datetime has no time zone.
        :raises OverflowError: the time does not fit into 64-bit milliseconds.
        """
        if isinstance(timestamp, datetime.datetime):
            if timestamp.utcoffset() is None:
                raise ArgumentError(
                    f'{timestamp} has no time zone: pass an aware datetime, such as'
                    ' datetime.now(timezone.utc)'
                )
            timestamp = timestamp.timestamp()
        return Offset(OffsetType.TIMESTAMP, timestamp)

    @staticmethod
    def last_messages(count: int) -> Offset:
        """Start at the last messages that the stream has when the subscription opens.

        Counts messages, not offsets, which stored offsets also take up.  With fewer messages, start
        at the first one.  Messages that a filter skips count.  Each partition of a super stream
        starts at its own last messages.  To count, RbFly receives the chunks of these messages, but
        decodes none of them.  A member of a group cannot start there.

        :param count: number of messages, at least 0.
        :raises OverflowError: the number is negative, or has more than 64 bits.
        """
        return Offset(OffsetType.LAST_MESSAGES, count)

    @staticmethod
    def reference(reference: str, default: Offset | None = None) -> Offset:
        """Start after the offset stored with `write_offset` or by automatic tracking.

        After 2**64 - 1, which a consumer group stores before it has received a message, it starts
        at offset 0.

        :param reference: name of the stored offset, at most 255 bytes of UTF-8.
        :param default: where to start if none is stored; None for the first message.
        """
        return Offset(OffsetType.REFERENCE, reference, default)

    def __repr__(self) -> str:
        if self.value is None:
            return f'Offset.{self.type.name}'
        default = '' if self.default is None else f', {self.default!r}'
        return f'Offset.{self.type.name.lower()}({self.value!r}{default})'


OffsetSource = Callable[[str], Awaitable[Offset]]
"""Returns where to start in a stream of that name."""

Offset.FIRST = Offset(OffsetType.FIRST)
Offset.LAST = Offset(OffsetType.LAST)
Offset.NEXT = Offset(OffsetType.NEXT)
