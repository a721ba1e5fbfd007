"""What asyncio and frameworks take for a coroutine, or for a function that returns one."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

KINDS = ['stream', 'super stream']


def publisher_of(client: rbs.StreamsClient, kind: str, **options: Any) -> Any:
    if kind == 'stream':
        return client.publisher('events', **options)
    return client.super_stream('orders').publisher(route=rbs.by_hash(str), **options)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as broker:
        broker.create_stream('events')
        broker.create_super_stream('orders', partitions=2)
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uri, close_timeout=1) as client:
        yield client


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.SuperStreamPublisher])
@pytest.mark.parametrize('name', ['send', 'submit', 'send_many', 'close'])
def test_asynchronous_methods_are_coroutine_functions(cls: Any, name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(cls, name))


@pytest.mark.parametrize('kind', KINDS)
async def test_method_of_an_open_publisher_is_a_coroutine_function(
    client: rbs.StreamsClient, kind: str
) -> None:
    async with publisher_of(client, kind) as publisher:
        assert inspect.iscoroutinefunction(functools.partial(publisher.send, 'x'))


@pytest.mark.both_loops
@pytest.mark.parametrize('kind', KINDS)
async def test_tasks_open_publishers(client: rbs.StreamsClient, kind: str) -> None:
    opened = [await asyncio.create_task(publisher_of(client, kind))]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(publisher_of(client, kind))
    opened.append(task.result())
    [other] = await asyncio.gather(publisher_of(client, kind))
    loop = asyncio.get_running_loop()

    def in_thread() -> Any:
        return asyncio.run_coroutine_threadsafe(publisher_of(client, kind), loop).result()

    for publisher in [*opened, other, await asyncio.to_thread(in_thread)]:
        await publisher.send('x')
        await publisher.close()


@pytest.mark.parametrize('kind', KINDS)
async def test_task_that_opens_a_publisher_is_cancelled(
    client: rbs.StreamsClient, kind: str
) -> None:
    task = asyncio.create_task(publisher_of(client, kind, name='shop'))
    await asyncio.sleep(0)  # it begins, and has to wait for the broker
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with publisher_of(client, kind, name='shop') as publisher:  # the name is free
        await publisher.send('x')


async def test_publisher_that_is_never_opened(client: rbs.StreamsClient) -> None:
    opener = client.publisher('events')
    assert asyncio.iscoroutine(opener)
    opener.close()
    with pytest.raises(RuntimeError, match='already awaited'):
        await asyncio.create_task(opener)


async def test_cancelled_send_to_a_super_stream_is_withdrawn(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with publisher_of(client, 'super stream') as publisher:
        await publisher.send('a')
        broker.close_connections()
        sessions = [session_of(item) for item in publisher._publishers]
        broker.refuse()
        await until(lambda: not any(item.registration.is_open for item in sessions), 'all are lost')
        task = asyncio.create_task(publisher.send('b'))
        await until(lambda: publisher.unconfirmed == 1, 'the message is queued')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert publisher.unconfirmed == 0
        broker.heal()
    assert [*broker.messages('orders-0'), *broker.messages('orders-1')] == ['a']
