"""Stored offsets: by hand, automatically, and where a program starts again."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import cursor_of

HANG = 20.0  # seconds; only a safeguard
REFERENCE = 'zażółć'


def stored(fake: FakeBroker) -> list[int]:
    """Return the offsets that the client has stored, in order."""
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
    found: rbs.Subscription = client.subscribe(
        'test',
        offset=rbs.Offset.FIRST,
        timeout=HANG,
        amqp=False,
        commit=rbs.OffsetTracking(REFERENCE, every, interval),
        **arguments,
    )
    return found


async def take(messages: rbs.Subscription, n: int) -> list[Any]:
    return [await anext(messages) for _ in range(n)]


def filled(n: int, chunk: int = 5) -> FakeStream:
    stream = FakeStream()
    for i in range(0, n, chunk):
        stream.append(*(b'%d' % j for j in range(i, min(i + chunk, n))))
    return stream


# -- automatic tracking: by number of messages, by time, on close


async def test_offset_is_stored_after_a_number_of_messages() -> None:
    async with FakeBroker(on=filled(100).handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=10) as messages:
            await take(messages, 10)
            assert stored(fake) == []  # the tenth message is not finished
            await take(messages, 1)
            await until(lambda: stored(fake) == [9], 'ten messages are finished')
            await take(messages, 25)
            await until(lambda: stored(fake) == [9, 19, 29], 'thirty messages are finished')
        assert stored(fake) == [9, 19, 29, 34]


async def test_tracking_of_batches() -> None:
    """A batch is finished when the program takes the next one."""
    async with FakeBroker(on=filled(100).handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=10) as messages:
            batches = aiter(messages.batches())
            for _ in range(4):
                await anext(batches)
            await until(lambda: stored(fake) == [9], 'two batches are finished')
            assert stored(fake) == [9]
        assert stored(fake) == [9, 14]


async def test_tracking_of_contexts() -> None:
    async with (
        FakeBroker(on=filled(100).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, every=10) as messages,
    ):
        contexts = aiter(messages.messages())
        for i in range(21):
            assert (await anext(contexts)).stream_offset == i
        await until(lambda: stored(fake) == [9, 19], 'twenty messages are finished')


async def test_counting_begins_at_the_first_message() -> None:
    async with (
        FakeBroker(on=filled(100).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe(
            'test',
            offset=rbs.Offset.offset(42),
            amqp=False,
            commit=rbs.OffsetTracking(REFERENCE, 10, 0),
        ) as messages,
    ):
        await take(messages, 11)
        await until(lambda: stored(fake) == [51], 'ten messages from offset 42 are finished')


async def test_offset_is_stored_by_time_while_the_program_waits(endless_turns: None) -> None:
    stream = filled(3)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, interval=0.02) as messages,
    ):
        await take(messages, 3)
        await until(lambda: stored(fake) == [1], 'the second message is finished')
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: stored(fake) == [1, 2], 'the last message is finished')
        stream.append(b'3')
        await waiting


async def test_offset_is_stored_by_time_under_steady_traffic() -> None:
    """The program never waits for long."""
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


async def test_no_offset_is_stored_twice() -> None:
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
            await until(lambda: ticks > 1, 'the client has sent two heartbeats')
        assert stored(fake) == [0]


async def test_only_the_latest_offset_is_stored_after_a_pause_of_writing() -> None:
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
            await until(lambda: stored(fake) == [5], 'the latest offset is stored')
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
        await until(lambda: stored(fake) == [0], 'offset 0 is stored')


async def test_dropped_subscription_stores_its_offset() -> None:
    async with (
        FakeBroker(on=filled(9).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        async for body in subscribe(client):
            if body == b'4':
                break
        gc.collect()
        await until(lambda: stored(fake) == [3], 'the offset is stored')
        commands = fake.connection.commands()
        assert commands.index(wire.STORE_OFFSET) < commands.index(wire.UNSUBSCRIBE)


async def test_disconnect_stores_the_offset() -> None:
    async with FakeBroker(on=filled(9).handlers()) as fake:
        client = rbs.streams_client(fake.uri)
        messages = subscribe(client)
        await take(messages, 3)
        await client.disconnect()
        assert stored(fake) == [1]
        await messages.aclose()
        assert len(fake.connections) == 1


async def test_close_without_a_connection_stores_the_offset_on_a_new_one() -> None:
    async with FakeBroker(on=filled(9).handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client) as messages,
        ):
            await take(messages, 3)
            fake.connection.transport.abort()
            await until(lambda: not client.connected, 'the connection is lost')
        assert stored(fake) == [1]
        assert len(fake.connections) == 2


async def test_close_on_a_lagging_replica_stores_the_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica ends before the last message read, but the leader has the same stream."""

    async def chunk_ids(connection: object, stream: str) -> tuple[int, int]:
        return -1, -1

    monkeypatch.setattr('rbfly.streams._offsets.queries.counting.chunk_ids', chunk_ids)
    async with StreamBroker(nodes=3) as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        for i in range(4):
            memory.publish('test', i)
        async with subscribe(client) as messages:
            await take(messages, 3)
            memory.cut()
            await until(lambda: not client.connected, 'the connection is lost')
        assert await client.read_offset('test', REFERENCE) == 1


@pytest.mark.parametrize('how', ['aclose', 'async with', 'stop', 'failed', 'cancelled'])
async def test_close_that_cannot_connect_reports_the_unstored_offset(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def close(messages: rbs.Subscription) -> None:
        if how == 'aclose':
            await messages.aclose()
        elif how == 'stop':
            messages.stop()
            await anext(messages)
        async with messages:
            if how == 'failed':
                raise KeyError('order')
            if how == 'cancelled':
                raise asyncio.CancelledError

    async with (
        FakeBroker(on=filled(9).handlers()) as fake,
        rbs.streams_client(fake.uri, connection_name='shop', reconnect_timeout=0.2) as client,
    ):
        messages = subscribe(client)
        await take(messages, 3)
        fake.handlers[wire.Step.OPEN] = wire.RESETTING
        fake.connection.transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')
        raised = {'failed': KeyError, 'cancelled': asyncio.CancelledError}
        with pytest.raises(raised.get(how, rbs.OffsetNotStored)) as caught:
            await close(messages)
        if how == 'failed':
            [note] = caught.value.__notes__
            assert 'closing the subscription also failed: OffsetNotStored' in note
        elif how == 'cancelled':
            assert caplog.messages[-1].startswith('[shop] cannot store offset ')
        else:
            lost = 2 if how == 'stop' else 1
            assert f'offset {lost} of stream' in str(caught.value)
            assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
        await messages.aclose()
        assert await anext(messages, None) is None


async def test_due_offset_is_stored_after_a_reconnect() -> None:
    stream = filled(5)
    async with FakeBroker(on=stream.handlers()) as fake:
        async with rbs.streams_client(fake.uri) as client, subscribe(client, every=4) as messages:
            await take(messages, 3)
            fake.connection.transport.abort()
            stream.append(b'5', b'6', b'7')
            await take(messages, 5)
        # The offset due during the outage is stored after the reconnect.
        assert stored(fake) == [5, 6]


async def test_undecodable_message_is_finished_when_the_next_one_is_taken() -> None:
    stream = FakeStream()
    stream.append(b'\xff', b'\xff', b'\xff')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe(
            'test',
            offset=rbs.Offset.FIRST,
            commit=rbs.OffsetTracking(REFERENCE, 1, 0),
        ) as messages,
    ):
        for _ in range(3):
            with pytest.raises(RbFlyError):
                await anext(messages)
        await until(lambda: stored(fake) == [0, 1], 'two messages are finished')


@pytest.mark.parametrize('how', ['bodies', 'contexts', 'batches', 'joined'])
async def test_offset_is_stored_after_a_number_of_messages_that_a_filter_selects(how: str) -> None:
    even = rbs.MessageFilter(lambda ctx: str(int(ctx.body) % 2), {'0'})
    async with (
        FakeBroker(on=filled(200).handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, every=10, filter=even) as messages,
    ):
        ways: dict[str, Any] = {
            'bodies': messages,
            'contexts': messages.messages(),
            'batches': messages.batches(5),
            'joined': messages.batches(5, max_wait=HANG),
        }
        while rbs.get_message_ctx().stream_offset < 80 if messages.position else True:
            await anext(ways[how])
        # each begins after ten even numbers
        await until(lambda: stored(fake) == [19, 39, 59, 79], 'forty messages are finished')


async def test_messages_that_a_filter_drops_are_finished() -> None:
    stream = filled(20)
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {str(b'2')})
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, filter=only) as messages,
        ):
            assert await anext(messages) == b'2'
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: cursor_of(messages).position == 20, 'all messages are filtered')
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
        (('r', 1, 5.0, True), ValueError),
        (('r', 10_000, 1.0, True), ValueError),
        (('r', 10_000, 5.0, 1), TypeError),
    ],
)
def test_arguments_are_checked(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        rbs.OffsetTracking(*arguments)
    assert isinstance(caught.value, RbFlyError)


async def test_restarted_program_continues_after_its_stored_offset(
    client: rbs.StreamsClient, stream: str
) -> None:
    """The stored offset is that of a message, even if the subscription started at a timestamp."""
    async with client.publisher(stream) as publisher:
        for i in range(1000):
            publisher.batch(i)
        await publisher.flush()
    tracking = rbs.OffsetTracking('reader', every=100, interval=0)
    seen: list[Any] = []
    for start in (rbs.Offset.timestamp(0), *[rbs.Offset.reference('reader')] * 4):
        async with client.subscribe(
            stream, offset=start, commit=tracking, timeout=HANG
        ) as messages:
            found = await take(messages, 250)
        assert found[0] == (len(seen) - 1 if seen else 0)  # the last message was not finished
        seen += found[1:] if seen else found
        assert await client.read_offset(stream, 'reader') == len(seen) - 2
        if len(seen) > 700:
            break
    assert seen == list(range(len(seen)))


# -- a close before any message keeps the stored offset


@pytest.mark.parametrize('read', [0, 1])
async def test_close_before_a_message_is_finished_stores_no_offset(
    client: rbs.StreamsClient, stream: str, read: int
) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(3):
            await publisher.send(i)
    await client.write_offset(stream, 'reader', 1)
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, commit=rbs.OffsetTracking('reader', 1), timeout=HANG
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


async def test_write_offset_reconnects() -> None:
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            await client.write_offset('test', REFERENCE, 1)
            await until(lambda: stored(fake) == [1], 'the offset is stored')
            fake.connection.transport.abort()
            await until(lambda: not client.connected, 'the connection is lost')
            await client.write_offset('test', REFERENCE, 2)
        assert stored(fake) == [1, 2]


@pytest.mark.both_loops
async def test_write_offset_waits_for_the_broker_to_read() -> None:
    """Memory does not grow, though the program has no other wait."""
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        transport = (await client.get_protocol())._transport
        assert transport is not None
        reference = 'x' * 255
        for i in range(40_000):
            await client.write_offset('test', reference, i)
            assert transport.get_write_buffer_size() < 2**20 + 1000
        assert await client.read_offset('test', reference) == 39_999


async def wait_turns(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_write_offset_waits_while_writing_is_paused() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = [
            asyncio.ensure_future(client.write_offset('test', REFERENCE, i)) for i in range(3)
        ]
        await wait_turns()
        assert not any(task.done() for task in waiting)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:2])
        assert waiting[1].cancelled()
        connection.resume_writing()
        await asyncio.gather(waiting[0], waiting[2])
        await until(lambda: stored(fake) == [0, 2], 'both offsets are stored')


async def test_write_offset_survives_a_lost_connection() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = asyncio.ensure_future(client.write_offset('test', REFERENCE, 7))
        await wait_turns()
        connection.abort(StreamConnectionError('cut by the test'))
        await waiting
        await until(lambda: stored(fake) == [7], 'the offset is stored')
        assert len(fake.connections) == 2


async def test_disconnect_during_write_offset() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.pause_writing()
        waiting = asyncio.ensure_future(client.write_offset('test', REFERENCE, 7))
        await wait_turns()
        await client.disconnect()
        await asyncio.wait([waiting])
    # The call fails, or reconnects like any later call.
    assert isinstance(waiting.exception(), StreamConnectionError | None)


@pytest.fixture
async def other_stream(client: rbs.StreamsClient, stream_name: str) -> str:
    await client.create_stream(stream_name)
    return stream_name


@pytest.mark.parametrize('kind', ['bodies', 'messages', 'batches'])
async def test_write_offset_requires_that_the_last_message_is_of_the_stream(
    client: rbs.StreamsClient, stream: str, other_stream: str, kind: str
) -> None:
    """The default offset is that of the last message, which may be of another stream."""
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


# -- offsets stored by the program


async def test_program_that_keeps_its_own_offsets_continues_after_the_last_one(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
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


# -- the start without a stored offset


@pytest.mark.parametrize(
    ('default', 'first'),
    [(None, 0), (rbs.Offset.FIRST, 0), (rbs.Offset.offset(2), 2), (rbs.Offset.LAST, 3)],
)
async def test_default_of_a_reference_is_the_start_without_a_stored_offset(
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
