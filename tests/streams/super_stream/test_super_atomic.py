"""Atomic batches of super streams: all messages go to one partition."""

from collections.abc import Sequence
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import ArgumentError, ArgumentTypeError, NoRouteError
from tests.streams.publish.test_publish_sub_entries import entries_of
from tests.streams.super_stream.test_super_publish import KEYS, all_stored, by_hash, key
from tests.streams.super_stream.test_super_publish import super_stream as super_stream


def order(customer: str, lines: int = 3) -> list[Any]:
    return [{'key': customer, 'line': i} for i in range(lines)]


def chosen(message: Any, names: Sequence[str]) -> str:
    return names[KEYS.index(key(message))]


@pytest.mark.parametrize('route', [by_hash, rbs.by_key(key), chosen])
async def test_batch_goes_to_the_partition_of_its_key(
    client: rbs.StreamsClient, super_stream: str, route: Any
) -> None:
    async with client.super_stream(super_stream).publisher(route=route) as publisher:
        publisher.batch({'key': 'a', 'line': -1})  # leaves first
        for customer in KEYS:
            await publisher.send_atomic(order(customer))
        await publisher.send_atomic([])
        assert publisher.unconfirmed == 0
    found = [item for items in (await all_stored(client, super_stream)).values() for item in items]
    for customer in KEYS:
        lines = [item['line'] for item in found if item['key'] == customer]
        assert lines == ([-1, 0, 1, 2] if customer == 'a' else [0, 1, 2])


async def test_batch_is_one_entry(
    broker: RabbitMQ, client: rbs.StreamsClient, super_stream: str
) -> None:
    route = rbs.by_key(key)
    async with client.super_stream(super_stream).publisher(route=route, amqp=True) as publisher:
        await publisher.send_atomic(order('b', 5))
    ((_, messages),) = await entries_of(broker, f'{super_stream}-b', 5)
    assert len(messages) == 5


@pytest.mark.parametrize('route', [rbs.by_key(key), chosen])
async def test_messages_of_several_partitions(
    client: rbs.StreamsClient, super_stream: str, route: Any
) -> None:
    async with client.super_stream(super_stream).publisher(route=route) as publisher:
        with pytest.raises(ArgumentError) as caught:
            await publisher.send_atomic([*order('a'), *order('c')])
        first, second = f'{super_stream}-a', f'{super_stream}-c'
        assert str(caught.value) == (
            f'the messages of an atomic batch belong to one partition, not to {first!r}, {second!r}'
        )
        assert publisher.next_publish_id == 1
    assert await all_stored(client, super_stream) == {item: [] for item in KEYS}


async def test_message_for_several_partitions(client: rbs.StreamsClient, super_stream: str) -> None:
    stream = client.super_stream(super_stream)
    async with stream.publisher(route=lambda message, names: names[:2]) as publisher:
        with pytest.raises(ArgumentError, match='belong to one partition'):
            await publisher.send_atomic(order('a'))


async def test_wrong_messages(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).publisher(route=rbs.by_key(key)) as publisher:
        with pytest.raises(NoRouteError):
            await publisher.send_atomic([*order('a'), *order('unknown')])
        with pytest.raises(ArgumentTypeError, match='not a single dict'):
            await publisher.send_atomic({'key': 'a'})
        assert publisher.next_publish_id == 1


async def test_explicit_ids(client: rbs.StreamsClient, super_stream: str) -> None:
    """Batches and messages with explicit ids share a publisher; automatic ones do not."""
    stream = client.super_stream(super_stream)
    for _ in range(2):
        async with stream.publisher(route=rbs.by_key(key), name='shop') as publisher:
            await publisher.send(rbs.Message({'key': 'a', 'line': 9}, publish_id=4))
            await publisher.send_atomic(order('a'), publish_id=5)
            await publisher.send_atomic(order('b'), publish_id=6)
            await publisher.send(rbs.Message({'key': 'a', 'line': 10}, publish_id=7))
            with pytest.raises(ArgumentError, match='automatic publishing id'):
                await publisher.send_atomic(order('a'))
            with pytest.raises(ArgumentError, match='is not above'):
                await publisher.send_atomic(order('a'), publish_id=5)
    found = await all_stored(client, super_stream)
    assert [item['line'] for item in found['a']] == [9, 0, 1, 2, 10]
    assert [item['line'] for item in found['b']] == [0, 1, 2]
