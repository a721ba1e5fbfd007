"""Messages to several partitions that only some of them can take, on the in-memory broker."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.streams import MessageCtx
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


def stored(broker: StreamBroker) -> list[list[Any]]:
    return [broker.messages(f'orders-{i}') for i in range(2)]


def route(message: MessageCtx | str, partitions: Any) -> list[str]:
    """The digits at the start of a message are the indexes of its partitions."""
    body = str(message.body if isinstance(message, MessageCtx) else message)
    return [partitions[int(digit)] for digit in body.split()[0]]


def ctx(body: str, id: int) -> MessageCtx:
    return rbs.stream_message_ctx(body, publish_id=id)


# -- batches


async def test_batch_that_a_later_partition_refuses_may_be_stored(
    client: rbs.StreamsClient,
) -> None:
    opener = client.super_stream('orders').publisher(route=route)
    async with opener as publisher:
        publisher.batch(ctx('1', 5))
        await publisher.flush()
        with pytest.raises(rbs.ArgumentError, match='other partitions may store') as caught:
            publisher.batch(ctx('01', 5))
        assert caught.value.outcome == 'unknown'
        assert not caught.value.retriable


# -- messages that one partition has taken


@pytest.mark.parametrize('submitted', [False, True])
async def test_message_is_completed_with_its_id(
    broker: StreamBroker, client: rbs.StreamsClient, submitted: bool
) -> None:
    async with client.super_stream('orders').publisher(route=route, max_unconfirmed=1) as publisher:
        broker.stop_node(node := broker.leader('orders-1'))
        registration = session_of(publisher._publishers[1]).registration
        await until(lambda: not registration.is_open, 'the connection is lost')
        first = await publisher.submit(ctx('1', 1))
        for _ in range(2):  # the second call is no better
            with pytest.raises(rbs.WindowTimeout, match='other partitions may store') as caught:
                await publisher.send(ctx('01', 2), timeout=SOON)
            assert caught.value.outcome == 'unknown'
        broker.start_node(node)
        await first
        if submitted:
            await (await publisher.submit(ctx('01', 2)))
        else:
            await publisher.send(ctx('01', 2))
        with pytest.raises(rbs.ArgumentError, match='not above'):
            await publisher.send(ctx('01', 2))
        await publisher.send(ctx('01 next', 3))
    assert stored(broker) == [['01', '01 next'], ['1', '01', '01 next']]


async def test_message_that_timed_out_waits_for_all_partitions_when_sent_again(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=route) as publisher:
        broker.stop_node(node := broker.leader('orders-1'))
        registration = session_of(publisher._publishers[1]).registration
        await until(lambda: not registration.is_open, 'the connection is lost')
        for _ in range(2):
            with pytest.raises(rbs.ConfirmTimeout, match='on all partitions'):
                await publisher.send(ctx('01', 1), timeout=SOON)
        broker.start_node(node)
        await publisher.send(ctx('01', 1))
        assert publisher.unconfirmed == 0
    assert stored(broker) == [['01'], ['01']]


@pytest.mark.own_clock
async def test_message_is_completed_after_a_partition_gave_up(broker: StreamBroker) -> None:
    async with (
        rbs.streams_client(broker.uris, reconnect_timeout=0.1) as client,
        client.super_stream('orders').publisher(route=route) as publisher,
    ):
        broker.stop_node(node := broker.leader('orders-1'))
        registration = session_of(publisher._publishers[1]).registration
        await until(lambda: not registration.is_open, 'the connection is lost')
        with pytest.raises(rbs.StreamConnectionError) as caught:
            await publisher.send(ctx('01', 1))
        assert caught.value.outcome == 'unknown'
        broker.start_node(node)
        await publisher.send(ctx('01', 1))
    assert stored(broker) == [['01'], ['01']]
