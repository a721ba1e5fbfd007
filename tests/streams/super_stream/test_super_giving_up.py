"""Messages to several partitions whose callers give up, on the in-memory broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of
from tests.super_streams import broker_of_orders

SOON = 0.01  # seconds; the timeout of calls that cannot end before it


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with broker_of_orders(2) as broker:
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uris, close_timeout=1) as client:
        yield client


def to_all(message: object, partitions: Sequence[str]) -> Sequence[str]:
    return partitions


def to_last_first(message: object, partitions: Sequence[str]) -> Sequence[str]:
    return partitions[1:] if message == 'last' else partitions


def is_lost(registration: Any) -> bool:
    return not registration.is_open


async def stop(broker: StreamBroker, publisher: rbs.SuperStreamPublisher, *indexes: int) -> None:
    """Stop the nodes of some partitions."""
    for i in indexes:
        broker.stop_node(broker.leader(f'orders-{i}'))
        registration = session_of(publisher._publishers[i]).registration
        await until(partial(is_lost, registration), 'the connection is lost')


async def give_up(publisher: rbs.SuperStreamPublisher, message: Any, how: str) -> None:
    """Send a message, and give up when it waits for confirms."""
    if how == 'timeout':
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.send(message, timeout=SOON)
        assert caught.value.outcome == 'unknown'
        assert not caught.value.retriable
    else:
        task = asyncio.create_task(publisher.send(message))
        await until(lambda: publisher.unconfirmed == 2, 'both partitions have the message')
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


@pytest.mark.parametrize('how', ['timeout', 'cancelled'])
async def test_close_does_not_wait_for_messages_given_up(
    broker: StreamBroker, client: rbs.StreamsClient, how: str
) -> None:
    publisher = await client.super_stream('orders').publisher(route=to_all)
    broker.lose_confirms(2)
    await give_up(publisher, 'x', how)
    await publisher.close()


@pytest.mark.parametrize('how', ['timeout', 'cancelled'])
async def test_partition_that_has_not_sent_the_message_withdraws_it(
    broker: StreamBroker, client: rbs.StreamsClient, how: str
) -> None:
    async with client.super_stream('orders').publisher(route=to_all) as publisher:
        await publisher.send('before')
        await stop(broker, publisher, 1)
        broker.lose_confirms()
        await give_up(publisher, 'x', how)
        assert publisher.unconfirmed == 1
        broker.start_node(1 - broker.leader('orders-0'))
        await publisher.send('after')
    assert broker.messages('orders-0') == ['before', 'x', 'after']
    assert broker.messages('orders-1') == ['before', 'after']


async def test_message_that_no_partition_has_sent(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=to_all) as publisher:
        await publisher.send('before')
        await stop(broker, publisher, 0, 1)
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.send('x', timeout=SOON)
        assert caught.value.outcome == 'not_sent'
        assert caught.value.retriable
        assert publisher.unconfirmed == 0
        for node in range(2):
            broker.start_node(node)
        await publisher.send('after')
    for i in range(2):
        assert broker.messages(f'orders-{i}') == ['before', 'after']


async def test_message_that_waits_for_capacity_of_its_last_partition(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    opener = client.super_stream('orders').publisher(route=to_last_first, max_unconfirmed=1)
    async with opener as publisher:
        await publisher.send('before')
        await stop(broker, publisher, 0, 1)
        full = await publisher.submit('last')
        with pytest.raises(rbs.WindowTimeout) as caught:
            await publisher.send('x', timeout=SOON)
        assert caught.value.outcome == 'not_sent'
        assert caught.value.retriable
        assert publisher.unconfirmed == 1
        for node in range(2):
            broker.start_node(node)
        await full
    assert broker.messages('orders-0') == ['before']
    assert broker.messages('orders-1') == ['before', 'last']


@pytest.mark.parametrize('how', ['timeout', 'cancelled'])
async def test_message_in_flight_is_sent_again_with_its_id(
    broker: StreamBroker, client: rbs.StreamsClient, how: str
) -> None:
    message = rbs.Message('x', publish_id=1)
    publisher = await client.super_stream('orders').publisher(route=to_all)
    broker.withhold_confirms()
    await give_up(publisher, message, how)
    again = asyncio.create_task(publisher.send(message))
    await asyncio.sleep(0)
    closing = asyncio.create_task(publisher.close())  # waits for this caller
    await asyncio.sleep(0)
    assert not closing.done()
    broker.heal()
    await again
    await closing
    for i in range(2):
        assert broker.messages(f'orders-{i}') == ['x']


async def test_message_given_up_before_a_reconnect_may_be_stored(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    message = rbs.Message('x', publish_id=1)
    async with client.super_stream('orders').publisher(route=to_all) as publisher:
        broker.lose_confirms(2)
        await give_up(publisher, message, 'timeout')
        broker.cut()
        await until(lambda: publisher.unconfirmed == 0, 'the message is not sent again')
        with pytest.raises(rbs.ArgumentError) as caught:
            await publisher.send(message)
        assert caught.value.outcome == 'unknown'


# -- send_many with an asynchronous iterator


async def paused(bodies: Sequence[str], event: asyncio.Event) -> AsyncIterator[str]:
    """Yield bodies, the last one after an event."""
    for body in bodies[:-1]:
        yield body
    await event.wait()
    yield bodies[-1]


async def test_partition_without_messages_does_not_end_send_many(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    event = asyncio.Event()
    async with client.super_stream('orders').publisher(route=to_last_first) as publisher:
        call = asyncio.create_task(publisher.send_many(paused(['last', 'last'], event)))
        await until(lambda: broker.messages('orders-1') == ['last'], 'the first one is stored')
        broker.delete_stream('orders-0')
        failed = session_of(publisher._publishers[0])
        await until(lambda: failed.core.error is not None, 'the other partition has given up')
        event.set()
        assert await call == 2
    assert broker.messages('orders-1') == ['last', 'last']


@pytest.mark.parametrize('how', ['close', 'abort'])
async def test_closing_ends_send_many_that_has_sent_nothing(
    client: rbs.StreamsClient, how: str
) -> None:
    publisher = await client.super_stream('orders').publisher(route=to_all)
    call = asyncio.create_task(publisher.send_many(paused(['x'], asyncio.Event())))
    await until(lambda: bool(publisher._partitions.receiving), 'the call waits for a message')
    if how == 'close':
        await publisher.close()
    else:
        publisher._abort(rbs.PublisherError('closed by the test'))
    with pytest.raises(rbs.PublisherError, match='is closed'):
        await call
