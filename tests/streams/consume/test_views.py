"""Subscriptions with `copy=False`: binary bodies are views of the chunk that contains them."""

import copy
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import AMQPDecoderError, ArgumentError, ArgumentTypeError
from tests.sizes import sized

HANG = 20.0  # seconds; only a safeguard
FROM_START: Any = {'offset': rbs.Offset.FIRST, 'timeout': HANG, 'until': 'now'}
VIEWS: Any = FROM_START | {'copy': False}
SIZES = (0, 1, 10, 255, 256, 20_000, 300_000, 900_000, 5)
BODIES = [bytes([i]) * size for i, size in enumerate(SIZES * sized(1, 5))]


@pytest_asyncio.fixture
async def stored(client: rbs.StreamsClient, stream: str) -> AsyncIterator[str]:
    """A stream of binary bodies."""
    async with client.publisher(stream) as publisher:
        await publisher.send_many(BODIES)
    yield stream


def check(views: list[Any], bodies: list[bytes]) -> None:
    assert [type(view) for view in views] == [memoryview] * len(bodies)
    assert all(view.readonly for view in views)
    assert [bytes(view) for view in views] == bodies


async def each(subscription: rbs.Subscription) -> list[Any]:
    return [body async for body in subscription]


async def of_contexts(subscription: rbs.Subscription) -> list[Any]:
    return [message.body async for message in subscription.messages()]


async def of_batches(subscription: rbs.Subscription) -> list[Any]:
    return [body async for batch in subscription.batches() for body in batch]


async def of_joined_batches(subscription: rbs.Subscription) -> list[Any]:
    return [body async for batch in subscription.batches(max_wait=0.01) for body in batch]


async def of_batch_contexts(subscription: rbs.Subscription) -> list[Any]:
    found = []
    async for batch in subscription.batches(7):
        found += [message.body for message in batch.contexts()]
    return found


async def fetched(subscription: rbs.Subscription) -> list[Any]:
    found: list[Any] = []
    while len(found) < len(BODIES):
        found += await subscription.fetch()
    return found


READ = [each, of_contexts, of_batches, of_joined_batches, of_batch_contexts, fetched]
reads = pytest.mark.parametrize('read', READ)
Read = Callable[[rbs.Subscription], Any]


@reads
async def test_bodies_outlive_their_subscription_and_client(
    broker_uri: str, stored: str, read: Read
) -> None:
    async with (
        rbs.streams_client(broker_uri) as client,
        client.subscribe(stored, **VIEWS) as subscription,
    ):
        views = await read(subscription)
    check(views, BODIES)


@reads
async def test_raw_messages(client: rbs.StreamsClient, stream: str, read: Read) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many(BODIES)
    async with client.subscribe(stream, amqp=False, **VIEWS) as subscription:
        check(await read(subscription), BODIES)


@reads
async def test_messages_with_other_sections(
    client: rbs.StreamsClient, stream: str, read: Read
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many([rbs.Message(body, app_properties={'a': 1}) for body in BODIES])
    async with client.subscribe(stream, **VIEWS) as subscription:
        check(await read(subscription), BODIES)


@pytest.mark.parametrize('compression', ['none', 'gzip'])
@reads
async def test_sub_entries(
    client: rbs.StreamsClient, stream: str, compression: str, read: Read
) -> None:
    options: Any = {'sub_entry_size': 10, 'compression': compression}
    async with client.publisher(stream, **options) as publisher:
        await publisher.send_many(BODIES)
    async with client.subscribe(stream, **VIEWS) as subscription:
        check(await read(subscription), BODIES)


async def test_super_stream(client: rbs.StreamsClient, super_stream: str) -> None:
    stream = client.super_stream(super_stream)
    async with stream.publisher(route=rbs.by_hash(lambda body: str(len(body)))) as publisher:
        await publisher.send_many(BODIES[1:])
    async with stream.subscribe(**VIEWS) as subscription:
        views = [body async for body in subscription]
    assert all(type(view) is memoryview for view in views)
    assert sorted(map(bytes, views)) == sorted(BODIES[1:])


async def test_group(client: rbs.StreamsClient, stored: str, group: str) -> None:
    async with client.subscribe(stored, group=group, copy=False, timeout=HANG) as member:
        check([await anext(member) for _ in BODIES], BODIES)


def size_of(message: rbs.MessageCtx) -> str:
    return str(len(message.body))


async def test_filtered_messages(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, filter_extract=size_of) as publisher:
        await publisher.send_many(BODIES)
    wanted = rbs.MessageFilter(size_of, {'300000', '10'})
    async with client.subscribe(stream, filter=wanted, **VIEWS) as subscription:
        check(
            [body async for body in subscription],
            [body for body in BODIES if len(body) in (300_000, 10)],
        )


async def test_bodies_that_are_not_binary(client: rbs.StreamsClient, stream: str) -> None:
    bodies: list[Any] = ['text', 17, {'key': b'value'}, None, [b'a', 2], b'last']
    async with client.publisher(stream) as publisher:
        await publisher.send_many(bodies)
    for read in READ[:5]:
        async with client.subscribe(stream, **VIEWS) as subscription:
            assert await read(subscription) == bodies


async def test_message_that_is_not_amqp(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send(b'\xff' * 10)
    async with client.publisher(stream) as publisher:
        await publisher.send(b'next')
    async with client.subscribe(stream, **VIEWS) as subscription:
        with pytest.raises(AMQPDecoderError) as caught:
            await anext(subscription)
        assert caught.value.data == b'\xff' * 10
        assert await anext(subscription) == b'next'
    async with client.subscribe(stream, on_decode_error='raw', **VIEWS) as subscription:
        assert [body async for body in subscription] == [b'\xff' * 10, b'next']


async def test_received_message_is_copied_pickled_and_sent_on(
    client: rbs.StreamsClient, stream: str
) -> None:
    sent = rbs.Message(b'x' * 300, app_properties={'a': 1})
    async with client.publisher(stream) as publisher:
        await publisher.send(sent)
        subscription = client.subscribe(stream, offset=rbs.Offset.FIRST, copy=False, timeout=HANG)
        messages = subscription.messages()
        message = await anext(messages)
        for other in (copy.copy(message), pickle.loads(pickle.dumps(message))):
            assert type(other.body) is bytes
            assert (other.body, other.app_properties) == (b'x' * 300, {'a': 1})
        await publisher.send(message)
        again = await anext(messages)
    assert (again.body, again.app_properties) == (sent.body, sent.app_properties)
    assert again.raw == message.raw


async def test_typed_bodies_are_not_views(client: rbs.StreamsClient) -> None:
    arguments: list[dict[str, Any]] = [{'type': bytes}, {'codec': rbs.Codec(bytes, bytes)}]
    for more in arguments:
        with pytest.raises(ArgumentError, match='copy=False is for bodies as they are'):
            client.subscribe('orders', copy=False, **more)
    wrong: Any = 0
    with pytest.raises(ArgumentTypeError, match='copy must be bool'):
        client.subscribe('orders', copy=wrong)
