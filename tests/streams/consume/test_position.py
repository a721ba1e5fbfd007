"""The position of a message or batch that the program works on stays."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import HANG, NewClient, Reader, hand_over_late, publish, until_active
from tests.inside import session_of


async def until_lost(session: Any) -> None:
    connection = session.registration.connection
    connection._transport.abort()
    await until(lambda: session.registration.connection is not connection, 'it is lost')


async def test_position_of_a_member_that_loses_its_connection(
    clients: NewClient, stream: str, group: str
) -> None:
    await publish(clients(), stream, range(10), sub_entry_size=10)
    async with clients().subscribe(
        stream, group=group, offset=rbs.Offset.FIRST, timeout=HANG
    ) as messages:
        batch = await anext(messages.batches(6))
        await until_lost(session_of(messages))
        assert messages.position == batch.next_offset == 6
        await messages.open()
        await until_active(messages)
        assert messages.position == 6
        assert await anext(messages) == 0  # nothing was stored
        assert messages.position == 1
    assert messages.position == 1


async def test_position_of_a_member_that_hands_over_late(
    clients: NewClient, super_stream: str, group: str
) -> None:
    client = clients()
    partition = (await client.super_stream(super_stream).partitions())[1]
    await publish(client, partition, range(10), sub_entry_size=10)
    options: Any = {
        'group': group,
        'offset': rbs.Offset.FIRST,
        'timeout': HANG,
    }
    reported = client.events()
    async with client.super_stream(super_stream).subscribe(**options) as first:
        batch = await anext(first.batches(6))
        hand_over_late(first)
        second = Reader(clients().super_stream(super_stream).subscribe(**options))
        async for event in reported:
            if isinstance(event, events.HandoverLate):
                break
        await until(lambda: partition not in first.active, 'it has handed over')
        assert first.position[partition] == batch.next_offset == 6
        await second.stop()


@pytest.mark.parametrize('grouped', [True, False])
async def test_position_of_a_partition_that_is_deleted(grouped: bool) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        broker.publish('orders-0', *range(10))
        reported = client.events()
        async with client.super_stream('orders').subscribe(
            group='billing' if grouped else None,
            offset=rbs.Offset.FIRST,
            refresh_interval=0.01,
            timeout=HANG,
        ) as messages:
            batch = await anext(messages.batches(6))
            assert batch.stream == 'orders-0'
            broker.delete_stream('orders-0')
            async for event in reported:
                if isinstance(event, events.PartitionGone):
                    break
            assert messages.position == {'orders-0': 6, 'orders-1': None}


async def test_position_of_a_partition_that_is_deleted_while_a_task_waits() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        broker.publish('orders-0', *range(10))
        reported = client.events()
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, timeout=HANG
        ) as messages:
            assert [await anext(messages) for _ in range(10)] == [*range(10)]
            reading = asyncio.create_task(anext(messages))
            broker.delete_stream('orders-0')
            async for event in reported:
                if isinstance(event, events.PartitionGone):
                    break
            assert messages.position == {'orders-0': 10, 'orders-1': None}
            broker.publish('orders-1', 'next')
            assert await reading == 'next'


@pytest.mark.parametrize('max_wait', [None, 0])
@pytest.mark.parametrize('filtered', [True, False])
async def test_next_offset(
    client: rbs.StreamsClient, stream: str, filtered: bool, max_wait: float | None
) -> None:
    def odd(ctx: rbs.MessageCtx) -> str:
        return str(ctx.body % 2)

    async with client.publisher(stream, filter_extract=odd) as publisher:
        await publisher.send_many(range(10))
    only = rbs.MessageFilter(odd, {'0'}) if filtered else None
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, filter=only, timeout=HANG
    ) as messages:
        batch = await anext(messages.batches(3, max_wait=max_wait))
        assert batch.next_offset == batch.offsets[-1] + 1 > batch.offsets[0]
        contexts = [*batch.contexts(), await anext(messages.messages())]
        assert [ctx.next_offset for ctx in contexts] == [ctx.stream_offset + 1 for ctx in contexts]


async def test_next_offset_of_an_empty_batch(client: rbs.StreamsClient, stream: str) -> None:
    """It has none, rather than one that a program might store."""
    async with client.subscribe(stream) as messages:
        batch = await messages.fetch(timeout=0.01)
        with pytest.raises(IndexError):
            batch.next_offset  # noqa: B018


def test_next_offset_of_the_last_offset() -> None:
    assert rbs.MessageCtx('a', stream_offset=2**64 - 1).next_offset == 2**64
