"""Publishing ids of the program, in a publisher of a super stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.streams import SuperStream, SuperStreamPublisher
from tests.super_streams import read_partition

KEYS = ('a', 'b')
Call = Callable[[SuperStreamPublisher, Any], Awaitable[None]]


async def send(publisher: SuperStreamPublisher, message: Any) -> None:
    await publisher.send(message)


async def submit(publisher: SuperStreamPublisher, message: Any) -> None:
    await (await publisher.submit(message))


async def send_many(publisher: SuperStreamPublisher, message: Any) -> None:
    await publisher.send_many([message])


async def send_iterator(publisher: SuperStreamPublisher, message: Any) -> None:
    await publisher.send_many(iter([message]))


async def batch(publisher: SuperStreamPublisher, message: Any) -> None:
    publisher.batch(message)
    await publisher.flush()


def key(message: Any) -> str:
    return str((message.body if isinstance(message, rbs.Message) else message)[0])


def by_name(message: Any, partitions: Any) -> str:
    return str(next(name for name in partitions if name.endswith(key(message))))


@pytest_asyncio.fixture
async def orders(client: rbs.StreamsClient) -> AsyncIterator[SuperStream]:
    """A new super stream with the partitions `a` and `b`."""
    found = client.super_stream(f'test-{uuid4()}')
    await found.create(binding_keys=KEYS)
    yield found
    await found.delete()


calls = pytest.mark.parametrize('call', [send, submit, send_many, send_iterator, batch])
routes = pytest.mark.parametrize('route', [by_name, rbs.by_key(key)], ids=['function', 'key'])


@calls
@routes
async def test_ids_rise_within_their_partition(
    client: rbs.StreamsClient, orders: SuperStream, route: Any, call: Call
) -> None:
    async with orders.publisher(route=route, name='shop') as publisher:
        for body, number in (('a1', 10), ('b1', 3), ('a2', 11), ('b2', 4)):
            await call(publisher, rbs.Message(body, publish_id=number))
        for body, number in (('a', 11), ('b', 4), ('b', 2)):
            with pytest.raises(ValueError, match=f'publishing id {number} is not above'):
                await call(publisher, rbs.Message(body, publish_id=number))
        await call(publisher, rbs.Message('b3', publish_id=5))
        assert publisher.next_publish_id == 6
    assert await read_partition(client, f'{orders.name}-a') == ['a1', 'a2']
    assert await read_partition(client, f'{orders.name}-b') == ['b1', 'b2', 'b3']


@calls
async def test_program_repeats_its_sequence_from_the_next_id(
    client: rbs.StreamsClient, orders: SuperStream, call: Call
) -> None:
    """The partition that has stored later messages discards them."""
    rows = [('a1', 1), ('b1', 2), ('a2', 3), ('a3', 4), ('b2', 5)]
    async with orders.publisher(route=by_name, name='shop') as publisher:
        for body, number in rows[:4]:
            await call(publisher, rbs.Message(body, publish_id=number))
    async with orders.publisher(route=by_name, name='shop') as publisher:
        assert publisher.next_publish_id == 3
        for body, number in rows[2:]:
            await call(publisher, rbs.Message(body, publish_id=number))
    assert await read_partition(client, f'{orders.name}-a') == ['a1', 'a2', 'a3']
    assert await read_partition(client, f'{orders.name}-b') == ['b1', 'b2']


@calls
@routes
@pytest.mark.parametrize('explicit', [False, True])
async def test_one_publisher_uses_one_kind_of_ids(
    client: rbs.StreamsClient, orders: SuperStream, route: Any, call: Call, explicit: bool
) -> None:
    """Whatever the partition; a message that was refused does not decide the kind."""
    first = rbs.Message('a1', publish_id=5) if explicit else 'a1'
    second = 'b1' if explicit else rbs.Message('b1', publish_id=9)
    bad = rbs.Message(['b', object()], publish_id=4) if not explicit else ['b', object()]
    async with orders.publisher(route=route) as publisher:
        with pytest.raises(rbs.AMQPEncoderError):
            await call(publisher, bad)
        await call(publisher, first)
        with pytest.raises(rbs.ArgumentError, match='uses one kind only'):
            await call(publisher, second)
    assert await read_partition(client, f'{orders.name}-a') == ['a1']
    assert await read_partition(client, f'{orders.name}-b') == []


@pytest.mark.parametrize('explicit', [False, True])
async def test_messages_that_wait_for_their_route_decide_the_kind_of_ids(
    client: rbs.StreamsClient, orders: SuperStream, explicit: bool
) -> None:
    kinds: list[Any] = ['a1', rbs.Message('b1', publish_id=9)]
    first, second = reversed(kinds) if explicit else kinds
    async with orders.publisher(route=rbs.by_key(key)) as publisher:
        publisher.batch(first)
        with pytest.raises(rbs.ArgumentError, match='uses one kind only'):
            publisher.batch(second)
        await publisher.flush()
    found = [
        *await read_partition(client, f'{orders.name}-a'),
        *await read_partition(client, f'{orders.name}-b'),
    ]
    assert found == ['b1' if explicit else 'a1']


async def test_closed_publisher_says_so_whatever_the_timeout(
    client: rbs.StreamsClient, orders: SuperStream
) -> None:
    publishers: list[Any] = [
        await client.publisher(f'{orders.name}-a'),
        await orders.publisher(route=by_name),
        await orders.publisher(route=rbs.by_key(key)),
    ]
    for publisher in publishers:
        await publisher.close()
        for timeout in (None, 0, 1):
            with pytest.raises(rbs.PublisherError, match='is closed'):
                await publisher.send('a', timeout)
