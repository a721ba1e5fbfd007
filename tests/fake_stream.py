"""A stream at the scripted broker, which delivers chunks to subscriptions for credit.

stream = FakeStream()
async with FakeBroker(on=stream.handlers()) as fake:
    stream.append(b'a', b'b')
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rbfly.protocol._chunk import Chunk
from rbfly.protocol.commands import Subscribe
from rbfly.protocol.fields import offset_spec
from tests import fake_broker as wire
from tests.fake_broker import FakeConnection as Peer
from tests.fake_broker import Frame, Handler

FIRST, LAST, NEXT, OFFSET, TIMESTAMP = range(1, 6)


@dataclass
class Reader:
    """A subscription.

    :ivar spec: type and value of the starting offset.
    :ivar limit: credit above which a burst of chunks begins.
    :ivar at: index of the next chunk to send.
    :ivar sent: number of chunks sent.
    :ivar grants: the credit of each Credit.
    """

    peer: Peer
    id: int
    spec: tuple[int, int]
    credit: int
    properties: dict[str, str]
    limit: int
    at: int
    sent: int = 0
    grants: list[int] = field(default_factory=list)
    live: bool = True

    @property
    def granted(self) -> int:
        """Credit granted after Subscribe."""
        return sum(self.grants)


def end(chunk: tuple[int, bytes]) -> int:
    """Offset after the last message of a chunk; chunks that are not delivered may follow."""
    return chunk[0] + Chunk.parse(chunk[1]).records


@dataclass
class FakeStream:
    """The chunks of a stream, and its subscriptions.

    :ivar chunks: offset and bytes of each chunk.
    :ivar end: offset after the last chunk.
    :ivar timestamp: timestamp of new chunks in milliseconds.
    :ivar readers: all subscriptions, including closed ones.
    :ivar on_subscribe: returns the response code of a Subscribe; 0 for no response.
    :ivar wants: whether a chunk passes the filter of a subscription.
    :ivar ahead: number of offsets by which StreamStats is ahead of delivery.
    :ivar counts_skipped: whether StreamStats counts offsets that are not delivered.
    """

    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    timestamp: int = 1_700_000_000_000
    readers: list[Reader] = field(default_factory=list)
    on_subscribe: Callable[[Reader], int] = lambda reader: wire.OK
    wants: Callable[[Reader, bytes], bool] = lambda reader, data: True
    ahead: int = 0
    counts_skipped: bool = False

    def handlers(self) -> dict[int, Handler]:
        return {
            wire.SUBSCRIBE: self.subscribe,
            wire.UNSUBSCRIBE: self.unsubscribe,
            wire.CREDIT: self.grant,
            wire.STREAM_STATS: self.stats,
        }

    @property
    def reader(self) -> Reader:
        """The last subscription."""
        return self.readers[-1]

    def append(self, *messages: bytes) -> None:
        """Store a chunk."""
        self.append_chunk(wire.chunk(self.end, messages, self.timestamp), len(messages))

    def append_chunk(self, data: bytes, records: int) -> None:
        self.chunks.append((self.end, data))
        self.end += records
        for reader in self.readers:
            self.send(reader)

    def recreate(self) -> None:
        """Delete the stream, and create it again years later."""
        self.chunks.clear()
        self.end = 0
        self.timestamp *= 2

    def skip(self, offsets: int = 1) -> None:
        """Use up offsets, like chunks that are not delivered."""
        self.end += offsets

    def send(self, reader: Reader) -> None:
        """Send what the credit permits; a burst needs more than half of the initial credit."""
        reader.live = reader.live and not reader.peer.transport.is_closing()
        if not reader.live or reader.credit <= reader.limit:
            return
        while reader.credit and reader.at < len(self.chunks):
            data = self.chunks[reader.at][1]
            reader.at += 1
            if not self.wants(reader, data):
                continue
            reader.peer.send(wire.deliver(reader.id, data))
            reader.sent += 1
            reader.credit -= 1

    def subscribe(self, peer: Peer, request: Frame) -> None:
        command: Subscribe = request.decode()
        kind, value = struct.unpack('>HQ', (offset_spec(command.offset) + bytes(8))[:10])
        start = {FIRST: 0, LAST: max(len(self.chunks) - 1, 0), NEXT: len(self.chunks)}.get(kind)
        if kind == TIMESTAMP:
            times = [Chunk.parse(data).timestamp for _, data in self.chunks]
            start = next((i for i, time in enumerate(times) if time >= value), len(times))
        if start is None:
            start = sum(end(chunk) <= value for chunk in self.chunks)
        reader = Reader(
            peer,
            command.subscription_id,
            (kind, value),
            command.credit,
            dict(command.properties),
            command.credit // 2,
            start,
        )
        self.readers.append(reader)
        code = self.on_subscribe(reader)
        if code == wire.OK:
            peer.respond(request)
            self.send(reader)
        else:
            reader.live = False
            if code:
                peer.respond(request, code=code)

    def unsubscribe(self, peer: Peer, request: Frame) -> None:
        found = [*self.live(peer, request)]
        for reader in found:
            reader.live = False
        peer.respond(request, code=wire.OK if found else 0x04)

    def grant(self, peer: Peer, request: Frame) -> None:
        credit = request.decode().chunks
        for reader in self.live(peer, request):
            reader.credit += credit
            reader.grants.append(credit)
            self.send(reader)

    def live(self, peer: Peer, request: Frame) -> Iterator[Reader]:
        """The open subscription that a request names."""
        number = request.decode().subscription_id
        for reader in self.readers:
            if reader.peer is peer and reader.id == number and reader.live:
                yield reader

    def stats(self, peer: Peer, request: Frame) -> None:
        first = self.chunks[0][0] if self.chunks else -1
        last = self.chunks[-1][0] + self.ahead if self.chunks else -1
        if self.counts_skipped and self.chunks and self.end > end(self.chunks[-1]):
            last = self.end - 1
        found = {'first_chunk_id': first, 'last_chunk_id': last, 'committed_chunk_id': last}
        peer.respond(request, found)
