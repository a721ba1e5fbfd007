"""Offsets that are stored: by hand, now and then, and where a program starts again."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.streams import tracking
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests import fake as wire
from tests.brokers import until
from tests.fake import FakeBroker, Frame
from tests.fake import FakeConnection as Peer
from tests.fake_stream import FakeStream

HANG = 20.0  # a guard only
REFERENCE = 'zażółć'


def stored(fake: FakeBroker) -> list[int]:
    """Offsets that the client has stored, in order."""
    found = []
    for connection in fake.connections:
        for frame in connection.frames:
            if frame.key == wire.STORE_OFFSET:
                head = wire.string(REFERENCE) + wire.string('test')
                assert frame.body[:-8] == head
                found.append(struct.unpack('>Q', frame.body[-8:])[0])
    return found


def subscribe(
    client: rbs.StreamsClient, every: int = 0, interval: float = 0, **arguments: Any
) -> rbs.Subscription:
    return client.subscribe(
        'test',
        offset=rbs.Offset.FIRST,
        timeout=HANG,
        amqp=False,
        auto_offset=rbs.OffsetTracking(REFERENCE, every, interval),
        **arguments,
    )


async def take(messages: rbs.Subscription, n: int) -> list[Any]:
    return [await anext(messages) for _ in range(n)]


def filled(n: int, chunk: int = 5) -> FakeStream:
    stream = FakeStream()
    for i in range(0, n, chunk):
        stream.append(*(b'%d' % j for j in range(i, min(i + chunk, n))))
    return stream


# -- automatic tracking: by number, by time, when it is closed, offset 0, not backwards


async def test_by_number() -> None:
    async with FakeBroker(on=filled(100).handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=10) as messages:
            await take(messages, 10)
            assert stored(fake) == []  # the tenth is not done with
            await take(messages, 1)
            await until(lambda: stored(fake) == [9], 'ten are')
            await take(messages, 25)
            await until(lambda: stored(fake) == [9, 19, 29], 'and so on')
        assert stored(fake) == [9, 19, 29, 34]


async def test_of_batches() -> None:
    """A batch is done with when the next is asked for."""
    async with FakeBroker(on=filled(100).handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=10) as messages:
            batches = aiter(messages.batches())
            for _ in range(4):
                await anext(batches)
            await until(lambda: stored(fake) == [9], 'two of five')
            assert stored(fake) == [9]
        assert stored(fake) == [9, 14]


async def test_of_contexts() -> None:
    async with (
        FakeBroker(on=filled(100).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, every=10) as messages,
    ):
        contexts = aiter(messages.messages())
        for i in range(21):
            assert (await anext(contexts)).stream_offset == i
        await until(lambda: stored(fake) == [9, 19], 'by number')


async def test_counting_begins_at_the_first_message() -> None:
    async with (
        FakeBroker(on=filled(100).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe(
            'test',
            offset=rbs.Offset.offset(42),
            amqp=False,
            auto_offset=rbs.OffsetTracking(REFERENCE, 10, 0),
        ) as messages,
    ):
        await take(messages, 11)
        await until(lambda: stored(fake) == [51], 'ten from 42 on')


async def test_by_time_while_waiting() -> None:
    stream = filled(3)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, interval=0.02) as messages,
    ):
        await take(messages, 3)
        await until(lambda: stored(fake) == [1], 'the last is not done with')
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: stored(fake) == [1, 2], 'it is')
        stream.append(b'3')
        await waiting


async def test_by_time_under_steady_traffic() -> None:
    """It comes though the program never waits for long."""
    stream = filled(5)
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, interval=0.05) as messages,
        ):
            n = 0
            async for _ in messages:
                n += 1
                if n % 5 == 0:
                    stream.append(*[b'x'] * 5)
                if len(stored(fake)) >= 3:
                    break
        offsets = stored(fake)
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == n - 2


async def test_nothing_is_stored_twice() -> None:
    ticks = 0

    def on_heartbeat(connection: Peer, request: Frame) -> None:
        nonlocal ticks
        ticks += 1

    handlers = filled(3).handlers() | {wire.HEARTBEAT: on_heartbeat}
    async with FakeBroker(on=handlers, tune=(0, 1)) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, interval=0.02) as messages,
        ):
            await take(messages, 2)
            await until(lambda: ticks > 1, 'time goes by')
        assert stored(fake) == [0]


async def test_offsets_wait_for_the_connection() -> None:
    """While it takes nothing more, none is stored; then the newest one."""
    stream = filled(10)
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, every=1) as messages,
        ):
            await take(messages, 1)
            connection = await client.get_protocol()
            connection.pause_writing()
            await take(messages, 5)
            connection.resume_writing()
            await take(messages, 1)
            await until(lambda: stored(fake) == [5], 'stored')
            connection.pause_writing()
            await take(messages, 1)
        assert stored(fake) == [5, 6]


async def test_offset_zero_is_stored() -> None:
    async with (
        FakeBroker(on=filled(2).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, every=1) as messages,
    ):
        await take(messages, 2)
        await until(lambda: stored(fake) == [0], 'offset 0')


async def test_last_reference_goes() -> None:
    async with (
        FakeBroker(on=filled(9).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        async for body in subscribe(client):
            if body == b'4':
                break
        gc.collect()
        await until(lambda: stored(fake) == [3], 'stored')
        commands = fake.connection.commands()
        assert commands.index(wire.STORE_OFFSET) < commands.index(wire.UNSUBSCRIBE)


async def test_client_is_disconnected() -> None:
    async with FakeBroker(on=filled(9).handlers()) as fake:
        client = rbs.streams_client(fake.uri)
        messages = subscribe(client)
        await take(messages, 3)
        await client.disconnect()
        assert stored(fake) == [1]
        await messages.aclose()
        assert len(fake.connections) == 1


async def test_closing_without_connection_stores_on_another_one() -> None:
    async with FakeBroker(on=filled(9).handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client) as messages,
        ):
            await take(messages, 3)
            fake.connection.transport.abort()
            await until(lambda: not client.connected, 'it is lost')
        assert stored(fake) == [1]
        assert len(fake.connections) == 2


async def test_closing_stores_where_a_replica_lags_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends before what was read, but the leader does not: the stream is the same."""

    async def chunk_ids(connection: object, stream: str) -> tuple[int, int]:
        return -1, -1

    monkeypatch.setattr(tracking, 'chunk_ids', chunk_ids)
    async with StreamBroker(nodes=3) as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        for i in range(4):
            memory.publish('test', i)
        async with subscribe(client) as messages:
            await take(messages, 3)
            memory.cut()
            await until(lambda: not client.connected, 'it is lost')
        assert await client.read_offset('test', REFERENCE) == 1


async def test_closing_while_no_connection_can_be_made(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker(on=filled(9).handlers()) as fake:
        async with rbs.streams_client(fake.uri, reconnect_timeout=0.2) as client:
            messages = subscribe(client)
            await take(messages, 3)
            fake.handlers[wire.Step.OPEN] = wire.RESETTING
            fake.connection.transport.abort()
            await until(lambda: not client.connected, 'it is lost')
            await messages.aclose()
        assert 'cannot store offset' in caplog.text


async def test_goes_on_over_a_lost_connection() -> None:
    stream = filled(5)
    async with FakeBroker(on=stream.handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=4) as messages:
            await take(messages, 3)
            fake.connection.transport.abort()
            stream.append(b'5', b'6', b'7')
            await take(messages, 5)
        # The one that was due got lost; it is made up for when there is a connection again.
        assert stored(fake) == [5, 6]


async def test_undecodable_message_is_done_with_behind_it() -> None:
    stream = FakeStream()
    stream.append(b'\xff', b'\xff', b'\xff')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe(
            'test',
            offset=rbs.Offset.FIRST,
            auto_offset=rbs.OffsetTracking(REFERENCE, 1, 0),
        ) as messages,
    ):
        for _ in range(3):
            with pytest.raises(RbFlyError):
                await anext(messages)
        await until(lambda: stored(fake) == [0, 1], 'two were left behind')


async def test_messages_that_a_filter_drops_are_done_with() -> None:
    stream = filled(20)
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {str(b'2')})
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, filter=only) as messages,
        ):
            assert await anext(messages) == b'2'
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: messages._session.cursor.position == 20, 'all were looked at')
            waiting.cancel()
            await asyncio.wait([waiting])
        assert stored(fake) == [19]


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        (('x' * 256,), ValueError),
        ((5,), TypeError),
        (('r', -1), ValueError),
        (('r', 1.5), TypeError),
        (('r', True), TypeError),
        (('r', None), TypeError),
        (('r', 1, None), TypeError),
        (('\ud800',), ValueError),
        (('r', 1, float('inf')), ValueError),
        (('r', 1, -1.0), ValueError),
        (('r', 1, float('nan')), ValueError),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        rbs.OffsetTracking(*arguments)
    assert isinstance(caught.value, RbFlyError)


async def test_on_a_broker(client: rbs.StreamsClient, stream: str) -> None:
    """A program that starts again goes on where it was; a timestamp is never stored (57)."""
    async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
        for i in range(1000):
            publisher.batch(i)
        await publisher.flush()
    tracking = rbs.OffsetTracking('reader', every=100, interval=0)
    seen: list[Any] = []
    for start in (rbs.Offset.timestamp(0), *[rbs.Offset.reference('reader')] * 4):
        async with client.subscribe(
            stream, offset=start, auto_offset=tracking, timeout=HANG
        ) as messages:
            found = await take(messages, 250)
        assert found[0] == (len(seen) - 1 if seen else 0)  # the last was not done with
        seen += found[1:] if seen else found
        assert await client.read_offset(stream, 'reader') == len(seen) - 2
        if len(seen) > 700:
            break
    assert seen == list(range(len(seen)))


# -- closing before any message keeps what is stored


@pytest.mark.parametrize('read', [0, 1])
async def test_closing_before_a_message_is_done_with(
    client: rbs.StreamsClient, stream: str, read: int
) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(3):
            await publisher.send(i)
    await client.write_offset(stream, 'reader', 1)
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, auto_offset=rbs.OffsetTracking('reader', 1), timeout=HANG
    ) as messages:
        await take(messages, read)
    assert await client.read_offset(stream, 'reader') == 1


# -- storing by hand


async def test_stored_offset_may_go_back(client: rbs.StreamsClient, stream: str) -> None:
    assert await client.read_offset(stream, 'reader') is None
    for value in (7, 2**64 - 1, 0, 3):
        await client.write_offset(stream, 'reader', value)
        assert await client.read_offset(stream, 'reader') == value
    assert await client.read_offset(stream, 'another') is None
    with pytest.raises(StreamDoesNotExist):
        await client.read_offset('no-such-stream', 'reader')


async def test_offset_is_stored_on_the_next_connection() -> None:
    """A lost connection is waited for; the offset does not vanish."""
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            await client.write_offset('test', REFERENCE, 1)
            await until(lambda: stored(fake) == [1], 'stored')
            fake.connection.transport.abort()
            await until(lambda: not client.connected, 'it is lost')
            await client.write_offset('test', REFERENCE, 2)
        assert stored(fake) == [1, 2]


@pytest.mark.both_loops
async def test_writing_offsets_does_not_fill_the_memory() -> None:
    """Though the program gives the broker no turn to read."""
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        transport = (await client.get_protocol())._transport
        assert transport is not None
        reference = 'x' * 255
        for i in range(40_000):
            await client.write_offset('test', reference, i)
            assert transport.get_write_buffer_size() < 2**20 + 1000
        assert await client.read_offset('test', reference) == 39_999


async def turns(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_writing_an_offset_waits_for_the_connection() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = [
            asyncio.ensure_future(client.write_offset('test', REFERENCE, i)) for i in range(3)
        ]
        await turns()
        assert not any(task.done() for task in waiting)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:2])
        assert waiting[1].cancelled()
        connection.resume_writing()
        await asyncio.gather(waiting[0], waiting[2])
        await until(lambda: stored(fake) == [0, 2], 'stored')


async def test_connection_is_lost_while_an_offset_waits() -> None:
    """It is stored over the next one."""
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = asyncio.ensure_future(client.write_offset('test', REFERENCE, 7))
        await turns()
        connection.abort(StreamConnectionError('cut by the test'))
        await waiting
        await until(lambda: stored(fake) == [7], 'stored')
        assert len(fake.connections) == 2


async def test_client_is_disconnected_while_an_offset_waits() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = asyncio.ensure_future(client.write_offset('test', REFERENCE, 7))
        await turns()
        await client.disconnect()
        await asyncio.wait([waiting])
    # The connection it waited for is gone: it fails, or connects again, as any later use does.
    assert isinstance(waiting.exception(), StreamConnectionError | None)


@pytest.fixture
async def other_stream(client: rbs.StreamsClient, stream_name: str) -> str:
    await client.create_stream(stream_name)
    return stream_name


@pytest.mark.parametrize('kind', ['bodies', 'messages', 'batches'])
async def test_last_message_must_be_of_the_named_stream(
    client: rbs.StreamsClient, stream: str, other_stream: str, kind: str
) -> None:
    """Its offset says nothing about another stream that the task reads, too."""
    for name, n in ((stream, 2), (other_stream, 30)):
        async with client.publisher(name) as publisher:
            await publisher.send_many(range(n))

    def subscribe(name: str) -> AsyncIterator[Any]:
        messages = client.subscribe(name, offset=rbs.Offset.FIRST, timeout=HANG)
        return messages if kind == 'bodies' else getattr(messages, kind)()

    one, other = subscribe(stream), subscribe(other_stream)
    await anext(one)
    for _ in range(1 if kind == 'batches' else 30):
        await anext(other)
    with pytest.raises(rbs.MessageContextError, match='pass the offset') as caught:
        await client.write_offset(stream, 'reader')
    assert isinstance(caught.value, LookupError)
    assert repr(stream) in str(caught.value)
    assert repr(other_stream) in str(caught.value)
    await client.write_offset(other_stream, 'reader')
    await client.write_offset(stream, 'reader', 0)
    assert await client.read_offset(stream, 'reader') == 0
    assert await client.read_offset(other_stream, 'reader') == rbs.get_message_ctx().stream_offset
    if kind != 'batches':
        await anext(one)
        await client.write_offset(stream, 'reader')
        assert await client.read_offset(stream, 'reader') == 1


# -- a store of one's own


async def test_store_of_ones_own(client: rbs.StreamsClient, stream: str) -> None:
    """A program that keeps its offsets itself starts again exactly behind the last one."""
    async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
        for i in range(100):
            publisher.batch(i)
        await publisher.flush()
    store = -1
    seen = []
    while store < 99:
        async with client.subscribe(
            stream, offset=rbs.Offset.offset(store + 1), timeout=HANG
        ) as messages:
            contexts = aiter(messages.messages())
            for _ in range(min(7, 99 - store)):
                ctx = await anext(contexts)
                seen.append(ctx.body)
                store = ctx.stream_offset
    assert seen == list(range(100))


# -- where to start if nothing is stored


@pytest.mark.parametrize(
    ('default', 'first'),
    [(None, 0), (rbs.Offset.FIRST, 0), (rbs.Offset.offset(2), 2), (rbs.Offset.LAST, 3)],
)
async def test_start_if_nothing_is_stored(
    client: rbs.StreamsClient, stream: str, default: rbs.Offset | None, first: int
) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(4):
            await publisher.send(i)
    offset = rbs.Offset.reference('reader', default)
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        assert await anext(messages) == first
    await client.write_offset(stream, 'reader', 0)
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        assert await anext(messages) == 1
