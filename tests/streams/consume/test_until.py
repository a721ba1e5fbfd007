"""Subscriptions that end: at the end of the stream, at an offset, or at a time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.net import retry
from rbfly.protocol._cursor import KINDS
from rbfly.protocol.commands import MetadataUpdate, StreamStats
from rbfly.protocol.const import Key
from rbfly.streams.error import (
    ArgumentError,
    ArgumentTypeError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionClosed,
    SubscriptionError,
)
from rbfly.testing import StreamBroker
from rbfly.testing.handlers import HANDLERS, Connection
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of

HANG = 20.0  # seconds; only a safeguard


def parity(ctx: rbs.MessageCtx) -> str:
    body: Any = ctx.body
    return 'odd' if body % 2 else 'even'


async def publish(client: rbs.StreamsClient, stream: str, *chunks: list[int]) -> None:
    async with client.publisher(stream, filter_extract=parity) as publisher:
        for bodies in chunks:
            await publisher.send_many(bodies)


async def store(client: rbs.StreamsClient, stream: str, count: int = 1) -> None:
    """Store offsets: chunks that are not delivered, each of which takes up an offset."""
    for i in range(count):
        before = await client.stream_stats(stream)
        await client.write_offset(stream, 'other', i)
        while await client.stream_stats(stream) == before:
            pass


async def cut(client: rbs.StreamsClient) -> None:
    (await client.get_protocol()).abort(StreamConnectionError('cut by the test'))


async def bodies(messages: rbs.Subscription) -> list[Any]:
    return [body async for body in messages]


async def of_contexts(messages: rbs.Subscription) -> list[Any]:
    return [ctx.body async for ctx in messages.messages()]


async def of_batches(messages: rbs.Subscription) -> list[Any]:
    return [body async for batch in messages.batches() for body in batch]


async def of_small_batches(messages: rbs.Subscription) -> list[Any]:
    return [body async for batch in messages.batches(2) for body in batch]


async def of_anext(messages: rbs.Subscription) -> list[Any]:
    found: list[Any] = []
    while (body := await anext(messages, None)) is not None:
        found.append(body)
    return found


async def of_tasks(messages: rbs.Subscription) -> list[Any]:
    found = []
    while True:
        try:
            found.append(await asyncio.create_task(anext(messages)))
        except StopAsyncIteration:
            return found


async def of_joined(messages: rbs.Subscription) -> list[Any]:
    return [body async for batch in messages.batches(max_wait=HANG) for body in batch]


async def of_fetch(messages: rbs.Subscription) -> list[Any]:
    found: list[Any] = []
    await messages.open()
    with contextlib.suppress(SubscriptionClosed):
        while True:
            found += await messages.fetch(3, HANG)
    return found


WAYS = (bodies, of_contexts, of_batches, of_small_batches, of_anext, of_tasks, of_joined, of_fetch)


async def read(
    client: rbs.StreamsClient,
    stream: str,
    to: Any = 'now',
    offset: rbs.Offset = rbs.Offset.FIRST,
    way: Callable[[rbs.Subscription], Any] = bodies,
    **options: Any,
) -> list[Any]:
    """Read until the subscription ends; check that it stays at its end."""
    async with client.subscribe(
        stream, offset=offset, until=to, timeout=HANG, **options
    ) as messages:
        found: list[Any] = await way(messages)
        assert await bodies(messages) == []
        return found


# -- now


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('end', ['messages', 'offsets'])
async def test_reading_ends_with_the_last_message(
    client: rbs.StreamsClient, stream: str, way: Callable[[rbs.Subscription], Any], end: str
) -> None:
    await publish(client, stream, [0], [1, 2, 3], [4, 5])
    if end == 'offsets':
        await store(client, stream, 3)
    assert await read(client, stream, way=way) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    'offset', [rbs.Offset.FIRST, rbs.Offset.LAST, rbs.Offset.offset(7), rbs.Offset.timestamp(1e9)]
)
@pytest.mark.parametrize('stored', [0, 2])
async def test_stream_without_messages_ends_at_once(
    client: rbs.StreamsClient, stream: str, offset: rbs.Offset, stored: int
) -> None:
    await store(client, stream, stored)
    assert await read(client, stream, offset=offset) == []


@pytest.mark.parametrize(
    ('offset', 'expected'),
    [
        (rbs.Offset.offset(2), [2, 3, 4, 5]),
        (rbs.Offset.offset(5), [5]),
        (rbs.Offset.offset(6), []),
        (rbs.Offset.offset(100), []),
        (rbs.Offset.timestamp(1.0), [0, 1, 2, 3, 4, 5]),
        (rbs.Offset.timestamp(2e9), []),
        (rbs.Offset.LAST, [5]),
        (rbs.Offset.reference('none', rbs.Offset.NEXT), []),
        (rbs.Offset.reference('none'), [0, 1, 2, 3, 4, 5]),
        (rbs.Offset.reference('reader'), [4, 5]),
    ],
)
@pytest.mark.parametrize('stored', [0, 3])
async def test_every_start(
    client: rbs.StreamsClient, stream: str, offset: rbs.Offset, expected: list[int], stored: int
) -> None:
    await publish(client, stream, [0], [1, 2, 3], [4], [5])
    if 'reader' in repr(offset):
        await client.write_offset(stream, 'reader', 3)
        while await client.read_offset(stream, 'reader') is None:
            pass
    await store(client, stream, stored)
    assert await read(client, stream, offset=offset) == expected


@pytest.mark.parametrize('way', WAYS)
async def test_messages_published_after_the_opening_are_not_delivered(
    client: rbs.StreamsClient, stream: str, way: Callable[[rbs.Subscription], Any]
) -> None:
    await publish(client, stream, [0], [1], [2])
    await store(client, stream)
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, until='now', timeout=HANG
    ) as messages:
        found = [await anext(messages)]
        await publish(client, stream, [3], [4])
        found += await way(messages)
    assert found == [0, 1, 2]


async def test_messages_confirmed_before_the_opening_are_delivered(
    client: rbs.StreamsClient, stream: str
) -> None:
    """Every time, while another task publishes."""
    sent = 0

    async def publish_on() -> None:
        nonlocal sent
        async with client.publisher(stream) as publisher:
            while True:
                await publisher.send(sent)
                sent += 1

    task = asyncio.create_task(publish_on())
    await until(lambda: sent > 0, 'messages are published')
    for _ in range(30):
        before = sent
        start = max(0, before - 5)
        found = await read(client, stream, offset=rbs.Offset.offset(start), initial_credit=3)
        assert start + len(found) >= before
        assert found == list(range(start, start + len(found)))
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize('credit', [1, 2, 10])
@pytest.mark.parametrize('stored', [0, 1])
async def test_credit(client: rbs.StreamsClient, stream: str, credit: int, stored: int) -> None:
    """The broker delivers less than there is, and continues with the credit that it gets back."""
    await publish(client, stream, *([i] for i in range(40)))
    await store(client, stream, stored)
    assert await read(client, stream, initial_credit=credit) == list(range(40))


@pytest.mark.parametrize('last', [98, 99])
@pytest.mark.parametrize('credit', [1, 10])
@pytest.mark.parametrize('stored', [0, 2])
async def test_filter(
    client: rbs.StreamsClient, stream: str, last: int, credit: int, stored: int
) -> None:
    """The broker delivers no chunk without such messages, even if it is the last one."""
    await publish(client, stream, *([i] for i in range(last + 1)))
    await store(client, stream, stored)
    wanted = rbs.MessageFilter(parity, {'odd'})
    expected = [*range(1, last + 1, 2)]
    assert await read(client, stream, filter=wanted, initial_credit=credit) == expected
    none = rbs.MessageFilter(parity, {'none'})
    assert await read(client, stream, filter=none, initial_credit=credit) == []


@pytest.mark.parametrize('compression', ['none', 'gzip'])
@pytest.mark.parametrize('amqp', [True, False])
async def test_sub_entries(
    client: rbs.StreamsClient, stream: str, compression: str, amqp: bool
) -> None:
    sent = [b'%d' % i for i in range(250)]
    async with client.publisher(
        stream, sub_entry_size=100, compression=compression, amqp=amqp
    ) as publisher:
        await publisher.send_many(sent)
    for way in WAYS:
        assert await read(client, stream, way=way, amqp=amqp) == sent
        for start, stop in ((0, 0), (0, 1), (0, 130), (40, 60), (99, 100), (110, 240), (120, 7)):
            found = await read(
                client,
                stream,
                rbs.Offset.offset(stop),
                rbs.Offset.offset(start),
                way=way,
                amqp=amqp,
            )
            assert found == sent[start:stop]


@pytest.mark.parametrize('stored', [0, 2])
async def test_lost_connections(client: rbs.StreamsClient, stream: str, stored: int) -> None:
    await publish(client, stream, *([i] for i in range(30)))
    await store(client, stream, stored)
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, until='now', timeout=HANG, initial_credit=2
    ) as messages:
        body: Any
        found = []
        async for body in messages:
            found.append(body)
            if body % 5 == 0 or body == 29:
                await cut(client)
                await publish(client, stream, [100 + body])
    assert found == list(range(30))


async def test_missing_stream(client: rbs.StreamsClient, stream_name: str) -> None:
    with pytest.raises(StreamDoesNotExist):
        await read(client, stream_name)


async def test_stream_created_again(client: rbs.StreamsClient, stream: str) -> None:
    """It is read to its own end."""
    await publish(client, stream, *([i] for i in range(30)))
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, until='now', timeout=HANG, initial_credit=1
    ) as messages:
        assert await anext(messages) == 0
        await client.delete_stream(stream)
        lost = session_of(messages).registration
        await until(lambda: not lost.is_open, 'the subscription is lost')
        await client.create_stream(stream)
        await publish(client, stream, [100], [101])
        with pytest.raises(StreamDoesNotExist):
            await bodies(messages)
        assert await bodies(messages) == [100, 101]


async def test_offset_is_stored_at_the_end(client: rbs.StreamsClient, stream: str) -> None:
    """The next run continues there; the last message counts as finished."""
    tracking = rbs.OffsetTracking('reader', every=0, interval=0)
    for expected in ([0, 1, 2], [], [3], []):
        await publish(client, stream, *([i] for i in expected))
        messages = client.subscribe(
            stream,
            offset=rbs.Offset.reference('reader'),
            until='now',
            commit=tracking,
            timeout=HANG,
        )
        assert await bodies(messages) == expected
        if expected:  # the iteration has ended, and nothing closes the subscription
            stored = await client.read_offset(stream, 'reader')
            assert stored is not None


async def test_ended_subscription_leaves_the_broker() -> None:
    stream = stream_of_chunks(2)
    async with subscribe_to_fake(stream, until='now') as messages:
        assert await bodies(messages) == [b'0', b'1']
        assert not stream.reader.live
        stream.append(b'late')
        assert await bodies(messages) == []


# -- offsets and times

SLICES = ((0, 0), (0, 1), (0, 3), (2, 3), (3, 5), (4, 2), (0, 6))


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize(('start', 'stop'), SLICES)
async def test_offset_is_the_first_message_not_delivered(
    client: rbs.StreamsClient,
    stream: str,
    way: Callable[[rbs.Subscription], Any],
    start: int,
    stop: int,
) -> None:
    await publish(client, stream, [0], [1, 2, 3], [4, 5])
    found = await read(client, stream, rbs.Offset.offset(stop), rbs.Offset.offset(start), way=way)
    assert found == list(range(start, stop))


async def test_offset_after_stored_offsets(client: rbs.StreamsClient, stream: str) -> None:
    """They take up offsets, up to the end."""
    await publish(client, stream, [0, 1])
    await store(client, stream, 3)
    for stop in (2, 3, 5):
        assert await read(client, stream, rbs.Offset.offset(stop)) == [0, 1]


async def test_offset_in_the_future(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, [0, 1])
    to = rbs.Offset.offset(5)
    tasks, opened = [], []
    for offset in (rbs.Offset.FIRST, rbs.Offset.NEXT):
        messages = client.subscribe(stream, offset=offset, until=to, timeout=HANG)
        tasks.append(asyncio.create_task(bodies(messages)))
        opened.append(session_of(messages).registration)
    await until(lambda: all(item.is_open for item in opened), 'the client has subscribed')
    await publish(client, stream, [2, 3], [4, 5])
    assert await asyncio.gather(*tasks) == [[0, 1, 2, 3, 4], [2, 3, 4]]


@pytest.mark.parametrize('stop', [3, 97, 98, 99, 100])
async def test_offset_with_a_filter(client: rbs.StreamsClient, stream: str, stop: int) -> None:
    await publish(client, stream, *([i, i + 1] for i in range(0, 100, 2)))
    even = rbs.MessageFilter(parity, {'even'})
    found = await read(client, stream, rbs.Offset.offset(stop), filter=even)
    assert found == [*range(0, stop, 2)]
    none = rbs.MessageFilter(parity, {'none'})
    assert await read(client, stream, rbs.Offset.offset(stop), filter=none) == []


def has_passed(when: float) -> bool:
    return time.time() > when


async def times(client: rbs.StreamsClient, stream: str) -> list[float]:
    """Publish five chunks at different times; return the times."""
    for i in range(5):
        await publish(client, stream, [2 * i, 2 * i + 1])
        await until(partial(has_passed, time.time() + 0.002), 'the clock has advanced')
    stamps = await stored_times(client, stream)
    assert len(stamps) == 10
    return stamps


async def stored_times(client: rbs.StreamsClient, stream: str) -> list[float]:
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, until='now', timeout=HANG
    ) as messages:
        return [ctx.stream_timestamp async for ctx in messages.messages()]


async def test_time(client: rbs.StreamsClient, stream: str) -> None:
    """The subscription ends before the first chunk at or after the time."""
    stamps = await times(client, stream)
    for stamp in sorted({1.0, *stamps, stamps[4] + 0.001, stamps[-1] + 0.001}):
        expected = [i for i in range(10) if stamps[i] < stamp]
        assert await read(client, stream, rbs.Offset.timestamp(stamp)) == expected
        assert await read(client, stream, datetime.fromtimestamp(stamp, UTC)) == expected


@pytest.mark.parametrize('stored', [0, 2])
@pytest.mark.parametrize('later', [0.001, 60, 1e9])
async def test_time_after_the_last_message(
    client: rbs.StreamsClient, stream: str, stored: int, later: float
) -> None:
    """The subscription ends where 'now' would."""
    await publish(client, stream, [0, 1])
    await store(client, stream, stored)
    stamp = (await stored_times(client, stream))[-1]
    assert await read(client, stream, rbs.Offset.timestamp(stamp + later)) == [0, 1]


@pytest.mark.parametrize('shift', [-3600, 3600])
async def test_time_is_not_compared_with_the_clock_of_the_client(
    client: rbs.StreamsClient, stream: str, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = await times(client, stream)
    clock = time.time
    monkeypatch.setattr(time, 'time', lambda: clock() + shift)
    for stamp in sorted({*stamps, stamps[-1] + 0.001}):
        expected = [i for i in range(10) if stamps[i] < stamp]
        assert await read(client, stream, rbs.Offset.timestamp(stamp)) == expected


# -- arguments


@pytest.mark.parametrize(
    ('to', 'offset', 'error', 'text'),
    [
        (
            5,
            rbs.Offset.FIRST,
            ArgumentTypeError,
            r'pass Offset\.offset\(5\) or Offset',
        ),
        (b'now', rbs.Offset.FIRST, ArgumentTypeError, 'until must be str or Offset or datetime'),
        ('then', rbs.Offset.FIRST, ArgumentError, "'now', an Offset or a datetime, not 'then'"),
        (datetime(2026, 1, 1), rbs.Offset.FIRST, ArgumentError, 'has no time zone'),
        (datetime(2026, 1, 1, tzinfo=UTC), rbs.Offset.NEXT, ArgumentError, 'offset=Offset.FIRST'),
        (rbs.Offset.NEXT, rbs.Offset.FIRST, ArgumentError, 'not Offset.NEXT'),
        (rbs.Offset.reference('x'), rbs.Offset.FIRST, ArgumentError, 'Offset.offset'),
        ('now', rbs.Offset.NEXT, ArgumentError, 'offset=Offset.FIRST'),
        (rbs.Offset.timestamp(1), rbs.Offset.NEXT, ArgumentError, 'offset=Offset.FIRST'),
    ],
)
async def test_wrong_arguments(
    to: Any, offset: rbs.Offset, error: type[Exception], text: str
) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost')
    with pytest.raises(error, match=text):
        client.subscribe('orders', offset=offset, until=to)


async def test_broker_without_statistics() -> None:
    async with subscribe_to_fake(stream_of_chunks(1), '3.10.0', until='now') as messages:
        with pytest.raises(SubscriptionError, match=r'`until` requires RabbitMQ 3\.11'):
            await anext(messages)


# -- nodes


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[StreamBroker]:
    async with StreamBroker(nodes=3) as memory:
        memory.create_stream('orders')
        yield memory


async def test_moved_leader(nodes: StreamBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    for i in range(30):
        nodes.publish('orders', i)
    async with (
        rbs.streams_client(nodes.uris) as client,
        client.subscribe(
            'orders', offset=rbs.Offset.FIRST, until='now', timeout=HANG, initial_credit=1
        ) as messages,
    ):
        body: Any
        found = []
        async for body in messages:
            found.append(body)
            if body % 7 == 0:
                nodes.move_leader('orders', body % 3)
                nodes.metadata_update('orders')
                nodes.publish('orders', 100 + body)
    assert found == list(range(30))


async def test_lagging_replica(nodes: StreamBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads what the leader has, and waits until a replica has it."""
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    asked: list[bool] = []  # the leader

    def stats(session: Connection, command: StreamStats) -> dict[str, int]:
        found = session.stream(command.stream).stats()
        asked.append(session.node.number == nodes.leader(command.stream))
        if not asked[-1] and asked.count(False) <= 2:
            found |= dict.fromkeys(('last_chunk_id', 'committed_chunk_id', 'committed_offset'), 0)
        return found

    monkeypatch.setitem(HANDLERS['4.3'], Key.STREAM_STATS, stats)
    nodes.publish('orders', 0)
    nodes.publish('orders', 1)
    async with rbs.streams_client(nodes.uris) as client:
        assert await read(client, 'orders') == [0, 1]
    assert asked.count(False) >= 3


# -- on the scripted broker


async def test_answer_after_a_chunk_proves_nothing() -> None:
    """The client asks again once it has read the chunk."""
    stream = FakeStream()
    stream.append(b'0')
    stream.append(b'1')
    stream.counts_skipped = True
    stream.skip(1)
    async with subscribe_to_fake(stream, until='now', initial_credit=1) as messages:
        assert await bodies(messages) == [b'0', b'1']
    assert stream.reader.sent == 2


async def test_connection_lost_at_the_end() -> None:
    """Everything was delivered: the client need not connect again."""
    stream = stream_of_chunks(1)
    async with subscribe_to_fake(stream, until='now') as messages:
        assert await anext(messages) == b'0'
        stream.reader.peer.transport.abort()
        assert await bodies(messages) == []
    assert len(stream.readers) == 1


async def test_open_after_the_last_message() -> None:
    """The connection is lost, and nothing is left to open."""
    stream = stream_of_chunks(1)
    async with subscribe_to_fake(stream, until='now') as messages:
        await messages.open()
        assert await anext(messages) == b'0'
        registration = session_of(messages).registration
        stream.reader.peer.transport.abort()
        await until(lambda: not registration.is_open, 'the connection is lost')
        assert not messages._advance(cursor_of(messages), KINDS['body'], 0)
        await messages.open()
        assert await bodies(messages) == []
        assert len(stream.readers) == 1
        with pytest.raises(SubscriptionClosed):
            await messages.open()


async def test_damaged_last_chunk() -> None:
    stream = stream_of_chunks(1)
    data = bytearray(wire.chunk(1, [b'bad'], stream.timestamp))
    data[-1] ^= 1
    stream.append_chunk(bytes(data), 1)
    async with subscribe_to_fake(stream, until='now') as messages:
        assert await anext(messages) == b'0'
        with pytest.raises(rbs.ChunkError):
            await anext(messages)
        assert await bodies(messages) == []


async def test_answer_for_a_removed_subscription_proves_nothing() -> None:
    """The broker has removed the subscription, then answers on the same connection."""
    stream = stream_of_chunks(1, 1)
    grant = stream.grant

    def remove(peer: wire.FakeConnection, request: wire.Frame) -> None:
        if len(stream.readers) > 1:
            grant(peer, request)
            return
        stream.reader.live = False
        peer.send(MetadataUpdate(0x06, 'test').encode())

    stream.grant = remove  # type: ignore[method-assign]
    async with subscribe_to_fake(stream, until='now', initial_credit=1) as messages:
        assert await bodies(messages) == [b'0', b'1']
    assert len(stream.readers) == 2
