"""How long an outage may last, what is worth another try, and which node is connected to.

Against the scripted broker; where time matters, on a clock of the test's own.
"""

import asyncio
import logging
import struct
from contextlib import AsyncExitStack
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.retry import TABLE, Try
from rbfly.protocol.commands import StreamMetadata
from rbfly.protocol.const import Key, ResponseCode
from rbfly.streams.error import (
    ConnectTimeout,
    FrameError,
    ProtocolError,
    StreamConnectionError,
)
from tests import fake as wire
from tests.brokers import until
from tests.fake import FakeBroker, Frame, Handler, Step, refuse
from tests.fake import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.streams.test_consume_recovery import members
from tests.streams.test_publish_recovery import default, missing, published

own_clock = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


def subscribe(client: rbs.StreamsClient) -> rbs.Subscription:
    return client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)


def published_to(fake: FakeBroker) -> list[Peer]:
    """Connections that have a publisher."""
    return [peer for peer in fake.connections if wire.DECLARE_PUBLISHER in peer.commands()]


def after(peer: Peer) -> None:
    """Close the connection in the next turn."""
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(peer.transport.close))


# -- one outage, one limit


@own_clock
@pytest.mark.parametrize('limit', [1.0, 5.0, 60.0])
@pytest.mark.parametrize(
    ('key', 'handler'),
    [
        (wire.PUBLISH, wire.CLOSING),
        (wire.DECLARE_PUBLISHER, wire.CLOSING),
        (wire.DECLARE_PUBLISHER, refuse(0x06)),
        (wire.METADATA, wire.CLOSING),
        (wire.METADATA, wire.SILENT),
        (Step.OPEN, wire.CLOSING),
        (Step.OPEN, wire.SILENT),
    ],
)
async def test_limit_of_an_outage_of_a_publisher(key: int, handler: Handler, limit: float) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.CLOSING}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=limit) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[key] = handler
        if key != wire.PUBLISH:
            for peer in fake.connections:
                peer.transport.abort()
        begin = now()
        with pytest.raises((StreamConnectionError, ProtocolError)):
            await publisher.send('x')
        assert 0.5 * limit <= now() - begin <= limit + 0.001

        # Who publishes next tries anew.
        fake.handlers.clear()
        await publisher.send('y')


@own_clock
async def test_limit_of_an_outage_of_a_subscription(caplog: pytest.LogCaptureFixture) -> None:
    stream = FakeStream()
    stream.on_subscribe = lambda reader: after(reader.peer) or wire.OK  # type: ignore[func-returns-value]
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=5, connect_timeout=5) as client,
        subscribe(client) as messages,
    ):
        for _ in range(2):
            begin = now()
            with pytest.raises(StreamConnectionError, match=r'gave up after 5 s'):
                await anext(messages)
            assert 2.5 <= now() - begin <= 5
        assert 'connection lost' in caplog.text
        stream.on_subscribe = lambda reader: wire.OK
        stream.append(b'0')
        assert await anext(messages) == b'0'


@own_clock
async def test_first_use_takes_no_longer_than_the_connect_timeout() -> None:
    """Though a node answers: the one that is wanted does not."""
    async with FakeBroker(at={Step.OPEN: wire.SILENT}) as leader, FakeBroker() as first:
        first.handlers[wire.METADATA] = members(leader)
        first.handlers[wire.DECLARE_PUBLISHER] = refuse(0x06)
        async with rbs.streams_client(first.uri, connect_timeout=7) as client:
            begin = now()
            with pytest.raises((ConnectTimeout, ProtocolError)):
                async with client.publisher('test'):
                    pytest.fail('its node does not answer')
            assert 3.5 <= now() - begin <= 7


@own_clock
async def test_outage_begins_anew_where_it_was_open_for_some_time() -> None:
    """Eight losses, each long after the last: the next one is mended as fast as the first."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=2) as client,
        client.publisher('test') as publisher,
    ):
        for _ in range(8):
            await asyncio.sleep(100)
            for peer in fake.connections:
                peer.transport.abort()
            fake.connections.clear()
            begin = now()
            await until(lambda: bool(published_to(fake)), 'declared again')
            assert now() - begin < 0.2
        await publisher.send('x')


@own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast, rbs.PublisherBatchLimit])
async def test_publisher_goes_on_behind_an_outage_that_was_too_long(cls: Any) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.1) as client,
        client.publisher('test', name='me', cls=cls) as publisher,
    ):

        async def publish(body: str) -> None:
            if cls is rbs.Publisher:
                await publisher.send(body)
            elif cls is rbs.PublisherBatchFast:
                publisher.batch(body)
                await publisher.flush()
            else:
                await publisher.batch(body, max_len=1)
                await publisher.flush()

        await publish('a')
        fake.handlers[Step.OPEN] = wire.CLOSING
        for peer in fake.connections:
            peer.transport.abort()
        with pytest.raises(StreamConnectionError):
            await publish('b')
        with pytest.raises(StreamConnectionError):
            await publish('c')
        fake.handlers.clear()
        await publish('d')
        assert published(fake) == [[1], [4]]


@own_clock
async def test_batch_that_was_lost_is_told_by_the_next_flush_alone() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.1) as client,
        client.publisher('test', cls=rbs.PublisherBatchFast) as publisher,
    ):
        publisher.batch('a')
        fake.handlers[Step.OPEN] = wire.CLOSING
        for peer in fake.connections:
            peer.transport.abort()
        await until(lambda: publisher._core.error is not None, 'it has given up')
        fake.handlers.clear()
        publisher.batch('b')
        with pytest.raises(StreamConnectionError):
            await publisher.flush()
        await publisher.flush()
        assert published(fake) == [[2]]


@own_clock
async def test_send_many_is_told_of_the_outage_it_ran_into() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.CLOSING}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.1) as client,
        client.publisher('test', max_unconfirmed=10) as publisher,
    ):
        fake.handlers[wire.METADATA] = missing
        with pytest.raises(ProtocolError):
            await publisher.send_many(range(1000))
        fake.handlers.clear()
        assert await publisher.send_many(range(100)) == 100


# -- what is worth another try


CODES = [code for code in ResponseCode if code != ResponseCode.OK]


def tried_again(command: Key, code: int) -> tuple[bool, bool]:
    """Whether the table says so: at the first use, and after a loss."""
    found = TABLE.get((command, code))
    return found is Try.ALWAYS, found is not None


def test_commands_of_the_table() -> None:
    """Those that are driven below."""
    assert {command for command, _ in TABLE} == {
        Key.METADATA,
        Key.DECLARE_PUBLISHER,
        Key.SUBSCRIBE,
        Key.QUERY_PUBLISHER_SEQUENCE,
        Key.QUERY_OFFSET,
        Key.STREAM_STATS,
    }
    assert {code for _, code in TABLE} < set(CODES)


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_declaring(code: int) -> None:
    first, again = tried_again(Key.DECLARE_PUBLISHER, code)
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
    ):
        async with client.publisher('test') as publisher:
            fake.handlers[wire.DECLARE_PUBLISHER] = refuse(code)
            before = tries(fake, wire.DECLARE_PUBLISHER)
            with pytest.raises(ProtocolError) as caught:
                await publisher.send('x')
            assert caught.value.code == code
            assert (tries(fake, wire.DECLARE_PUBLISHER) > before + 1) == again
        before = tries(fake, wire.DECLARE_PUBLISHER)
        with pytest.raises(ProtocolError) as caught:
            async with client.publisher('test'):
                pytest.fail('it is refused')
        assert caught.value.code == code
        assert (tries(fake, wire.DECLARE_PUBLISHER) > before + 1) == first


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_subscribing(code: int) -> None:
    first, again = tried_again(Key.SUBSCRIBE, code)
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        subscribe(client) as messages,
        subscribe(client) as others,
    ):
        assert await anext(messages) == b'0'
        stream.on_subscribe = lambda reader: code
        stream.reader.peer.transport.abort()
        for subscription, expected in ((messages, again), (others, first)):
            before = len(stream.readers)
            with pytest.raises(ProtocolError) as caught:
                await anext(subscription)
            assert caught.value.code == code
            assert (len(stream.readers) > before + 1) == expected


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_metadata(code: int) -> None:
    """The same at the first use and after a loss."""
    first, again = tried_again(Key.METADATA, code)
    assert first == again

    def refuse_stream(peer: Peer, request: Frame) -> None:
        peer.respond(request, {'test': StreamMetadata(code, None, ())})

    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[wire.METADATA] = refuse_stream
        for use in (publisher.send('x'), anext(subscribe(client))):
            before = tries(fake, wire.METADATA)
            with pytest.raises(ProtocolError) as caught:
                await use
            assert caught.value.code == code
            assert (tries(fake, wire.METADATA) > before + 1) == again


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_asking_for_the_last_publishing_id(code: int) -> None:
    key = Key.QUERY_PUBLISHER_SEQUENCE
    first, _ = tried_again(key, code)
    async with (
        FakeBroker(on={key: refuse(code)}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5) as client,
    ):
        with pytest.raises(ProtocolError) as caught:
            async with client.publisher('test', name='me'):
                pytest.fail('it is refused')
        assert caught.value.code == code
        assert (tries(fake, key) > 1) == first


@own_clock
@pytest.mark.parametrize('key', [Key.QUERY_OFFSET, Key.STREAM_STATS])
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_asking_where_a_subscription_starts(code: int, key: Key) -> None:
    if code == ResponseCode.NO_OFFSET:
        return  # of a reference: it starts at the next message
    first, _ = tried_again(key, code)
    offset = rbs.Offset.reference('me') if key is Key.QUERY_OFFSET else rbs.Offset.NEXT
    async with (
        FakeBroker(on={key: refuse(code)}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        client.subscribe('test', offset=offset) as messages,
    ):
        with pytest.raises(ProtocolError) as caught:
            await anext(messages)
        assert caught.value.code == code
        assert (tries(fake, key) > 1) == first


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_codes_of_asking_where_a_subscription_goes_on(code: int) -> None:
    _, again = tried_again(Key.STREAM_STATS, code)
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        fake.handlers[Key.STREAM_STATS] = refuse(code)
        stream.reader.peer.transport.abort()
        before = tries(fake, Key.STREAM_STATS)
        with pytest.raises(ProtocolError) as caught:
            await anext(messages)
        assert caught.value.code == code
        assert (tries(fake, Key.STREAM_STATS) > before + 1) == again


def tries(fake: FakeBroker, key: int) -> int:
    return sum(peer.commands().count(key) for peer in fake.connections)


# -- bytes that are no frames, in one read with the answer


NO_FRAME = struct.pack('>I', 3)
NO_CHUNK = struct.pack('>IHHB', 5, wire.DELIVER, 1, 0)


def garbled(behind: bytes, handler: Handler = default) -> Handler:
    """Answer, and send something in the same segment."""

    def garble(peer: Peer, request: Frame) -> None:
        parts: list[bytes] = []
        peer.broker._write = lambda _, data: parts.append(data)
        handler(peer, request)
        peer.broker._write = None
        peer.transport.write(b''.join(parts) + behind)

    return garble


@own_clock
async def test_no_frames_behind_the_answer_to_subscribe(caplog: pytest.LogCaptureFixture) -> None:
    stream = FakeStream()
    handlers = stream.handlers()
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        fake.handlers[wire.SUBSCRIBE] = garbled(NO_CHUNK, handlers[wire.SUBSCRIBE])
        with pytest.raises(FrameError):
            await anext(messages)
        assert 'does not speak the stream protocol' in caplog.text
        fake.handlers.update(handlers)
        stream.append(b'0')
        assert await anext(messages) == b'0'


@own_clock
@pytest.mark.parametrize(
    'key',
    [
        wire.DECLARE_PUBLISHER,
        wire.QUERY_PUBLISHER_SEQUENCE,
        Step.PEER_PROPERTIES,
        Step.OPEN,
        Step.EXCHANGE_COMMAND_VERSIONS,
    ],
)
async def test_no_frames_behind_an_answer_are_told_at_once(key: int) -> None:
    async with (
        FakeBroker(on={key: garbled(NO_FRAME)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        begin = now()
        with pytest.raises(FrameError):
            async with client.publisher('test', name='me'):
                pytest.fail('the broker does not speak the protocol')
        assert now() == begin
        fake.handlers.clear()


# -- which node


async def test_node_that_comes_back_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to another node is never taken for one to the node that was wanted."""
    monkeypatch.setattr('rbfly.net.cluster.UNREACHABLE', 0.0)
    monkeypatch.setattr('rbfly.net.retry.BACKOFF_LAST', 0.1)
    stream = FakeStream()
    stream.append(b'0')
    elsewhere = FakeStream(on_subscribe=lambda reader: 0x06)
    async with (
        FakeBroker(on=elsewhere.handlers()) as known,
        FakeBroker(on=stream.handlers(), at={Step.PEER_PROPERTIES: wire.RESETTING}) as member,
        rbs.streams_client(known.uri) as client,
        subscribe(client) as messages,
    ):
        known.handlers[wire.METADATA] = member.handlers[wire.METADATA] = members(member)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(elsewhere.readers) > 1, 'it was refused by the other one')
        del member.handlers[Step.PEER_PROPERTIES]
        assert await waiting == b'0'
        async with client.publisher('test') as publisher:
            await publisher.send('x')
        assert (len(published(known)), len(published(member))) == (0, 1)


@own_clock
async def test_node_that_cannot_be_reached_delays_only_the_first() -> None:
    """As behind NAT: what goes by another node does not wait for it again and again."""
    async with (
        FakeBroker(at={Step.PEER_PROPERTIES: wire.SILENT}) as leader,
        FakeBroker() as known,
        rbs.streams_client(known.uri) as client,
    ):
        known.handlers[wire.METADATA] = members(leader)
        begin = now()
        for _ in range(20):
            async with client.publisher('test') as publisher:
                await publisher.send('x')
        assert now() - begin <= 20
        assert len(published(known)) == 20


@own_clock
async def test_address_of_a_node_that_leads_to_another_one_costs_no_connection_each() -> None:
    def elsewhere(peer: Peer, request: Frame) -> None:
        broker = struct.pack('>IH', 1, 0) + wire.string('localhost') + struct.pack('>I', fake.port)
        stream = struct.pack('>I', 1) + request.body[8:] + struct.pack('>HHI', 1, 0, 0)
        peer.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + broker + stream))

    async with (
        FakeBroker(on={wire.METADATA: elsewhere}, tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=0) as client,
        AsyncExitStack() as stack,
    ):
        for _ in range(5):
            await stack.enter_async_context(client.publisher('test'))
            await asyncio.sleep(20)
        assert sum(not peer.lost.done() for peer in fake.connections) == 2


@own_clock
async def test_address_that_does_not_answer_is_not_the_first_again() -> None:
    async with (
        FakeBroker(at={Step.PEER_PROPERTIES: wire.SILENT}) as frozen,
        FakeBroker() as other,
        rbs.streams_client([frozen.uri, other.uri]) as client,
    ):
        await client.stream_exists('test')
        begin = now()
        for peer in other.connections:
            peer.transport.abort()
        await until(lambda: not client.connected, 'it is lost')
        await client.stream_exists('test')
        assert now() - begin < 1


@own_clock
async def test_stream_without_leader_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def no_leader(peer: Peer, request: Frame) -> None:
        body = struct.pack('>II', 0, 1) + request.body[8:] + struct.pack('>HHI', 1, 0xFFFF, 0)
        peer.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + body))

    async with (
        FakeBroker(on={wire.METADATA: no_leader}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=60) as client,
    ):
        with pytest.raises(ProtocolError, match="'test' has no leader") as caught:
            async with client.publisher('test'):
                pytest.fail('it has no leader')
        assert caught.value.__notes__ == ['gave up after 60 s']
        assert "stream 'test' has no leader: stream not available (code 0x06) (for " in caplog.text
        assert logging.WARNING in {record.levelno for record in caplog.records}


# -- connections that nobody uses


@own_clock
async def test_connections_that_nobody_uses_are_closed() -> None:
    async with (
        FakeBroker(tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=0) as client,
    ):
        await client.create_stream('test')
        async with client.publisher('test'), subscribe(client) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(1000)
            assert [peer.lost.done() for peer in fake.connections] == [True, False, False]
            waiting.cancel()
        await asyncio.sleep(1000)
        assert [peer.lost.done() for peer in fake.connections].count(False) == 1
        assert client.connected
        assert all(wire.CLOSE in peer.commands() for peer in fake.connections if peer.lost.done())
        await client.create_stream('test')


@own_clock
async def test_connection_in_use_now_and_then_stays() -> None:
    async with (
        FakeBroker(tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=0) as client,
        client.publisher('test'),
    ):
        for _ in range(50):
            await asyncio.sleep(59)
            await client.stream_exists('test')
        assert len(fake.connections) == 2


# -- a client that is disconnected meanwhile


async def test_use_during_disconnect_does_not_connect_again() -> None:
    """What begins before it has ended is told; what begins behind it connects anew."""
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        await client.get_protocol()
        uses = [asyncio.create_task(client.create_stream(str(i))) for i in range(5)]
        leaving = asyncio.create_task(client.disconnect())
        await asyncio.sleep(0)
        uses += [asyncio.create_task(client.create_stream(str(i))) for i in range(5)]
        found = await asyncio.gather(*uses, return_exceptions=True)
        assert {type(item) for item in found} == {StreamConnectionError}
        await leaving
        assert not client.connected
        await client.create_stream('test')
        await client.disconnect()
