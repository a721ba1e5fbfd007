"""`Subscription.open` returns when the broker has accepted the subscription."""

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cluster_of, cursor_of, session_of

HANG = 20.0  # seconds; only a safeguard


async def take(messages: rbs.Subscription, n: int) -> list[Any]:
    return [await anext(messages) for _ in range(n)]


# -- on every broker


async def test_messages_published_after_open_are_received(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send('before')
        async with client.subscribe(stream, timeout=HANG) as messages:
            await messages.open()
            for i in range(3):
                await publisher.send(i)
            await messages.open()
            assert await take(messages, 3) == [0, 1, 2]


async def test_another_task_waits_for_messages_meanwhile(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, timeout=HANG) as messages,
    ):
        reading = asyncio.create_task(take(messages, 2))
        await asyncio.gather(messages.open(), messages.open())
        for i in range(2):
            await publisher.send(i)
        assert await reading == [0, 1]


async def test_open_raises_the_error_of_the_broker_and_can_be_repeated(
    client: rbs.StreamsClient, stream_name: str
) -> None:
    messages = client.subscribe(stream_name, offset=rbs.Offset.FIRST, timeout=HANG)
    for _ in range(2):
        with pytest.raises(rbs.StreamDoesNotExist):
            await messages.open()
    await client.create_stream(stream_name)
    await messages.open()
    async with client.publisher(stream_name) as publisher:
        await publisher.send(1)
    assert await anext(messages) == 1
    await messages.aclose()


async def test_open_and_a_task_that_reads_both_raise_the_error(
    client: rbs.StreamsClient, stream_name: str
) -> None:
    messages = client.subscribe(stream_name)
    calls = (messages.open(), anext(messages), messages.open())
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [rbs.StreamDoesNotExist] * 3


async def test_open_of_a_closed_subscription(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream) as messages:
        pass
    with pytest.raises(rbs.SubscriptionClosed, match='is closed') as caught:
        await messages.open()
    assert isinstance(caught.value, rbs.SubscriptionError)


# -- through faults


@pytest.mark.both_loops
async def test_cancelled_open_has_no_effect() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        for turns in itertools.count():
            async with aclosing(client.subscribe('test', timeout=HANG)) as messages:
                task = asyncio.create_task(messages.open())
                for _ in range(turns):
                    await asyncio.sleep(0)
                opened = task.done()
                task.cancel()
                await asyncio.wait([task])
                await messages.open()
                memory.publish('test', turns, turns + 1)
                assert await take(messages, 2) == [turns, turns + 1]
                assert not session_of(messages)._opening
            if opened and turns > 20:
                break


async def test_connection_lost_during_open() -> None:
    stream = FakeStream()
    stream.on_subscribe = lambda reader: 0 if len(stream.readers) == 1 else wire.OK
    stream.append(b'before')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        aclosing(client.subscribe('test', amqp=False, timeout=HANG)) as messages,
    ):
        task = asyncio.create_task(messages.open())
        await until(lambda: bool(stream.readers), 'the client subscribes')
        assert not task.done()
        stream.append(b'0')  # after the subscription was first sent
        fake.connection.transport.abort()
        await task
        stream.append(b'1')
        assert await take(messages, 2) == [b'0', b'1']


async def test_open_during_an_outage_waits_for_its_end() -> None:
    stream = stream_of_chunks(1)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=HANG) as messages,
    ):
        assert await anext(messages) == b'0'
        fake.connection.transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')
        await messages.open()
        assert len(stream.readers) == 2
        stream.append(b'1')
        assert await anext(messages) == b'1'


async def test_open_drops_no_message_that_has_arrived() -> None:
    """Not even if the stream was deleted since."""
    stream = stream_of_chunks(1, 1)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=HANG) as messages,
    ):
        assert await anext(messages) == b'0'
        await until(lambda: cursor_of(messages).has_messages, 'the second chunk has arrived')
        fake.connection.transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')
        stream.on_subscribe = lambda reader: 0x02
        await messages.open()
        assert await anext(messages) == b'1'
        with pytest.raises(rbs.StreamDoesNotExist):
            await messages.open()


async def test_open_does_not_finish_the_current_message() -> None:
    tracking = rbs.OffsetTracking('reference', every=1)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', 0, 1)
        async with client.subscribe(
            'test', offset=rbs.Offset.FIRST, commit=tracking, timeout=HANG
        ) as messages:
            await take(messages, 2)
            memory.cut()
            await until(lambda: not client.connected, 'the connection is lost')
            await messages.open()
        assert memory.offsets('test') == {'reference': 0}


async def test_closed_during_open() -> None:
    async with (
        FakeBroker(on={wire.SUBSCRIBE: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = client.subscribe('test')
        task = asyncio.create_task(messages.open())
        await until(
            lambda: fake.has_received(wire.SUBSCRIBE),
            'the client subscribes',
        )
        await messages.aclose()
        with pytest.raises(rbs.SubscriptionClosed):
            await task


async def test_disconnected_during_open() -> None:
    async with subscribe_to_fake(FakeStream(), timeout=None) as messages:
        task = asyncio.create_task(messages.open())
        await asyncio.sleep(0)
        await cluster_of(session_of(messages)).close()
        with pytest.raises(rbs.StreamConnectionError):
            await task
        await messages.open()
