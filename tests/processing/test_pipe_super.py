"""`pipe` over super streams."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.streams import ArgumentError, Message
from rbfly.testing import StreamBroker
from tests.group_members import NewClient, may_strand
from tests.processing.piping import in_time, stored, until_event
from tests.super_streams import super_stream_of

KEYS = 20
by_key: Any = rbs.by_hash(lambda order: str(order['key']))
message_by_key: Any = rbs.by_hash(lambda message: str(message.body['key']))


@pytest_asyncio.fixture
async def target(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A super stream of four partitions."""
    async with super_stream_of(client, 4) as name:
        yield name


@pytest_asyncio.fixture
async def plain(client: rbs.StreamsClient) -> AsyncIterator[str]:
    name = f'test-{uuid4()}'
    await client.create_stream(name)
    yield name
    await client.delete_stream(name)


def orders(start: int, stop: int) -> list[Any]:
    return [{'key': i % KEYS, 'id': i} for i in range(start, stop)]


async def fill(client: rbs.StreamsClient, name: str, start: int, stop: int) -> None:
    async with client.super_stream(name).publisher(route=by_key) as publisher:
        await publisher.send_many(orders(start, stop))


async def stored_of(client: rbs.StreamsClient, name: str) -> list[list[Any]]:
    """Return the bodies of each partition."""
    return [await stored(client, item) for item in await client.super_stream(name).partitions()]


def check(partitions: list[list[Any]], count: int) -> None:
    """Check that each order is stored once, in order by key."""
    found = [order for partition in partitions for order in partition]
    assert sorted(order['id'] for order in found) == [*range(count)]
    for key in range(KEYS):
        ids = [order['id'] for order in found if order['key'] == key]
        assert ids == sorted(ids)


def same(body: Any) -> Any:
    return body


async def test_from_super_stream_to_super_stream(
    client: rbs.StreamsClient, super_stream: str, target: str
) -> None:
    await fill(client, super_stream, 0, 1000)
    ends = client.super_stream(super_stream), client.super_stream(target)
    options: Any = {'name': 'job', 'route': message_by_key, 'until': 'now'}
    progress = await in_time(pipe(*ends, same, **options))
    assert progress.read == 1000
    positions = progress.position
    assert sum(positions.values()) == 1000
    check(await stored_of(client, target), 1000)
    await fill(client, super_stream, 1000, 1500)
    for name in positions:  # as if the position had not been stored
        await client.write_offset(name, 'job', positions[name] // 2, wait=True)
    await in_time(pipe(*ends, same, **options))
    check(await stored_of(client, target), 1500)


async def test_to_one_stream(client: rbs.StreamsClient, super_stream: str, plain: str) -> None:
    await fill(client, super_stream, 0, 1000)
    ends = client.super_stream(super_stream), Stream(client, plain)
    for _ in range(2):
        await in_time(pipe(*ends, same, name='job', until='now'))
        check([await stored(client, plain)], 1000)
        for name in await client.super_stream(super_stream).partitions():
            await client.write_offset(name, 'job', 2**64 - 1, wait=True)


async def test_from_one_stream(client: rbs.StreamsClient, plain: str, target: str) -> None:
    async with client.publisher(plain) as publisher:
        await publisher.send_many(orders(0, 1000))
    ends = Stream(client, plain), client.super_stream(target)
    options: Any = {'name': 'job', 'route': message_by_key, 'until': 'now'}
    for _ in range(2):
        await in_time(pipe(*ends, same, **options))
        check(await stored_of(client, target), 1000)
        await client.write_offset(plain, 'job', 2**64 - 1, wait=True)


async def test_messages_keep_their_partitions(client: rbs.StreamsClient, super_stream: str) -> None:
    await fill(client, super_stream, 0, 1000)
    async with super_stream_of(client, 3) as target:
        ends = client.super_stream(super_stream), client.super_stream(target)
        await in_time(pipe(*ends, same, name='job', until='now', sub_entry_size=10))
        assert await stored_of(client, target) == await stored_of(client, super_stream)


async def test_other_number_of_partitions_needs_a_route(
    client: rbs.StreamsClient, super_stream: str, target: str
) -> None:
    ends = client.super_stream(super_stream), client.super_stream(target)
    with pytest.raises(ArgumentError, match=r'has 3 partitions, and .* has 4: pass route'):
        await pipe(*ends, same, name='job', until='now')


async def test_several_outputs(client: rbs.StreamsClient, super_stream: str, target: str) -> None:
    """Outputs of a message have the same key."""
    await fill(client, super_stream, 0, 100)
    ends = client.super_stream(super_stream), client.super_stream(target)

    def lines(order: Any) -> list[Any]:
        return [order | {'id': order['id'] * 2 + i} for i in range(2)]

    await in_time(pipe(*ends, lines, name='job', route=message_by_key, until='now'))
    check(await stored_of(client, target), 200)


@pytest.mark.parametrize('by', [rbs.by_key, None])
async def test_outputs_by_binding_key(
    client: rbs.StreamsClient, plain: str, rng: random.Random, by: Any
) -> None:
    """One or two outputs; the broker is asked for the route of each new key."""
    name = f'super-{uuid4().hex[:12]}'
    target = client.super_stream(name)
    await target.create(binding_keys=['a', 'b', 'c'])
    keys = [rng.choice('abc') for _ in range(300)]
    async with client.publisher(plain) as publisher:
        await publisher.send_many({'key': key, 'id': i} for i, key in enumerate(keys))

    def route(message: Message, partitions: Sequence[str]) -> str:
        return partitions['abc'.index(message.body['key'])]

    options: Any = {'route': route if by is None else by(lambda message: message.body['key'])}

    def twice(order: Any) -> Any:
        return [order, order] if order['id'] % 5 == 0 else order

    try:
        await in_time(
            pipe(Stream(client, plain), target, twice, name='job', until='now', **options)
        )
        for key, found in zip('abc', await stored_of(client, name), strict=True):
            expected = [i for i in range(300) for _ in range(1 + (i % 5 == 0)) if keys[i] == key]
            assert [order['id'] for order in found] == expected
    finally:
        await target.delete()


async def test_outputs_of_a_message_in_several_partitions(
    client: rbs.StreamsClient, plain: str, target: str
) -> None:
    async with client.publisher(plain) as publisher:
        await publisher.send_many(orders(0, 10))
    ends = Stream(client, plain), client.super_stream(target)

    def all_keys(order: Any) -> list[Any]:
        return [{'key': key, 'id': key} for key in range(KEYS)]

    with pytest.raises(ArgumentError, match='belong to one partition') as caught:
        await in_time(pipe(*ends, all_keys, name='job', route=message_by_key, until='now'))
    notes = caught.value.__notes__
    assert notes == [f"raised by pipe 'job' for the message at offset 0 of stream {plain!r}"]


async def test_group_shares_the_partitions(
    clients: NewClient, super_stream: str, target: str, rng: random.Random
) -> None:
    """Processes come and go, some of them without an orderly end."""
    client = clients()
    running: list[asyncio.Task[PipeProgress]] = []
    total = 0

    def start() -> None:
        each = clients()
        ends = each.super_stream(super_stream), each.super_stream(target)
        options: Any = {
            'name': 'job',
            'route': message_by_key,
            'interval': 0.05,
            'stranded_after': stranded_after,
        }
        running.append(asyncio.create_task(pipe(*ends, same, **options)))

    stranded_after = 10 if await may_strand(client) else None
    start()
    for _ in range(12):
        await fill(client, super_stream, total, total + 200)
        total += 200
        if rng.random() < 0.5 or not running:
            start()
        else:
            running.pop(rng.randrange(len(running))).cancel()
        assert not any(task.done() for task in running)
    if not running:
        start()

    async def count() -> int:
        return sum(map(len, await stored_of(client, target)))

    async with asyncio.timeout(120):  # a stranded group recovers within three times 10 s
        while await count() < total:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    check(await stored_of(client, target), total)


async def test_job_that_starts_at_the_end_is_handed_over_before_its_first_message() -> None:
    async with StreamBroker() as broker, AsyncExitStack() as stack:
        broker.create_super_stream('orders', partitions=2)
        broker.create_stream('target')
        running: list[asyncio.Task[PipeProgress]] = []
        events: list[rbs.Events] = []

        async def start() -> None:
            each = await stack.enter_async_context(rbs.streams_client(broker.uri))
            events.append(each.events())
            ends = each.super_stream('orders'), Stream(each, 'target')
            job = pipe(*ends, same, name='job', offset=rbs.Offset.NEXT)
            running.append(asyncio.create_task(job))

        await start()
        for _ in range(2):  # it reads both partitions
            await until_event(events[0], rbs.Activated)
        await start()
        await until_event(events[0], rbs.Deactivated)
        broker.publish('orders-1', 1)
        await until_event(events[1], rbs.Activated)
        broker.publish('orders-1', 2)
        assert (await broker.wait_for('target', 1))[0] == 1
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.own_clock
async def test_group_without_an_active_member_goes_on() -> None:
    """As RabbitMQ before 4.1.2 may leave a group when a process is killed."""
    async with StreamBroker(version='4.0') as broker, AsyncExitStack() as stack:
        broker.create_super_stream('orders', partitions=1)
        broker.create_stream('target')
        ends: list[Any] = []
        for _ in range(2):
            each = await stack.enter_async_context(rbs.streams_client(broker.uri))
            ends.append((each.super_stream('orders'), Stream(each, 'target')))
        running = [
            asyncio.create_task(
                pipe(source, target, same, name='job', interval=1, stranded_after=15)
            )
            for source, target in ends
        ]
        broker.publish('orders-0', 0)
        await broker.wait_for('target', 1)
        broker.strand('orders-0', 'job')
        broker.publish('orders-0', 1)
        assert await broker.wait_for('target', 2, timeout=600) == [0, 1]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
