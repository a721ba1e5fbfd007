"""Subscriptions on a real broker."""

import asyncio
import contextlib
import gc
import time
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import MessageContextError
from rbfly.streams import MessageCtx
from rbfly.streams.error import StreamDoesNotExist, SubscriptionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer

COUNT = 1000
FREE_IDS = 256


async def publish(client: rbs.StreamsClient, stream: str, start: int, stop: int) -> None:
    """Publish numbers as one batch: usually one chunk, or few."""
    async with client.publisher(stream) as publisher:
        for i in range(start, stop):
            publisher.batch(i)
        await publisher.flush()


async def take(
    client: rbs.StreamsClient, stream: str, n: int, offset: rbs.Offset, **arguments: Any
) -> list[Any]:
    async with client.subscribe(stream, offset=offset, timeout=20, **arguments) as messages:
        return [await anext(messages) for _ in range(n)]


async def free_ids(client: rbs.StreamsClient) -> int:
    return len((await client.get_protocol()).subscription_ids)


async def test_offset_first(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, COUNT)
    assert await take(client, stream, COUNT, rbs.Offset.FIRST) == list(range(COUNT))


@pytest.mark.parametrize('start', [0, 1, 500, 998, 999])
async def test_offset_exact_inside_a_chunk(
    client: rbs.StreamsClient, stream: str, start: int
) -> None:
    await publish(client, stream, 0, COUNT)
    offset = rbs.Offset.offset(start)
    found = await take(client, stream, COUNT - start, offset)
    assert found == list(range(start, COUNT))


async def test_offset_last(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 10)
    async with client.publisher(stream) as publisher:
        await publisher.send('the last chunk')
    assert await take(client, stream, 1, rbs.Offset.LAST) == ['the last chunk']


async def test_offset_next(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 10)
    async with client.subscribe(stream, timeout=20) as messages:
        first = asyncio.ensure_future(anext(messages))
        await subscribed(client)
        await publish(client, stream, 10, 20)
        assert await first == 10
        assert [await anext(messages) for _ in range(9)] == list(range(11, 20))


async def subscribed(client: rbs.StreamsClient, n: int = 1) -> None:
    """Wait until the broker has answered Subscribe, which takes less time than a later request."""
    connection = await client.get_protocol()
    await until(
        lambda: len(connection.subscription_ids) == FREE_IDS - n, 'the client has subscribed'
    )
    await client.delete_stream('no-such-stream')


async def test_offset_timestamp(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 10)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        for _ in range(10):  # RabbitMQ may store them in several chunks
            await anext(messages)
        written = rbs.get_message_ctx().stream_timestamp
    await until(lambda: time.time() > written + 0.05, 'the next chunk has a later timestamp')
    await publish(client, stream, 10, 20)
    assert await take(client, stream, 10, rbs.Offset.timestamp(written + 0.02)) == list(
        range(10, 20)
    )
    assert await take(client, stream, 20, rbs.Offset.timestamp(0)) == list(range(20))


async def test_timestamp_in_the_future_is_next(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 10)
    offset = rbs.Offset.timestamp(time.time() + 3600)
    async with client.subscribe(stream, offset=offset, timeout=20) as messages:
        first = asyncio.ensure_future(anext(messages))
        await subscribed(client)
        await publish(client, stream, 10, 11)
        assert await first == 10


async def test_offset_reference(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 20)
    offset = rbs.Offset.reference('reader')
    async with client.subscribe(stream, offset=offset, timeout=20) as messages:
        assert [await anext(messages) for _ in range(5)] == [0, 1, 2, 3, 4]
        await client.write_offset(stream, 'reader')
    assert await client.read_offset(stream, 'reader') == 4
    assert await take(client, stream, 3, offset) == [5, 6, 7]


@pytest.mark.parametrize('value', [-1, 2**64])
def test_offset_out_of_range(value: int) -> None:
    with pytest.raises(OverflowError):
        rbs.Offset.offset(value)


@pytest.mark.parametrize('amqp', [True, False])
async def test_credit_is_renewed_over_many_chunks(
    client: rbs.StreamsClient, stream: str, amqp: bool
) -> None:
    for i in range(0, 200, 5):  # more chunks than the initial credit
        await publish(client, stream, i, i + 5)
    found = await take(client, stream, 200, rbs.Offset.FIRST, amqp=amqp)
    if amqp:
        assert found == list(range(200))
    else:
        assert all(isinstance(item, bytes) for item in found)


async def test_get_message_ctx_describes_the_last_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, 0, 50)
    before = time.time()
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        for i in range(50):
            assert await anext(messages) == i
            context = rbs.get_message_ctx()
            assert context.stream_offset == i
            assert context.body == i
            assert abs(context.stream_timestamp - before) < 3600


async def test_message_context_belongs_to_the_task_that_iterates(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, 0, 50)

    async def other() -> MessageCtx:
        return rbs.get_message_ctx()

    async def read(start: int) -> None:
        offset = rbs.Offset.offset(start)
        async with client.subscribe(stream, offset=offset, timeout=20) as messages:
            for i in range(start, 50):
                assert await anext(messages) == i
                await asyncio.sleep(0)
                assert rbs.get_message_ctx().stream_offset == i

    with pytest.raises(LookupError):
        rbs.get_message_ctx()
    await asyncio.gather(*(read(start) for start in range(0, 50, 10)))
    with pytest.raises(LookupError):
        rbs.get_message_ctx()
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        await anext(messages)
        with pytest.raises(MessageContextError):
            await asyncio.create_task(other())


async def patient(messages: rbs.Subscription) -> Any:
    """Return the next message, even if the broker takes longer than the timeout."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(rbs.MessageTimeout):
                return await anext(messages)


async def test_iteration_continues_after_a_timeout(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 2)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=1) as messages:
        assert [await patient(messages) for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await anext(messages)
        await publish(client, stream, 2, 3)
        assert await patient(messages) == 2


async def test_break_releases_the_subscription(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 10)
    for _ in range(3):
        async for message in client.subscribe(stream, offset=rbs.Offset.FIRST):
            if message == 5:
                assert await free_ids(client) == FREE_IDS - 1
                break
        gc.collect()
        connection = await client.get_protocol()
        await until(
            lambda c=connection: len(c.subscription_ids) == FREE_IDS,  # type: ignore[misc]
            'the subscription id is free',
        )


async def test_released_subscription_unsubscribes() -> None:
    def subscribe(connection: Peer, request: Frame) -> None:
        connection.answer(request)
        connection.send(wire.deliver(request.body[4], wire.chunk(0, [b'x'])))

    async with (
        FakeBroker(on={wire.SUBSCRIBE: subscribe}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        async for _ in client.subscribe('test', amqp=False):
            break
        gc.collect()
        await until(
            lambda: wire.UNSUBSCRIBE in fake.connection.commands(), 'the client has unsubscribed'
        )
        held = client.subscribe('test', amqp=False)
        async for _ in held:
            break
        assert fake.connection.commands().count(wire.UNSUBSCRIBE) == 1  # only suspended
        await held.aclose()
        assert fake.connection.commands().count(wire.UNSUBSCRIBE) == 2
        with pytest.raises(StopAsyncIteration):
            await anext(held)


async def test_subscription_in_a_variable_continues_after_break(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, 0, 10)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        async for message in messages:
            if message == 4:
                break
        assert [await anext(messages) for _ in range(5)] == [5, 6, 7, 8, 9]
    assert await free_ids(client) == FREE_IDS


async def test_cancelled_wait_loses_no_message(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        for i in range(5):
            waiting = asyncio.ensure_future(anext(messages))
            await subscribed(client)
            waiting.cancel()
            await asyncio.wait([waiting])
            await publish(client, stream, i, i + 1)
            assert await anext(messages) == i


async def test_aclose_ends_the_iteration_of_another_task(
    client: rbs.StreamsClient, stream: str
) -> None:
    messages = client.subscribe(stream)

    async def read() -> list[object]:
        return [item async for item in messages]

    reading = asyncio.create_task(read())
    await subscribed(client)
    await messages.aclose()
    assert await reading == []
    await messages.aclose()


async def test_two_tasks_cannot_iterate_at_once(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await subscribed(client)
        with pytest.raises(SubscriptionError):
            await anext(messages)
        await publish(client, stream, 0, 1)
        assert await waiting == 0


async def test_several_subscriptions_of_a_stream(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, 0, 500)
    found = await asyncio.gather(*(take(client, stream, 500, rbs.Offset.FIRST) for _ in range(10)))
    assert found == [list(range(500))] * 10
    assert await free_ids(client) == FREE_IDS


async def test_more_subscriptions_than_ids_of_a_connection(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, 0, 1)
    subscriptions = [client.subscribe(stream, offset=rbs.Offset.FIRST) for _ in range(300)]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*map(anext, subscriptions)) == [0] * 300
        await asyncio.gather(*(item.aclose() for item in subscriptions))


async def test_undecodable_message_raises_and_is_skipped(
    client: rbs.StreamsClient, stream: str
) -> None:
    from rbfly.error import AMQPDecoderError

    async with client.publisher(stream, amqp=False) as raw:
        await raw.send(b'\xff\xff not AMQP')
    await publish(client, stream, 1, 2)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        with pytest.raises(AMQPDecoderError) as caught:
            await anext(messages)
        assert caught.value.offset == 0
        assert caught.value.data == b'\xff\xff not AMQP'
        assert caught.value.stream == stream
        assert str(caught.value).endswith(f'of the message at offset 0 of stream {stream!r}')
        assert await anext(messages) == 1


@pytest.mark.parametrize('how', ['messages', 'batches', 'get_message_ctx'])
async def test_malformed_section_names_its_message(
    client: rbs.StreamsClient, stream: str, how: str
) -> None:
    from rbfly.error import AMQPDecoderError

    data = bytes.fromhex('005374c10602a1016b5602' + '005375a00162')  # a boolean of 2
    async with client.publisher(stream, amqp=False) as raw:
        await raw.send(data)
        await raw.send(data)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, until='now') as messages:
        match how:
            case 'messages':
                found = messages.messages()
                ctx = [await anext(found) for _ in range(2)][1]
            case 'batches':
                batches = [batch async for batch in messages.batches(2)]
                ctx = [ctx for batch in batches for ctx in batch.contexts()][1]
            case _:
                _ = [await anext(messages) for _ in range(2)]
                ctx = rbs.get_message_ctx()
    assert ctx.body == b'b'
    with pytest.raises(AMQPDecoderError) as caught:
        _ = ctx.app_properties
    error = caught.value
    assert (error.stream, error.offset, error.data) == (stream, 1, data)
    assert str(error).endswith(f'of the message at offset 1 of stream {stream!r}')


async def test_stream_deleted_while_subscribed(client: rbs.StreamsClient, stream: str) -> None:
    messages = client.subscribe(stream)
    waiting = asyncio.ensure_future(anext(messages))
    await subscribed(client)
    await client.delete_stream(stream)
    with pytest.raises(Exception, match=stream) as caught:
        async with asyncio.timeout(20):
            await waiting
    assert isinstance(caught.value, StreamDoesNotExist)
    await messages.aclose()


async def test_recreated_stream_raises_once_and_is_read_from_its_start(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, 0, 20)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=20) as messages:
        assert [await anext(messages) for _ in range(20)] == list(range(20))
        await client.delete_stream(stream)
        await client.create_stream(stream)
        await publish(client, stream, 100, 105)
        with pytest.raises(StreamDoesNotExist, match=stream):
            await anext(messages)
        assert [await anext(messages) for _ in range(5)] == list(range(100, 105))
        assert rbs.get_message_ctx().stream_offset == 4
