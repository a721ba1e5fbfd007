"""Subscriptions that start at the last messages of a stream."""

import random
from functools import partial
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import ArgumentError
from rbfly.streams._offsets import last_messages as counting
from tests import fake_broker as wire
from tests.fake_stream import OFFSET, FakeStream, Reader
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake

HANG = 20.0  # seconds; only a safeguard
SEGMENT = 100_000


async def publish(client: rbs.StreamsClient, stream: str, *bodies: Any, **arguments: Any) -> None:
    async with client.publisher(stream, **arguments) as publisher:
        await publisher.send_many(bodies)


async def last(client: rbs.StreamsClient, stream: str, count: int, **arguments: Any) -> list[Any]:
    """Read from the last messages to the end."""
    offset = rbs.Offset.last_messages(count)
    messages = client.subscribe(stream, offset=offset, until='now', timeout=HANG, **arguments)
    async with messages:
        return [body async for body in messages]


def tail(bodies: list[Any], count: int) -> list[Any]:
    return bodies[max(0, len(bodies) - count) :]


@pytest.mark.parametrize('count', [0, 1, 4, 5, 6, 1000])
async def test_last_messages(client: rbs.StreamsClient, stream: str, count: int) -> None:
    await publish(client, stream, *range(5))
    assert await last(client, stream, count) == tail([*range(5)], count)


async def test_stream_without_messages(client: rbs.StreamsClient, stream: str) -> None:
    assert await last(client, stream, 10) == []
    await client.write_offset(stream, 'reader', 0, wait=True)
    assert await last(client, stream, 10) == []
    assert await client.resolve_offset(stream, rbs.Offset.last_messages(10)) in (0, 1)


async def test_missing_stream(client: rbs.StreamsClient, stream_name: str) -> None:
    with pytest.raises(rbs.StreamDoesNotExist):
        await last(client, stream_name, 1)


async def test_stored_offset_after_each_message(client: rbs.StreamsClient, stream: str) -> None:
    for i in range(30):
        await publish(client, stream, i)
        await client.write_offset(stream, 'reader', i, wait=True)
    for count in range(32):
        assert await last(client, stream, count) == tail([*range(30)], count)


async def test_many_stored_offsets_after_the_last_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(3))
    for i in range(20):
        await client.write_offset(stream, 'reader', i, wait=True)
    await publish(client, stream, 3)
    assert await last(client, stream, 2) == [2, 3]
    await client.write_offset(stream, 'reader', 3, wait=True)
    assert await last(client, stream, 2) == [2, 3]


async def test_random_streams(
    client: rbs.StreamsClient, stream: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, sub-entries and stored offsets, in chunks of all sizes."""
    monkeypatch.setattr(counting, 'CREDIT', 3)  # several requests
    stored: list[int] = []
    for _ in range(40):
        for _ in range(rng.choice([0, 0, 1, 5])):
            await client.write_offset(stream, 'reader', rng.randrange(100), wait=True)
        bodies = range(len(stored), len(stored) + rng.choice([1, 1, 2, 10, 50]))
        await publish(client, stream, *bodies, sub_entry_size=rng.choice([1, 1, 1, 7]))
        stored += bodies
    for count in (*range(1, 5), len(stored), *rng.sample(range(1, len(stored)), 5)):
        expected = tail(stored, count)
        assert await last(client, stream, count) == expected
        async with client.subscribe(
            stream, offset=rbs.Offset.last_messages(count), timeout=HANG
        ) as messages:
            found = await anext(messages.messages())
            offset = await client.resolve_offset(stream, rbs.Offset.last_messages(count))
        assert found.body == expected[0]
        assert found.stream_offset - 5 <= offset <= found.stream_offset


async def test_messages_published_after_the_opening_follow(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(5))
    offset = rbs.Offset.last_messages(2)
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        await messages.open()
        await publish(client, stream, *range(5, 100))
        assert [await anext(messages) for _ in range(97)] == [*range(3, 100)]


async def test_filter_applies_after_counting(client: rbs.StreamsClient, stream: str) -> None:
    def parity(message: Any) -> str:
        return 'odd' if message.body % 2 else 'even'

    await publish(client, stream, *range(20), filter_extract=parity)
    odd = rbs.MessageFilter(parity, {'odd'})
    assert await last(client, stream, 6, filter=odd) == [15, 17, 19]


async def test_each_partition_starts_at_its_own_last_messages(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    orders = client.super_stream(super_stream)
    partitions = await orders.partitions()
    for number, partition in enumerate(partitions):
        await publish(client, partition, *((number, i) for i in range(2 * number)))
    offset = rbs.Offset.last_messages(3)
    async with orders.subscribe(offset=offset, until='now', timeout=HANG) as messages:
        found = [body async for body in messages]
    assert sorted(found) == [[1, 0], [1, 1], [2, 1], [2, 2], [2, 3]]


async def test_default_of_a_reference(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, *range(5))
    offset = rbs.Offset.reference('reader', default=rbs.Offset.last_messages(2))
    async with client.subscribe(stream, offset=offset, until='now') as messages:
        assert [body async for body in messages] == [3, 4]
    await client.write_offset(stream, 'reader', 0, wait=True)
    async with client.subscribe(stream, offset=offset, until='now') as messages:
        assert [body async for body in messages] == [1, 2, 3, 4]


async def test_function_that_returns_the_last_messages(
    client: rbs.StreamsClient, stream: str
) -> None:
    async def source(stream: str) -> rbs.Offset:
        return rbs.Offset.last_messages(2)

    await publish(client, stream, *range(5))
    async with client.subscribe(stream, offset=source, until='now') as messages:
        assert [body async for body in messages] == [3, 4]


async def test_truncated_stream(client: rbs.StreamsClient, stream_name: str) -> None:
    """Retention has removed the first messages: the start is never before the first one left."""
    await client.create_stream(stream_name, max_length_bytes=3 * SEGMENT, segment_size=SEGMENT)
    try:
        sent = 0
        while not (await client.stream_stats(stream_name)).first_chunk_id:
            bodies = [b'%d' % i + bytes(1000) for i in range(sent, sent + 100)]
            await publish(client, stream_name, *bodies)
            sent += 100
        before: int | None = None
        first = (await client.stream_stats(stream_name)).first_chunk_id
        while before != first:  # retention still removes messages
            before = first
            everything = await last(client, stream_name, 10**9)
            counts = (1, 150, len(everything))
            found = [await last(client, stream_name, count) for count in counts]
            first = (await client.stream_stats(stream_name)).first_chunk_id
        assert 0 < len(everything) < sent
        assert everything[-1].startswith(b'%d\0' % (sent - 1))
        assert found == [tail(everything, count) for count in counts]
    finally:
        await client.delete_stream(stream_name)


# -- groups


@pytest.mark.parametrize(
    'offset',
    [
        rbs.Offset.last_messages(1),
        rbs.Offset.reference('billing', default=rbs.Offset.last_messages(1)),
        {'orders-0': rbs.Offset.last_messages(1)},
    ],
)
async def test_member_of_a_group_cannot_start_there(offset: Any) -> None:
    async with rbs.streams_client('rabbitmq-stream://localhost') as client:
        subscribe: Any = client.super_stream('orders').subscribe
        if not isinstance(offset, dict):
            subscribe = partial(client.subscribe, 'orders')
        with pytest.raises(ArgumentError, match=r'group cannot start at Offset\.last_messages'):
            subscribe(offset=offset, group='billing')


async def test_function_of_a_member_cannot_return_it(
    client: rbs.StreamsClient, stream: str, group: str
) -> None:
    async def source(stream: str) -> rbs.Offset:
        return rbs.Offset.last_messages(1)

    async with client.subscribe(stream, offset=source, group=group, timeout=HANG) as messages:
        with pytest.raises(ArgumentError, match=r'group cannot start at Offset\.last_messages'):
            await anext(messages)


# -- lost connections, scripted brokers


async def read(messages: rbs.Subscription, count: int) -> list[Any]:
    return [int(await anext(messages)) for _ in range(count)]


@pytest.mark.parametrize('version', ['3.10.0', '4.0.5'])
async def test_chunks_of_many_sizes(version: str) -> None:
    """Offsets that are not delivered are between the chunks; an old broker has no statistics."""
    stored: list[int] = []
    stream = FakeStream()
    for size in (5, 1, 100, 7, 1, 1, 30):
        stored += range(stream.end, stream.end + size)
        stream.append(*(b'%d' % i for i in range(stream.end, stream.end + size)))
        stream.skip(size * 3)
    for count in range(1, len(stored) + 1):
        async with subscribe_to_fake(
            stream, version, offset=rbs.Offset.last_messages(count)
        ) as messages:
            assert await read(messages, count) == stored[-count:]


async def test_connection_lost_before_the_first_message_does_not_move_the_start() -> None:
    lost: list[Reader] = []
    stream = stream_of_chunks(4, 4)

    def lose(reader: Reader) -> int:
        if reader.credit != 7 or lost:
            return wire.OK
        lost.append(reader)
        stream.append(b'8', b'9')
        reader.peer.transport.abort()
        return 0

    stream.on_subscribe = lose
    offset = rbs.Offset.last_messages(5)
    async with subscribe_to_fake(stream, offset=offset, initial_credit=7) as messages:
        assert await read(messages, 7) == [3, 4, 5, 6, 7, 8, 9]
    assert lost


async def test_stream_recreated_while_its_messages_are_counted() -> None:
    counted: list[Reader] = []
    stream = stream_of_chunks(40, 40)

    def recreate(reader: Reader) -> int:
        if reader.spec[0] == OFFSET and not counted:
            counted.append(reader)
            stream.recreate()
            stream.append(b'0', b'1', b'2')
        return wire.OK

    stream.on_subscribe = recreate
    async with subscribe_to_fake(stream, offset=rbs.Offset.last_messages(2)) as messages:
        assert await read(messages, 2) == [1, 2]
    assert counted


async def test_counting_leaves_no_subscription_on_the_broker() -> None:
    stream = stream_of_chunks(*[1] * 50)
    async with subscribe_to_fake(
        stream, offset=rbs.Offset.last_messages(45), initial_credit=7
    ) as messages:
        assert await read(messages, 1) == [5]
        assert [reader.limit for reader in stream.readers if reader.live] == [3]
