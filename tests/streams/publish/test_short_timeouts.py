"""Calls with a timeout that is short, or 0: their outcome is true, and repeating them helps."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.super_streams import read_partition

SOON = 0.01  # seconds; the timeout of calls that cannot end before it


@pytest_asyncio.fixture
async def keys(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A super stream with the binding keys `a` and `b`."""
    name = f'test-{uuid4()}'
    await client.super_stream(name).create(binding_keys=['a', 'b'])
    yield name
    await client.super_stream(name).delete()


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    """An in-memory broker with super stream `orders`, its binding keys `a` and `b`, and stream
    `single`."""
    async with StreamBroker() as memory:
        memory.create_super_stream('orders', binding_keys=['a', 'b'])
        memory.create_stream('single')
        yield memory


@pytest_asyncio.fixture
async def near(memory: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(memory.uri) as client:
        yield client


def first_letter(message: Any) -> str:
    return str(message)[0]


def check_unknown(error: rbs.ConfirmTimeout) -> None:
    """To repeat the messages of the call could store them twice."""
    assert error.outcome == 'unknown'
    assert not error.retriable


# -- flush


async def test_messages_that_stay_queued_are_sent_later(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        publisher.batch('x')
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.flush(timeout=0)
        check_unknown(caught.value)
        assert publisher.unconfirmed == 1
    assert await read_partition(client, stream) == ['x']


async def test_messages_without_route_that_stay_queued_are_sent_later(
    client: rbs.StreamsClient, keys: str
) -> None:
    opener = client.super_stream(keys).publisher(route=rbs.by_key(first_letter))
    async with opener as publisher:
        publisher.batch('a1')
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.flush(timeout=0)
        check_unknown(caught.value)
    assert await read_partition(client, f'{keys}-a') == ['a1']


async def test_flush_while_messages_are_in_flight(
    memory: StreamBroker, near: rbs.StreamsClient
) -> None:
    async with near.publisher('single') as publisher:
        memory.withhold_confirms()
        publisher.batch('x')
        for timeout in (SOON, 0):
            with pytest.raises(rbs.ConfirmTimeout) as caught:
                await publisher.flush(timeout=timeout)
            check_unknown(caught.value)
        memory.heal()
    assert memory.messages('single') == ['x']


async def test_flush_that_ends_before_the_route_is_known(
    memory: StreamBroker, near: rbs.StreamsClient
) -> None:
    opener = near.super_stream('orders').publisher(route=rbs.by_key(first_letter))
    async with opener as publisher:
        memory.stall()
        publisher.batch('a1')
        with pytest.raises(rbs.ConfirmTimeout, match='stay queued') as caught:
            await publisher.flush(timeout=SOON)
        check_unknown(caught.value)
        memory.heal()
    assert memory.messages('orders-a') == ['a1']


@pytest.mark.parametrize('timeout', [SOON, 0])
@pytest.mark.parametrize('stream', ['single', 'orders'])
async def test_flush_raises_while_other_messages_fill_the_window(
    memory: StreamBroker, near: rbs.StreamsClient, stream: str, timeout: float
) -> None:
    publisher: Any
    if stream == 'orders':
        route = rbs.by_hash(str)
        publisher = await near.super_stream('orders').publisher(route=route, max_unconfirmed=1)
    else:
        publisher = await near.publisher(stream, max_unconfirmed=1)
    memory.withhold_confirms()
    confirmation = await publisher.submit('x')
    with pytest.raises(rbs.WindowTimeout):
        publisher.batch('x')
    for _ in range(2):
        with pytest.raises(rbs.WindowTimeout) as caught:
            await publisher.flush(timeout=timeout)
        assert caught.value.outcome == 'not_sent'
    memory.heal()
    await publisher.flush()
    publisher.batch('x')
    await confirmation
    await publisher.close()


async def test_flush_of_a_full_partition_and_one_that_is_late(
    memory: StreamBroker, near: rbs.StreamsClient
) -> None:
    def route(message: Any, partitions: Sequence[str]) -> str:
        return partitions[int(message)]

    opener = near.super_stream('orders').publisher(route=route, max_unconfirmed=1)
    async with opener as publisher:
        memory.withhold_confirms()
        await publisher.submit(0)
        with pytest.raises(rbs.WindowTimeout):
            publisher.batch(0)
        publisher.batch(1)
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.flush(timeout=SOON)
        check_unknown(caught.value)
        memory.heal()


# -- keys


async def test_submit_without_time_succeeds_when_the_broker_has_answered(
    client: rbs.StreamsClient, keys: str
) -> None:
    opener = client.super_stream(keys).publisher(route=rbs.by_key(first_letter))
    async with opener as publisher, asyncio.timeout(20):
        with pytest.raises(rbs.WindowTimeout) as caught:
            await publisher.submit('a1', timeout=0)
        assert caught.value.outcome == 'not_sent'
        assert caught.value.retriable
        while True:
            try:
                confirmation = await publisher.submit('a2', timeout=0)
                break
            except rbs.WindowTimeout:
                await asyncio.sleep(SOON)
        await confirmation
    assert await read_partition(client, f'{keys}-a') == ['a2']


async def test_submit_without_time_of_a_key_that_is_not_bound(
    client: rbs.StreamsClient, keys: str
) -> None:
    opener = client.super_stream(keys).publisher(route=rbs.by_key(first_letter))
    async with opener as publisher, asyncio.timeout(20):
        error: rbs.PublisherError | None = None
        while error is None:
            try:
                await publisher.submit('x', timeout=0)
            except rbs.WindowTimeout:
                await asyncio.sleep(SOON)
            except rbs.NoRouteError as ex:
                error = ex


async def test_answer_for_a_call_that_has_timed_out_is_kept(
    memory: StreamBroker, near: rbs.StreamsClient
) -> None:
    opener = near.super_stream('orders').publisher(route=rbs.by_key(first_letter))
    async with opener as publisher:
        memory.stall()
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.send('a1', timeout=SOON)
        memory.heal()
        await until(lambda: not publisher._routes._asking, 'the broker has answered')
        await publisher.submit('a2', timeout=0)
    assert memory.messages('orders-a') == ['a2']
