"""Batch publishers: concurrent tasks, raw bytes, and the names of RbFly 0.x."""

import asyncio
import random
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import AMQPEncoderError, ArgumentError
from rbfly.streams import _client, stream_message_ctx
from rbfly.streams.error import PublisherError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.streams.publish.test_publish import stored


async def settle() -> None:
    """Let every ready task run."""
    for _ in range(10):
        await asyncio.sleep(0)


def batching(publisher: rbs.PublisherBatchLimit, body: Any, max_len: int) -> 'asyncio.Task[None]':
    return asyncio.create_task(publisher.batch(body, max_len=max_len))


@pytest.mark.parametrize('walk', range(3))
async def test_tasks_batch_and_flush_concurrently(
    client: rbs.StreamsClient, stream: str, walk: int, rng: random.Random
) -> None:
    async def produce(task: int) -> None:
        for i in range(200):
            await publisher.batch(b'%d %d' % (task, i), max_len=rng.choice([1, 10, 50]))
            if rng.random() < 0.3:
                await asyncio.sleep(0)

    async def flush() -> None:
        while True:
            await publisher.flush()
            await asyncio.sleep(0)

    async with client.publisher(stream, cls=rbs.PublisherBatchLimit, amqp=False) as publisher:
        flushing = [asyncio.create_task(flush()) for _ in range(2)]
        await asyncio.gather(*(produce(task) for task in range(10)))
        for task in flushing:
            task.cancel()
    found = [tuple(map(int, item.split())) for item in await stored(client, stream)]
    for producer in range(10):  # no message is lost, and those of each task stay in order
        assert [i for t, i in found if t == producer] == list(range(200))


async def test_error_of_a_context_outlasts_a_flush_that_times_out() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        publisher = await client.publisher('orders', cls=rbs.PublisherBatchLimit)
        await publisher.batch(stream_message_ctx('5', publish_id=5), max_len=10)
        await publisher.flush()
        broker.withhold_confirms()
        for number in (3, 6):
            message = stream_message_ctx(str(number), publish_id=number)
            await publisher.batch(message, max_len=10)
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.flush(timeout=0.01)
        broker.heal()
        with pytest.raises(ArgumentError, match='3'):
            await publisher.flush()
        await publisher.close()
        assert broker.messages('orders') == ['5', '6']


async def test_dropped_publisher_sends_contexts_as_other_messages() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        publisher = await client.publisher('orders', cls=rbs.PublisherBatchLimit)
        await publisher.batch('first', max_len=10)
        await publisher.batch(stream_message_ctx('last', publish_id=7), max_len=10)
        del publisher
        await until(lambda: broker.messages('orders') == ['first', 'last'], 'both are stored')


async def test_batch_waits_at_its_limit_until_a_flush(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit, amqp=False) as publisher:
        tasks = [batching(publisher, b'%d' % i, 4) for i in range(10)]
        counts = []
        while not all(task.done() for task in tasks):
            await settle()
            counts.append(sum(task.done() for task in tasks))
            await publisher.flush()
        assert counts[:2] == [4, 8]
        assert publisher.message_id == 11
    assert await stored(client, stream) == [b'%d' % i for i in range(10)]


async def test_unused_capacity_goes_to_the_next_waiting_task(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
        await publisher.batch('first', max_len=1)
        cancelled, wrong, last = (batching(publisher, m, 1) for m in ('x', object(), 'last'))
        await settle()
        cancelled.cancel()
        flushing = asyncio.create_task(publisher.flush())
        await until(last.done, 'the last task has run')
        assert cancelled.cancelled()
        assert isinstance(wrong.exception(), AMQPEncoderError)
        await flushing
    assert len(await stored(client, stream)) == 2


async def test_waiting_batch_call_fails_when_the_publisher_closes(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit, amqp=False) as publisher:
        await publisher.batch(b'queued', max_len=1)
        waiting = batching(publisher, b'late', 1)
        await settle()
    with pytest.raises(PublisherError, match='closed'):
        await waiting
    assert await stored(client, stream) == [b'queued']


async def test_waiting_batch_call_fails_when_the_stream_is_deleted(
    client: rbs.StreamsClient, stream: str
) -> None:
    with pytest.raises(StreamDoesNotExist):  # noqa: PT012
        async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
            await publisher.batch('queued', max_len=1)
            waiting = batching(publisher, 'late', 1)
            await settle()
            await client.delete_stream(stream)
            await waiting


@pytest.mark.parametrize(
    ('max_len', 'error'), [(0, ValueError), (-1, ValueError), ('9', TypeError)]
)
async def test_max_len_is_checked(
    client: rbs.StreamsClient, stream: str, max_len: Any, error: type[Exception]
) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
        with pytest.raises(error, match='max_len'):
            await publisher.batch('x', max_len=max_len)
        with pytest.raises(TypeError, match='max_len'):
            await publisher.batch('x')  # type: ignore[call-arg]


async def test_batch_is_sent_in_the_order_of_its_ids(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit, name='n') as publisher:
        for i in (5, 3, 9, 4):
            await publisher.batch(stream_message_ctx(b'%d' % i, publish_id=i), max_len=10)
        await publisher.flush()
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert [await anext(messages) for _ in range(4)] == [b'3', b'4', b'5', b'9']


async def test_publishers_of_raw_bytes(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, cls=rbs.PublisherBin) as publisher:
        await publisher.send(b'one')
        for message in ('text', 5, [b'a']):
            with pytest.raises(TypeError, match='bytes'):
                await publisher.send(message)
    async with client.publisher(stream, cls=rbs.PublisherBinBatch) as batch:
        batch.batch(b'two')
        with pytest.raises(TypeError, match='bytes'):
            batch.batch('text')
        await batch.flush()
    assert await stored(client, stream) == [b'one', b'two']


async def test_names_of_rbfly_0(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.warns(DeprecationWarning, match='PublisherBatchFast') as warned:  # noqa: PT031
        async with client.publisher(stream, cls=rbs.PublisherBatch, amqp=False) as fast:
            fast.batch(b'one')
            await fast.flush()
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match='PublisherBatchLimit') as warned:  # noqa: PT031
        async with client.publisher(stream, cls=rbs.PublisherBatchMem, amqp=False) as limit:
            await limit.batch(b'two', max_len=1)
            await limit.flush()
    assert warned[0].filename == __file__
    assert isinstance(fast, rbs.PublisherBatchFast)
    assert isinstance(limit, rbs.PublisherBatchLimit)
    assert issubclass(rbs.PublisherBatchLimit, rbs.PublisherBatchFast)
    assert rbs.Subscriber is rbs.Subscription
    for name in _client.__all__:
        assert getattr(_client, name) is getattr(rbs, name)
    assert await stored(client, stream) == [b'one', b'two']


def test_all_names_of_rbfly_0() -> None:
    names = """connection StreamsClient streams_client Offset OffsetType MessageFilter
        BloomFilterExtract Publisher PublisherBatchFast PublisherBatchLimit Subscriber
        PublisherBatch PublisherBatchMem AMQPHeader AMQPScalar AMQPBody AMQPAppProperties
        AMQPAnnotations Symbol MessageCtx stream_message_ctx get_message_ctx AuthMechanism"""
    assert set(names.split()) <= set(rbs.__all__)
    assert all(hasattr(rbs, name) for name in rbs.__all__)


async def test_a_subclass_of_ours(client: rbs.StreamsClient, stream: str) -> None:
    class Twice(rbs.Publisher):
        async def send(self, message: Any, timeout: float | None = None) -> None:
            await super().send(message, timeout)
            await super().send(message)

    async with client.publisher(stream, cls=Twice, amqp=False) as publisher:
        await publisher.send(b'x')
        await publisher.send(b'y', timeout=10)
    assert await stored(client, stream) == [b'x', b'x', b'y', b'y']
