"""`client.metrics()` shows what a client has done and has open."""

import asyncio
import gc
import random
import struct
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers.proxy import Proxy
from rbfly.net import retry, totals
from rbfly.net.connection import Connection
from rbfly.protocol.const import Key, ResponseCode
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.entry_reader import read_entries
from tests.fake_broker import Frame
from tests.inside import session_of

HANG = 240.0  # seconds; only a bug makes a test wait that long
CUTS = 50
LAST = b'last'
RISING = ['published', 'confirmed', 'refused', 'resent', 'consumed', 'chunks', 'reconnects']
COUNTS = [*RISING, 'unconfirmed']


class Wire:
    """What the connections of the process write and read, counted from their bytes.

    :ivar published: number of messages, by stream; each counted once.
    :ivar resent: number of messages that were written before, by stream.
    :ivar chunks: number of chunks of open subscriptions, by stream.
    :ivar written: number of bytes.
    :ivar read: number of bytes.
    """

    def __init__(self) -> None:
        self.published = Counter[str]()
        self.resent = Counter[str]()
        self.chunks = Counter[str]()
        self.written = self.read = 0
        self._ids: dict[str, set[int]] = defaultdict(set)
        self._streams: dict[Any, str] = {}
        self._buffers: dict[Any, bytes] = defaultdict(bytes)
        self._views: dict[Any, Any] = {}

    def write(self, connection: Any, data: bytes) -> None:
        self.written += len(data)
        _, key, version = struct.unpack_from('>IHH', data)
        if key in (Key.DECLARE_PUBLISHER, Key.SUBSCRIBE):
            command = Frame(key, version, data[8:]).decode()
            found = getattr(command, 'publisher_id', None)
            if found is None:
                found = command.subscription_id
            self._streams[connection, key, found] = command.stream
        if key == Key.PUBLISH:
            stream = self._streams[connection, Key.DECLARE_PUBLISHER, data[8]]
            for number, _, messages in read_entries(data):
                counts = self.resent if number in self._ids[stream] else self.published
                counts[stream] += len(messages)
                self._ids[stream].add(number)

    def on_read(self, connection: Any, data: bytes) -> None:
        self.read += len(data)
        buffer = self._buffers[connection] + data
        while len(buffer) >= 9:
            size, key = struct.unpack_from('>IH', buffer)
            if len(buffer) < 4 + size:
                break
            if key == Key.DELIVER:
                self.chunks[self._streams[connection, Key.SUBSCRIBE, buffer[8]]] += 1
            buffer = buffer[4 + size :]
        self._buffers[connection] = buffer


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    found = Wire()
    write, get, updated = Connection.write, Connection.get_buffer, Connection.buffer_updated
    views: dict[Connection, memoryview] = {}

    def spy_write(self: Connection, data: Any) -> None:
        if self.sink is not None:
            found.write(self, data if isinstance(data, bytes) else b''.join(data))
        write(self, data)

    def spy_get(self: Connection, hint: int) -> memoryview:
        views[self] = get(self, hint)
        return views[self]

    def spy_updated(self: Connection, count: int) -> None:
        found.on_read(self, bytes(views.pop(self)[:count]))
        updated(self, count)

    monkeypatch.setattr(Connection, 'write', spy_write)
    monkeypatch.setattr(Connection, 'get_buffer', spy_get)
    monkeypatch.setattr(Connection, 'buffer_updated', spy_updated)
    yield found
    views.clear()


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


def to_partition(body: Any, partitions: Sequence[str]) -> Any:
    """The last message goes to all partitions."""
    return partitions if body == LAST else partitions[int(body) % len(partitions)]


async def read(messages: Any, last: int) -> Counter[str]:
    """Read until the last message of each stream; return the number of messages by stream."""
    found = Counter[str]()
    async for message in messages.messages():
        found[message.stream] += 1
        last -= message.body == LAST
        if not last:
            return found
    raise AssertionError('the subscription has ended')


@pytest.mark.parametrize('name', [None, 'shop'], ids=['unnamed', 'named'])
@pytest.mark.parametrize('kind', ['stream', 'super'])
async def test_counts_are_right_after_many_cuts(
    client: rbs.StreamsClient,
    stream: str,
    super_stream: str,
    proxy: Proxy,
    wire: Wire,
    rng: random.Random,
    kind: str,
    name: str | None,
) -> None:
    async with (
        asyncio.timeout(HANG),
        rbs.streams_client(proxy.uri, load_balancer=True) as own,
    ):
        if kind == 'super':
            orders = own.super_stream(super_stream)
            names = await orders.partitions()
            opening: Any = orders.publisher(route=to_partition, name=name)
            subscription: Any = orders.subscribe(offset=rbs.Offset.FIRST)
        else:
            names = (stream,)
            opening = own.publisher(stream, name=name)
            subscription = own.subscribe(stream, offset=rbs.Offset.FIRST)
        events = own.events(100_000)
        began = time.time()
        sent = planned = 0
        async with opening as publisher, subscription as messages:
            reading = asyncio.create_task(read(messages, len(names)))
            while proxy.cuts < CUTS:
                bodies = [str(number) for number in range(sent, sent + rng.randrange(1, 60))]
                proxy.cut_after(rng.randrange(1, 1000), rng.choice(['up', 'down']))
                planned += 1
                await publisher.send_many(bodies)
                sent += len(bodies)
            while proxy.cuts < planned:
                await publisher.send(str(sent))
                sent += 1
            await publisher.send(LAST)
            received = await reading
            found = own.metrics()
            assert found.bytes_written == wire.written
            assert found.bytes_read == wire.read
            assert set(found.streams) == set(names)
            for item in names:
                numbers = found.streams[item]
                assert numbers.published == numbers.confirmed == wire.published[item]
                assert numbers.resent == wire.resent[item]
                assert numbers.refused == numbers.unconfirmed == 0
                assert numbers.consumed == received[item]
                assert numbers.chunks == wire.chunks[item]
                assert (numbers.publishers, numbers.subscriptions) == (1, 1)
                for moment in (numbers.last_confirm, numbers.last_chunk):
                    assert moment is not None
                    assert began - 1 < moment <= time.time()
            assert found.published == sent + len(names)
            assert found.resent > 0
            for count in COUNTS:
                total = sum(getattr(numbers, count) for numbers in found.streams.values())
                assert getattr(found, count) == total
        await own.close()
        ended = own.metrics()
        assert (ended.publishers, ended.subscriptions, ended.connections) == (0, 0, 0)
        for count in COUNTS:
            assert getattr(ended, count) == getattr(found, count)
        seen = [event async for event in events]
        kinds = Counter(type(event) for event in seen)
        assert found.connections_lost == kinds[rbs.ConnectionLost] > CUTS / 2
        assert found.reconnects == kinds[rbs.Recovered]


# -- each number


async def test_refused_messages_are_counted() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders', name='shop') as publisher:
            broker.publish_error(ResponseCode.PRECONDITION_FAILED, 3)
            with pytest.raises(rbs.PublishError):
                await publisher.send_many(range(10))
            found = client.metrics()
    assert (found.published, found.confirmed, found.refused) == (10, 7, 3)
    assert found.streams['orders'].refused == 3
    assert found.unconfirmed == 0


async def test_messages_of_sub_entries_are_counted(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, sub_entry_size=10) as publisher:
        await publisher.send_many(range(95))
    found = client.metrics()
    assert (found.published, found.confirmed) == (95, 95)
    reading = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now')
    assert [body async for body in reading] == [*range(95)]
    assert client.metrics().consumed == 95


async def test_unconfirmed_messages_are_a_gauge() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            broker.withhold_confirms()
            sending = [await publisher.submit(number) for number in range(5)]
            publisher.batch(5)
            found = client.metrics()
            assert (found.unconfirmed, found.confirmed, found.last_confirm) == (6, 0, None)
            broker.heal()
            await asyncio.gather(*sending)
            await publisher.flush()
            found = client.metrics()
            assert (found.unconfirmed, found.published, found.confirmed) == (0, 6, 6)


async def test_gauges_are_zero_when_the_broker_never_confirms() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        client = rbs.streams_client(broker.uri, close_timeout=0)
        broker.withhold_confirms()
        publisher = await client.publisher('orders')
        await publisher.submit(b'')
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.close()
        await client.close()
        found = client.metrics()
    assert (found.publishers, found.connections, found.unconfirmed) == (0, 0, 0)
    assert (found.published, found.confirmed, found.connections_lost) == (1, 0, 0)


def is_even(message: rbs.MessageCtx) -> str:
    return str(message.body % 2)


@pytest.mark.parametrize('filtered', [False, True])
async def test_messages_count_when_the_program_receives_them(
    client: rbs.StreamsClient, stream: str, filtered: bool
) -> None:
    extract = is_even if filtered else None
    async with client.publisher(stream, filter_extract=extract) as publisher:
        await publisher.send_many(range(100))
    options: Any = {'filter': rbs.MessageFilter(is_even, {'0'})} if filtered else {}
    first = rbs.Offset.offset(20)
    async with client.subscribe(stream, offset=first, **options) as messages:
        bodies: list[Any] = [await anext(messages) for _ in range(3)]
        assert client.metrics().consumed == 3
        bodies += [(await anext(messages.messages())).body for _ in range(2)]
        assert client.metrics().consumed == 5
        while len(bodies) < 15:  # the next chunk may not have arrived
            bodies += await messages.fetch(max_messages=15 - len(bodies))
            assert client.metrics().consumed == len(bodies)
        assert bodies == ([*range(20, 50, 2)] if filtered else [*range(20, 35)])
    assert client.metrics().consumed == 15
    assert client.metrics().subscriptions == 0


async def take(batches: Any) -> Any:
    return await anext(batches)


async def test_batch_that_was_never_taken_is_not_counted(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(10))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        await anext(messages)
        waiting = asyncio.create_task(take(messages.batches(max_wait=HANG)))
        cursor = session_of(messages).cursor
        await until(lambda: cursor.position == 10, 'the batch has all messages')
        waiting.cancel()
        await asyncio.wait([waiting])
        assert client.metrics().consumed == 1
    assert client.metrics().consumed == 1


async def test_dropped_publisher_and_subscription_keep_their_counts(
    client: rbs.StreamsClient, stream: str
) -> None:
    publisher = await client.publisher(stream)
    await publisher.send_many(range(10))
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST)
    for number in range(4):
        assert await anext(messages) == number
    del publisher, messages
    await until(lambda: client.metrics().subscriptions == 0, 'the subscription is closed')
    await until(lambda: client.metrics().publishers == 0, 'the publisher is closed')
    found = client.metrics()
    assert (found.published, found.confirmed, found.consumed) == (10, 10, 4)


async def test_streams_that_are_no_longer_used_stay_in_the_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(totals, 'UNUSED', 5)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('used')
        async with client.publisher('used') as used:
            await used.send(b'')
            for number in range(20):
                broker.create_stream(f'other-{number}')
                async with client.publisher(f'other-{number}') as publisher:
                    await publisher.send_many(range(number))
            found = client.metrics()
    assert len(found.streams) <= 7
    assert found.streams['used'].published == 1
    assert found.published == found.confirmed == 1 + sum(range(20))


async def test_other_threads_see_counts_that_never_fall() -> None:
    falls: list[tuple[rbs.Metrics, rbs.Metrics]] = []
    ended = threading.Event()

    def look(client: rbs.StreamsClient) -> None:
        before = client.metrics()
        while not ended.is_set():
            now = client.metrics()
            if any(getattr(now, count) < getattr(before, count) for count in RISING):
                falls.append((before, now))
            before = now

    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        thread = threading.Thread(target=look, args=[client])
        thread.start()
        try:
            for _ in range(20):
                async with client.publisher('orders') as publisher:
                    await publisher.send_many(range(50))
                reading = client.subscribe('orders', offset=rbs.Offset.FIRST, until='now')
                async for _ in reading:
                    pass
        finally:
            ended.set()
            thread.join()
    assert falls == []


async def test_client_is_released(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send(b'')
    own = rbs.streams_client('rabbitmq-stream://localhost')
    found, gone = own.metrics(), weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None
    assert found.published == 0
