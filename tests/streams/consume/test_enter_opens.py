"""`async with client.subscribe(...)` opens the subscription, or leaves nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import ConnectTimeout
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks
from tests.group_members import NewClient, publish, take, until_active
from tests.inside import cluster_of
from tests.super_streams import subscribe_to

HANG = 20.0  # seconds; only a safeguard
BOTH = pytest.mark.parametrize('kind', ['stream', 'super_stream'])


@pytest.fixture
def name(request: pytest.FixtureRequest, kind: str) -> str:
    """A stream, or a super stream."""
    found: str = request.getfixturevalue(kind)
    return found


def subscribe(client: rbs.StreamsClient, kind: str, name: str, **options: Any) -> Any:
    return subscribe_to(client, name, super_stream=kind == 'super_stream', **options)


def publisher(client: rbs.StreamsClient, kind: str, name: str) -> Any:
    if kind == 'stream':
        return client.publisher(name)
    return client.super_stream(name).publisher(route=rbs.by_hash(str))


def registered(client: rbs.StreamsClient) -> int:
    """The number of publishers and subscriptions that the client keeps open."""
    return len(cluster_of(client).registrations)


# -- on every broker


@BOTH
async def test_messages_published_in_the_block_are_received(
    client: rbs.StreamsClient, kind: str, name: str
) -> None:
    async with publisher(client, kind, name) as writer:
        await writer.send_many(range(100, 110))
        async with subscribe(client, kind, name, offset=rbs.Offset.NEXT) as messages:
            await writer.send_many(range(10))
            assert sorted(await take(messages, 10)) == [*range(10)]


async def test_active_is_a_bool_of_a_stream_and_partitions_of_a_super_stream(
    client: rbs.StreamsClient, stream: str, super_stream: str
) -> None:
    async with client.subscribe(stream) as single:
        assert single.active is True
    assert single.active is False
    orders = client.super_stream(super_stream)
    async with orders.subscribe() as merged:
        assert merged.active == await orders.partitions()
    assert merged.active == ()


@BOTH
async def test_member_that_stands_by_enters_and_takes_over(
    clients: NewClient, kind: str, name: str, group: str
) -> None:
    async with (
        publisher(clients(), kind, name) as writer,
        subscribe(clients(), kind, name, group=group, offset=rbs.Offset.NEXT) as standby,
    ):
        async with subscribe(clients(), kind, name, group=group, offset=rbs.Offset.NEXT):
            await writer.send_many(range(10))
        assert sorted(await take(standby, 10)) == [*range(10)]


async def test_second_member_of_a_stream_enters_while_the_first_is_active(
    clients: NewClient, stream: str, group: str
) -> None:
    async with clients().subscribe(stream, group=group) as first:
        await until_active(first)
        async with clients().subscribe(stream, group=group) as second:
            assert not second.active
            await publish(clients(), stream, range(3))
            assert await take(first, 3) == [0, 1, 2]


@pytest.mark.parametrize('super_stream', [False, True])
async def test_missing_stream_is_raised_in_entering(
    client: rbs.StreamsClient, stream_name: str, super_stream: bool
) -> None:
    messages = subscribe_to(client, stream_name, super_stream=super_stream)
    with pytest.raises(rbs.StreamDoesNotExist) as caught:
        async with messages:
            pytest.fail('entered')
    assert caught.value.stream == stream_name
    assert registered(client) == 0
    with pytest.raises(rbs.SubscriptionClosed):
        await messages.open()


@BOTH
async def test_closed_subscription_is_not_entered(
    client: rbs.StreamsClient, kind: str, name: str
) -> None:
    messages = subscribe(client, kind, name)
    async with messages:
        pass
    for _ in range(2):
        with pytest.raises(rbs.SubscriptionClosed, match='is closed'):
            async with messages:
                pytest.fail('entered')
    unused = subscribe(client, kind, name)
    await unused.close()
    with pytest.raises(rbs.SubscriptionClosed, match='is closed'):
        async with unused:
            pytest.fail('entered')


@BOTH
async def test_open_subscription_is_entered_at_once(
    client: rbs.StreamsClient, kind: str, name: str
) -> None:
    async with publisher(client, kind, name) as writer:
        messages = subscribe(client, kind, name)
        await messages.open()
        await writer.send(1)
        async with messages:
            assert await take(messages, 1) == [1]
    assert [body async for body in messages] == []


@BOTH
async def test_nothing_to_read_before_the_end(
    client: rbs.StreamsClient, kind: str, name: str
) -> None:
    async with subscribe(client, kind, name, offset=rbs.Offset.FIRST, until='now') as messages:
        assert [body async for body in messages] == []


@BOTH
async def test_stopped_before_entering(client: rbs.StreamsClient, kind: str, name: str) -> None:
    messages = subscribe(client, kind, name)
    messages.stop()
    async with messages:
        assert [body async for body in messages] == []


@BOTH
async def test_iteration_opens_a_subscription_without_async_with(
    client: rbs.StreamsClient, kind: str, name: str
) -> None:
    async with publisher(client, kind, name) as writer:
        await writer.send_many(range(3))
    messages = subscribe(client, kind, name, offset=rbs.Offset.FIRST)
    assert sorted(await take(messages, 3)) == [0, 1, 2]
    await messages.close()


async def test_exception_of_the_block_is_not_hidden_by_a_failed_close(
    client: rbs.StreamsClient, stream: str, group: str
) -> None:
    async def on_revoke(_: str) -> None:
        raise ValueError('no disk')

    async def run() -> None:
        settings = rbs.Group(group, on_revoke=on_revoke)
        async with client.subscribe(stream, group=settings) as messages:
            await until_active(messages)
            raise KeyError('body')

    with pytest.raises(KeyError) as caught:
        await run()
    assert ['no disk' in note for note in caught.value.__notes__] == [True]


# -- cancelled


async def interrupted(enter: Callable[[], Awaitable[Any]], turns: int) -> bool:
    """Cancel a call after a number of turns of the event loop; false if it has ended before."""
    task = asyncio.ensure_future(enter())
    for _ in range(turns):
        await asyncio.sleep(0)
    is_done = task.done()
    task.cancel()
    await asyncio.wait([task])
    return not is_done


@pytest.mark.both_loops
@pytest.mark.parametrize('options', [{}, {'group': 'billing'}])
@pytest.mark.parametrize('kind', ['stream', 'super_stream'])
async def test_cancelled_while_it_opens(kind: str, options: dict[str, Any]) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('stream')
        memory.create_super_stream('super_stream', partitions=3)

        def declared() -> list[Any]:
            return [item for stream in cluster_of(memory).streams() for item in stream.clients]

        for turns in count(1):
            messages = subscribe(client, kind, kind, **options)
            was_cancelled = await interrupted(messages.__aenter__, turns)
            if not was_cancelled:
                await messages.close()
                break
            assert registered(client) == 0
            with pytest.raises(rbs.SubscriptionClosed):
                await messages.open()
            await client.ping(None)
            await until(lambda: not declared(), 'the broker has forgotten it', HANG)
        assert turns > 5


async def test_cancelled_while_the_broker_does_not_answer() -> None:
    async with (
        FakeBroker(on={wire.SUBSCRIBE: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = client.subscribe('test')
        task = asyncio.ensure_future(messages.__aenter__())
        await until(
            lambda: fake.has_received(wire.SUBSCRIBE),
            'the client subscribes',
        )
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert registered(client) == 0
        with pytest.raises(rbs.SubscriptionClosed):
            await messages.fetch()


# -- errors


async def test_time_to_wait_for_messages_does_not_limit_opening() -> None:
    stream = stream_of_chunks(1)
    entered = asyncio.Event()

    async def enter(client: rbs.StreamsClient) -> None:
        async with client.subscribe('test', timeout=0.01, amqp=False) as messages:
            entered.set()
            with pytest.raises(rbs.MessageTimeout):
                await anext(messages)

    stream.on_subscribe = lambda reader: 0 if len(stream.readers) == 1 else wire.OK
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        task = asyncio.create_task(enter(client))
        await until(lambda: bool(stream.readers), 'the client subscribes')
        await asyncio.sleep(0.05)  # by the same clock, longer than `timeout`
        assert not entered.is_set()
        fake.connection.transport.abort()
        await task


@BOTH
async def test_broker_that_cannot_be_reached(down: FakeBroker, kind: str) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=0.2) as client:
        with pytest.raises(ConnectTimeout):
            async with subscribe(client, kind, 'test'):
                pytest.fail('entered')
        assert registered(client) == 0


async def test_refused_subscription() -> None:
    stream = FakeStream()
    stream.on_subscribe = lambda reader: 0x10  # access refused
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(rbs.ProtocolError):
            async with client.subscribe('test'):
                pytest.fail('entered')
        assert registered(client) == 0


async def test_error_of_the_offset_function(client: rbs.StreamsClient, stream: str) -> None:
    async def start(_: str) -> rbs.Offset:
        raise KeyError('no database')

    with pytest.raises(KeyError, match='no database'):
        async with client.subscribe(stream, offset=start):
            pytest.fail('entered')
    assert registered(client) == 0


async def test_gap_is_left_to_the_iteration() -> None:
    stream = stream_of_chunks(3, 3)
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        del stream.chunks[0]  # by retention
        async with client.subscribe(
            'test', offset=rbs.Offset.offset(1), on_gap='raise', amqp=False, timeout=HANG
        ) as messages:
            with pytest.raises(rbs.OffsetGapError):
                await anext(messages)
            assert await anext(messages) == b'3'


async def test_wrong_event_loop_leaves_the_subscription_open(
    client: rbs.StreamsClient, stream: str
) -> None:
    async def enter(messages: rbs.Subscription) -> None:
        async with messages:
            pytest.fail('entered')

    async with client.subscribe(stream) as messages:
        with pytest.raises(rbs.EventLoopError):
            await asyncio.to_thread(lambda: asyncio.run(enter(messages)))
        await publish(client, stream, [1])
        assert await take(messages, 1) == [1]
