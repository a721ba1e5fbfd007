"""Publishing to a real broker."""

import asyncio
import struct
from typing import Any
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import AMQPEncoderError
from rbfly.streams import stream_message_ctx
from rbfly.streams.error import (
    PublisherError,
    PublisherNameInUse,
    PublishError,
    StreamConnectionError,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import window_of


async def stored(client: rbs.StreamsClient, stream: str) -> list[Any]:
    """Return all messages of a stream, up to a marker that is published now, without markers."""
    mark = f'mark {uuid4()}'.encode()
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send(mark)
    found: list[Any] = []
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, amqp=False, timeout=20
    ) as messages:
        while (message := await anext(messages)) != mark:
            found.append(message)
    return [item for item in found if not item.startswith(b'mark ')]


async def test_send_is_stored_when_it_returns(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        for i in range(5):
            await publisher.send(b'%d' % i)
            assert await stored(client, stream) == [b'%d' % n for n in range(i + 1)]


async def test_thousand_concurrent_sends_are_each_stored_once(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await asyncio.gather(*(publisher.send(b'%d' % i) for i in range(1000)))
    assert await stored(client, stream) == [b'%d' % i for i in range(1000)]


async def test_concurrent_senders_in_a_small_window(client: rbs.StreamsClient, stream: str) -> None:
    async def send(task: int) -> None:
        for i in range(50):
            await publisher.send(b'%d %d' % (task, i))

    async with client.publisher(stream, amqp=False, max_unconfirmed=7) as publisher:
        await asyncio.gather(*(send(task) for task in range(20)))
    found = [tuple(map(int, item.split())) for item in await stored(client, stream)]
    assert len(found) == 1000
    assert sorted(found) == [(task, i) for task in range(20) for i in range(50)]
    for task in range(20):  # the order of each task is kept
        assert [i for t, i in found if t == task] == list(range(50))


async def test_batch_and_flush_keep_the_order(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.flush()  # of nothing
        for start in range(0, 30_000, 10_000):
            for i in range(start, start + 10_000):
                publisher.batch(b'%d' % i)
            await publisher.flush()
    assert await stored(client, stream) == [b'%d' % i for i in range(30_000)]


async def test_nothing_is_sent_before_flush(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        publisher.batch(b'a')
        assert await stored(client, stream) == []
        await publisher.flush()
        publisher.batch(b'b')
    assert await stored(client, stream) == [b'a', b'b']


async def test_concurrent_flushes(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        flushes = []
        for i in range(100):
            publisher.batch(b'%d' % i)
            flushes.append(asyncio.create_task(publisher.flush()))
        await asyncio.gather(*flushes)
    assert await stored(client, stream) == [b'%d' % i for i in range(100)]


async def test_every_kind_of_body(client: rbs.StreamsClient, stream: str) -> None:
    bodies: list[Any] = [
        b'bytes',
        '',
        'text',
        5,
        -(2**40),
        1.5,
        True,
        None,
        [1, 'a'],
        {'k': [b'v']},
    ]
    async with client.publisher(stream) as publisher:
        for body in bodies:
            await publisher.send(body)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert [await anext(messages) for _ in bodies] == bodies


async def test_message_context(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send(stream_message_ctx('body', app_properties={'kind': 'test', 'n': 5}))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert await anext(messages) == 'body'
        context = rbs.get_message_ctx()
    assert context.body == 'body'
    assert context.app_properties == {'kind': 'test', 'n': 5}
    assert context.stream_offset == 0


async def test_message_without_amqp_form_fails_alone(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        outcomes = await asyncio.gather(
            publisher.send('a'),
            publisher.send(object()),  # type: ignore[arg-type]
            publisher.send('b'),
            return_exceptions=True,
        )
    assert [type(item) for item in outcomes[::2]] == [type(None)] * 2
    assert isinstance(outcomes[1], AMQPEncoderError)
    assert isinstance(outcomes[1], TypeError)
    assert len(await stored(client, stream)) == 2


async def test_closed_publishers_raise(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send('x')
    for call in (publisher.send, publisher.submit):
        with pytest.raises(PublisherError, match='closed'):
            await call('x')
    with pytest.raises(PublisherError, match='closed'):
        await publisher.send_many(['x'])
    async with client.publisher(stream) as fast:
        pass
    with pytest.raises(PublisherError, match='closed'):
        fast.batch('x')
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as limit:
        pass
    with pytest.raises(PublisherError, match='closed'):
        await limit.batch('x', max_len=1)
    for batch in (fast, limit):
        with pytest.raises(PublisherError, match='closed'):
            await batch.flush()
    for closed in (publisher, fast, limit):
        await closed.close()
    assert len(await stored(client, stream)) == 1


async def test_publisher_name_used_twice_raises(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, name='mine'):
        with pytest.raises(PublisherNameInUse, match='mine'):
            async with client.publisher(stream, name='mine'):
                pytest.fail('the name is in use')
    async with client.publisher(stream, name='mine') as publisher:
        await publisher.send('x')


async def test_publishers_without_a_name_share_a_stream(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with (
        client.publisher(stream, amqp=False) as one,
        client.publisher(stream, amqp=False) as other,
    ):
        await asyncio.gather(one.send(b'1'), other.send(b'2'))
    assert sorted(await stored(client, stream)) == [b'1', b'2']


async def test_named_publisher_continues_and_deduplicates(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, name='n', amqp=False) as publisher:
        assert publisher.message_id == 1
        for body in (b'1', b'2', b'3'):
            await publisher.send(body)
    await client.disconnect()
    async with client.publisher(stream, name='n', amqp=False) as publisher:
        assert publisher.message_id == 4
        await publisher.send(b'4')
    async with client.publisher(stream, name='n') as publisher:
        # below the broker's own sequence: confirmed, and not stored a second time
        await asyncio.wait_for(publisher.send(stream_message_ctx('again', publish_id=2)), 20)
    assert await stored(client, stream) == [b'1', b'2', b'3', b'4']


async def test_explicit_publish_ids_ascend(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, name='n') as publisher:
        await publisher.send(stream_message_ctx('a', publish_id=10))
        assert publisher.message_id == 11
        with pytest.raises(ValueError, match='10'):
            await publisher.send(stream_message_ctx('b', publish_id=10))
        await publisher.send('c')
    assert len(await stored(client, stream)) == 2


async def test_publisher_name_too_long(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(ValueError, match='255'):
        async with client.publisher(stream, name='ł' * 128):
            pytest.fail('the name is too long')
    async with client.publisher(stream, name='ł' * 127) as publisher:
        await publisher.send('x')


async def test_max_unconfirmed_out_of_range(client: rbs.StreamsClient) -> None:
    with pytest.raises(ValueError, match='max_unconfirmed'):
        async with client.publisher('test', max_unconfirmed=0):
            pytest.fail('no window')


async def test_more_publishers_than_a_connection_has_ids(
    client: rbs.StreamsClient, stream: str
) -> None:
    async def publish(i: int) -> None:
        async with client.publisher(stream, amqp=False) as publisher:
            await publisher.send(b'%d' % i)
            opened.append(i)
            if len(opened) == 300:
                everyone.set()
            await everyone.wait()

    opened: list[int] = []
    everyone = asyncio.Event()
    async with asyncio.timeout(60):
        await asyncio.gather(*(publish(i) for i in range(300)))
    found = await stored(client, stream)
    assert sorted(int(item) for item in found) == list(range(300))


async def test_publisher_beyond_256_opens_another_connection() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        publishers = [client.publisher('test') for _ in range(257)]
        opened = [await publisher.__aenter__() for publisher in publishers[:256]]
        publishing = len(fake.connections)
        opened.append(await publishers[256].__aenter__())
        assert len(fake.connections) == publishing + 1
        assert sorted(window_of(item).publisher_id for item in opened[:256]) == list(range(256))
        await asyncio.gather(*(publisher.send('x') for publisher in opened))
        for publisher in publishers:
            await publisher.__aexit__(None, None, None)


async def test_publisher_ids_are_reused(client: rbs.StreamsClient, stream: str) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as other:
        for _ in range(300):
            async with other.publisher('test'):
                pass
        assert len(fake.connections) == 2
    async with client.publisher(stream, amqp=False) as first:
        for i in range(300):
            async with client.publisher(stream, amqp=False) as publisher:
                await publisher.send(b'%d' % i)
        await first.send(b'300')
    assert await stored(client, stream) == [b'%d' % i for i in range(301)]


async def test_publish_error_has_id_and_code() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refuse()}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        async with client.publisher('test') as publisher:
            with pytest.raises(PublishError) as caught:
                await publisher.send('x')
            assert (caught.value.code, caught.value.publish_id) == (0x11, 1)
        async with client.publisher('test') as batch:
            for _ in range(3):
                batch.batch('x')
            with pytest.raises(PublishError) as caught:
                await batch.flush()
            assert caught.value.errors == [(1, 0x11), (2, 0x11), (3, 0x11)]


async def test_messages_sent_in_one_turn_share_a_frame_and_wait_for_no_confirm() -> None:
    held: list[list[int]] = []
    async with (
        FakeBroker(
            on={wire.PUBLISH: lambda peer, frame: held.append(frame.publishing_ids)}
        ) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=1000) as publisher,
    ):

        async def send(count: int) -> list[int]:
            tasks.extend(asyncio.create_task(publisher.send(i)) for i in range(count))
            before = sum(map(len, held))
            await until(lambda: sum(map(len, held)) == before + count, 'all messages are sent')
            return list(map(len, held))

        tasks: list[asyncio.Task[None]] = []
        assert await send(50) == [1, 49]  # the first one is written at once
        assert await send(50) == [1, 49, 50]  # none is confirmed yet
        assert await send(250) == [1, 49, 50, 100, 100, 50]  # a tenth of the window each
        assert [i for ids in held for i in ids] == list(range(1, 351))
        assert not any(task.done() for task in tasks)
        connection = fake.connections[-1]
        confirmed = b''.join(i.to_bytes(8, 'big') for i in range(1, 351, 7))
        head = struct.pack('>BI', window_of(publisher).publisher_id, len(confirmed) // 8)
        connection.send(wire.frame(wire.PUBLISH_CONFIRM, head + confirmed))
        await until(lambda: any(task.done() for task in tasks), 'some messages are confirmed')
        assert [i for i, task in enumerate(tasks) if task.done()] == list(range(0, 350, 7))
        for task in tasks:
            task.cancel()
        publisher._abort(PublisherError('of the test'))


async def test_cancelled_send_affects_no_other(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        tasks = [asyncio.create_task(publisher.send(b'%d' % i)) for i in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None for i, outcome in enumerate(outcomes) if i % 3)
    found = {int(item) for item in await stored(client, stream)}
    assert {i for i in range(100) if i % 3} <= found


@pytest.mark.own_clock
async def test_connection_lost_for_good_while_waiting_for_confirms() -> None:
    def drop(connection: Peer, request: Frame) -> None:
        connection.transport.abort()
        connection.broker.handlers[Step.OPEN] = wire.CLOSING

    async with FakeBroker(on={wire.PUBLISH: drop}) as fake:
        client = rbs.streams_client(fake.uri, reconnect_timeout=0.2)
        async with asyncio.timeout(20), client.publisher('test') as publisher:
            sends = (publisher.send('x') for _ in range(10))
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(item, StreamConnectionError) for item in outcomes)
        await client.disconnect()


async def test_close_raises_refusals_of_unflushed_messages() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refuse()}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        with pytest.raises(PublishError) as caught:  # noqa: PT012
            async with client.publisher('test') as batch:
                batch.batch('x')
                batch.batch('y')
        assert caught.value.errors == [(1, 0x11), (2, 0x11)]


async def test_close_raises_the_loss_of_unflushed_messages() -> None:
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        with pytest.raises(StreamConnectionError, match='was disconnected'):  # noqa: PT012
            async with client.publisher('test') as batch:
                batch.batch('x')
                await client.disconnect()
