"""`Subscription.fetch` returns the messages that have arrived."""

import asyncio
import itertools
import random
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.protocol.compression import Compression
from rbfly.streams._consume._iteration import FastSubscription
from rbfly.streams._consume.waiter import Ended
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of
from tests.streams.consume.test_reading import Reader, waiting

HANG = 20.0  # seconds; only a safeguard


async def drain(messages: rbs.Subscription, count: int, limit: int | None = None) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        batch = await messages.fetch(limit, HANG)
        assert batch
        found += batch
    return found


# -- fetch, on every broker


@pytest.mark.parametrize('limit', [None, 1, 7])
async def test_fetch_returns_every_message_once(
    client: rbs.StreamsClient, stream: str, limit: int | None
) -> None:
    async with client.publisher(stream) as publisher:
        for start in range(0, 100, 20):
            await publisher.send_many(range(start, start + 20))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        found: list[Any] = []
        while len(found) < 100:
            batch = await messages.fetch(limit, timeout=HANG)
            assert 0 < len(batch) <= (limit or 100)
            assert [ctx.stream_offset for ctx in batch.contexts()] == [*batch.offsets]
            assert rbs.get_message_ctx().body == batch[-1]
            found += batch
    assert found == [*range(100)]


async def test_fetch_of_sub_entries_and_of_a_filter(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(
        stream, sub_entry_size=10, compression=Compression.GZIP
    ) as publisher:
        await publisher.send_many(range(100))
    even = rbs.MessageFilter(lambda ctx: None if ctx.body % 2 else 'even', {'even'}, False)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert await drain(messages, 100, 13) == [*range(100)]
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, filter=even) as messages:
        waiting = asyncio.create_task(drain(messages, 50, 13))
        async with client.publisher(
            stream, filter_extract=lambda ctx: None if ctx.body % 2 else 'even'
        ) as publisher:
            await publisher.send_many(range(100))  # chunks without filter values do not match
        assert await waiting == [*range(0, 100, 2)]


async def test_fetch_without_waiting(client: rbs.StreamsClient, stream: str) -> None:
    messages = client.subscribe(stream)
    await messages.open()
    assert not await asyncio.wait_for(messages.fetch(timeout=0), HANG)
    async with client.publisher(stream) as publisher:
        await publisher.send('a')
    await until(lambda: cursor_of(messages).has_messages, 'the message arrives')
    assert [*await messages.fetch(timeout=0)] == ['a']
    for timeout in (-1, float('nan')):
        with pytest.raises(ValueError, match='timeout must be 0 or more seconds'):
            await messages.fetch(timeout=timeout)
    await messages.close()
    with pytest.raises(rbs.SubscriptionClosed):
        await messages.fetch(timeout=0)


async def test_fetch_waits_for_messages_and_returns_an_empty_batch_after_its_timeout(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.subscribe(stream, timeout=0.001) as messages:
        await messages.open()
        for _ in range(2):
            batch = await messages.fetch(10, timeout=0.01)
            assert len(batch) == 0
        fetching = asyncio.create_task(messages.fetch(10))  # the subscription's timeout is not used
        await asyncio.sleep(0.01)
        assert not fetching.done()
        async with client.publisher(stream) as publisher:
            await publisher.send('x')
        assert list(await fetching) == ['x']


async def test_fetched_messages_are_finished_when_the_program_asks_for_more(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(10))
    tracking = rbs.OffsetTracking('reader', every=0, interval=0)
    for asks in (False, True):
        async with client.subscribe(stream, offset=rbs.Offset.FIRST, commit=tracking) as messages:
            assert await drain(messages, 10, 10)
            if asks:
                assert not await messages.fetch(10, timeout=0.01)
        assert await client.read_offset(stream, 'reader') in ([9] if asks else [None, *range(9)])


@pytest.mark.parametrize('how', ['stop', 'aclose', 'stop while it waits', 'aclose while it waits'])
async def test_fetch_of_a_subscription_that_has_ended(
    client: rbs.StreamsClient, stream: str, how: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(10))
    tracking = rbs.OffsetTracking('reader', every=0, interval=0)
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, commit=tracking)
    assert await drain(messages, 10)
    fetching: asyncio.Future[Any] | None = None
    if 'waits' in how:
        fetching = asyncio.create_task(messages.fetch(10))
        await until(session_of(messages)._waiter.is_waiting, 'the task waits')
    if 'stop' in how:
        messages.stop()
    else:
        await messages.aclose()
    for _ in range(2):
        with pytest.raises(rbs.SubscriptionClosed, match='ended'):
            await (fetching or messages.fetch(10))
        fetching = None
    if how != 'aclose':
        assert await client.read_offset(stream, 'reader') == 9
    await messages.aclose()


async def test_fetch_while_another_task_reads(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream) as messages:
        reading = asyncio.create_task(anext(messages, None))
        await until(session_of(messages)._waiter.is_waiting, 'the task waits')
        with pytest.raises(rbs.SubscriptionError, match='another task'):
            await messages.fetch()
        messages.stop()
        assert await reading is None


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        ({'max_messages': 0}, ValueError),
        ({'max_messages': -1}, ValueError),
        ({'max_messages': 2**31}, ValueError),
        ({'max_messages': 1.5}, TypeError),
        ({'max_messages': True}, TypeError),
        ({'timeout': -1}, ValueError),
        ({'timeout': float('nan')}, ValueError),
        ({'timeout': '1'}, TypeError),
    ],
)
async def test_arguments_of_fetch(arguments: Any, error: type[Exception]) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost')
    with pytest.raises(error, match=next(iter(arguments))) as caught:
        await client.subscribe('test').fetch(**arguments)
    assert isinstance(caught.value, rbs.RbFlyError)


# -- fetch, through faults


async def test_fetch_joins_the_chunks_that_have_arrived() -> None:
    async with subscribe_to_fake(stream_of_chunks(2, 1, 3)) as messages:
        chunks = cursor_of(messages).queue.chunks
        await messages.open()
        await until(lambda: len(chunks) == 3, 'all chunks have arrived')
        assert list(await messages.fetch(5)) == [b'0', b'1', b'2', b'3', b'4']
        assert list(await messages.fetch(5)) == [b'5']


async def test_fetch_raises_an_error_after_the_messages_before_it() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        async with client.subscribe('test', offset=rbs.Offset.FIRST) as messages:
            await messages.open()
            memory.publish('test', 0, 1)
            memory.corrupt_chunk()
            memory.publish('test', 2)
            memory.publish('test', 3)
            chunks = cursor_of(messages).queue.chunks
            await until(lambda: len(chunks) == 3, 'all chunks have arrived')
            assert list(await messages.fetch()) == [0, 1]
            with pytest.raises(rbs.ChunkError):
                await messages.fetch()
            assert list(await messages.fetch()) == [3]


async def test_reconnect_during_fetch() -> None:
    stream = stream_of_chunks(2)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        assert await drain(messages, 2) == [b'0', b'1']
        fetching = asyncio.create_task(drain(messages, 2))
        await until(session_of(messages)._waiter.is_waiting, 'the task waits')
        fake.connection.transport.abort()
        await until(lambda: len(stream.readers) == 2, 'the client has subscribed again')
        stream.append(b'2', b'3')
        assert await fetching == [b'2', b'3']


@pytest.mark.both_loops
@pytest.mark.parametrize('how', ['fetch', 'anext'])
async def test_cancelled_reading_loses_no_message(how: str, rng: random.Random) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        found: list[Any] = []
        async with client.subscribe('test', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
            published = 0

            async def read() -> None:
                if how == 'anext':
                    item = await anext(messages)
                    found.append(item)
                elif how == 'fetch':
                    batch = await messages.fetch(3)
                    found.extend(batch)
                else:
                    batch = await anext(messages.batches(3, max_wait=0.001))
                    found.extend(batch)

            for turns in itertools.count():
                task = asyncio.create_task(read())
                for _ in range(turns % 40):
                    if rng.random() < 0.1:
                        memory.publish('test', published)
                        published += 1
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if turns == 400:
                    memory.cut()
                if turns > 800 and published > 200:
                    break
            while len(found) < published:
                await read()
    assert found == [*range(published)]


async def test_fetch_until_the_end_of_a_source() -> None:
    reader = Reader()

    async def fetch(max_wait: float = 0.0) -> list[Any]:
        found = await reader.waiter_.wait_joined(10, max_wait, None, reader)
        assert found is not None
        return list(found)

    for body in (b'a', b'b'):
        task = asyncio.ensure_future(fetch())
        await waiting(reader, task)
        reader.source.put(body)
        reader.source.put(body)
        assert await task == [body, body]
    reader.source.put(b'c')
    task = asyncio.ensure_future(fetch(HANG))
    await waiting(reader, task)
    reader.waiter_.end()
    assert await asyncio.wait_for(task, HANG / 2) == [b'c']
    with pytest.raises(Ended):
        await fetch()
    assert isinstance(reader, FastSubscription)


async def test_close_during_fetch_that_lets_others_run() -> None:
    async with (
        FakeBroker(on={wire.SUBSCRIBE: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = client.subscribe('test')
        fetching = asyncio.create_task(messages.fetch())
        await until(session_of(messages)._waiter.is_waiting, 'the task waits')
        await messages.aclose()
        with pytest.raises(rbs.SubscriptionClosed):
            await fetching
