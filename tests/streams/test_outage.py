"""Outages: how long the client retries, which errors it retries, and which node it connects to.

The broker is scripted; tests in which time matters simulate it.
"""

import asyncio
import contextlib
import logging
import re
import struct
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.retry import ALWAYS, REDECLARING
from rbfly.protocol.commands import StreamMetadata
from rbfly.protocol.const import Key, ResponseCode
from rbfly.streams.error import (
    ConnectTimeout,
    FrameError,
    ProtocolError,
    StreamConnectionError,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Handler, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import core_of
from tests.streams.consume.test_consume_recovery import members
from tests.streams.publish.test_publish_recovery import default, missing, published

own_clock = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


def subscribe(client: rbs.StreamsClient) -> rbs.Subscription:
    return client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)


def publishing_peers(fake: FakeBroker) -> list[Peer]:
    """Return the connections with a publisher."""
    return [peer for peer in fake.connections if wire.DECLARE_PUBLISHER in peer.commands()]


async def open_publisher(client: rbs.StreamsClient, **options: Any) -> None:
    """Open a publisher, which is expected to fail."""
    async with client.publisher('test', **options):
        pytest.fail('the publisher was opened')


def count_requests(fake: FakeBroker, key: int) -> int:
    """Count the requests of a command."""
    return sum(peer.commands().count(key) for peer in fake.connections)


def lose(fake: FakeBroker) -> None:
    """Cut all connections."""
    for peer in fake.connections:
        peer.transport.abort()


def close_soon(peer: Peer) -> None:
    """Close the connection after the response has been sent."""
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(peer.transport.close))


# -- the limit of an outage


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
async def test_publisher_gives_up_after_reconnect_timeout(
    key: int, handler: Handler, limit: float
) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.CLOSING}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=limit) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[key] = handler
        if key != wire.PUBLISH:
            lose(fake)
        begin = now()
        with pytest.raises(ConnectTimeout):
            await publisher.send('x')
        assert 0.5 * limit <= now() - begin <= limit + 0.001

        # The next message starts a new attempt.
        fake.handlers.clear()
        await publisher.send('y')


@own_clock
async def test_subscription_gives_up_after_reconnect_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = FakeStream()
    stream.on_subscribe = lambda reader: close_soon(reader.peer) or wire.OK  # type: ignore[func-returns-value]
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
@pytest.mark.parametrize('role', ['publisher', 'subscription'])
async def test_opening_is_no_part_of_an_outage(role: str) -> None:
    """A loss soon after the first declaration is not limited by `connect_timeout`."""
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=1) as client,
    ):
        opening: Any = client.publisher('test') if role == 'publisher' else subscribe(client)
        async with opening as user:
            fake.handlers[Step.OPEN] = wire.CLOSING
            lose(fake)
            using = asyncio.ensure_future(user.send('0') if role == 'publisher' else anext(user))
            await asyncio.sleep(60)
            assert not using.done()
            del fake.handlers[Step.OPEN]
            stream.append(b'0')
            await using


@own_clock
async def test_connect_timeout_limits_the_first_use() -> None:
    """One node answers, but the stream's leader does not."""
    async with FakeBroker(at={Step.OPEN: wire.SILENT}) as leader, FakeBroker() as first:
        first.handlers[wire.METADATA] = members(leader)
        first.handlers[wire.DECLARE_PUBLISHER] = refuse(0x06)
        async with rbs.streams_client(first.uri, connect_timeout=7) as client:
            begin = now()
            with pytest.raises(ConnectTimeout):
                await open_publisher(client)
            assert 3.5 <= now() - begin <= 7


@own_clock
async def test_loss_after_a_stable_period_is_a_new_outage() -> None:
    """The client recovers from each of eight losses equally fast."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=2) as client,
        client.publisher('test') as publisher,
    ):
        for _ in range(8):
            await asyncio.sleep(100)
            lose(fake)
            fake.connections.clear()
            begin = now()
            await until(lambda: bool(publishing_peers(fake)), 'the publisher is redeclared')
            assert now() - begin < 0.2
        await publisher.send('x')


@own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast, rbs.PublisherBatchLimit])
async def test_publisher_can_be_used_after_an_outage_that_was_too_long(cls: Any) -> None:
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
        lose(fake)
        with pytest.raises(StreamConnectionError):
            await publish('b')
        with pytest.raises(StreamConnectionError):
            await publish('c')
        fake.handlers.clear()
        await publish('d')
        assert published(fake) == [[1], [4]]


@own_clock
async def test_only_the_next_flush_reports_a_lost_batch() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.1) as client,
        client.publisher('test') as publisher,
    ):
        publisher.batch('a')
        fake.handlers[Step.OPEN] = wire.CLOSING
        lose(fake)
        await until(lambda: core_of(publisher).error is not None, 'the publisher gives up')
        fake.handlers.clear()
        publisher.batch('b')
        with pytest.raises(StreamConnectionError):
            await publisher.flush()
        await publisher.flush()
        assert published(fake) == [[2]]


@own_clock
async def test_send_many_raises_the_error_that_ends_an_outage() -> None:
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


# -- which errors are retried


CODES = [code for code in ResponseCode if code != ResponseCode.OK]


def retried(command: int, code: int) -> tuple[bool, bool]:
    """Return whether a code is retried at the first use, and after a connection loss."""
    first = (command, code) in ALWAYS
    return first, first or (command, code) in REDECLARING


def test_retries_of_every_command_are_tested() -> None:
    assert {command for command, _ in ALWAYS | REDECLARING} == {
        Key.METADATA,
        Key.DECLARE_PUBLISHER,
        Key.SUBSCRIBE,
        Key.QUERY_PUBLISHER_SEQUENCE,
        Key.QUERY_OFFSET,
        Key.STREAM_STATS,
    }
    assert {code for _, code in ALWAYS | REDECLARING} < set(CODES)


async def check_retries(
    fake: FakeBroker, key: int, code: int, use: Awaitable[object], expected: bool
) -> None:
    """Check that a call raises the broker's refusal, and whether the client has retried.

    If it has retried, the refusal is the cause of a timeout.
    """
    before = count_requests(fake, key)
    with pytest.raises(ConnectTimeout if expected else ProtocolError) as caught:
        await use
    refusal = caught.value.__cause__ if expected else caught.value
    assert isinstance(refusal, ProtocolError)
    assert refusal.code == code
    assert (count_requests(fake, key) > before + 1) == expected


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_declare_publisher(code: int) -> None:
    first, again = retried(Key.DECLARE_PUBLISHER, code)
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[wire.DECLARE_PUBLISHER] = refuse(code)
        for use, expected in ((publisher.send('x'), again), (open_publisher(client), first)):
            await check_retries(fake, wire.DECLARE_PUBLISHER, code, use, expected)


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_subscribe(code: int) -> None:
    first, again = retried(Key.SUBSCRIBE, code)
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        contextlib.aclosing(subscribe(client)) as messages,
        contextlib.aclosing(subscribe(client)) as others,
    ):
        assert await anext(messages) == b'0'
        stream.on_subscribe = lambda reader: code
        stream.reader.peer.transport.abort()
        for subscription, expected in ((messages, again), (others, first)):
            await check_retries(fake, wire.SUBSCRIBE, code, anext(subscription), expected)


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_metadata(code: int) -> None:
    """They are the same at the first use and after a connection loss."""
    first, again = retried(Key.METADATA, code)
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
            await check_retries(fake, wire.METADATA, code, use, again)


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_query_publisher_sequence(code: int) -> None:
    key = Key.QUERY_PUBLISHER_SEQUENCE
    first, _ = retried(key, code)
    async with (
        FakeBroker(on={key: refuse(code)}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5) as client,
    ):
        await check_retries(fake, key, code, open_publisher(client, name='me'), first)


@own_clock
@pytest.mark.parametrize('key', [Key.QUERY_OFFSET, Key.STREAM_STATS])
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_requests_for_the_start_offset(code: int, key: int) -> None:
    if code == ResponseCode.NO_OFFSET:
        return  # no error: nothing is stored for the reference
    first, _ = retried(key, code)
    offset = rbs.Offset.reference('me') if key == Key.QUERY_OFFSET else rbs.Offset.NEXT
    async with (
        FakeBroker(on={key: refuse(code)}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        contextlib.aclosing(client.subscribe('test', offset=offset)) as messages,
    ):
        await check_retries(fake, key, code, anext(messages), first)


@own_clock
@pytest.mark.parametrize('code', CODES)
async def test_retries_of_stream_stats_after_a_connection_loss(code: int) -> None:
    _, again = retried(Key.STREAM_STATS, code)
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
        await check_retries(fake, Key.STREAM_STATS, code, anext(messages), again)


# -- garbage in the same segment as a response


BAD_FRAME = struct.pack('>I', 3)
BAD_CHUNK = struct.pack('>IHHB', 5, wire.DELIVER, 1, 0)


def garble_answer(suffix: bytes, handler: Handler = default) -> Handler:
    """Answer, and append other bytes to the response in the same segment."""

    def garble(peer: Peer, request: Frame) -> None:
        parts: list[bytes] = []
        peer.broker._write = lambda _, data: parts.append(data)
        handler(peer, request)
        peer.broker._write = None
        peer.transport.write(b''.join(parts) + suffix)

    return garble


@own_clock
async def test_bad_chunk_after_the_response_to_subscribe(caplog: pytest.LogCaptureFixture) -> None:
    stream = FakeStream()
    handlers = stream.handlers()
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri, connection_name='shop') as client,
        subscribe(client) as messages,
    ):
        fake.handlers[wire.SUBSCRIBE] = garble_answer(BAD_CHUNK, handlers[wire.SUBSCRIBE])
        with pytest.raises(FrameError):
            await anext(messages)
        expected = f'[shop] rabbitmq-stream://127.0.0.1:{fake.port} does not speak the stream'
        assert any(text.startswith(expected) for text in caplog.messages)
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
async def test_bad_frame_after_a_response_is_raised_at_once(key: int) -> None:
    async with (
        FakeBroker(on={key: garble_answer(BAD_FRAME)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        begin = now()
        with pytest.raises(FrameError):
            await open_publisher(client, name='me')
        assert now() == begin
        fake.handlers.clear()


# -- which node


async def test_client_uses_a_node_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client never mistakes a connection to another node for one to the leader."""
    monkeypatch.setattr('rbfly.net.dialer.UNREACHABLE', 0.0)
    monkeypatch.setattr('rbfly.net.retry.BACKOFF_LAST', 0.1)
    stream = FakeStream()
    stream.append(b'0')
    elsewhere = FakeStream(on_subscribe=lambda reader: 0x06)
    async with (
        FakeBroker(on=elsewhere.handlers()) as known,
        FakeBroker(on=stream.handlers(), at={Step.PEER_PROPERTIES: wire.RESETTING}) as member,
        rbs.streams_client(known.uri) as client,
        contextlib.aclosing(subscribe(client)) as messages,
    ):
        known.handlers[wire.METADATA] = member.handlers[wire.METADATA] = members(member)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(elsewhere.readers) > 1, 'the other node refuses the subscription')
        del member.handlers[Step.PEER_PROPERTIES]
        assert await waiting == b'0'
        async with client.publisher('test') as publisher:
            await publisher.send('x')
        assert (len(published(known)), len(published(member))) == (0, 1)


@own_clock
async def test_unreachable_node_delays_only_the_first_publisher() -> None:
    """As behind NAT: later publishers use another node without trying the unreachable one first."""
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
async def test_wrong_address_of_a_node_does_not_accumulate_connections() -> None:
    def elsewhere(peer: Peer, request: Frame) -> None:
        broker = struct.pack('>IH', 1, 0) + wire.string('localhost') + struct.pack('>I', fake.port)
        stream = struct.pack('>I', 1) + request.body[8:] + struct.pack('>HHI', 1, 0, 0)
        peer.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + broker + stream))

    async with (
        FakeBroker(on={wire.METADATA: elsewhere}, tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        AsyncExitStack() as stack,
    ):
        for _ in range(5):
            await stack.enter_async_context(client.publisher('test'))
            await asyncio.sleep(20)
        assert sum(not peer.lost.done() for peer in fake.connections) == 2


@own_clock
async def test_address_that_does_not_answer_is_tried_last() -> None:
    async with (
        FakeBroker(at={Step.PEER_PROPERTIES: wire.SILENT}) as frozen,
        FakeBroker() as other,
        rbs.streams_client([frozen.uri, other.uri]) as client,
    ):
        await client.stream_exists('test')
        begin = now()
        lose(other)
        await until(lambda: not client.connected, 'the connection is lost')
        await client.stream_exists('test')
        assert now() - begin < 1


@own_clock
async def test_error_and_log_say_that_a_stream_has_no_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_leader(peer: Peer, request: Frame) -> None:
        body = struct.pack('>II', 0, 1) + request.body[8:] + struct.pack('>HHI', 1, 0xFFFF, 0)
        peer.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + body))

    async with (
        FakeBroker(on={wire.METADATA: no_leader}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=60) as client,
    ):
        with pytest.raises(ConnectTimeout, match="60 s: stream 'test' has no leader") as caught:
            await open_publisher(client)
        assert isinstance(caught.value.__cause__, ProtocolError)
        text = "stream 'test' has no leader: the stream is not available at the moment (code 0x06)"
        reason = re.escape(f'{text}; next')
        assert re.search(f'cannot be opened: {reason}', caplog.text)
        assert re.search(rf'no connection for \d\d\.\d s: {reason}', caplog.text)
        assert logging.WARNING in {record.levelno for record in caplog.records}


# -- idle connections


@own_clock
async def test_idle_connections_are_closed() -> None:
    async with (
        FakeBroker(tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
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
async def test_connection_in_occasional_use_stays_open() -> None:
    async with (
        FakeBroker(tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        client.publisher('test'),
    ):
        for _ in range(50):
            await asyncio.sleep(59)
            await client.stream_exists('test')
        assert len(fake.connections) == 2


# -- disconnecting


async def test_calls_during_disconnect_fail_instead_of_reconnecting() -> None:
    """Calls made before it has ended fail; calls made after it connect again."""
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
