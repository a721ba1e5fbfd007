"""Queued messages of by_key, if the program drops the publisher or its task is cancelled."""

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import cluster_of

HANG = 20.0  # seconds; only a safeguard


@pytest_asyncio.fixture
async def keys(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A super stream with the binding keys `a` and `b`."""
    name = f'test-{uuid4()}'
    await client.super_stream(name).create(binding_keys=['a', 'b'])
    yield name
    await client.super_stream(name).delete()


def first_letter(message: Any) -> str:
    return str(message)[0]


by_key = rbs.by_key(first_letter)
Call = Callable[[], None]
BODIES = ['a1', 'b1', 'a2']


def do_nothing() -> None:
    pass


async def drop(
    client: rbs.StreamsClient, name: str, bodies: list[str], opened: Call = do_nothing
) -> None:
    publisher = await client.super_stream(name).publisher(route=by_key)
    opened()
    for body in bodies:
        publisher.batch(body)
    del publisher
    gc.collect()


async def cancel(
    client: rbs.StreamsClient, name: str, bodies: list[str], opened: Call = do_nothing
) -> None:
    queued = asyncio.Event()

    async def work() -> None:
        async with client.super_stream(name).publisher(route=by_key) as publisher:
            opened()
            for body in bodies:
                publisher.batch(body)
            queued.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await queued.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


WAYS = {'dropped': drop, 'cancelled': cancel}


@pytest.mark.parametrize('how', WAYS)
async def test_messages_whose_routes_are_unknown_are_sent(
    client: rbs.StreamsClient, keys: str, how: str
) -> None:
    await WAYS[how](client, keys, BODIES)
    for key, bodies in {'a': ['a1', 'a2'], 'b': ['b1']}.items():
        reader = client.subscribe(f'{keys}-{key}', offset=rbs.Offset.FIRST, timeout=HANG)
        assert [await anext(reader) for _ in bodies] == bodies
        await reader.aclose()


@pytest.mark.parametrize('how', WAYS)
async def test_publisher_is_closed_when_they_are_sent(how: str) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_super_stream('orders', binding_keys=['a', 'b'])
        await WAYS[how](client, 'orders', BODIES)
        streams = cluster_of(memory).streams()
        await until(lambda: not any(item.clients for item in streams), 'it is closed', HANG)
        assert memory.messages('orders-a') == ['a1', 'a2']
        assert memory.messages('orders-b') == ['b1']


@pytest.mark.parametrize('how', WAYS)
async def test_messages_that_cannot_be_sent_are_logged(
    caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.WARNING, 'rbfly.streams')
    async with StreamBroker() as memory:
        memory.create_super_stream('orders', binding_keys=['a', 'b'])
        async with rbs.streams_client(memory.uri, close_timeout=0.1) as client:
            await WAYS[how](client, 'orders', ['x', 'a1'])  # no partition is bound to x
            await until(lambda: memory.messages('orders-a') == ['a1'], 'the other is sent', HANG)
            await until(lambda: 'were not sent: 1' in caplog.text, 'it is logged', HANG)
            await WAYS[how](client, 'orders', BODIES, memory.stall)
            await until(lambda: 'were not sent: 3' in caplog.text, 'it is logged', HANG)
            memory.heal()


async def test_close_after_the_cancellation_waits_for_them() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_super_stream('orders', binding_keys=['a', 'b'])
        publisher: rbs.SuperStreamPublisher | None = None

        async def work() -> None:
            nonlocal publisher
            async with client.super_stream('orders').publisher(route=by_key) as publisher:
                publisher.batch('a1')
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        await asyncio.wait([asyncio.create_task(work())])
        assert publisher is not None
        await publisher.close()
        assert memory.messages('orders-a') == ['a1']


@pytest.mark.parametrize('how', ['flush', 'close'])
async def test_publisher_is_released_after_an_error(how: str) -> None:
    """It is released with the error, without a garbage collection."""
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_super_stream('orders', binding_keys=['a', 'b'])
        publisher = await client.super_stream('orders').publisher(route=by_key)
        released = weakref.ref(publisher)
        gc.collect()
        gc.disable()
        try:
            publisher.batch('c')
            with contextlib.suppress(rbs.NoRouteError):
                await getattr(publisher, how)()
                pytest.fail('it raises NoRouteError')
            await publisher.close()
            del publisher
            await until(lambda: released() is None, 'the publisher is released')
        finally:
            gc.enable()
