"""`batches(max_wait=)` joins chunks."""

import asyncio
import itertools
import random
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of

HANG = 20.0  # seconds; only a safeguard


def bodies(start: int, end: int) -> list[bytes]:
    return [b'%d' % i for i in range(start, end)]


# -- on every broker


async def test_small_chunks_are_joined(client: rbs.StreamsClient, stream: str) -> None:
    async with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, initial_credit=2, timeout=5 * HANG) as messages,
    ):
        await messages.open()
        batches = messages.batches(30, max_wait=5 * HANG)
        for start in (0, 30):
            joining = asyncio.ensure_future(anext(batches))
            for i in range(start, start + 30):  # more chunks than credit
                await publisher.send(i)
            batch = await joining
            assert list(batch) == [*range(start, start + 30)]
            assert [ctx.stream_offset for ctx in batch.contexts()] == [*batch.offsets]
            times = [ctx.stream_timestamp for ctx in batch.contexts()]
            assert times == sorted(times)
            assert batch.timestamp == times[0]


async def test_batch_ends_in_time(client: rbs.StreamsClient, stream: str) -> None:
    async with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, timeout=HANG) as messages,
    ):
        await messages.open()
        found: list[Any] = []
        for i in range(3):
            await publisher.send(i)
        async for batch in messages.batches(max_wait=0.05):
            found += batch
            if len(found) == 3:
                break
    assert found == [0, 1, 2]


async def test_timeout_of_the_subscription_applies_to_the_first_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.subscribe(stream, timeout=0.01) as messages:
        batches = messages.batches(max_wait=HANG)
        for _ in range(2):
            with pytest.raises(rbs.MessageTimeout, match=r'within 0\.01 s'):
                await anext(batches)


async def test_max_wait_of_zero_joins_what_has_arrived() -> None:
    async with subscribe_to_fake(stream_of_chunks(2, 1, 3)) as messages:
        chunks = cursor_of(messages).queue.chunks
        await messages.open()
        await until(lambda: len(chunks) == 3, 'all chunks have arrived')
        assert list(await anext(messages.batches(max_wait=0))) == bodies(0, 6)


@pytest.mark.parametrize('how', ['batches', 'fetch'])
async def test_batch_is_complete_if_other_tasks_run_before(how: str) -> None:
    """They run after five of six chunks, and the credit of those is returned."""
    async with subscribe_to_fake(stream_of_chunks(*[1] * 6), initial_credit=6) as messages:
        chunks = cursor_of(messages).queue.chunks
        await messages.open()
        await until(lambda: len(chunks) == 6, 'all chunks have arrived')
        next_batch = messages.fetch() if how == 'fetch' else anext(messages.batches(max_wait=0))
        assert list(await next_batch) == bodies(0, 6)


@pytest.mark.parametrize('max_wait', [-1, float('inf'), float('nan'), '1', True])
async def test_max_wait_is_checked(max_wait: Any) -> None:
    messages = rbs.streams_client('rabbitmq-stream://localhost').subscribe('test')
    with pytest.raises((ValueError, TypeError), match='max_wait') as caught:
        messages.batches(max_wait=max_wait)
    assert isinstance(caught.value, rbs.RbFlyError)


# -- time, on a virtual clock


@pytest.mark.own_clock
async def test_time_counts_from_the_first_message_even_if_waiting_is_cancelled() -> None:
    stream = FakeStream()
    clock = asyncio.get_running_loop().time
    async with subscribe_to_fake(stream, timeout=None) as messages:
        await messages.open()
        stream.append(b'0')
        await asyncio.sleep(5)
        begun = clock()
        batches = messages.batches(max_wait=10)
        for i in range(1, 4):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 3)
            stream.append(b'%d' % i)
        assert list(await anext(messages.batches(max_wait=10))) == bodies(0, 4)
        assert clock() - begun == pytest.approx(10)
        stream.append(b'4')
        await anext(batches)
        assert clock() - begun == pytest.approx(20)


@pytest.mark.own_clock
async def test_batch_that_is_full_does_not_wait() -> None:
    stream = FakeStream()
    clock = asyncio.get_running_loop().time
    async with subscribe_to_fake(stream, timeout=None) as messages:
        await messages.open()
        begun = clock()
        joining = asyncio.ensure_future(anext(messages.batches(3, max_wait=10)))
        for i in range(5):
            await asyncio.sleep(1)
            stream.append(b'%d' % i)
        assert list(await joining) == bodies(0, 3)
        assert clock() - begun == pytest.approx(5)
        assert list(await anext(messages.batches(3, max_wait=10))) == bodies(3, 5)


@pytest.mark.own_clock
async def test_credit_of_a_chunk_returns_when_it_joins() -> None:
    stream = FakeStream()
    async with subscribe_to_fake(stream, timeout=None, initial_credit=1) as messages:
        await messages.open()
        joining = asyncio.ensure_future(anext(messages.batches(max_wait=10)))
        for i in range(20):
            stream.append(b'%d' % i)
        assert list(await joining) == bodies(0, 20)
        assert stream.reader.granted == 20


@pytest.mark.own_clock
async def test_messages_before_the_batch_are_finished_while_it_waits() -> None:
    stream = stream_of_chunks(3)
    tracking = rbs.OffsetTracking('reader', every=1, interval=0)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, commit=tracking) as messages,
    ):
        batches = messages.batches(max_wait=10)
        assert list(await anext(batches)) == bodies(0, 3)
        joining = asyncio.ensure_future(anext(batches))
        stream.append(b'3')
        await asyncio.sleep(5)
        assert cursor_of(messages).finished == 2
        joining.cancel()
        await asyncio.wait([joining])


# -- through faults


async def test_stop_drops_a_batch_that_waits_for_more(
    client: rbs.StreamsClient, stream: str
) -> None:
    """The next run of the program receives its messages."""
    tracking = rbs.OffsetTracking('reader', every=0, interval=0)
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(5))
        async with client.subscribe(stream, offset=rbs.Offset.FIRST, commit=tracking) as messages:
            batches = messages.batches(5, max_wait=HANG)
            assert list(await anext(batches)) == [*range(5)]
            joining = asyncio.ensure_future(anext(batches, None))
            await publisher.send(5)
            await until(lambda: cursor_of(messages).position == 6, 'the message has joined')
            messages.stop()
            assert await joining is None
            assert await client.read_offset(stream, 'reader') == 4
        async with client.subscribe(stream, offset=rbs.Offset.reference('reader')) as messages:
            assert list(await messages.fetch()) == [5]


@pytest.mark.parametrize('cuts', [1, 3])
async def test_reconnect_during_a_batch(cuts: int) -> None:
    stream = stream_of_chunks(1)
    found: list[Any] = []
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        batches = messages.batches(max_wait=0.05)

        async def read() -> None:
            async for batch in batches:
                found.append(list(batch))
                if batch[-1] == b'%d' % (2 * cuts):
                    break

        working = asyncio.create_task(read())

        async def lose(at: int) -> None:
            await until(lambda: cursor_of(messages).position == at, 'it has joined')
            readers = len(stream.readers)
            fake.connections[-1].transport.abort()
            await until(lambda: len(stream.readers) > readers, 'it has subscribed again')

        for at in range(1, 2 * cuts, 2):
            await lose(at)
            stream.append(b'%d' % at)
            stream.append(b'%d' % (at + 1))
        await working
    assert [item for batch in found for item in batch] == bodies(0, 2 * cuts + 1)


async def test_messages_are_delivered_before_the_stream_is_found_deleted() -> None:
    stream = stream_of_chunks(2)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        joining = asyncio.ensure_future(anext(messages.batches(max_wait=HANG)))
        await until(lambda: cursor_of(messages).position == 2, 'the messages have joined')
        stream.on_subscribe = lambda reader: 0x02
        fake.connection.transport.abort()
        assert list(await joining) == bodies(0, 2)
        with pytest.raises(rbs.StreamDoesNotExist):
            await anext(messages.batches(max_wait=HANG))
        stream.recreate()
        stream.on_subscribe = lambda reader: 0x01
        stream.append(b'new')
        assert list(await anext(messages.batches(max_wait=0))) == [b'new']


async def test_messages_are_delivered_before_the_stream_is_found_replaced() -> None:
    stream = stream_of_chunks(2)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        joining = asyncio.ensure_future(anext(messages.batches(max_wait=HANG)))
        await until(lambda: cursor_of(messages).position == 2, 'the messages have joined')
        stream.recreate()
        stream.append(b'new')
        fake.connection.transport.abort()
        assert list(await joining) == bodies(0, 2)
        with pytest.raises(rbs.StreamDoesNotExist):
            await anext(messages.batches(max_wait=HANG))
        assert list(await anext(messages.batches(max_wait=0))) == [b'new']


async def test_dropped_batch_of_several_chunks_is_received_again() -> None:
    stream = stream_of_chunks(1, 1, 1, 1, 1)
    async with subscribe_to_fake(stream) as messages:
        assert list(await anext(messages.batches(1))) == [b'0']
        joining = asyncio.ensure_future(anext(messages.batches(max_wait=HANG)))
        await until(lambda: cursor_of(messages).position == 5, 'the messages have joined')
        joining.cancel()
        await asyncio.wait([joining])
        session = session_of(messages)
        session.drop_queue()
        session.registration.reset()
        assert list(await anext(messages.batches(4, max_wait=HANG))) == bodies(1, 5)


@pytest.mark.both_loops
async def test_cancelled_joining_loses_no_message(rng: random.Random) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        found: list[Any] = []
        async with client.subscribe('test', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
            published = 0

            async def read() -> None:
                way = rng.random()
                if way < 0.6:
                    batch = await anext(messages.batches(7, max_wait=0.002))
                elif way < 0.8:
                    batch = await messages.fetch(5)
                else:
                    batch = await anext(messages.batches(5))
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
                if turns % 300 == 299:
                    memory.cut()
                if turns > 800 and published > 200:
                    break
            while len(found) < published:
                await read()
    assert found == [*range(published)]


async def test_slow_consumer_holds_no_more_than_its_credit() -> None:
    stream = stream_of_chunks(*[1] * 50)
    async with subscribe_to_fake(stream, initial_credit=4) as messages:
        found: list[Any] = []
        async for batch in messages.batches(5, max_wait=HANG):
            found += batch
            for _ in range(20):
                await asyncio.sleep(0)
            assert stream.reader.sent <= len(found) + 4
            if len(found) == 50:
                break
    assert found == bodies(0, 50)
