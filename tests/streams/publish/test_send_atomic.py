"""Atomic batches: all or none of their messages are stored, whatever interrupts the publisher."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from brokers.proxy import Proxy
from rbfly.error import (
    AMQPEncoderError,
    ArgumentError,
    ArgumentTypeError,
    ConfirmTimeout,
    MessageTooLarge,
    PublisherError,
    PublishError,
    WindowTimeout,
)
from rbfly.net import retry
from rbfly.streams import Compression
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_publish_sub_entries import entries_of
from tests.streams.test_interop import read_pika, read_rbfly, read_rstream


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


async def test_batch_is_stored_as_one_entry(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send(b'before')
        await publisher.send_atomic([b'a', b'b', b'c'])
        await publisher.send_atomic(iter([b'd', b'e']))
        await publisher.send(b'behind')
        assert publisher.next_publish_id == 5
    entries = [messages for _, messages in await entries_of(broker, stream, 7)]
    assert entries == [[b'before'], [b'a', b'b', b'c'], [b'd', b'e'], [b'behind']]


async def test_read_with_offsets(client: rbs.StreamsClient, stream: str) -> None:
    order = rbs.Message({'order': 1}, app_properties={'kind': 'order'})
    async with client.publisher(stream) as publisher:
        await publisher.send_atomic([order, {'line': 1}, 'text'])
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, until='now') as subscription:
        found = [message async for message in subscription.messages()]
    assert [message.body for message in found] == [{'order': 1}, {'line': 1}, 'text']
    assert [message.stream_offset for message in found] == [0, 1, 2]
    assert found[0].app_properties == {'kind': 'order'}
    # a reader may start inside a batch
    async with client.subscribe(stream, offset=rbs.Offset.offset(1), until='now') as subscription:
        assert [body async for body in subscription] == [{'line': 1}, 'text']


@pytest.mark.parametrize('compression', list(Compression))
async def test_compression_of_the_publisher(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, compression: Compression
) -> None:
    messages = [b'message %d ' % i * 20 for i in range(500)]
    async with client.publisher(
        stream, sub_entry_size=10, compression=compression, amqp=False
    ) as publisher:
        await publisher.send_atomic(messages)
    assert await entries_of(broker, stream, 500) == [(compression.code, messages)]


@pytest.mark.parametrize(
    'reader', [read_rbfly, read_rstream, pytest.param(read_pika, marks=pytest.mark.rabbitmq)]
)
async def test_other_clients_read_batches(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, reader: Any
) -> None:
    bodies = [b'%d' % i for i in range(1000)]
    async with client.publisher(stream) as publisher:
        for start in range(0, 1000, 100):
            await publisher.send_atomic(bodies[start : start + 100])
    assert await reader(broker, stream, 1000) == bodies


async def test_batches_and_messages_of_many_tasks(client: rbs.StreamsClient, stream: str) -> None:
    async def work(task: int) -> None:
        for i in range(20):
            await publisher.send_atomic([b'%d %d %d' % (task, i, part) for part in range(3)])
            await publisher.send(b'%d %d 3' % (task, i))

    async with client.publisher(stream, amqp=False, max_unconfirmed=20) as publisher:
        await asyncio.gather(*map(work, range(30)))
        assert publisher.unconfirmed == 0
    found = [tuple(map(int, body.split())) for body in await stored(client, stream)]
    for task in range(30):
        mine = [item for item in found if item[0] == task]
        assert mine == [(task, i, part) for i in range(20) for part in range(4)]
    starts = [i for i, (_, _, part) in enumerate(found) if part == 0]
    assert all(found[i + 2] == (*found[i][:2], 2) for i in starts)  # nothing in between


async def test_batch_queues_behind_messages_of_batch(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        publisher.batch(b'1')
        await publisher.send_atomic([b'2', b'3'])
        assert await stored(client, stream) == [b'1', b'2', b'3']


async def test_calls_that_wait_for_the_window_keep_their_order(
    client: rbs.StreamsClient, stream: str, rng: random.Random
) -> None:
    """A small batch does not overtake a large one, whose explicit id would then be too low."""
    async with client.publisher(stream, amqp=False, max_unconfirmed=50) as publisher:
        tasks: list[asyncio.Task[None]] = []
        for i in range(300):
            messages = [b'%d' % i] * rng.choice((1, 2, 40))
            tasks.append(asyncio.create_task(publisher.send_atomic(messages, publish_id=i)))
            if len(tasks) == 8:
                await tasks.pop(0)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    found = [int(body) for body in await stored(client, stream)]
    assert found == sorted(found)
    assert {*found} == {*range(300)}


async def test_batch_larger_than_the_window(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False, max_unconfirmed=10) as publisher:
        sends = [publisher.send(b'a') for _ in range(30)]
        batch = publisher.send_atomic([b'b'] * 1000)
        await asyncio.gather(*sends, batch, publisher.send(b'c'))
    assert Counter(await stored(client, stream)) == {b'a': 30, b'b': 1000, b'c': 1}


async def test_no_messages(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_atomic([])
        assert publisher.next_publish_id == 1
    with pytest.raises(PublisherError, match='closed'):
        await publisher.send_atomic([])


# -- wrong use sends nothing


@pytest.mark.parametrize(
    ('messages', 'kind', 'text'),
    [
        (b'a message', ArgumentTypeError, 'not a single bytes'),
        ({'a': 1}, ArgumentTypeError, 'not a single dict'),
        (rbs.Message(b'x'), ArgumentTypeError, 'not a single Message'),
        (5, ArgumentTypeError, 'not 5'),
        ([b''] * 65_536, ArgumentError, 'at most 65,535 messages'),
        (iter([b''] * 65_537), ArgumentError, 'at most 65,535 messages'),
        ([b'x' * 1000] * 2000, MessageTooLarge, 'does not fit into a frame'),
        ([b'x', b'x' * 2**21], MessageTooLarge, 'message 1 of send_atomic: '),
        ([b'x', object()], AMQPEncoderError, 'message 1 of send_atomic: '),
        ([rbs.Message(b'x', publish_id=9)], ArgumentError, 'message 0 of send_atomic: '),
    ],
)
async def test_messages_that_are_no_batch(
    client: rbs.StreamsClient, stream: str, messages: Any, kind: type[Exception], text: str
) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises(kind, match=text):
            await publisher.send_atomic(messages)
        assert (publisher.next_publish_id, publisher.unconfirmed) == (1, 0)
    assert await stored(client, stream) == []


async def test_asynchronous_iterator(client: rbs.StreamsClient, stream: str) -> None:
    async def numbers() -> AsyncIterator[bytes]:
        yield b'x'

    async with client.publisher(stream) as publisher:
        with pytest.raises(ArgumentTypeError, match='not an asynchronous one'):
            await publisher.send_atomic(numbers())  # type: ignore[arg-type]


async def test_iterator_that_fails(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises(ZeroDivisionError) as caught:
            await publisher.send_atomic(1 // i for i in (1, 0))
        assert caught.value.__notes__ == ['raised by the iterator given to send_atomic']
        assert publisher.next_publish_id == 1


async def test_publisher_with_filter_values(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, filter_extract=lambda ctx: 'x') as publisher:
        with pytest.raises(ArgumentError, match='filter_extract'):
            await publisher.send_atomic([b'x'])


@pytest.mark.parametrize('wrong', [-1, 2**64, 'a', True])
async def test_wrong_publish_id(client: rbs.StreamsClient, stream: str, wrong: Any) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises((ArgumentError, ArgumentTypeError), match='publish_id'):
            await publisher.send_atomic([b'x'], publish_id=wrong)


# -- publishing ids


async def test_explicit_id_is_deduplicated_as_one(client: rbs.StreamsClient, stream: str) -> None:
    for _ in range(2):  # as a program that starts again
        async with client.publisher(stream, name='shop', amqp=False) as publisher:
            await publisher.send_atomic([b'a', b'b'], publish_id=10)
            await publisher.send(rbs.Message(b'c', publish_id=11))
            await publisher.send_atomic([b'd', b'e'], publish_id=15)
            with pytest.raises(ArgumentError, match='15 is not above') as caught:
                await publisher.send_atomic([b'f'], publish_id=15)
            assert caught.value.outcome == 'unknown'
            assert publisher.next_publish_id == 16
    assert await stored(client, stream) == [b'a', b'b', b'c', b'd', b'e']


async def test_automatic_ids_continue(client: rbs.StreamsClient, stream: str) -> None:
    for i in range(3):
        async with client.publisher(stream, name='shop', amqp=False) as publisher:
            assert publisher.next_publish_id == i + 1
            await publisher.send_atomic([b'%d' % i] * 3)
    assert await stored(client, stream) == [b'0'] * 3 + [b'1'] * 3 + [b'2'] * 3


# -- callers that give up, and errors


async def test_timeout_in_flight() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            broker.withhold_confirms()
            with pytest.raises(ConfirmTimeout, match='did not confirm the batch') as caught:
                await publisher.send_atomic([b'a', b'b'], timeout=0.01)
            assert caught.value.outcome == 'unknown'
            assert publisher.unconfirmed == 2
            broker.heal()
        assert broker.messages('orders') == [b'a', b'b']


@pytest.mark.parametrize('how', ['timeout', 'cancel'])
async def test_batch_that_was_not_sent_is_withdrawn(how: str) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send(b'before')
            broker.refuse()
            broker.cut()
            await until(lambda: 'reconnecting' in repr(publisher), 'the connection is lost')
            call = publisher.send_atomic([b'a', b'b'], timeout=0.01 if how == 'timeout' else None)
            task = asyncio.create_task(call)
            await until(lambda: publisher.unconfirmed == 2 or task.done(), 'the batch is queued')
            if how == 'cancel':
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(ConfirmTimeout, match='withdrew it') as caught:
                    await task
                assert (caught.value.outcome, caught.value.retriable) == ('not_sent', True)
            assert publisher.unconfirmed == 0
            broker.heal()
            await publisher.send(b'behind')
        assert broker.messages('orders') == [b'before', b'behind']


async def test_window_stays_full() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders', max_unconfirmed=4) as publisher:
            broker.withhold_confirms()
            confirmations = [await publisher.submit(b'a') for _ in range(2)]
            with pytest.raises(WindowTimeout) as caught:
                await publisher.send_atomic([b'b'] * 3, timeout=0.01)
            assert caught.value.outcome == 'not_sent'
            assert publisher.capacity == 2
            fitting = asyncio.create_task(publisher.send_atomic([b'c'] * 2))
            await until(lambda: publisher.unconfirmed == 4, 'the batch is sent')
            broker.heal()
            await asyncio.gather(fitting, *confirmations)
        assert broker.messages('orders') == [b'a', b'a', b'c', b'c']


async def test_timeout_of_zero_sends_nothing(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises(ConfirmTimeout, match='timeout of 0'):
            await publisher.send_atomic([b'a'], timeout=0)
        assert publisher.next_publish_id == 1


async def test_broker_refuses_a_batch() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            broker.publish_error()
            with pytest.raises(PublishError) as caught:
                await publisher.send_atomic([b'a', b'b'])
            assert [item.publish_id for item in caught.value.errors] == [1]
            await publisher.send_atomic([b'c', b'd'])
        assert broker.messages('orders') == [b'c', b'd']


async def test_metrics_count_messages(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_atomic([b'a'] * 7)
        metrics = client.metrics()
        assert (metrics.published, metrics.confirmed) == (7, 7)


# -- all or none


@pytest.mark.parametrize('name', [None, 'shop'])
async def test_connections_are_cut(
    client: rbs.StreamsClient, stream: str, proxy: Proxy, rng: random.Random, name: str | None
) -> None:
    """With a name, each batch is stored once; without one, it may be repeated as a whole."""

    async def work(task: int) -> None:
        for i in range(15):
            size = sizes[task, i]
            await publisher.send_atomic([b'%d %d %d' % (task, i, n) for n in range(size)])
            if i % 3 == 0:
                proxy.cut_after(rng.randrange(1, 3000), rng.choice(('up', 'down')))

    sizes = {(task, i): rng.randrange(2, 60) for task in range(4) for i in range(15)}
    async with (
        rbs.streams_client(proxy.uri, load_balancer=True) as other,
        other.publisher(stream, name=name, amqp=False) as publisher,
    ):
        await asyncio.gather(*map(work, range(4)))
    assert proxy.cuts
    left = [tuple(map(int, body.split())) for body in await stored(client, stream)]
    found: Counter[tuple[int, int]] = Counter()
    while left:
        task, i, _ = left[0]
        size = sizes[task, i]
        assert left[:size] == [(task, i, n) for n in range(size)]
        del left[:size]
        found[task, i] += 1
    assert found.keys() == sizes.keys()
    if name:
        assert set(found.values()) == {1}


async def test_broker_restarts(private_broker: Callable[[], RabbitMQ], private_stream: str) -> None:
    broker = private_broker()
    async with (
        rbs.streams_client(broker.uri) as client,
        client.publisher(private_stream, name='shop', amqp=False) as publisher,
    ):
        count = 0

        async def publish() -> None:
            nonlocal count
            while not restarted.done() or count < 200:
                count += 1
                await publisher.send_atomic([b'%d %d' % (count, n) for n in range(50)])

        restarted = asyncio.ensure_future(asyncio.to_thread(broker.restart_node))
        await asyncio.gather(restarted, publish())
        assert await stored(client, private_stream) == [
            b'%d %d' % (i, n) for i in range(1, count + 1) for n in range(50)
        ]
