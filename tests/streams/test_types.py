"""The types of messages, to type checkers and at run time.

mypy and pyright check the calls of `assert_type`, and that each error ignored here is one.
"""

from collections import ChainMap, UserList, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import (
    Any,
    Generic,
    TypedDict,
    TypeVar,
    assert_type,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import pydantic
import pytest

import rbfly.streams as rbs
from rbfly.amqp import decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPEncoderTypeError

T = TypeVar('T')


class Item(TypedDict):
    title: str


class Order(TypedDict):
    id: int
    items: list[Item]


ORDER: Order = {'id': 1, 'items': [{'title': 'book'}]}


@pytest.fixture
async def published(client: rbs.StreamsClient, stream: str) -> str:
    async with client.publisher(stream) as publisher:
        await publisher.send_many([ORDER] * 5)
    return stream


async def test_received_bodies_are_any(client: rbs.StreamsClient, published: str) -> None:
    orders = client.subscribe(published, offset=rbs.Offset.FIRST)
    assert_type(orders, rbs.Subscription[Any])
    assert_type(orders, rbs.Subscription)
    async for order in orders:
        assert_type(order, Any)
        assert order['items'][0]['title'] == 'book'
        break
    assert_type(await anext(orders), Any)
    assert_type(rbs.get_message_ctx().body, Any)
    async for ctx in orders.messages():
        assert_type(ctx, rbs.MessageCtx)
        assert_type(ctx.body, Any)
        assert ctx.body == ORDER
        break
    async for batch in orders.batches():
        assert_type(batch, rbs.MessageBatch)
        assert_type(batch[0], Any)
        assert_type(batch[:1], list[Any])
        assert [ctx.body for ctx in batch.contexts()] == [*batch] == [ORDER] * len(batch)
        break
    order = await anext(client.subscribe(published, offset=rbs.Offset.FIRST, amqp=True))
    assert order == ORDER


async def test_received_bodies_are_bytes_without_amqp(
    client: rbs.StreamsClient, published: str
) -> None:
    orders = client.subscribe(published, offset=rbs.Offset.FIRST, amqp=False)
    assert_type(orders, rbs.Subscription[bytes])
    async for data in orders:
        assert_type(data, bytes)
        assert decode_amqp(data).body == ORDER
        break
    data = await anext(orders)
    assert_type(data, bytes)
    async for ctx in orders.messages():
        assert_type(ctx, rbs.MessageCtx[bytes])
        assert_type(ctx.body, bytes)
        assert ctx.body == data
        break
    async for batch in orders.batches():
        assert_type(batch, rbs.MessageBatch[bytes])
        assert_type(batch[0], bytes)
        assert_type(batch[:1], list[bytes])
        assert_type(batch.context(0).body, bytes)
        assert [ctx.body for ctx in batch.contexts()] == [*batch] == [data] * len(batch)
        break
    async with orders as same:
        assert_type(same, rbs.Subscription[bytes])


async def test_subscription_whose_format_is_a_variable(
    client: rbs.StreamsClient, published: str
) -> None:
    def subscribe(amqp: bool) -> rbs.Subscription:
        return client.subscribe(published, offset=rbs.Offset.FIRST, amqp=amqp)

    assert_type(await anext(subscribe(True)), Any)
    assert decode_amqp(await anext(subscribe(False))).body == ORDER


async def test_subscription_is_an_iterator_and_its_types_are_covariant(
    client: rbs.StreamsClient, published: str
) -> None:
    orders = client.subscribe(published, offset=rbs.Offset.FIRST, amqp=False)
    iterator: AsyncIterator[bytes] = orders
    assert_type(await anext(iterator), bytes)
    wider: rbs.Subscription[object] = orders
    assert type(await anext(wider)) is bytes
    narrower: rbs.Subscription[str] = orders  # type: ignore[assignment]
    assert type(await anext(narrower)) is bytes


def proxy(order: Mapping[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType({**order})


async def test_mappings_and_sequences_can_be_sent(client: rbs.StreamsClient, stream: str) -> None:
    untyped: dict[str, object] = {'id': 1, 'items': ('book', 2, None)}
    mapping: Mapping[str, Any] = untyped
    sequence: Sequence[object] = ['a', 1]
    orders: list[Order] = [ORDER]

    def source() -> Iterator[Order]:
        yield ORDER

    async with client.publisher(stream) as publisher:
        assert_type(publisher, rbs.Publisher)
        await publisher.send(ORDER)
        await publisher.send(untyped)
        await publisher.send(mapping)
        await publisher.send(ChainMap(untyped))
        await publisher.send(proxy(ORDER))
        await (await publisher.submit(sequence))
        await publisher.send(deque(sequence))
        await publisher.send(UserList(orders))
        await publisher.send(orders)
        await publisher.send_many(orders)
        await publisher.send_many(source())
        await publisher.send(stream_message_ctx(ORDER, app_properties={'region': 'eu'}))
        await publisher.send(rbs.MessageCtx(ORDER, app_properties=mapping))
    received = {'id': 1, 'items': ['book', 2, None]}
    expected: list[object] = [ORDER, *[received] * 3, ORDER, ['a', 1], ['a', 1], [ORDER], [ORDER]]
    expected += [ORDER] * 4
    found: list[object] = []
    async for order in client.subscribe(stream, offset=rbs.Offset.FIRST):
        found.append(order)
        if len(found) == len(expected):
            break
    assert found == expected


async def test_batches_of_mappings_can_be_sent(client: rbs.StreamsClient, stream: str) -> None:
    publisher = await client.publisher(stream)
    assert_type(publisher, rbs.Publisher)
    publisher.batch(ORDER)
    publisher.batch(proxy(ORDER))
    await publisher.close()
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as orders:
        assert [await anext(orders), await anext(orders)] == [ORDER, ORDER]


async def test_messages_of_a_subscription_can_be_sent(
    client: rbs.StreamsClient, published: str
) -> None:
    orders = client.subscribe(published, offset=rbs.Offset.FIRST, amqp=False)
    async with client.publisher(published, amqp=False) as publisher:
        await publisher.send(await anext(orders))
        await publisher.send(await anext(orders.messages()))
        await publisher.send_many(await anext(orders.batches(1)))
    last = client.subscribe(published, offset=rbs.Offset.offset(7))
    assert await anext(last) == ORDER


async def test_values_without_an_amqp_type_are_refused(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises(AMQPEncoderTypeError):
            await publisher.send(object())  # type: ignore[arg-type]
        with pytest.raises(AMQPEncoderTypeError):
            await publisher.send({1, 2})  # type: ignore[arg-type]
        with pytest.raises(AMQPEncoderTypeError, match=r"^body\['tags'\]: "):
            await publisher.send({'tags': {'new'}})


def test_contexts_have_any_body_unless_received_without_amqp() -> None:
    ctx = rbs.MessageCtx(ORDER)
    assert_type(ctx, rbs.MessageCtx[Any])
    ctx.body = 'another type'
    assert_type(decode_amqp(encode_amqp_bytes(ctx)).body, Any)
    assert ctx.body == 'another type'


@dataclass
class Book:
    """As an Item, but an object."""

    title: str


class BookStruct(msgspec.Struct):
    title: str


class BookModel(pydantic.BaseModel):
    title: str


async def test_objects_with_fields_can_be_sent(client: rbs.StreamsClient, stream: str) -> None:
    books: list[Book] = [Book('a'), Book('b')]
    async with client.publisher(stream) as publisher:
        await publisher.send(Book('c'))
        await publisher.send(BookStruct('d'))
        await publisher.send(BookModel(title='e'))
        await publisher.send_many(books)
        await publisher.send(rbs.Message(Book('f')))
        with pytest.raises(AMQPEncoderTypeError):
            await publisher.send(Consumer)  # type: ignore[arg-type]
    found: list[str] = []
    async for book in client.subscribe(stream, offset=rbs.Offset.FIRST, type=BookStruct):
        assert_type(book, BookStruct)
        found.append(book.title)
        if len(found) == 6:
            break
    assert ''.join(found) == 'cdeabf'


async def test_received_bodies_have_the_requested_type(
    client: rbs.StreamsClient, super_stream: str, published: str
) -> None:
    start = rbs.Offset.FIRST
    books = client.subscribe(published, offset=start, type=Order)
    assert_type(books, rbs.Subscription[Order])
    async for book in books:
        assert_type(book, Order)
        assert book['items'][0]['title'] == 'book'
        break
    async for message in books.messages():
        assert_type(message, rbs.MessageCtx[Order])
        assert message.body == ORDER
        break
    async for batch in books.batches(1):
        assert_type(batch, rbs.MessageBatch[Order])
        assert_type(batch[0], Order)
        break
    assert_type(await books.fetch(1), rbs.MessageBatch[Order])
    items = client.subscribe(published, offset=start, type=dict[str, Any])
    assert_type(items, rbs.Subscription[dict[str, Any]])
    either = client.subscribe(published, offset=start, type=Order | None)
    assert_type(either, rbs.Subscription[Any])
    parts = client.super_stream(super_stream).subscribe(type=Book)
    assert_type(parts, rbs.SuperStreamSubscription[Book])
    assert_type(decode_amqp(encode_amqp_bytes(Book('a')), type=Book).body, Book)


def decode_book(data: bytes) -> Book:
    return Book(data.decode())


def encode_book(book: Book) -> bytes:
    return book.title.encode()


async def test_received_bodies_have_the_type_that_the_codec_returns(
    client: rbs.StreamsClient, super_stream: str, stream: str
) -> None:
    codec = rbs.Codec(encode_book, decode_book)
    assert_type(codec, rbs.Codec[Book])
    async with client.publisher(stream, codec=codec) as publisher:
        assert_type(publisher, rbs.Publisher)
        await publisher.send(Book('a'))
    books = client.subscribe(stream, offset=rbs.Offset.FIRST, codec=codec)
    assert_type(books, rbs.Subscription[Book])
    assert await anext(books) == Book('a')
    parts = client.super_stream(super_stream).subscribe(codec=codec)
    assert_type(parts, rbs.SuperStreamSubscription[Book])


async def test_bodies_that_are_not_copied(
    client: rbs.StreamsClient, super_stream: str, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
    start = rbs.Offset.FIRST
    raw = client.subscribe(stream, offset=start, amqp=False, copy=False)
    assert_type(raw, rbs.Subscription[memoryview])
    assert type(await anext(raw)) is memoryview
    assert_type(client.subscribe(stream, amqp=False, copy=True), rbs.Subscription[bytes])
    views = client.subscribe(stream, offset=start, copy=False)
    assert_type(views, rbs.Subscription)
    assert type(await anext(views)) is memoryview
    parts = client.super_stream(super_stream).subscribe(amqp=False, copy=False)
    assert_type(parts, rbs.SuperStreamSubscription[memoryview])


class Consumer(Generic[T]):
    """A program's own generic class."""

    def __init__(self, messages: rbs.Subscription[T]) -> None:
        self.messages = messages

    async def next(self) -> T:
        return await anext(self.messages)


async def test_types_can_be_used_at_run_time(client: rbs.StreamsClient, published: str) -> None:
    class Bytes(rbs.Subscription[bytes]):
        """A subclass."""

    assert issubclass(Bytes, rbs.Subscription)
    assert get_origin(rbs.Subscription[bytes]) is rbs.Subscription
    assert get_args(rbs.MessageBatch[bytes]) == get_args(rbs.MessageCtx[bytes]) == (bytes,)
    batches = rbs.Subscription[bytes].batches
    assert get_origin(get_type_hints(batches)['return']) is AsyncIterator
    consumer = Consumer(client.subscribe(published, offset=rbs.Offset.FIRST, amqp=False))
    assert_type(await consumer.next(), bytes)
