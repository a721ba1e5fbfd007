"""The client: streams, connections and the `connection` decorator."""

import asyncio
import functools
import gc
import inspect
import json
import resource
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import RbFlyError
from rbfly.streams.error import ProtocolError
from tests.fake_broker import CREATE, FakeBroker
from tests.leaks import Snapshot
from tests.sizes import sized


def arguments_of(broker: RabbitMQ, stream: str) -> dict[str, Any]:
    """Return the arguments of a stream, as rabbitmqctl lists them."""
    listed = broker.ctl('list_queues', '-q', '--formatter', 'json', 'name', 'arguments')
    for queue in json.loads(listed):
        if queue['name'] == stream:
            return {key: value for key, _, value in queue['arguments']}
    raise AssertionError(f'rabbitmqctl does not list {stream}')


# -- streams


async def test_create_stream_with_every_argument(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient
) -> None:
    name = f'test-{uuid4()}'
    await own_client.create_stream(
        name,
        max_length_bytes=20 * 2**30,
        max_age=timedelta(days=7, seconds=1),
        segment_size=100_000_000,
        initial_cluster_size=1,
        leader_locator='balanced',
        filter_size=32,
    )
    try:
        assert arguments_of(own_broker, name) == {
            'x-queue-type': 'stream',
            'x-max-length-bytes': 20 * 2**30,
            'x-max-age': '604801s',
            'x-stream-max-segment-size-bytes': 100_000_000,
            'x-initial-cluster-size': 1,
            'x-queue-leader-locator': 'balanced',
            'x-stream-filter-size-bytes': 32,
        }
    finally:
        await own_client.delete_stream(name)


@pytest.mark.parametrize(
    'arguments',
    [
        {'max_length_bytes': 0},
        {'max_length_bytes': -1},
        {'max_length_bytes': 2**63},
        {'max_age': timedelta(0)},
        {'max_age': timedelta(seconds=-1)},
        {'max_age': timedelta(seconds=1.5)},
        {'segment_size': 0},
        {'segment_size': 3_000_000_001},
        {'initial_cluster_size': 0},
        {'leader_locator': 'random'},
        {'filter_size': 15},
        {'filter_size': 256},
    ],
)
async def test_create_stream_refuses_bad_argument(arguments: dict[str, Any]) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/')
    with pytest.raises(ValueError, match=next(iter(arguments))) as caught:
        await client.create_stream('test', **arguments)
    assert isinstance(caught.value, RbFlyError)


@pytest.mark.parametrize('name', ['', 'a\nb', 'a\r', 'x' * 70_000, 'lone \ud800', None, 5, b'x'])
async def test_every_call_refuses_bad_stream_name(name: Any) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        for call in (client.create_stream, client.delete_stream):
            with pytest.raises((ValueError, TypeError), match=r'stream|Unicode|longer') as caught:
                await call(name)
            assert isinstance(caught.value, RbFlyError)
        with pytest.raises((ValueError, TypeError), match=r'stream|Unicode|longer'):
            async with client.publisher(name):
                pytest.fail('the publisher was opened')
        with pytest.raises((ValueError, TypeError), match=r'stream|Unicode|longer'):
            await anext(client.subscribe(name))


async def test_create_twice_with_the_same_arguments(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        await publisher.send('kept')
    await client.create_stream(stream)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert await anext(messages) == 'kept'


async def test_create_again_with_other_arguments_fails(
    client: rbs.StreamsClient, stream: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        await client.create_stream(stream, max_length_bytes=10_000)
    assert caught.value.code == 0x11
    assert stream in str(caught.value)


async def test_create_with_reserved_name_fails(client: rbs.StreamsClient) -> None:
    with pytest.raises(ProtocolError) as caught:
        await client.create_stream('amq.test')
    assert caught.value.code == 0x11


async def test_delete_of_missing_stream_succeeds(client: rbs.StreamsClient, stream: str) -> None:
    await client.delete_stream(f'test-{uuid4()}')
    await client.delete_stream(stream)
    await client.delete_stream(stream)


async def test_many_tasks_send_requests_at_once(client: rbs.StreamsClient) -> None:
    names = [f'test-{uuid4()}' for _ in range(20)]
    await asyncio.gather(*(client.create_stream(name) for name in names))
    await asyncio.gather(*(client.delete_stream(name) for name in names))


async def test_read_offset_returns_written_offset(client: rbs.StreamsClient, stream: str) -> None:
    assert await client.read_offset(stream, 'reader') is None
    await client.write_offset(stream, 'reader', 0)
    assert await client.read_offset(stream, 'reader') == 0
    await client.write_offset(stream, 'reader', 2**40)
    assert await client.read_offset(stream, 'reader') == 2**40
    assert await client.read_offset(stream, 'other') is None


# -- connections


async def test_client_connects_on_first_use() -> None:
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            assert not client.connected
            with pytest.raises(ConnectionError):
                await client.get_protocol(wait_connected=False)
            assert not fake.connections
            await client.create_stream('test')
            assert client.connected
            assert await client.get_protocol(wait_connected=False)
        assert not client.connected
        assert len(fake.connections) == 1


async def test_client_can_be_used_after_disconnect(broker: RabbitMQ, stream: str) -> None:
    client = rbs.streams_client(broker.uri)
    await client.disconnect()
    for i in range(3):
        async with client.publisher(stream) as publisher:
            await publisher.send(i)
        assert client.connected
        await client.disconnect()
        assert not client.connected
    await client.disconnect()
    async with client, client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert [await anext(messages) for _ in range(3)] == [0, 1, 2]


async def test_nested_and_parallel_client_contexts(broker: RabbitMQ, stream: str) -> None:
    client = rbs.streams_client(broker.uri)

    async def use() -> None:
        async with client:
            await client.create_stream(stream)

    async with client:
        async with client:
            await client.create_stream(stream)
        assert client.connected
        await asyncio.gather(*(use() for _ in range(5)))
        assert client.connected
    assert not client.connected


@pytest.mark.own_clock
async def test_publishers_and_subscriptions_use_separate_connections() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('a'),
        client.publisher('b'),
    ):
        subscriptions = [client.subscribe('a', timeout=0.05) for _ in range(3)]
        for subscription in subscriptions:
            with pytest.raises(TimeoutError):
                await anext(subscription)
        assert len(fake.connections) == 2
        for subscription in subscriptions:
            await subscription.aclose()
    publishing = [c for c in fake.connections if 0x0001 in c.commands()]
    consuming = [c for c in fake.connections if 0x0007 in c.commands()]
    assert len(publishing) == len(consuming) == 1
    assert publishing != consuming


def test_client_can_be_used_in_another_event_loop_later(broker: RabbitMQ, stream: str) -> None:
    client = rbs.streams_client(broker.uri)

    async def publish(body: str) -> None:
        async with client, client.publisher(stream) as publisher:
            await publisher.send(body)

    async def read() -> list[object]:
        async with client, client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
            return [await anext(messages), await anext(messages)]

    asyncio.run(publish('first'))
    asyncio.run(publish('second'))
    assert asyncio.run(read()) == ['first', 'second']


# -- the decorator


@pytest.fixture
def decorated(broker: RabbitMQ) -> rbs.StreamsClient:
    return rbs.streams_client(broker.uri)


async def test_connection_decorates_coroutine_functions(
    decorated: rbs.StreamsClient, stream: str
) -> None:
    @rbs.connection
    async def work(client: rbs.StreamsClient, stream: str, *, body: str) -> str:
        """Publish it."""
        assert client is decorated
        async with client.publisher(stream) as publisher:
            await publisher.send(body)
        assert client.connected
        return body

    assert await work(decorated, stream, body='x') == 'x'
    assert not decorated.connected
    assert work.__name__ == 'work'
    assert work.__doc__ == 'Publish it.'
    assert inspect.iscoroutinefunction(work)
    assert list(inspect.signature(work).parameters) == ['client', 'stream', 'body']


async def test_connection_raises_errors_and_disconnects(decorated: rbs.StreamsClient) -> None:
    @rbs.connection
    async def work(client: rbs.StreamsClient) -> None:
        await client.get_protocol()
        raise KeyError('mine')

    with pytest.raises(KeyError, match='mine'):
        await work(decorated)
    assert not decorated.connected


async def test_connection_decorates_async_generators(
    decorated: rbs.StreamsClient, stream: str
) -> None:
    closed = []

    @rbs.connection
    async def read(client: rbs.StreamsClient, stream: str) -> AsyncIterator[object]:
        try:
            async for message in client.subscribe(stream, offset=rbs.Offset.FIRST):
                yield message
        finally:
            closed.append(client.connected)

    async with decorated, decorated.publisher(stream) as publisher:
        await asyncio.gather(*(publisher.send(i) for i in range(5)))
    assert inspect.isasyncgenfunction(read)
    generator = read(decorated, stream)
    found = []
    async for message in generator:
        found.append(message)
        assert decorated.connected
        if len(found) == 5:
            break
    assert found == list(range(5))
    await generator.aclose()
    assert closed == [True]
    assert not decorated.connected


async def test_connection_decorates_partials(decorated: rbs.StreamsClient, stream: str) -> None:
    async def work(client: rbs.StreamsClient, stream: str, body: str) -> str:
        await client.create_stream(stream)
        return body

    async def count(client: rbs.StreamsClient, n: int) -> AsyncIterator[int]:
        await client.get_protocol()
        for i in range(n):
            yield i

    bound = rbs.connection(functools.partial(work, decorated, stream))
    assert await bound('x') == 'x'
    free = rbs.connection(functools.partial(work, body='y'))
    assert await free(decorated, stream) == 'y'
    keyword = rbs.connection(functools.partial(work, client=decorated, stream=stream))
    assert await keyword(body='z') == 'z'
    generator = rbs.connection(functools.partial(count, n=3))
    assert [i async for i in generator(decorated)] == [0, 1, 2]
    assert not decorated.connected


async def test_decorated_functions_nested_and_in_parallel(
    decorated: rbs.StreamsClient, stream: str
) -> None:
    @rbs.connection
    async def inner(client: rbs.StreamsClient, delay: float) -> bool:
        await client.create_stream(stream)
        await asyncio.sleep(delay)
        return client.connected

    @rbs.connection
    async def outer(client: rbs.StreamsClient) -> bool:
        assert await inner(client, 0)
        assert client.connected
        return all(await asyncio.gather(*(inner(client, i / 100) for i in range(5))))

    assert await outer(decorated)
    assert not decorated.connected
    assert all(await asyncio.gather(*(inner(decorated, i / 100) for i in range(5))))
    assert not decorated.connected


async def test_connection_decorates_methods(decorated: rbs.StreamsClient, stream: str) -> None:
    class Service:
        @rbs.connection
        async def work(self, client: rbs.StreamsClient, body: str) -> tuple[object, str]:
            await client.create_stream(stream)
            return self, body

    service = Service()
    assert await service.work(decorated, 'x') == (service, 'x')
    assert await service.work(client=decorated, body='y') == (service, 'y')
    assert not decorated.connected


def test_connection_refuses_other_functions() -> None:
    def plain(client: rbs.StreamsClient) -> None: ...

    for function in (plain, functools.partial(plain), print, 5):
        with pytest.raises(RbFlyError):
            rbs.connection(function)  # type: ignore[type-var]


async def test_connection_requires_a_client() -> None:
    @rbs.connection
    async def work(client: object) -> None: ...

    with pytest.raises(RbFlyError, match='work'):
        await work('not a client')


async def test_client_uses_the_first_uri_of_the_list(broker: RabbitMQ) -> None:
    with pytest.raises(ValueError, match='at least one broker'):
        rbs.streams_client([])
    async with FakeBroker() as fake:
        async with rbs.streams_client([fake.uri, broker.uri]) as client:
            await client.create_stream('test')
        assert CREATE in fake.connection.commands()


# -- leaks


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = Path('/proc/self/statm').read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def test_repeated_use_leaks_nothing() -> None:
    """Many connections, publishers and requests: constant memory, objects, sockets."""

    async def connect(fake: FakeBroker) -> None:
        for _ in range(100):
            async with rbs.streams_client(fake.uri) as client:
                await client.get_protocol()
            await fake.connections.pop().lost

    async def ask(fake: FakeBroker) -> None:
        async with rbs.streams_client(fake.uri) as client:
            for _ in range(1000):
                assert await client.stream_exists('test')
            connection = fake.connections.pop()
            connection.frames.clear()
            connection.reads.clear()
        await connection.lost

    async def publish(fake: FakeBroker) -> None:
        async with rbs.streams_client(fake.uri) as client:
            for i in range(100):
                async with client.publisher('test', name=f'name {i}') as publisher:
                    await publisher.send_many(range(10))
        for connection in fake.connections:
            await connection.lost
        fake.connections.clear()

    async with FakeBroker() as fake:
        for work in (connect, ask, publish):
            await work(fake)  # fills caches
            gc.collect()
            objects, memory, others = len(gc.get_objects()), resident_memory(), Snapshot()
            for _ in range(sized(4, 10)):
                await work(fake)
            await others.check()
            gc.collect()
            assert len(gc.get_objects()) < objects + 100, work  # less than one for each use
            assert resident_memory() < memory + sized(2, 4) * 2**20, work
