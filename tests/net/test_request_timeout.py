"""A request ends even if the broker does not answer."""

import asyncio
import time

import pytest

import rbfly.streams as rbs
from rbfly.net.connection import Connection
from rbfly.net.requests import Requests
from rbfly.protocol import commands
from rbfly.streams.error import ArgumentError, FrameError, RequestTimeout, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import connection_of, session_of
from tests.streams.publish.test_publish_recovery import default, once

LIMIT = 0.05  # seconds; long for loopback, short for a test
LONG = 5.0


async def test_unanswered_request_ends_the_connection() -> None:
    async with (
        FakeBroker(on={wire.STREAM_STATS: SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
    ):
        with pytest.raises(RequestTimeout, match=r"StreamStats of stream 'test' within 0\.05 s"):
            await client.stream_stats('test')
        assert not client.connected
        assert await client.stream_exists('test')
        assert len(fake.connections) == 2


async def test_request_can_have_its_own_timeout() -> None:
    async with (
        FakeBroker(on={wire.CREATE: SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=None) as client,
    ):
        connection = await client.get_protocol()
        with pytest.raises(RequestTimeout, match=r'Create .* within 0\.05 s') as caught:
            await connection.request(commands.Create('test', {}), LIMIT)
        assert isinstance(caught.value, StreamConnectionError)
        assert isinstance(caught.value, TimeoutError)


async def test_request_times_out_without_heartbeats() -> None:
    async with (
        FakeBroker(on={wire.QUERY_OFFSET: SILENT}, tune=(1048576, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=None, request_timeout=LIMIT) as client,
    ):
        connection = await client.get_protocol()
        assert connection.heartbeat == 0
        with pytest.raises(RequestTimeout):
            await client.read_offset('test', 'me')


async def test_subscription_reconnects_if_subscribe_is_not_answered() -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake:
        fake.handlers[wire.SUBSCRIBE] = once(SILENT, stream.subscribe)
        async with (
            rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
            client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
        ):
            assert await asyncio.wait_for(anext(messages), LONG) == b'x'
        assert len(fake.connections) == 2


async def declare(connection: Connection) -> None:
    await connection.request(commands.DeclarePublisher(7, '', 'test'))


async def test_publishing_connection_with_unconfirmed_messages_stays_open() -> None:
    unanswered: list[tuple[Peer, Frame]] = []
    async with (
        FakeBroker(on={wire.PUBLISH: once(SILENT, default)}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        confirmation = await publisher.submit('x')
        fake.handlers[wire.DECLARE_PUBLISHER] = lambda *item: unanswered.append(item)
        with pytest.raises(RequestTimeout):
            await declare(connection)
        peer, request = unanswered[0]
        peer.answer(request)  # too late, so ignored
        peer.send(wire.frame(wire.PUBLISH_CONFIRM, bytes([0, 0, 0, 0, 1]) + bytes(7) + b'\1'))
        await confirmation
        assert connection_of(publisher) is connection
        assert not connection._requests


async def test_publisher_closes_while_another_one_has_unconfirmed_messages() -> None:
    """The broker's response frees the id of the closed publisher."""
    deletes: list[tuple[Peer, Frame]] = []
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT, close_timeout=None) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        confirmation = await publisher.submit('x')
        async with client.publisher('other') as other:
            assert session_of(other) is not None
            used = session_of(other).registration.id
            fake.handlers[wire.DELETE_PUBLISHER] = lambda *item: deletes.append(item)
            await asyncio.wait_for(other.close(), LONG)
        assert connection.is_open
        assert used not in connection.publisher_ids
        peer, request = deletes[0]
        peer.answer(request)
        await until(lambda: used in connection.publisher_ids, 'the id is free')
        fake.handlers.clear()
        peer.send(wire.frame(wire.PUBLISH_CONFIRM, bytes([0, 0, 0, 0, 1]) + bytes(7) + b'\1'))
        await confirmation


@pytest.mark.own_clock
@pytest.mark.parametrize('frozen', [True, False])
async def test_frozen_node_differs_from_one_that_stops_reading(frozen: bool) -> None:
    """After a request times out, the client dials the node again; heartbeats would take minutes."""
    loop = asyncio.get_running_loop()
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        sending = asyncio.create_task(publisher.send('x'))
        await until(lambda: wire.PUBLISH in fake.connections[-1].commands(), 'the message is sent')
        fake.handlers[wire.DECLARE_PUBLISHER] = SILENT
        if frozen:
            fake.handlers[Step.PEER_PROPERTIES] = SILENT
        begun = loop.time()
        other = asyncio.create_task(client.publisher('other').__aenter__())
        await until(lambda: loop.time() > begun + 25, 'the request and the new handshake time out')
        assert connection.is_open is not frozen
        other.cancel()
        await asyncio.wait([other])
        fake.handlers.clear()
        if not frozen:
            fake.connections[1].transport.abort()
        await sending


async def test_publishing_connection_without_unconfirmed_messages_ends() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        await publisher.send('x')
        fake.handlers[wire.DECLARE_PUBLISHER] = once(SILENT, default)
        with pytest.raises(RequestTimeout):
            await declare(connection)
        assert not connection.is_open
        await publisher.send('y')


async def test_cancelled_request_leaves_nothing_behind() -> None:
    async with (
        FakeBroker(on={wire.STREAM_STATS: SILENT, wire.CREATE: SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
    ):
        connection = await client.get_protocol()
        asking = asyncio.create_task(client.stream_stats('test'))
        await until(lambda: wire.STREAM_STATS in fake.connection.commands(), 'the request is sent')
        asking.cancel()
        await asyncio.wait([asking])
        # The cancelled request would time out first.
        with pytest.raises(RequestTimeout, match='Create'):
            await connection.request(commands.Create('test', {}), 2 * LIMIT)
        assert not connection._requests


async def test_response_that_arrives_while_the_event_loop_is_blocked_is_read() -> None:
    def block(connection: Peer, request: Frame) -> None:
        connection.answer(request)
        time.sleep(2 * LIMIT)

    async with (
        FakeBroker(on={wire.CREATE: block}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
    ):
        connection = await client.get_protocol()
        await connection.request(commands.Create('test', {}))
        assert connection.is_open


async def test_request_timeout_does_not_apply_to_the_handshake() -> None:
    def late(connection: Peer, request: Frame) -> None:
        asyncio.get_running_loop().call_later(4 * LIMIT, default, connection, request)

    async with (
        FakeBroker(at={Step.OPEN: late}) as fake,
        rbs.streams_client(fake.uri, request_timeout=LIMIT) as client,
    ):
        await client.get_protocol()
        assert len(fake.connections) == 1


async def test_later_requests_raise_the_error_that_ended_the_connection() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        fake.connection.send(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        await until(lambda: not connection.is_open, 'the connection ends')
        with pytest.raises(FrameError, match='does not speak') as caught:
            await connection.request(commands.Delete('test'))
        assert caught.value.__cause__ is connection.error


@pytest.mark.own_clock
async def test_busy_broker_is_not_mistaken_for_a_dead_one() -> None:
    """The broker answers requests in turn; each answer shows that it is working."""
    busy = 0.0

    def slow(peer: Peer, request: Frame) -> None:
        nonlocal busy
        busy = max(busy, asyncio.get_running_loop().time()) + 0.5
        asyncio.get_running_loop().call_at(busy, fake.default, peer, request)

    async with (
        FakeBroker(on={wire.METADATA: slow}) as fake,
        rbs.streams_client(fake.uri, request_timeout=2) as client,
    ):
        found = await asyncio.gather(*(client.stream_exists(str(i)) for i in range(20)))
        assert all(found)
        assert len(fake.connections) == 1


async def test_request_that_is_too_large_leaves_no_entry() -> None:
    requests = Requests(asyncio.get_running_loop())
    with pytest.raises(ArgumentError, match='Metadata needs a frame of'):
        requests.add(commands.Metadata(('x' * 100,)), 1, lambda *_: None, frame_max=50)
    assert (len(requests), requests.sent) == (0, 0)
