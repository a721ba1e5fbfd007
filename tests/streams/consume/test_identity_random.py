"""Random histories of a stream: a subscription skips and repeats no message.

Chunks are written, and removed by retention; offsets are used up by chunks that are not delivered;
connections are cut, the stream moves, replicas lag behind and catch up, and sometimes the stream is
deleted and created again.  The subscription returns every message of the last stream once, and of
earlier streams it skips none before the last one it returned.
"""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import repeat

import pytest

import rbfly.streams as rbs
from rbfly.net import registration, retry
from rbfly.protocol._chunk import Chunk
from rbfly.streams.error import StreamDoesNotExist
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, FakeConnection, Frame
from tests.fake_stream import FakeStream, Reader
from tests.inside import cursor_of

HANG = 60.0  # seconds; only a safeguard
MOVED = wire.frame(wire.METADATA_UPDATE, struct.pack('>H', 0x06) + wire.string('test'))


class History:
    """A stream and what its reader found: (incarnation, number) of messages, None for an error."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.stream = FakeStream()
        self.held: list[tuple[int, bytes]] = []  # chunks that the lagging replica lacks
        self.lagging = False
        self.incarnation = 0
        self.written = 0
        self.removed: set[tuple[int, int]] = set()
        self.hidden: set[int] = set()  # incarnations whose first chunk is not delivered
        self.found: list[tuple[int, int] | None] = []

    # -- events

    def step(self) -> None:
        steps = {self.append: 8, self.cut: 3, self.move: 3, self.skip: 2, self.remove: 1}
        steps |= {self.recreate: 2, self.lag: 1, self.catch_up: 1, self.send_again: 2}
        self.source.choices(list(steps), list(steps.values()))[0]()

    def append(self) -> None:
        for _ in range(self.source.randint(1, 6)):
            stream, n = self.stream, self.source.choice([1, 1, 1, 2, 5, 20])
            stream.timestamp += self.source.choice([0, 1, 5])
            messages = [b'%d %d' % (self.incarnation, self.written + i) for i in range(n)]
            self.written += n
            if self.lagging:
                data = wire.chunk(stream.end, messages, stream.timestamp)
                self.held.append((stream.end, data))
                stream.end += n
            else:
                stream.append(*messages)

    def skip(self) -> None:
        if not self.written:
            self.hidden.add(self.incarnation)
        self.stream.skip(self.source.randint(1, 3))

    def lose(self) -> None:
        for reader in self.stream.readers:
            reader.live = False

    def cut(self) -> None:
        self.lose()
        for reader in self.stream.readers:
            reader.peer.transport.abort()

    def move(self) -> None:
        self.lose()
        peers = {reader.peer for reader in self.stream.readers}
        for peer in peers:
            if not peer.transport.is_closing():
                peer.send(MOVED)

    def lose_some_way(self) -> None:
        self.source.choice([self.cut, self.move])()

    def send_again(self) -> None:
        """Send a chunk again on the same connection, within the credit."""
        for reader in self.stream.readers:
            sent = self.stream.chunks[: reader.at]
            if reader.live and sent and reader.credit and not reader.peer.transport.is_closing():
                reader.credit -= 1
                reader.peer.send(wire.deliver(reader.id, self.source.choice(sent)[1]))

    def lag(self) -> None:
        """Move the reader to a replica that lacks the last chunks."""
        self.lose_some_way()
        self.lagging = True
        keep = len(self.stream.chunks) - self.source.randint(0, 5)
        if keep >= 0:
            self.held[:0] = self.stream.chunks[keep:]
            del self.stream.chunks[keep:]

    def catch_up(self) -> None:
        self.lagging = False
        self.stream.chunks += self.held
        self.held.clear()
        for reader in self.stream.readers:
            self.stream.send(reader)

    def remove(self) -> None:
        """Remove chunks like retention; the reader has to resubscribe."""
        self.lose_some_way()
        for _ in range(self.source.randint(0, max(len(self.stream.chunks) - 1, 0))):
            _, data = self.stream.chunks.pop(0)
            self.removed.update(numbers(data))

    def recreate(self) -> None:
        self.lose_some_way()
        self.held.clear()
        self.stream.chunks.clear()
        self.stream.end = self.written = 0
        self.stream.timestamp += 10
        self.incarnation += 1
        for _ in range(self.source.randint(0, 4)):
            self.append()

    # -- the reader

    async def read(self, messages: rbs.Subscription) -> None:
        while True:
            try:
                body = await anext(messages)
            except StreamDoesNotExist:
                self.found.append(None)
                continue
            assert isinstance(body, bytes)
            incarnation, number = map(int, body.split())
            self.found.append((incarnation, number))
            if self.source.random() < 0.1:
                await asyncio.sleep(0)

    # -- the expected outcome

    def check(self, start: int) -> None:
        got = [item for item in self.found if item is not None]
        assert got == sorted(set(got)), 'a message is repeated or out of order'
        for incarnation in {incarnation for incarnation, _ in got}:
            numbers = [number for i, number in got if i == incarnation]
            first = 0 if incarnation else start
            last = numbers[-1] if incarnation < self.incarnation else self.written - 1
            skipped = {(incarnation, i) for i in range(first, last + 1)} - set(got)
            assert skipped <= self.removed
        for before, item in zip(self.found, self.found[1:], strict=False):
            if before and item and before[0] != item[0]:
                # A new stream looks like the old one if its first chunks are not delivered.
                unseen = (item[0], 0) in self.removed or item[0] in self.hidden
                assert unseen, 'a recreated stream raises an error'


class Growth(History):
    """A stream that only grows; its reader may be lost as soon as it subscribes.

    :ivar earliest: number of messages before the start at the first StreamStats.
    :ivar latest: number of messages before the start at the first Subscribe.
    """

    def __init__(self, source: random.Random) -> None:
        super().__init__(source)
        self.earliest: int | None = None
        self.latest: int | None = None
        self.answers = [wire.OK, 0]  # 0 for no response
        self.offset = self.source.choice(
            [
                rbs.Offset.LAST,
                rbs.Offset.NEXT,
                rbs.Offset.timestamp(self.stream.timestamp / 1000 + self.source.choice([0, 9, 99])),
            ]
        )
        self.stream.counts_skipped = True
        self.stream.on_subscribe = self.on_subscribe

    def step(self) -> None:
        steps = {self.append: 5, self.skip: 3, self.cut: 4, self.move: 4}
        self.source.choices(list(steps), list(steps.values()))[0]()

    def before(self) -> int:
        """Return the number of messages before the start of a subscription made now."""
        starts = [numbers(data)[0][1] for _, data in self.stream.chunks]
        if self.offset is rbs.Offset.LAST and starts:
            return starts[-1]
        if self.offset.type == rbs.OffsetType.TIMESTAMP:
            assert isinstance(self.offset.value, float)
            at = round(self.offset.value * 1000)
            for start, (_, data) in zip(starts, self.stream.chunks, strict=True):
                if Chunk.parse(data).timestamp >= at:
                    return start
        return self.written

    def on_stats(self, peer: FakeConnection, request: Frame) -> None:
        if self.earliest is None:
            self.earliest = self.before()
        self.stream.stats(peer, request)

    def on_subscribe(self, reader: Reader) -> int:
        if self.latest is None:
            self.latest = self.before()
        return self.source.choice(self.answers)

    def check(self, start: int) -> None:
        assert self.earliest is not None
        assert self.latest is not None
        found = [item[1] for item in self.found if item]
        assert found == [*range(found[0], self.written)]
        assert found[0] <= self.latest
        assert self.offset is rbs.Offset.LAST or self.earliest <= found[0]


async def run_growth(source: random.Random) -> None:
    history = Growth(source)
    stream = history.stream
    for _ in range(source.randint(0, 3)):
        history.step()
    handlers = stream.handlers() | {wire.STREAM_STATS: history.on_stats}
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri) as client,
        aclosing(client.subscribe('test', offset=history.offset, amqp=False)) as messages,
    ):
        reading = asyncio.ensure_future(history.read(messages))
        for _ in range(source.randint(0, 30)):
            history.step()
            for _ in range(source.choice([0, 1, 5, 50])):
                await asyncio.sleep(0)
        history.answers = [wire.OK]
        await until(lambda: history.latest is not None, 'the client has subscribed')
        history.cut()
        history.append()
        last = (0, history.written - 1)
        await until(
            lambda: history.found[-1:] == [last] or reading.done(),
            'the reader has the last message',
            HANG,
        )
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()
    history.check(0)


def numbers(data: bytes) -> list[tuple[int, int]]:
    found, at = [], 48
    while at < len(data):
        (size,) = struct.unpack_from('>I', data, at)
        incarnation, number = map(int, data[at + 4 : at + 4 + size].split())
        found.append((incarnation, number))
        at += 4 + size
    return found


async def run(source: random.Random) -> None:
    history = History(source)
    stream = history.stream
    offset = source.choice([rbs.Offset.FIRST, rbs.Offset.NEXT])
    for _ in range(source.randint(0, 2)):
        history.append()
    start = history.written if offset is rbs.Offset.NEXT else 0
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        aclosing(
            client.subscribe(
                'test', offset=offset, amqp=False, initial_credit=source.choice([1, 2, 10])
            )
        ) as messages,
    ):
        reading = asyncio.ensure_future(history.read(messages))
        known = (
            (lambda: cursor_of(messages).position is not None)
            if start
            else (lambda: bool(stream.readers))
        )
        await until(known, 'the client has subscribed')
        for _ in range(source.randint(5, 30)):
            history.step()
            for _ in range(source.choice([0, 0, 1, 5, 50])):
                await asyncio.sleep(0)
        history.catch_up()
        history.append()
        last = (history.incarnation, history.written - 1)
        await until(
            lambda: history.found[-1:] == [last] or reading.done(),
            'the reader has the last message',
            HANG,
        )
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()
    history.check(start)


@pytest.mark.parametrize('block', range(10))
@pytest.mark.parametrize('run', [run, run_growth])
async def test_random_histories(
    run: Callable[[random.Random], Awaitable[None]],
    block: int,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, 'STABLE', 0.0)
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    for _ in range(30):
        await run(rng)
