"""One stream: its chunks, and what is kept about publishers and readers."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ..protocol._chunk import Chunk
from ..protocol.chunks import message, records, write_chunk
from ..protocol.fields import NAME_MAX
from ..protocol.offset import Offset, OffsetType
from .arguments import FILTER_SIZE, Arguments
from .clock import Clock

CHUNK_ENTRIES = 4096  # most entries of a chunk
SEQUENCE, OFFSET = range(2)  # kinds of what is tracked


class StoredChunk(NamedTuple):
    """A chunk.

    :ivar type: 0 for messages, 1 for stored offsets, which are not delivered.
    :ivar data: as it is delivered, behind the subscription id.
    :ivar filters: filter values of its messages.
    :ivar unfiltered: whether it has messages without one.
    """

    type: int
    offset: int
    records: int
    timestamp: int
    data: bytes
    filters: frozenset[bytes]
    unfiltered: bool


class Writer(Protocol):
    """A publisher, as its stream knows it.

    :ivar reference: its name, empty for none.
    """

    reference: str

    def confirm(self, publishing_ids: list[int]) -> None: ...


class Reader(Protocol):
    """A subscription, as its stream knows it."""

    def send(self) -> None: ...


class Entries(NamedTuple):
    """The entries of a Publish frame.

    :ivar filters: filter value of each entry; None for none of them has one.
    """

    ids: list[int]
    data: list[bytes]
    filters: list[bytes | None] | None = None


class Batch:
    """What is written in the next turn of the loop."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.filters: list[bytes | None] = []
        self.tracked: dict[tuple[int, str], int] = {}
        self.stored: dict[Writer, list[int]] = {}
        self.known: dict[Writer, list[int]] = {}  # stored before, and confirmed again


class Stream:
    """A log in memory.

    :ivar leader: number of the node that leads.
    :ivar members: numbers of the nodes that it is on.
    :ivar epoch: term of the leader.
    :ivar chunks: what is stored.
    :ivar dropped: how many chunks were removed before the first of `chunks`.
    :ivar end: offset behind the last chunk.
    :ivar size: bytes of all chunks.
    :ivar published: how many messages were stored, removed ones as well.
    :ivar sequences: last publishing id by publisher's name.
    :ivar offsets: stored offsets by reference.
    """

    def __init__(
        self,
        name: str,
        arguments: Arguments,
        members: tuple[int, ...],
        leader: int,
        clock: Clock,
        soon: Callable[[Callable[[], None]], object],
        stored: Callable[[], None],
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.members = members
        self.leader = leader
        self.epoch = 1
        self.chunks: list[StoredChunk] = []
        self.dropped = 0
        self.end = 0
        self.size = 0
        self.published = 0
        self.sequences: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self.readers: dict[Reader, None] = {}
        self._clock = clock
        self._soon = soon
        self._stored = stored
        self._batch: Batch | None = None

    # -- writing

    @property
    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = Batch()
            self._soon(self.flush)
        return self._batch

    def publish(self, writer: Writer, entries: Entries) -> None:
        """Store entries with the next chunk, but for those that a named publisher has stored."""
        batch = self.batch
        if writer.reference:
            entries = self._new(batch, writer, entries)
        batch.stored.setdefault(writer, []).extend(entries.ids)
        batch.data += entries.data
        batch.filters += entries.filters or [None] * len(entries.data)

    def _new(self, batch: Batch, writer: Writer, entries: Entries) -> Entries:
        last = self.sequences.get(writer.reference, -1)
        if all(map(int.__lt__, [last, *entries.ids], entries.ids)):
            new = entries
        else:
            chosen = []
            for i, number in enumerate(entries.ids):
                if number > last:
                    chosen.append(i)
                    last = number
                else:
                    batch.known.setdefault(writer, []).append(number)
            values = entries.filters
            new = Entries(
                [entries.ids[i] for i in chosen],
                [entries.data[i] for i in chosen],
                values and [values[i] for i in chosen],
            )
        if new.ids:
            self.sequences[writer.reference] = new.ids[-1]
            batch.tracked[SEQUENCE, writer.reference] = new.ids[-1]
        return new

    def append(self, messages: Iterable[bytes]) -> None:
        """Store messages that no publisher has sent, at once."""
        data = [*map(message, messages)]
        self.batch.data += data
        self.batch.filters += [None] * len(data)
        self.flush()

    def store_offset(self, reference: str, offset: int) -> None:
        if len(reference.encode()) <= NAME_MAX:
            self.offsets[reference] = offset
            self.batch.tracked[OFFSET, reference] = offset

    def flush(self) -> None:
        """Write what has come, confirm it, and send it to who reads."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        trailer = b''.join(
            bytes((kind, len(name.encode()))) + name.encode() + value.to_bytes(8)
            for (kind, name), value in batch.tracked.items()
        )
        for start in range(0, len(batch.data), CHUNK_ENTRIES):
            stop = start + CHUNK_ENTRIES
            self._write(batch.data[start:stop], batch.filters[start:stop], trailer)
            trailer = b''
        if trailer:  # without messages, it is a chunk of its own
            self._write([message(trailer)], [], b'', type=1)
        for confirmed in (batch.known, batch.stored):
            for writer, ids in confirmed.items():
                writer.confirm(ids)
        for reader in [*self.readers]:
            reader.send()
        self.retain()
        self._stored()

    def _write(
        self, entries: list[bytes], filters: list[bytes | None], trailer: bytes, type: int = 0
    ) -> None:
        now = self._clock.now()
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
        chunk = StoredChunk(type, self.end, count, now, data, values, len(values) < len(found))
        self.chunks.append(chunk)
        self.end += count
        self.size += len(data)
        if type == 0:
            self.published += count

    def retain(self) -> None:
        """Remove what is too old, or too much; by chunks, and never the last one."""
        limit, age = max(0, self.arguments.max_bytes or 0), self.arguments.max_age
        oldest = self._clock.now() - age if isinstance(age, int) else 0
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

    # -- reading

    def at(self, number: int) -> StoredChunk | None:
        """A chunk by its number in the log; the first one there is for one that was removed."""
        index = max(number - self.dropped, 0)
        return self.chunks[index] if index < len(self.chunks) else None

    def find(self, spec: Offset) -> int:
        """The number of the chunk at which a subscription starts."""
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
        first, last, end = -1, -1, -1
        if self.chunks:
            first, last, end = self.chunks[0].offset, self.chunks[-1].offset, self.end - 1
        return {
            'first_chunk_id': first,
            'last_chunk_id': last,
            'committed_chunk_id': last,
            'committed_offset': end,
        }

    def messages(self) -> list[bytes]:
        """All messages, as they are stored.

        :raises ChunkError: a sub-entry that is damaged.
        """
        found = []
        for chunk in self.chunks:
            if chunk.type == 0:
                found += Chunk.parse(chunk.data).messages()
        return found
