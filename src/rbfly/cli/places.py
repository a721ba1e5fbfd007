"""Where to read a stream, in the grammar of `rpk topic consume --offset`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from .values import parse_duration

if TYPE_CHECKING:
    from rbfly.streams import Offset, StreamsClient

EXAMPLES = 'start, end, 47, +2, -3, 10:20, :end, @-1h, @2026-01-01:1d'
OFFSET_MAX = 2**64 - 1

Kind = Literal['start', 'end', 'offset', 'after', 'last', 'time']
Stop = Literal['now'] | int | float


@dataclass(frozen=True, slots=True)
class Place:
    """Where to begin.

    :ivar value: an offset, a number of messages, or seconds since the epoch.
    """

    kind: Kind
    value: int | float = 0

    async def offset(self, client: StreamsClient, stream: str) -> Offset:
        """Return the offset in a stream at which a subscription begins."""
        from rbfly.streams import Offset

        match self.kind:
            case 'start':
                return Offset.FIRST
            case 'end':
                return Offset.NEXT
            case 'offset':
                return Offset.offset(int(self.value))
            case 'after':
                first = await client.resolve_offset(stream, Offset.FIRST)
                return Offset.offset(first + int(self.value))
            case 'last':
                return Offset.last_messages(int(self.value))
            case 'time':
                return Offset.timestamp(self.value)


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a stream.

    :ivar start: where to begin.
    :ivar stop: `'now'`, the end at the moment; the offset (int) to stop before, or seconds since
        the epoch (float); None if nothing is said.
    """

    start: Place
    stop: Stop | None = None


def parse_range(text: str, now: float) -> Range:
    """Return the part of a stream that a text describes.

    :param now: seconds since the epoch.
    :raises ValueError: it describes none; the text says why.
    """
    if text.startswith('@'):
        return parse_times(text, now)
    first, colon, last = text.partition(':')
    stop = parse_stop(last) if last else None
    if not first:
        if stop is None:
            raise ValueError('it is empty')
        return Range(Place('start'), stop)
    start = parse_start(first)
    if start.kind == 'offset' and type(stop) is int and stop <= start.value:
        raise ValueError(f'{last} is not after {first}')
    if colon and start.kind == 'end':
        raise ValueError('nothing comes after the end')
    return Range(start, stop)


def parse_start(text: str) -> Place:
    if text == 'start':
        return Place('start')
    if text == 'end':
        return Place('end')
    if re.fullmatch(r'[+-]?\d+', text, re.ASCII):
        kinds: dict[str, Kind] = {'+': 'after', '-': 'last'}
        return Place(kinds.get(text[0], 'offset'), number(text.lstrip('+-')))
    raise ValueError(f'{text!r} is neither start, end nor an offset')


def parse_stop(text: str) -> Stop:
    if text == 'end':
        return 'now'
    if re.fullmatch(r'\d+', text, re.ASCII):
        return number(text)
    raise ValueError(f'{text!r} is neither end nor an offset')


def number(text: str) -> int:
    value = int(text)
    if value > OFFSET_MAX:
        raise ValueError(f'{text} has more than 64 bits')
    return value


def parse_times(text: str, now: float) -> Range:
    """Return the part between two times, separated by a colon, which a time may contain too."""
    rest = text[1:]
    for colon in [*(item.start() for item in re.finditer(':', rest)), len(rest)]:
        first, last = rest[:colon], rest[colon + 1 :]
        begin = parse_time(first, now, now) if first else 0.0
        if begin is None:
            continue
        start = Place('time', begin) if first else Place('start')
        if not last:
            if not first:
                break
            return Range(start)
        if last == 'end':
            return Range(start, 'now')
        end = parse_time(last, now, begin if first else now)
        if end is None:
            continue
        if first and end <= begin:
            raise ValueError(f'{last} is not after {first}')
        return Range(start, end)
    raise ValueError('write a time as 2026-01-31, 2026-01-31T12:00:00Z, 1769860800 or -1h')


def parse_time(text: str, now: float, base: float) -> float | None:
    """Return the seconds since the epoch of a time; None if it is none.

    :param base: what a duration without a sign is added to.
    """
    if re.fullmatch(r'\d{13}', text, re.ASCII):
        return int(text) / 1000
    if re.fullmatch(r'\d{9,10}', text, re.ASCII):
        return float(text)
    seconds = parse_duration(text.removeprefix('-'))
    if seconds is not None:
        return now - seconds if text.startswith('-') else base + seconds
    if not re.match(r'\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}.*)?$', text, re.ASCII):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def range_of(text: str) -> Range:
    """Return the part of a stream that the value of an option describes.

    :raises ValueError: it describes none.
    """
    try:
        return parse_range(text.strip(), time.time())
    except ValueError as ex:
        raise ValueError(f'{text!r}: {ex}; examples: {EXAMPLES}') from ex


def place_of(text: str) -> Place:
    """Return the place in a stream, without an end.

    :raises ValueError: the value of the option describes none.
    """
    found = range_of(text)
    if found.stop is not None:
        raise ValueError(f'{text!r} is a range: write where it begins only')
    return found.start
