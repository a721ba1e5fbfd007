"""One stream: its chunks, its publishers and its subscriptions."""

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..error import ArgumentError
from ..protocol import commands, message_frames
from ..protocol._chunk import Chunk
from ..protocol.chunks import message, records, write_chunk
from ..protocol.const import Key, ResponseCode
from ..protocol.fields import NAME_MAX, TIME_MAX
from ..protocol.offset import Offset, OffsetType
from .arguments import FILTER_SIZE, Arguments
from .connection import Wire

CHUNK_ENTRIES = 8192  # maximum number of entries in a chunk
FIRST_ENTRIES = 32  # the same for the first chunk; it doubles while more entries wait
TURN_BYTES = 2**17  # bytes that are written in a turn of the loop, in which about 2**18 are read
CONFIRMS_MAX = 8192  # maximum number of publishing ids in a frame
SEGMENT_SIZE = 500_000_000  # bytes
NAMES_MAX = 255  # number of publisher names that the stream keeps when a segment begins
SEQUENCE, OFFSET = range(2)  # kinds of values in the trailer of a chunk


class Clock:
    """The time of chunks; `ahead` is how many seconds it was set forward."""

    ahead: float = 0.0

    def advance(self, seconds: float) -> None:
        """Set the clock forward.

        :raises ArgumentError: the time does not fit the milliseconds of a chunk.
        """
        if time.time() + self.ahead + seconds > TIME_MAX / 1000:
            raise ArgumentError(f'the clock cannot be set forward by {seconds} seconds')
        self.ahead += seconds

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int((time.time() + self.ahead) * 1000)


class StoredChunk(NamedTuple):
    type: int  # 0 for messages; 1 for stored offsets, 2 for all of them
    offset: int
    records: int
    timestamp: int
    data: bytes  # as in a Deliver frame
    filters: frozenset[bytes]  # filter values of its messages
    unfiltered: bool  # whether it has messages without a filter value
    trailer: bytes  # stored offsets after messages, for subscriptions to all chunks


class Entries(NamedTuple):
    """The entries of a Publish frame, by column; a filter value is None for no value."""

    ids: list[int]
    filters: list[bytes | None]
    data: list[bytes]

    def select(self, rows: Sequence[int]) -> 'Entries':
        columns: Any = ([column[i] for i in rows] for column in self)
        return Entries(*columns)

    def part(self, start: int, stop: int | None) -> 'Entries':
        columns: Any = (column[start:stop] for column in self)
        return Entries(*columns)


class Waiting:
    """What the stream has not written."""

    def __init__(self) -> None:
        self.entries: deque[tuple[Publisher | None, Entries]] = deque()
        self.tracked: dict[tuple[int, str], int] = {}
        self.known: dict[Publisher, list[int]] = {}  # duplicates, which are confirmed again

    def __bool__(self) -> bool:
        return bool(self.entries or self.tracked or self.known)

    def take(self, limit: int) -> tuple[Entries, 'dict[Publisher, list[int]]']:
        """Return the next entries, and their ids by publisher."""
        taken = Entries([], [], [])
        ids: dict[Publisher, list[int]] = {}
        while self.entries and (room := limit - len(taken.data)):
            publisher, entries = self.entries.popleft()
            if len(entries.data) > room:
                self.entries.appendleft((publisher, entries.part(room, None)))
                entries = entries.part(0, room)
            taken.ids.extend(entries.ids)
            taken.filters.extend(entries.filters)
            taken.data.extend(entries.data)
            if publisher is not None:
                ids.setdefault(publisher, []).extend(entries.ids)
        return taken, ids


def tracked(kind: int, name: str, *values: int) -> bytes:
    """Return what is stored under a name: of a publisher, or of an offset."""
    data = name.encode()
    return bytes((kind, len(data))) + data + b''.join(value.to_bytes(8) for value in values)


@dataclass(eq=False, repr=False)
class Stream:
    name: str
    arguments: Arguments
    leader: int
    members: tuple[int, ...]  # numbers of the nodes that have the stream
    clock: Clock
    call_soon: Callable[[Callable[[], None]], object]
    stored: Callable[[], None]  # called after the stream has stored something
    epoch: int = 1  # term of the leader
    chunks: list[StoredChunk] = field(default_factory=list)
    dropped: int = 0  # number of chunks removed from the start
    end: int = 0  # offset after the last chunk
    size: int = 0  # bytes of all chunks
    published: int = 0  # number of messages stored, including removed ones
    # Last publishing id by publisher name; the name used last is the last one.
    sequences: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)  # stored offsets by reference
    clients: dict['Client', None] = field(default_factory=dict)  # publishers and subscriptions
    _segment: int = 0  # bytes of the last segment
    _is_new_segment: bool = False  # nothing is in the last segment
    _waiting: Waiting = field(default_factory=Waiting)
    _limit: int = FIRST_ENTRIES  # of the next chunk
    _turns: int = 0  # in which the last chunk is still being written
    _scheduled: bool = False

    # -- writing

    def publish(self, publisher: 'Publisher', entries: Entries) -> None:
        """Store entries in the next chunks, except duplicates from a named publisher."""
        if publisher.reference:
            entries = self._deduplicate(publisher, entries)
        self._waiting.entries.append((publisher, entries))
        self._schedule()

    def _deduplicate(self, publisher: 'Publisher', entries: Entries) -> Entries:
        last = self.sequences.get(publisher.reference, -1)
        if not all(map(int.__lt__, [last, *entries.ids], entries.ids)):
            new = []
            for i, number in enumerate(entries.ids):
                if number > last:
                    new.append(i)
                    last = number
                else:
                    self._waiting.known.setdefault(publisher, []).append(number)
            entries = entries.select(new)
        if entries.ids:
            self.sequences.pop(publisher.reference, None)
            self.sequences[publisher.reference] = entries.ids[-1]
            self._waiting.tracked[SEQUENCE, publisher.reference] = entries.ids[-1]
        return entries

    def append(self, messages: Iterable[bytes]) -> None:
        """Store messages without a publisher, at once."""
        data = [*map(message, messages)]
        self._waiting.entries.append((None, Entries([], [None] * len(data), data)))
        self.flush()

    def store_offset(self, reference: str, offset: int) -> None:
        if len(reference.encode()) <= NAME_MAX:
            self.offsets[reference] = offset
            self._waiting.tracked[OFFSET, reference] = offset
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        """Write the next chunk, unless the last one is still being written.

        As RabbitMQ does, let entries wait meanwhile, and double the limit of a chunk while more
        entries wait.
        """
        self._scheduled = False
        if self._turns:
            self._turns -= 1
        elif self._waiting:
            limit = self._limit
            count = self._write_next(limit)
            self._limit = min(limit * 2, CHUNK_ENTRIES) if count == limit else limit // 2
            self._limit = max(self._limit, FIRST_ENTRIES)
        if self._turns or self._waiting:
            self._schedule()

    def flush(self) -> None:
        """Write all that waits."""
        self._scheduled = False
        while self._waiting:
            self._write_next(CHUNK_ENTRIES)
        self._turns = 0

    def _write_next(self, limit: int) -> int:
        """Write a chunk, confirm its messages, and deliver them; return the number of entries."""
        waiting = self._waiting
        if self._is_new_segment:
            self._write_snapshot()
        entries, ids = waiting.take(limit)
        trailer = b''.join(
            tracked(kind, name, value) for (kind, name), value in waiting.tracked.items()
        )
        waiting.tracked = {}
        if entries.data:
            self._write(entries.data, entries.filters, trailer)
        elif trailer:  # without messages, the trailer needs a chunk of its own
            self._write([message(trailer)], [], b'', type=1)
        known, waiting.known = waiting.known, {}
        for confirmed in (known, ids):
            for publisher, numbers in confirmed.items():
                publisher.confirm(numbers)
        self.resume()
        self.retain()
        self.stored()
        return len(entries.data)

    def _write_snapshot(self) -> None:
        """Write all publishing ids and stored offsets at the start of a segment."""
        self._is_new_segment = False
        self._waiting.tracked = {}
        now = self.clock.now()
        parts = [tracked(SEQUENCE, name, now, last) for name, last in self.sequences.items()]
        parts += [tracked(OFFSET, name, offset) for name, offset in self.offsets.items()]
        if parts:
            self._write([message(b''.join(parts))], [], b'', type=2)

    def _write(
        self, entries: list[bytes], filters: list[bytes | None], trailer: bytes, type: int = 0
    ) -> None:
        now = self.clock.now()
        found = {*filters}
        values = frozenset(filter(None, found))
        data = write_chunk(
            entries,
            offset=self.end,
            timestamp=now,
            epoch=self.epoch,
            type=type,
            filter=bytes(self.arguments.filter_size or FILTER_SIZE) if values else b'',
            trailer=trailer,
        )
        count = sum(map(records, entries))
        chunk = StoredChunk(
            type, self.end, count, now, data, values, len(values) < len(found), trailer
        )
        self.chunks.append(chunk)
        self.end += count
        self.size += len(data)
        self._turns = len(data) // TURN_BYTES
        if type == 0:
            self.published += count
        self._segment += len(data)
        if self._segment >= (self.arguments.segment or SEGMENT_SIZE):
            self._segment = 0
            self._is_new_segment = True
            for name in [*self.sequences][:-NAMES_MAX]:
                del self.sequences[name]

    def retain(self) -> None:
        """Remove the oldest chunks that exceed the limits, but never the last chunk."""
        limit, age = max(0, self.arguments.max_bytes or 0), self.arguments.max_age
        oldest = self.clock.now() - age if isinstance(age, int) else 0
        if not limit and not oldest:
            return
        size, n = self.size, 0
        while n < len(self.chunks) - 1:
            first = self.chunks[n]
            if not (limit and size > limit) and first.timestamp >= oldest:
                break
            size -= len(first.data)
            n += 1
        del self.chunks[:n]
        self.dropped += n
        self.size = size

    # -- publishers and subscriptions

    def resume(self) -> None:
        """Send all chunks and confirms that credit and faults permit."""
        for client in [*self.clients]:
            client.resume()

    def remove_clients(
        self, node: int | None = None, code: int = ResponseCode.STREAM_NOT_AVAILABLE
    ) -> None:
        """Remove all publishers and subscriptions, and notify their connections.

        :param node: keep the subscriptions at other nodes; None to remove all.
        """
        gone = [item for item in self.clients if node is None or item.node in (None, node)]
        for item in gone:
            item.remove()
        for wire in dict.fromkeys(item.wire for item in gone):
            wire.write(commands.MetadataUpdate(code, self.name).encode())

    # -- reading

    def at(self, number: int) -> StoredChunk | None:
        """Return a chunk by its number in the log, or the first chunk if that one was removed."""
        index = max(number - self.dropped, 0)
        return self.chunks[index] if index < len(self.chunks) else None

    def find(self, spec: Offset) -> int:
        """Return the number of the chunk at which a subscription starts."""
        chunks, first = self.chunks, self.dropped
        stop = first + len(chunks)
        value = spec.value if isinstance(spec.value, int | float) else 0
        match spec.type:
            case OffsetType.FIRST:
                return first
            case OffsetType.LAST:
                messages = [i for i, chunk in enumerate(chunks, first) if chunk.type == 0]
                return messages[-1] if messages else stop
            case OffsetType.OFFSET:
                ends = (chunk.offset + chunk.records for chunk in chunks)
                return next((i for i, end in enumerate(ends, first) if value < end), stop)
            case OffsetType.TIMESTAMP:
                times = (chunk.timestamp for chunk in chunks)
                value = round(value * 1000)
                return next((i for i, time in enumerate(times, first) if time >= value), stop)
            case _:
                return stop

    def stats(self) -> dict[str, int]:
        last = self.chunks[-1].offset if self.chunks else -1
        return {
            'first_chunk_id': self.chunks[0].offset if self.chunks else -1,
            'last_chunk_id': last,
            'committed_chunk_id': last,
            'committed_offset': self.end - 1,
        }

    def messages(self) -> list[bytes]:
        """Return all messages, as stored.

        :raises ChunkError: a sub-entry is damaged.
        """
        chunks = (Chunk.parse(chunk.data) for chunk in self.chunks if chunk.type == 0)
        return [data for chunk in chunks for data in chunk.messages()]


class Client:
    """A publisher or subscription of a connection.

    :param declared: publishers or subscriptions of the connection, by id.
    :ivar node: number of the node of a subscription; None for a publisher, which needs the leader.
    """

    node: int | None = None

    def __init__(self, wire: Wire, declared: dict[int, Any], id: int, stream: Stream) -> None:
        self.wire = wire
        self.id = id
        self.stream = stream
        self._declared = declared
        declared[id] = self
        stream.clients[self] = None

    def remove(self) -> None:
        del self._declared[self.id]
        del self.stream.clients[self]

    def resume(self) -> None:
        """Send everything that credit and faults permit."""


class Publisher(Client):
    def __init__(
        self,
        wire: Wire,
        declared: dict[int, 'Publisher'],
        stream: Stream,
        command: commands.DeclarePublisher,
    ) -> None:
        super().__init__(wire, declared, command.publisher_id, stream)
        self.reference: str = command.reference
        self._withheld: list[int] = []

    def publish(self, entries: Entries) -> None:
        codes = self.wire.faults.refusals(len(entries.ids))
        if codes:
            errors = tuple(zip(entries.ids, codes, strict=False))
            self.wire.write(message_frames.PublishError(self.id, errors).encode())
            if codes[-1] == ResponseCode.PUBLISHER_DOES_NOT_EXIST:
                self.remove()
            entries = entries.select(range(len(codes), len(entries.ids)))
        self.stream.publish(self, entries)

    def confirm(self, ids: list[int]) -> None:
        if self not in self.stream.clients:
            return
        faults = self.wire.faults
        ids, self._withheld = self._withheld + faults.confirmed(ids), []
        if faults.withholding:
            self._withheld = ids
            return
        for part in faults.ordered(ids):
            for start in range(0, len(part), CONFIRMS_MAX):
                self.wire.write(confirms(self.id, part[start : start + CONFIRMS_MAX]))

    def resume(self) -> None:
        if self._withheld:
            self.confirm([])


def confirms(publisher_id: int, ids: list[int]) -> bytes:
    """Encode a `PublishConfirm` faster than its class does."""
    n = len(ids)
    return struct.pack(f'>IHHBI{n}Q', 9 + 8 * n, Key.PUBLISH_CONFIRM, 1, publisher_id, n, *ids)


class Subscription(Client):
    """A subscription; its credit limits the chunks that it receives."""

    def __init__(
        self,
        wire: Wire,
        declared: dict[int, 'Subscription'],
        stream: Stream,
        command: commands.Subscribe,
        node: int,
    ) -> None:
        super().__init__(wire, declared, command.subscription_id, stream)
        self.node: int = node
        self._next = stream.find(command.offset)  # number of the next chunk to send
        self._credit = command.credit
        self._burst = command.credit // 2  # credit above which a burst of chunks begins
        self._interrupted = False  # a burst
        self._filters = frozenset(
            value.encode()
            for name, value in command.properties.items()
            if name.startswith('filter.')
        )
        unfiltered = command.properties.get('match-unfiltered') == 'true'
        self._unfiltered = unfiltered or b'' in self._filters
        self._all = command.properties.get('chunk_selector') == 'all'

    def _wants(self, chunk: StoredChunk) -> bool:
        """True if the filter passes a chunk, which may hold messages with other filter values."""
        if chunk.type and not self._all:
            return False
        if not self._filters:
            return True
        return bool(chunk.filters & self._filters) or (self._unfiltered and chunk.unfiltered)

    def grant(self, chunks: int) -> None:
        self._credit += chunks
        self.resume()

    def finish_burst(self) -> None:
        """Send the rest of an interrupted burst, even if the client reads slowly."""
        if self._interrupted:
            self.resume(wait=False)

    def resume(self, *, wait: bool = True) -> None:
        if self._credit <= self._burst and not self._interrupted:
            return
        self._interrupted = False
        while self._credit > 0 and not self.wire.ended:
            if (wait and self.wire.paused) or self.wire.faults.silent:
                self._interrupted = True
                break
            chunk = self.stream.at(self._next)
            if chunk is None:
                break
            self._next = max(self._next, self.stream.dropped) + 1
            if self._wants(chunk):
                self._credit -= 1
                self._deliver(chunk)

    def _deliver(self, chunk: StoredChunk) -> None:
        data = self.wire.faults.chunk(chunk.data)
        if self._all:
            data += chunk.trailer
        if self.wire.deliver_version == 1:
            frame = message_frames.Deliver(self.id, data).encode()
        else:
            frame = message_frames.DeliverV2(self.id, self.stream.chunks[-1].offset, data).encode()
        self.wire.write(frame)
