"""The client meets each fault of the in-memory broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import AuthenticationError
from rbfly.protocol import commands, message_frames
from rbfly.protocol.const import ResponseCode
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.leaks import Snapshot
from tests.raw_client import connect_and_open, numbered_entries

HANG = 20.0  # seconds; only a bug makes a test wait that long
ALL: Any = {'offset': rbs.Offset.FIRST, 'timeout': HANG}


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as memory:
        memory.create_stream('orders')
        yield memory


@pytest_asyncio.fixture
async def client(memory: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(memory.uri) as client:
        yield client


@pytest_asyncio.fixture
async def publisher(client: rbs.StreamsClient) -> AsyncIterator[rbs.Publisher]:
    async with client.publisher('orders', name='shop') as publisher:
        await publisher.send(0)
        yield publisher


@pytest_asyncio.fixture
async def messages(client: rbs.StreamsClient) -> AsyncIterator[rbs.Subscription]:
    async with client.subscribe('orders', **ALL) as messages:
        yield messages


async def test_cut(
    memory: StreamBroker,
    publisher: rbs.Publisher,
    messages: rbs.Subscription,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await anext(messages) == 0
    memory.cut()
    await publisher.send(1)
    assert await anext(messages) == 1
    assert 'connection lost' in caplog.text
    assert memory.messages('orders') == [0, 1]


@pytest.mark.both_loops
@pytest.mark.parametrize('after', [1, 3, 100, 1000, 5000, 20_000, 60_000])
async def test_cut_after_a_number_of_bytes(after: int, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever the cut is, each message is stored once and read once."""
    before = Snapshot(futures=True)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('orders')
        async with (
            client.publisher('orders', name='shop') as publisher,
            client.subscribe('orders', **ALL) as messages,
        ):
            await publisher.send(0)
            assert await anext(messages) == 0
            memory.cut(after=after)
            await publisher.send_many(range(1, 2000))
            assert [await anext(messages) for _ in range(1999)] == [*range(1, 2000)]
        assert memory.messages('orders') == [*range(2000)]
        assert 'connection lost' in caplog.text
    await before.check()


async def test_refuse(memory: StreamBroker) -> None:
    memory.refuse()
    async with rbs.streams_client(memory.uri, connect_timeout=0.3) as client:
        with pytest.raises(rbs.StreamConnectionError):
            await client.create_stream('other')
    memory.heal()
    async with rbs.streams_client(memory.uri) as client:
        await client.create_stream('other')


async def test_fail_authentication(memory: StreamBroker) -> None:
    for code in (0x08, 0x0B):
        memory.fail_authentication(code)
        async with rbs.streams_client(memory.uri) as client:
            with pytest.raises(AuthenticationError) as caught:
                await client.create_stream('other')
        assert caught.value.code == code
    memory.fail_authentication(0x7FFF)  # an unknown code
    async with rbs.streams_client(memory.uri) as client:
        with pytest.raises(rbs.ProtocolError, match='0x7fff'):
            await client.create_stream('other')
    memory.heal()
    async with rbs.streams_client(memory.uri) as client:
        await client.create_stream('other')


async def test_publish_error(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    async with client.publisher('orders') as publisher:
        memory.publish_error(0x11, count=2)
        with pytest.raises(rbs.PublishError) as caught:
            await publisher.send_many(range(4))
        assert caught.value.code == 0x11
        assert caught.value.index == 0
        await publisher.send('last')
    assert memory.messages('orders') == [2, 3, 'last']


async def test_publish_error_fails_a_send(memory: StreamBroker, publisher: rbs.Publisher) -> None:
    memory.publish_error()
    with pytest.raises(rbs.PublishError) as caught:
        await publisher.send('refused')
    assert caught.value.code == ResponseCode.PRECONDITION_FAILED
    await publisher.send(1)
    assert memory.messages('orders') == [0, 1]


async def test_publisher_does_not_exist_until_it_is_declared_again(
    memory: StreamBroker,
) -> None:
    missing = ResponseCode.PUBLISHER_DOES_NOT_EXIST
    async with connect_and_open(memory.uri) as client:
        await client.value(commands.DeclarePublisher(0, 'shop', 'orders'))
        memory.publish_error(missing)
        client.send(
            message_frames.Publish(0, numbered_entries(1, 2)),
            message_frames.Publish(0, numbered_entries(3)),
        )
        assert await client.receive() == message_frames.PublishError(
            0, ((1, missing), (2, missing))
        )
        assert await client.receive() == message_frames.PublishError(0, ((3, missing),))
        assert await client.code(commands.DeletePublisher(0)) == missing
        await client.value(commands.DeclarePublisher(0, 'shop', 'orders'))
        client.send(message_frames.Publish(0, numbered_entries(1, 2)))
        assert await client.receive() == message_frames.PublishConfirm(0, (1, 2))
    assert memory.messages('orders', raw=True) == [b'1', b'2']


@pytest.mark.both_loops
@pytest.mark.parametrize('name', [None, 'shop'])
async def test_client_redeclares_a_publisher_and_resends(name: str | None) -> None:
    """No message is lost, and a named publisher stores no duplicates."""
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('orders')
        async with client.publisher('orders', name=name) as publisher:
            for start in (0, 1000, 2000):
                memory.publish_error(ResponseCode.PUBLISHER_DOES_NOT_EXIST)
                await asyncio.wait_for(publisher.send_many(range(start, start + 1000)), HANG)
        stored = memory.messages('orders')
        assert [*dict.fromkeys(stored)] == [*range(3000)]
        assert name is None or len(stored) == 3000


async def test_withheld_confirms(memory: StreamBroker, publisher: rbs.Publisher) -> None:
    memory.withhold_confirms()
    with pytest.raises(rbs.ConfirmTimeout):
        await publisher.send('a', timeout=0.05)
    waiting = [await publisher.submit('b'), await publisher.submit('c')]
    await until(lambda: memory.published == 4, 'both messages are stored')
    assert not any(item.done() for item in waiting)
    memory.heal()
    await asyncio.wait_for(asyncio.gather(*waiting), HANG)
    await publisher.send('d')


async def test_lost_confirms(memory: StreamBroker, publisher: rbs.Publisher) -> None:
    memory.lose_confirms(2)
    for body in ('a', 'b'):
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.send(body, timeout=0.05)
    await publisher.send('c')
    assert memory.messages('orders') == [0, 'a', 'b', 'c']
    memory.cut()  # the client resends the unconfirmed messages, and the broker knows them
    await publisher.send('d')
    assert memory.messages('orders') == [0, 'a', 'b', 'c', 'd']


async def test_metadata_update(
    memory: StreamBroker, publisher: rbs.Publisher, messages: rbs.Subscription
) -> None:
    assert await anext(messages) == 0
    async with connect_and_open(memory.uri) as client:
        await client.value(commands.DeclarePublisher(0, '', 'orders'))
        memory.metadata_update('orders', 0x02)
        assert await client.receive() == commands.MetadataUpdate(0x02, 'orders')
        assert await client.code(commands.DeletePublisher(0)) == 0x12
    for i in range(1, 4):
        memory.metadata_update('orders')
        await publisher.send(i)
        assert await anext(messages) == i
    assert memory.messages('orders') == [0, 1, 2, 3]


async def test_close_connections(
    memory: StreamBroker,
    publisher: rbs.Publisher,
    messages: rbs.Subscription,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await anext(messages) == 0
    memory.close_connections(0x01, 'for maintenance')
    await publisher.send(1)
    assert await anext(messages) == 1
    assert 'for maintenance' in caplog.text


async def test_faults_that_the_broker_cannot_send(memory: StreamBroker) -> None:
    """The broker checks the arguments before it changes anything."""
    async with connect_and_open(memory.uri) as client:
        await client.value(commands.DeclarePublisher(0, '', 'orders'))
        for wrong in (-1, 0x10000):
            with pytest.raises(rbs.ArgumentError, match='code must be'):
                memory.metadata_update('orders', wrong)
            with pytest.raises(rbs.ArgumentError, match='code must be'):
                memory.close_connections(wrong)
        with pytest.raises(rbs.ArgumentTypeError, match='reason must be str'):
            memory.close_connections(0x01, b'gone')  # type: ignore[arg-type]
        assert await client.code(commands.DeletePublisher(0)) == 0x01


@pytest.mark.parametrize(
    ('fault', 'problem'), [('damage_chunk', 'CRC'), ('corrupt_chunk', 'longer than its chunk')]
)
async def test_damaged_chunk(
    memory: StreamBroker,
    client: rbs.StreamsClient,
    publisher: rbs.Publisher,
    fault: str,
    problem: str,
) -> None:
    getattr(memory, fault)()
    async with client.subscribe('orders', **ALL) as messages:
        with pytest.raises(rbs.ChunkError, match=problem):
            await anext(messages)
    async with client.subscribe('orders', **ALL) as messages:
        assert await anext(messages) == 0


async def test_shuffle_confirms(memory: StreamBroker) -> None:
    ids = tuple(range(100))
    confirmed = []
    for _ in range(2):  # the same seed confirms in the same order
        async with StreamBroker(seed=7) as other, connect_and_open(other.uri) as client:
            other.create_stream('orders')
            other.shuffle_confirms()
            await client.value(commands.DeclarePublisher(3, '', 'orders'))
            client.send(message_frames.Publish(3, numbered_entries(*ids)))
            found: list[int] = []
            while len(found) < len(ids):
                frame = await client.receive()
                assert isinstance(frame, message_frames.PublishConfirm)
                found += frame.publishing_ids
            assert sorted(found) == [*ids]
            assert found != [*ids]
            confirmed.append(found)
            other.heal()
            client.send(message_frames.Publish(3, numbered_entries(*ids)))
            healed: list[int] = []
            while len(healed) < len(ids):
                healed += (await client.receive()).publishing_ids
            assert healed == [*ids]
    assert confirmed[0] == confirmed[1]
    memory.shuffle_confirms()
    async with (
        rbs.streams_client(memory.uri) as confirming,
        confirming.publisher('orders') as publisher,
    ):
        sends = (publisher.send(i) for i in range(1000))
        await asyncio.wait_for(asyncio.gather(*sends), HANG)
        assert await publisher.send_many(range(10_000)) == 10_000
    assert memory.messages('orders') == [*range(1000), *range(10_000)]


async def test_delay(memory: StreamBroker, publisher: rbs.Publisher) -> None:
    loop = asyncio.get_running_loop()
    memory.delay(0.05)
    began = loop.time()
    await publisher.send(1)
    assert loop.time() - began > 0.04
    many = asyncio.create_task(publisher.send_many(range(2, 5000)))
    await until(lambda: memory.published == 5000, 'all messages are stored')
    assert not many.done()
    memory.heal()
    await asyncio.wait_for(many, HANG)
    assert memory.messages('orders') == [*range(5000)]


async def test_heal_sends_delayed_data_at_once(
    memory: StreamBroker, publisher: rbs.Publisher
) -> None:
    memory.delay(3600)
    first = asyncio.create_task(publisher.send(1))
    await until(lambda: memory.published == 2, 'the message is stored')
    memory.heal()
    await asyncio.wait_for(first, HANG)
    await asyncio.wait_for(publisher.send(2), HANG)


async def test_broker_ignores_frames_after_a_cut_within_a_response(memory: StreamBroker) -> None:
    memory.create_stream('others')
    async with connect_and_open(memory.uri) as client:
        names = ('orders', 'others')
        frames = b''.join(commands.Delete(name).encode(i) for i, name in enumerate(names))
        memory.cut(after=len(frames) + 3)
        client.write(frames)
        assert await client.receive() is None
    assert memory.streams == ['others']


async def test_delayed_data_is_dropped_with_the_connection(memory: StreamBroker) -> None:
    memory.delay(3600)
    async with rbs.streams_client(memory.uri, connect_timeout=0.1) as client:
        with pytest.raises(rbs.ConnectTimeout):
            await client.create_stream('other')
    memory.heal()
    async with rbs.streams_client(memory.uri) as client:
        await client.create_stream('other')


async def test_split(
    memory: StreamBroker, publisher: rbs.Publisher, messages: rbs.Subscription
) -> None:
    assert await anext(messages) == 0
    for most in (1, 7, 1000):
        memory.split(most)
        first = memory.published
        await publisher.send_many(range(first, first + 100))
        found = [await anext(messages) for _ in range(100)]
        assert found == [*range(first, first + 100)]
        async with rbs.streams_client(memory.uri) as other:
            assert await other.stream_exists('orders')
        memory.heal()


async def test_close_after_data_in_flight(memory: StreamBroker) -> None:
    async with connect_and_open(memory.uri) as client:
        memory.split(3)
        client.write(commands.Close(1, 'done').encode(9))
        assert await client.receive() == commands.Response(commands.Close, 9, 1, None)
        assert await client.receive() is None


async def test_silence(
    memory: StreamBroker, publisher: rbs.Publisher, messages: rbs.Subscription
) -> None:
    assert await anext(messages) == 0
    memory.silence()
    for i in range(1, 30):
        await publisher.send(i)
    waiting = asyncio.create_task(messages.__anext__())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    memory.heal()
    assert await asyncio.wait_for(waiting, HANG) == 1
    assert [await anext(messages) for _ in range(2, 30)] == [*range(2, 30)]


async def test_stall(
    memory: StreamBroker, publisher: rbs.Publisher, messages: rbs.Subscription
) -> None:
    assert await anext(messages) == 0
    memory.stall()
    with pytest.raises(rbs.ConfirmTimeout):
        await publisher.send(1, timeout=0.05)
    assert memory.messages('orders') == [0]
    async with rbs.streams_client(memory.uri, connect_timeout=0.2) as other:
        with pytest.raises(rbs.ConnectTimeout):
            await other.create_stream('other')
    memory.publish('orders', 'from within')
    memory.heal()
    await publisher.send(2)
    assert [await anext(messages) for _ in range(3)] == ['from within', 1, 2]


async def test_faults_from_another_thread(memory: StreamBroker, publisher: rbs.Publisher) -> None:
    def disturb() -> None:
        memory.stall()
        memory.heal()
        memory.cut()
        memory.metadata_update('orders')

    await asyncio.to_thread(disturb)
    await publisher.send(1)
    assert memory.messages('orders') == [0, 1]
