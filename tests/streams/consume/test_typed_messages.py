"""Subscriptions that decode bodies to a type, and what they do with other messages."""

import copy
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import ArgumentError, ArgumentTypeError

HANG = 20.0  # seconds; only a safeguard
FROM_START: Any = {'offset': rbs.Offset.FIRST, 'timeout': HANG, 'until': 'now'}


@dataclass
class Order:
    id: int
    customer: str = ''


class OrderStruct(msgspec.Struct):
    id: int
    customer: str = ''


class OrderModel(pydantic.BaseModel):
    id: int
    customer: str = ''


ORDERS = [Order(0, 'a'), Order(1, 'b'), Order(2, 'c'), Order(3)]
WRONG = {'id': 'two'}


@pytest_asyncio.fixture
async def stored(client: rbs.StreamsClient, stream: str) -> AsyncIterator[str]:
    """A stream of four orders, as three kinds of classes and as a dict."""
    async with client.publisher(stream) as publisher:
        await publisher.send(rbs.Message(ORDERS[0], app_properties={'region': 'eu'}))
        await publisher.send_many([OrderStruct(1, 'b'), OrderModel(id=2, customer='c'), {'id': 3}])
    yield stream


@pytest_asyncio.fixture
async def mixed(client: rbs.StreamsClient, stream: str) -> AsyncIterator[str]:
    """A stream of two orders, with two other messages between them."""
    async with client.publisher(stream) as publisher:
        await publisher.send_many([ORDERS[0], WRONG, b'no order', ORDERS[3]])
    yield stream


@pytest.mark.parametrize('kind', [Order, OrderStruct, OrderModel])
async def test_bodies(client: rbs.StreamsClient, stored: str, kind: type[Any]) -> None:
    async with client.subscribe(stored, type=kind, **FROM_START) as orders:
        found = []
        async for order in orders:
            found.append(order)
            assert rbs.get_message_ctx().body == order
            assert rbs.get_message_ctx().stream_offset == order.id
    assert found == [kind(id=order.id, customer=order.customer) for order in ORDERS]


async def test_contexts(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(stored, type=Order, **FROM_START) as orders:
        found = [message async for message in orders.messages()]
    assert [message.body for message in found] == ORDERS
    assert found[0].app_properties == {'region': 'eu'}
    assert [message.stream_offset for message in found] == [0, 1, 2, 3]
    assert copy.copy(found[0]).body == ORDERS[0]


@pytest.mark.parametrize('arguments', [{}, {'max_wait': HANG}, {'max_messages': 2}])
@pytest.mark.parametrize('filtered', [False, True])
async def test_batches(
    client: rbs.StreamsClient, stored: str, arguments: Any, filtered: bool
) -> None:
    every = rbs.MessageFilter(lambda message: message.body.customer and '', {''})
    async with client.subscribe(
        stored, type=Order, filter=every if filtered else None, **FROM_START
    ) as orders:
        found: list[Order] = []
        async for batch in orders.batches(**arguments):
            found += batch
            assert [message.body for message in batch.contexts()] == [*batch]
            assert not batch.undecoded
    assert found == ORDERS


async def test_fetch(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(stored, type=Order, offset=rbs.Offset.FIRST) as orders:
        found: list[Order] = []
        while len(found) < 4:
            found += await orders.fetch(timeout=HANG)
    assert found == ORDERS


async def test_messages_sent_on_keep_the_fields_that_their_type_lacks(
    client: rbs.StreamsClient, stream: str
) -> None:
    new = {'id': 1, 'customer': 'a', 'paid': True}
    async with client.publisher(stream) as publisher:
        await publisher.send(new)
        async with client.subscribe(stream, type=Order, **FROM_START) as orders:
            sent = [message async for message in orders.messages()]
        async with client.subscribe(stream, type=Order, **FROM_START) as orders:
            async for batch in orders.batches():
                sent += [*batch.contexts(), batch.context(0)]
        await publisher.send_many(sent)
    assert await read_all(client.subscribe(stream, **FROM_START)) == [new] * 4


async def read_all(orders: Any) -> list[Any]:
    """Bodies and the errors between them."""
    found: list[Any] = []
    async with orders:
        while True:
            try:
                found.append(await anext(orders))
            except StopAsyncIteration:
                return found
            except rbs.AMQPDecoderError as ex:
                found.append(ex)


async def test_wrong_messages_raise_and_the_iteration_continues(
    client: rbs.StreamsClient, mixed: str
) -> None:
    first, wrong, data, last = await read_all(client.subscribe(mixed, type=Order, **FROM_START))
    assert [first, last] == [ORDERS[0], ORDERS[3]]
    assert str(wrong) == (
        f'$.id: expected int, got str in the message at offset 1 of stream {mixed!r}'
    )
    assert (wrong.path, wrong.offset, wrong.stream) == ('$.id', 1, mixed)
    assert rbs.Message is type(rbs.MessageCtx(wrong.data))
    assert (data.path, data.offset) == ('$', 2)


async def test_batches_end_before_a_wrong_message(client: rbs.StreamsClient, mixed: str) -> None:
    async with client.subscribe(mixed, type=Order, **FROM_START) as orders:
        batches = orders.batches(max_wait=HANG)
        assert list(await anext(batches)) == ORDERS[:1]
        for offset in (1, 2):
            with pytest.raises(rbs.AMQPDecoderError) as caught:
                await anext(batches)
            assert caught.value.offset == offset
        assert list(await anext(batches)) == ORDERS[3:]


async def test_wrong_messages_are_skipped(client: rbs.StreamsClient, mixed: str) -> None:
    subscription = client.subscribe(mixed, type=Order, on_decode_error='skip', **FROM_START)
    assert await read_all(subscription) == [ORDERS[0], ORDERS[3]]


async def test_wrong_messages_are_delivered_as_bytes(client: rbs.StreamsClient, mixed: str) -> None:
    raw: Any = {'type': Order, 'on_decode_error': 'raw', **FROM_START}
    async with client.subscribe(mixed, **raw) as orders:
        found = [message async for message in orders.messages()]
    async with client.subscribe(mixed, **raw) as orders:
        batched: list[Any] = []
        async for batch in orders.batches():
            undecoded = [i for i, body in enumerate(batch) if type(body) is bytes]
            assert batch.undecoded == undecoded
            batched += batch.contexts()
    for messages in (found, batched):
        assert [type(message.body) for message in messages] == [Order, bytes, bytes, Order]
        for message in (
            messages[1],
            copy.copy(messages[1]),
            pickle.loads(pickle.dumps(messages[1])),
        ):
            error = message.decode_error
            assert error is not None
            assert (error.path, error.offset, error.data) == ('$.id', 1, message.body)
        assert messages[0].decode_error is None
    bodies = await read_all(client.subscribe(mixed, **raw))
    assert [type(body) for body in bodies] == [Order, bytes, bytes, Order]


async def test_a_filter_sees_typed_bodies(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, filter_extract=lambda m: m.body.customer) as publisher:
        await publisher.send_many(ORDERS)
    chosen = rbs.MessageFilter(lambda message: message.body.customer, {'b'})
    subscription = client.subscribe(stream, type=Order, filter=chosen, **FROM_START)
    assert await read_all(subscription) == [ORDERS[1]]


async def test_super_stream(client: rbs.StreamsClient, super_stream: str) -> None:
    orders = client.super_stream(super_stream)
    route = rbs.by_hash(lambda order: order.customer)
    async with orders.publisher(route=route) as publisher:
        await publisher.send_many(ORDERS)
    async with orders.subscribe(type=Order, offset=rbs.Offset.FIRST, until='now') as subscription:
        found = [order async for order in subscription]
    assert sorted(found, key=lambda order: order.id) == ORDERS


async def test_an_exception_of_a_class_is_the_cause(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many([{'value': -1}, {'value': 1}])
    error, good = await read_all(client.subscribe(stream, type=Positive, **FROM_START))
    assert str(error).startswith('$: Positive refused the values: -1 is negative')
    assert isinstance(error.__cause__, LookupError)
    assert good == Positive(1)


@dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise LookupError(f'{self.value} is negative')


async def test_a_changed_message_is_sent_as_changed(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(stored, type=Order, **FROM_START) as orders:
        message = await anext(orders.messages())
    message.body.customer = 'new'
    async with client.publisher(stored) as publisher:
        await publisher.send(message)
    last = client.subscribe(stored, type=Order, offset=rbs.Offset.offset(4))
    assert await anext(last) == Order(0, 'new')
    assert rbs.get_message_ctx().app_properties == {'region': 'eu'}


async def test_wrong_arguments(client: rbs.StreamsClient, stream: str) -> None:
    codec = rbs.Codec(bytes, bytes)
    subscribe: Any = client.subscribe
    for arguments in ({'type': Order}, {'codec': codec}):
        with pytest.raises(ArgumentError, match='omit amqp=False'):
            subscribe(stream, amqp=False, **arguments)
    with pytest.raises(ArgumentError, match='either type or codec'):
        subscribe(stream, type=Order, codec=codec)
    with pytest.raises(ArgumentTypeError, match='cannot decode complex'):
        subscribe(stream, type=complex)
    with pytest.raises(ArgumentTypeError, match='codec must be Codec'):
        subscribe(stream, codec=bytes)
