"""Opening publishers, with `await` and with `async with`; what a publisher keeps."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any, assert_type
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.streams.error import (
    PublisherError,
    PublishError,
    RbFlyError,
    StreamDoesNotExist,
    WindowTimeout,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Handler, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, connection_of, core_of
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_publish_recovery import missing, published
from tests.streams.test_misuse import Held

HANG = 10.0  # seconds; only a safeguard


def tries(fake: FakeBroker, key: int) -> int:
    """Count the requests of a command."""
    return sum(peer.commands().count(key) for peer in fake.connections)


# -- a publisher is an object


@pytest.mark.parametrize('wait', [True, False])
async def test_awaited_publisher_lasts_until_it_is_closed(
    client: rbs.StreamsClient, stream: str, wait: bool
) -> None:
    publisher = await client.publisher(stream, name='shop', amqp=False, wait=wait)
    gc.collect()
    await publisher.send(b'one')
    with pytest.raises(RbFlyError, match='already has a publisher'):
        await client.publisher(stream, name='shop')
    await publisher.send(b'two')
    await publisher.close()
    with pytest.raises(PublisherError, match='closed'):
        await publisher.send(b'three')
    await publisher.close()  # has no effect
    other = await client.publisher(stream, name='shop', amqp=False)
    assert other.message_id == 3
    await other.send(b'three')
    await other.close()
    assert await stored(client, stream) == [b'one', b'two', b'three']


@pytest.mark.parametrize('wait', [True, False])
async def test_awaited_batch_publisher(client: rbs.StreamsClient, stream: str, wait: bool) -> None:
    publisher = await client.publisher(stream, amqp=False, wait=wait)
    for number in range(100):
        publisher.batch(b'%d' % number)
    await publisher.flush()
    publisher.batch(b'last')
    await publisher.close()
    assert await stored(client, stream) == [*(b'%d' % i for i in range(100)), b'last']


@pytest.mark.parametrize('wait', [True, False])
async def test_closing_an_awaited_publisher_raises_failures_of_submit(wait: bool) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refuse()}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('test', wait=wait)
        await publisher.submit('x')
        with pytest.raises(PublishError):
            await publisher.close()


async def test_result_types() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        plain = await client.publisher('test')
        batch = await client.publisher('test')
        later = await client.publisher('test', cls=None, wait=False)
        assert_type(plain, rbs.Publisher)
        assert_type(batch, rbs.Publisher)
        assert_type(later, rbs.Publisher)
        async with (
            client.publisher('test') as one,
            client.publisher('test', cls=rbs.PublisherBatchLimit) as two,
        ):
            assert_type(one, rbs.Publisher)
            assert_type(two, rbs.PublisherBatchLimit)
        for publisher in (plain, batch, later):
            await publisher.close()


@pytest.mark.parametrize('cls', [asyncio.Lock, dict, 'Publisher', lambda *args: None])
async def test_classes_that_are_no_publishers_are_refused(cls: Any) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/')
    with pytest.raises(TypeError, match='cls must be Publisher') as caught:
        client.publisher('test', cls=cls)
    assert isinstance(caught.value, RbFlyError)


@pytest.mark.parametrize('wait', [1, None, 'no'])
async def test_wait_must_be_a_bool(wait: Any) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/')
    with pytest.raises(TypeError, match='wait'):
        client.publisher('test', wait=wait)


# -- dropped publishers


def drop(held: list[Any]) -> None:
    held.clear()


def drop_cycle(held: list[Any]) -> None:
    held[0].me = held[0]
    held.clear()
    gc.collect()


def drop_in_thread(held: list[Any]) -> None:
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


@pytest.mark.parametrize('how', [drop, drop_cycle, drop_in_thread])
@pytest.mark.parametrize('connected', [True, False])
async def test_dropping_the_last_reference_releases_everything(
    how: Callable[[list[Any]], None], connected: bool
) -> None:
    held = Held()
    async with (
        FakeBroker(
            at={} if connected else {Step.OPEN: wire.RESETTING}, on={wire.PUBLISH: held}
        ) as fake,
        rbs.streams_client(fake.uri, connect_timeout=HANG) as client,
    ):
        publishers = [await client.publisher('test', name='shop', wait=connected)]
        if connected:
            confirmation = await publishers[0].submit('x')
        how(publishers)
        await until(lambda: not cluster_of(client).registrations, 'the publisher is released')
        if connected:
            with pytest.raises(PublisherError, match='dropped its last reference'):
                await confirmation
            await until(lambda: tries(fake, wire.DELETE_PUBLISHER) == 1, 'it is undeclared')
            assert published(fake) == [[1]]
        fake.handlers.clear()
        async with client.publisher('test', name='shop') as other:
            await other.send('x')


# -- counters


async def test_unconfirmed_and_capacity() -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=3) as publisher,
    ):
        assert (publisher.unconfirmed, publisher.capacity) == (0, 3)
        confirmations = [await publisher.submit(i) for i in range(2)]
        assert (publisher.unconfirmed, publisher.capacity) == (2, 1)
        confirmations.append(await publisher.submit(2))
        assert (publisher.unconfirmed, publisher.capacity) == (3, 0)
        with pytest.raises(WindowTimeout):
            await publisher.submit(3, timeout=0.001)
        assert (publisher.unconfirmed, publisher.capacity) == (3, 0)
        await until(lambda: bool(held.frames), 'the first frame is sent')
        fake.handlers.clear()
        held.confirm(fake)
        await asyncio.gather(*confirmations)
        assert (publisher.unconfirmed, publisher.capacity) == (0, 3)
    assert (publisher.unconfirmed, publisher.capacity) == (0, 0)


async def test_capacity_of_a_connection_whose_write_buffer_is_full() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        connection.pause_writing()
        assert publisher.capacity == 0
        connection.resume_writing()
        assert publisher.capacity == 10_000


async def test_capacity_that_another_call_waits_for() -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=100) as publisher,
    ):
        confirmations = [await publisher.submit(i) for i in range(95)]
        assert publisher.capacity == 5
        sending = asyncio.create_task(publisher.send_many([0]))
        await until(lambda: bool(core_of(publisher).capacity.waiting), 'it waits for a whole frame')
        assert publisher.capacity == 0
        await until(lambda: bool(held.frames), 'the first frame is sent')
        fake.handlers.clear()
        held.confirm(fake)
        await asyncio.gather(*confirmations, sending)
        assert publisher.capacity == 100


async def test_capacity_after_the_client_was_disconnected(
    client: rbs.StreamsClient, stream: str
) -> None:
    publisher = await client.publisher(stream)
    await publisher.send('x')
    await client.disconnect()
    assert publisher.capacity == 0
    async with client.publisher(stream) as another:
        assert (publisher.capacity, another.capacity) == (0, 10_000)


async def test_batch_counts_as_unconfirmed(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchFast, max_unconfirmed=5) as publisher:
        for number in range(7):
            publisher.batch(number)
        assert (publisher.unconfirmed, publisher.capacity) == (7, 0)
        await publisher.flush()
        assert (publisher.unconfirmed, publisher.capacity) == (0, 5)


# -- super streams


def partitions(*names: str) -> Handler:
    return lambda connection, request: connection.respond(request, names)


@pytest.mark.parametrize('wait', [True, False])
@pytest.mark.parametrize('count', [1, 3, 4])
async def test_super_stream_is_named_as_such(count: int, wait: bool) -> None:
    names = [f'test-{i}' for i in range(count)]
    on = {wire.METADATA: missing, wire.PARTITIONS: partitions(*names)}
    async with FakeBroker(on=on) as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(StreamDoesNotExist, match='super stream') as caught:
            async with client.publisher('test', wait=wait) as publisher:
                await publisher.send('x')
        assert [name for name in names if repr(name) in str(caught.value)] == names[:3]
        assert ('...' in str(caught.value)) == (count > 3)
        assert 'does not exist' not in str(caught.value)


async def test_only_the_first_declaration_asks_for_partitions() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        publisher = await client.publisher('test')
        subscription = client.subscribe('test')
        await subscription.open()
        fake.handlers[wire.METADATA] = missing
        for peer in fake.connections:
            peer.transport.abort()
        for call in (publisher.send('x'), anext(subscription)):
            with pytest.raises(StreamDoesNotExist):
                await call
        assert tries(fake, wire.PARTITIONS) == 0
        with pytest.raises(StreamDoesNotExist):
            await client.publisher('test')
        with pytest.raises(StreamDoesNotExist):
            await anext(client.subscribe('test'))
        assert tries(fake, wire.PARTITIONS) == 2
        await publisher.close()


async def test_stream_that_does_not_exist_is_no_super_stream(
    client: rbs.StreamsClient, stream_name: str
) -> None:
    with pytest.raises(StreamDoesNotExist) as caught:
        await client.publisher(stream_name)
    assert 'super stream' not in str(caught.value)


async def test_connection_lost_while_asking_for_partitions() -> None:
    def lose(connection: Peer, request: Frame) -> None:
        fake.handlers.clear()
        connection.transport.abort()

    on = {wire.METADATA: missing, wire.PARTITIONS: lose}
    async with FakeBroker(on=on) as fake, rbs.streams_client(fake.uri) as client:
        publisher = await client.publisher('test')  # the stream exists meanwhile
        await publisher.send('x')
        await publisher.close()


async def test_super_stream_on_rabbitmq(own_client: rbs.StreamsClient) -> None:
    name = f'test-{uuid4()}'
    names = tuple(f'{name}-{i}' for i in range(3))
    locator = await own_client.get_protocol()
    create = commands.CreateSuperStream(name, names, ('0', '1', '2'), {})
    await locator.request(create, 60)
    try:
        with pytest.raises(StreamDoesNotExist, match='super stream') as caught:
            await own_client.publisher(name)
        assert all(repr(item) in str(caught.value) for item in names)
        async with own_client.publisher(names[0]) as publisher:
            await publisher.send('x')
    finally:
        await locator.request(commands.DeleteSuperStream(name), 60)
