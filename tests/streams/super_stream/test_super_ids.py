"""Publishing ids of publishers of super streams, on the in-memory broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.streams import MessageCtx
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import core_of, session_of
from tests.super_streams import broker_of_orders


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with broker_of_orders(3) as broker:
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uris, close_timeout=1) as client:
        yield client


def stored(broker: StreamBroker) -> list[list[Any]]:
    return [broker.messages(f'orders-{i}') for i in range(3)]


def route(message: Any, partitions: Any) -> str:
    return str(partitions[int(first_key(message))])


def ctx(body: Any, id: int) -> MessageCtx:
    return rbs.stream_message_ctx(body, publish_id=id)


def first_key(message: MessageCtx | str) -> str:
    return str((message.body if isinstance(message, MessageCtx) else message)[0])


async def test_ids_that_no_partition_took_may_be_used_again(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """In whatever order the calls give up."""
    async with client.super_stream('orders').publisher(route=route, max_unconfirmed=1) as publisher:
        broker.withhold_confirms()
        first = [asyncio.ensure_future(publisher.send(ctx(str(i), i + 1))) for i in range(2)]
        await until(lambda: publisher.unconfirmed == 2, 'two windows are full')
        late = [asyncio.ensure_future(publisher.send(ctx(str(i), i + 5))) for i in range(2)]
        waiting = [core_of(publisher._publishers[i]).capacity.waiting for i in range(2)]
        await until(lambda: all(waiting), 'both calls wait')
        for call in reversed(late):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        broker.heal()
        await asyncio.gather(*first)
        for i in range(2):
            await publisher.send(ctx(f'{i} again', i + 5))
    assert stored(broker) == [['0', '0 again'], ['1', '1 again'], []]


async def test_id_of_a_withdrawn_message_may_be_used_again(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=route) as publisher:
        await publisher.send(ctx('0', 1))
        broker.stop_node(node := broker.leader('orders-0'))
        registration = session_of(publisher._publishers[0]).registration
        await until(lambda: not registration.is_open, 'the connection is lost')
        with pytest.raises(rbs.ConfirmTimeout) as caught:
            await publisher.send(ctx('0 late', 2), timeout=0.01)
        assert caught.value.outcome == 'not_sent'
        await (await publisher.submit(ctx('1', 2)))
        broker.start_node(node)
