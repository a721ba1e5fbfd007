"""Subscriptions return each message once and in order over lost connections and moved streams.

Most tests use the fake broker, whose connections they cut.
"""

import asyncio
import contextlib
import gc
import struct
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.net import retry
from rbfly.streams.error import (
    AuthenticationError,
    ConnectTimeout,
    FrameError,
    MessageTimeout,
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
)
from tests import fake_broker as wire
from tests import fake_stream
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream, Reader
from tests.inside import cursor_of

HANG = 20.0  # seconds; only a safeguard
NOT_AVAILABLE = 0x06
FREE_IDS = 256


def subscribe(client: rbs.StreamsClient, **arguments: Any) -> rbs.Subscription:
    settings: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'timeout': HANG, 'amqp': False}
    messages: rbs.Subscription = client.subscribe('test', **settings | arguments)
    return messages


async def take(messages: rbs.Subscription, n: int) -> list[object]:
    return [await anext(messages) for _ in range(n)]


def metadata_update(stream: str = 'test') -> bytes:
    return wire.frame(wire.METADATA_UPDATE, struct.pack('>H', NOT_AVAILABLE) + wire.string(stream))


def refusing(fake: FakeBroker) -> Callable[[Peer, Frame], None]:
    """Reset all connections but the first."""

    def handler(connection: Peer, request: Frame) -> None:
        if len(fake.connections) == 1:
            fake.default(connection, request)
        else:
            connection.transport.abort()

    return handler


async def subscribed(stream: FakeStream, n: int = 1) -> Reader:
    await until(lambda: len(stream.readers) >= n, f'the client has subscribed {n} times')
    return stream.reader


# -- where a subscription continues


async def test_backoff_restarts_after_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = Mock(side_effect=lambda: repeat(0.001))
    monkeypatch.setattr(retry, 'backoff', backoff)
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        for i in range(5):
            stream.append(b'%d' % i)
            assert await take(messages, 1) == [b'%d' % i]
            stream.reader.peer.transport.abort()
        assert backoff.call_count >= 5


@pytest.mark.parametrize('read', [1, 2, 3, 4, 5])
async def test_subscription_continues_after_the_last_message(read: int) -> None:
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    stream.append(b'3', b'4', b'5')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client) as messages:
            found = await take(messages, read)
            fake.connection.transport.abort()
            found += await take(messages, 6 - read)
            # Messages that had arrived are returned before the client resubscribes.
            assert len(stream.readers) == 1
            stream.append(b'6')
            assert await anext(messages) == b'6'
        assert found == [b'0', b'1', b'2', b'3', b'4', b'5']
        # The client reads the last chunk again, which identifies the stream.
        assert [reader.spec for reader in stream.readers] == [
            (fake_stream.FIRST, 0),
            (fake_stream.OFFSET, 3),
        ]


async def test_subscription_continues_inside_a_chunk() -> None:
    """The subscription starts inside a chunk, and continues after a gap in the offsets."""
    stream = FakeStream()
    stream.append(b'0', b'1')
    stream.skip(3)
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client, offset=rbs.Offset.offset(1)) as messages:
            assert await take(messages, 1) == [b'1']
            reader = stream.reader
            reader.live = False
            stream.append(b'5', b'6', b'7')
            reader.peer.transport.abort()
            assert await take(messages, 3) == [b'5', b'6', b'7']
            assert rbs.get_message_ctx().stream_offset == 7
            assert cursor_of(messages).position == 8
        assert [reader.spec[1] for reader in stream.readers] == [1, 0]


async def test_no_message_is_lost_or_repeated_over_many_lost_connections() -> None:
    stream = FakeStream()
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client) as messages:
            found: list[object] = []
            for i in range(60):
                stream.append(*(b'%d' % j for j in range(3 * i, 3 * i + 3)))
                if i % 10 == 9:
                    fake.connections[-1].transport.abort()
                if i % 7 == 6:
                    found += await take(messages, 5)
            found += await take(messages, 180 - len(found))
        assert found == [b'%d' % i for i in range(180)]


async def test_resubscribing_keeps_filter_and_credit() -> None:
    stream = FakeStream()
    stream.append(b'a0', b'b1')
    wanted = rbs.MessageFilter(lambda ctx: str(ctx.body)[2:3], {'a', 'ż'})
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client, filter=wanted) as messages:
            assert await anext(messages) == b'a0'
            fake.connection.transport.abort()
            stream.append(b'b2', b'a3', b'b4')
            assert await anext(messages) == b'a3'
        first, second = stream.readers
        assert second.properties == first.properties == {'filter.0': 'a', 'filter.1': 'ż'}
        assert second.limit == first.limit
        assert second.spec == (fake_stream.OFFSET, 0)


async def test_credit_of_a_lost_connection_is_not_returned_on_the_next_one() -> None:
    stream = FakeStream()
    for i in range(4):
        stream.append(b'%d' % i)
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        await anext(messages)
        await until(lambda: len(cursor_of(messages).queue.chunks) == 3, 'all chunks have arrived')
        fake.connection.transport.abort()
        await take(messages, 3)
        stream.append(b'4')
        await anext(messages)
        await until(lambda: bool(stream.reader.granted), 'the credit of a chunk is returned')
        assert stream.reader.granted == 1


@pytest.mark.parametrize('chunks', [0, 1, 3])
async def test_next_misses_no_message_if_the_connection_is_lost_first(chunks: int) -> None:
    stream = FakeStream()
    for i in range(chunks):
        stream.append(b'old%d' % i, b'old')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client, offset=rbs.Offset.NEXT) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            reader = await subscribed(stream)
            commands = fake.connection.commands()
            assert commands.index(wire.STREAM_STATS) < commands.index(wire.SUBSCRIBE)
            reader.live = False
            reader.peer.transport.abort()
            stream.append(b'new0', b'new1')
            stream.append(b'new2')
            assert await waiting == b'new0'
            assert await take(messages, 2) == [b'new1', b'new2']
        assert stream.readers[0].spec == (fake_stream.LAST if chunks else fake_stream.FIRST, 0)
        expected = (fake_stream.OFFSET, 2 * chunks - 2) if chunks else (fake_stream.FIRST, 0)
        assert stream.readers[1].spec == expected


async def test_next_continues_after_the_chunk_that_it_dropped() -> None:
    stream = FakeStream()
    stream.append(b'old', b'old')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client, offset=rbs.Offset.NEXT) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            (await subscribed(stream)).peer.transport.abort()
            await until(
                lambda: len(stream.readers) == 2 and stream.reader.sent == 1,
                'the chunk is delivered',
            )
            await until(lambda: cursor_of(messages).position is not None, 'the chunk is dropped')
            stream.reader.peer.transport.abort()
            stream.append(b'new')
            assert await waiting == b'new'
        assert stream.reader.spec == (fake_stream.OFFSET, 0)


@pytest.mark.parametrize('offset', [rbs.Offset.FIRST, rbs.Offset.NEXT, rbs.Offset.LAST])
async def test_old_broker_receives_no_stream_stats(offset: rbs.Offset) -> None:
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers(), version='3.10.8') as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, offset=offset) as messages,
    ):
        for i in range(3):
            waiting = asyncio.ensure_future(anext(messages))
            await subscribed(stream, i + 1)
            stream.append(b'%d' % i)
            assert await waiting == b'%d' % i
            stream.reader.peer.transport.abort()
        commands = [key for peer in fake.connections for key in peer.commands()]
        assert wire.STREAM_STATS not in commands


async def test_last_of_an_empty_stream_misses_no_message() -> None:
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, offset=rbs.Offset.LAST) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        reader = await subscribed(stream)
        reader.live = False
        reader.peer.transport.abort()
        stream.append(b'0')
        stream.append(b'1')
        assert await waiting == b'0'


async def test_cancelled_first_wait_does_not_move_the_start() -> None:
    """A subscription at `NEXT` receives messages published between two waits."""
    stream = FakeStream()
    held: list[tuple[Peer, Frame]] = []
    handlers = stream.handlers() | {wire.STREAM_STATS: lambda c, f: held.append((c, f))}
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri) as client,
        contextlib.aclosing(subscribe(client, offset=rbs.Offset.NEXT)) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: bool(held), 'the client asks for the last chunk')
        waiting.cancel()
        await asyncio.wait([waiting])
        stream.stats(*held[0])
        await subscribed(stream)
        stream.append(b'0')
        assert await anext(messages) == b'0'
        assert len(stream.readers) == 1


async def test_connecting_continues_after_a_message_timeout() -> None:
    stream = FakeStream()
    stream.append(b'0')
    held: list[tuple[Peer, Frame]] = []
    async with FakeBroker(
        at={Step.OPEN: lambda c, f: held.append((c, f))}, on=stream.handlers()
    ) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            contextlib.aclosing(
                client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=0.05)
            ) as messages,
        ):
            for _ in range(3):
                with pytest.raises(MessageTimeout):
                    await anext(messages)
            await until(lambda: len(held) == 1, 'the handshake reaches its last step')
            fake.default(*held[0])
            await subscribed(stream)
            await until(lambda: bool(cursor_of(messages).queue.chunks), 'the chunk arrives')
            assert await anext(messages) == b'0'
        assert len(fake.connections) == 1


async def test_stored_offset_is_queried_once() -> None:
    """The start does not change if another program stores a later offset meanwhile."""
    stored = 1
    stream = FakeStream()

    def query(connection: Peer, request: Frame) -> None:
        connection.answer(request, struct.pack('>Q', stored))

    handlers = stream.handlers() | {wire.QUERY_OFFSET: query}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client, offset=rbs.Offset.reference('r'), on_gap='ignore') as messages:
            waiting = asyncio.ensure_future(anext(messages))
            reader = await subscribed(stream)
            reader.live = False
            reader.peer.transport.abort()
            stored = 3
            stream.append(b'0', b'1', b'2', b'3', b'4')
            assert await waiting == b'2'
        assert [reader.spec for reader in stream.readers] == [(fake_stream.OFFSET, 1)] * 2


# -- moved streams


async def test_subscription_of_a_moved_stream_resubscribes() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with subscribe(client) as messages:
            assert await anext(messages) == b'0'
            reader = stream.reader
            reader.live = False
            reader.peer.send(metadata_update('another stream'))
            reader.peer.send(metadata_update())
            stream.append(b'1')
            assert await anext(messages) == b'1'
            assert stream.reader.spec == (fake_stream.OFFSET, 0)
            connection = await client.get_protocol()
            assert len(connection.subscription_ids) == FREE_IDS - 1
        assert len(fake.connections) == 1
        assert len(connection.subscription_ids) == FREE_IDS


async def test_stream_that_moves_while_subscribing() -> None:
    """A MetadataUpdate may refer to the new subscription, so the client resubscribes."""
    stream = FakeStream()

    def moved(reader: Reader) -> int:
        if len(stream.readers) == 1:
            reader.peer.send(metadata_update())
        return wire.OK

    stream.on_subscribe = moved
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await until(
            lambda: sum(item.live for item in stream.readers) == 1, 'one subscription is left'
        )


async def test_subscribing_waits_for_an_unavailable_stream() -> None:
    stream = FakeStream()
    stream.append(b'0')
    stream.on_subscribe = lambda reader: NOT_AVAILABLE if len(stream.readers) < 4 else wire.OK
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        assert len(stream.readers) == 4
        connection = await client.get_protocol()
        assert len(connection.subscription_ids) == FREE_IDS - 1


@pytest.mark.own_clock
async def test_stream_unavailable_beyond_the_connect_timeout_raises() -> None:
    stream = FakeStream()
    stream.on_subscribe = lambda reader: NOT_AVAILABLE
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=0.3) as client,
    ):
        with pytest.raises(ConnectTimeout) as caught:
            await anext(subscribe(client))
        assert isinstance(caught.value.__cause__, ProtocolError)
        assert caught.value.__cause__.code == NOT_AVAILABLE


async def test_deleted_stream_raises_after_the_messages_that_had_arrived() -> None:
    stream = FakeStream()
    stream.append(b'0')
    stream.append(b'1')
    deleted = False

    def metadata(connection: Peer, request: Frame) -> None:
        if not deleted:
            fake.default(connection, request)
            return
        name = wire.string('test')
        body = struct.pack('>II', 0, 1) + name + struct.pack('>HHI', 0x02, 0xFFFF, 0)
        connection.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + body))

    handlers = stream.handlers() | {wire.METADATA: metadata}
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        await until(
            lambda: len(cursor_of(messages).queue.chunks) == 1,
            'the second chunk has arrived',
        )
        deleted = True
        fake.connection.send(metadata_update())
        connection = await client.get_protocol()
        await until(
            lambda: len(connection.subscription_ids) == FREE_IDS, 'the subscription is released'
        )
        assert await anext(messages) == b'1'
        for _ in range(2):
            with pytest.raises(StreamDoesNotExist, match='test'):
                await anext(messages)


# -- streams that were deleted and created again


@pytest.mark.parametrize('kind', ['bodies', 'messages', 'batches'])
async def test_stream_recreated_during_an_outage_raises_once_and_is_read_from_its_start(
    kind: str,
) -> None:
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    stream.append(b'3')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await take(messages, 4) == [b'0', b'1', b'2', b'3']
        stream.reader.live = False
        fake.connection.transport.abort()
        stream.recreate()
        iterator = aiter(messages if kind == 'bodies' else getattr(messages, kind)())
        waiting = asyncio.ensure_future(anext(iterator))
        await subscribed(stream, 2)
        assert stream.reader.spec == (fake_stream.FIRST, 0)  # the new stream is empty
        stream.append(b'new0')
        with pytest.raises(StreamDoesNotExist, match="'test' was deleted and created again"):
            await waiting
        stream.append(b'new1')
        assert await take(messages, 2) == [b'new0', b'new1']
        assert rbs.get_message_ctx().stream_offset == 1
        assert stream.reader.spec == (fake_stream.FIRST, 0)
        assert sum(reader.live for reader in stream.readers) == 1


@pytest.mark.parametrize('new', [0, 1])
async def test_stream_recreated_before_the_first_message_at_next(new: int) -> None:
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, offset=rbs.Offset.NEXT) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        (await subscribed(stream)).peer.send(metadata_update())
        stream.reader.live = False
        stream.append(b'3')
        stream.recreate()
        for _ in range(new):
            stream.append(b'new0', b'new1')
        await subscribed(stream, 2)
        for _ in range(1 - new):
            stream.append(b'new0', b'new1')
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        assert await take(messages, 2) == [b'new0', b'new1']


async def test_lagging_replica_is_the_same_stream() -> None:
    """The subscription drops messages that it has returned, whatever their timestamps."""
    stream = FakeStream()
    stream.append(b'0')
    stream.timestamp += 5
    stream.append(b'1')
    stream.timestamp -= 3
    stream.append(b'2')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await take(messages, 3) == [b'0', b'1', b'2']
        del stream.chunks[2]
        stream.end = 2
        stream.reader.live = False
        fake.connection.transport.abort()
        waiting = asyncio.ensure_future(anext(messages))
        await subscribed(stream, 2)
        assert stream.reader.spec == (fake_stream.OFFSET, 1)
        stream.append(b'2')
        stream.append(b'3')
        assert await waiting == b'3'
        assert stream.reader.sent == 3


async def test_start_after_the_end_survives_lost_connections() -> None:
    """Messages below the start do not indicate another stream."""
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client, offset=rbs.Offset.offset(3), on_gap='ignore') as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        for i in range(4):
            await subscribed(stream, i + 1)
            stream.timestamp += 1
            stream.append(b'%d' % i)
            if i < 3:
                await until(lambda: bool(stream.reader.granted), 'the chunk is dropped')
                stream.reader.peer.transport.abort()
        assert await waiting == b'3'


async def test_offset_of_a_deleted_stream_is_not_stored_in_the_new_one() -> None:
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    tracking = rbs.OffsetTracking('reader', every=1, interval=0)
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            subscribe(client, commit=tracking) as messages,
        ):
            await take(messages, 3)
            stream.reader.live = False
            fake.connection.transport.abort()
            stream.recreate()
            waiting = asyncio.ensure_future(anext(messages))
            await subscribed(stream, 2)
            stream.append(b'new0')
            with pytest.raises(StreamDoesNotExist):
                await waiting
        commands = stream.reader.peer.commands()
        assert wire.UNSUBSCRIBE in commands
        assert wire.STORE_OFFSET not in commands


# -- permanent errors and limits


async def test_wrong_password_at_the_reconnect_is_raised_at_once() -> None:
    stream = FakeStream()
    stream.append(b'0')

    def authenticate(connection: Peer, request: Frame) -> None:
        if len(fake.connections) == 1:
            fake.default(connection, request)
        else:
            connection.answer(request, code=0x08)

    async with (
        FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}, on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = subscribe(client)
        await anext(messages)
        fake.connection.transport.abort()
        with pytest.raises(AuthenticationError):
            await anext(messages)


async def test_revoked_permission_is_raised_at_once() -> None:
    stream = FakeStream()
    stream.append(b'0')
    stream.on_subscribe = lambda reader: wire.OK if len(stream.readers) == 1 else 0x10
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        messages = subscribe(client)
        await anext(messages)
        fake.connection.transport.abort()
        with pytest.raises(ProtocolError) as caught:
            await anext(messages)
        assert caught.value.code == 0x10
        stream.on_subscribe = lambda reader: wire.OK
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await messages.aclose()


async def test_invalid_frame_is_raised_and_reading_continues() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        messages = subscribe(client)
        await anext(messages)
        fake.connection.send(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        with pytest.raises(FrameError):
            await anext(messages)
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await messages.aclose()


@pytest.mark.own_clock
async def test_reconnect_timeout_raises_and_reading_can_continue() -> None:
    stream = FakeStream()
    stream.append(b'0')

    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.3) as client,
    ):
        fake.handlers[Step.OPEN] = refusing(fake)
        messages = subscribe(client)
        await anext(messages)
        fake.connection.transport.abort()
        with pytest.raises(StreamConnectionError, match=r'gave up after 0\.3 s'):
            await anext(messages)
        assert len(fake.connections) > 2
        del fake.handlers[Step.OPEN]
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await messages.aclose()


async def test_delays_grow_if_every_subscription_is_lost_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []
    backoff = retry.backoff

    def recorded() -> Iterator[float]:
        for delay in backoff():
            delays.append(delay)
            yield 0

    monkeypatch.setattr(retry, 'backoff', recorded)
    stream = FakeStream()

    def lose(reader: Reader) -> int:
        if len(stream.readers) < 8:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: loop.call_soon(reader.peer.transport.close))
        return wire.OK

    stream.on_subscribe = lose
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        await subscribed(stream, 8)
        stream.append(b'0')
        assert await waiting == b'0'
    assert len(delays) == 7
    assert delays[-1] > 10 * delays[0]


# -- ending without a connection


@pytest.mark.parametrize(
    ('end', 'error', 'text'),
    [('aclose', StopAsyncIteration, None), ('disconnect', StreamConnectionError, 'disconnected')],
)
async def test_aclose_or_disconnect_while_reconnecting_ends_the_wait(
    end: str, error: type[Exception], text: str | None
) -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake:
        fake.handlers[Step.OPEN] = refusing(fake)
        async with rbs.streams_client(fake.uri) as client:
            messages = subscribe(client)
            await anext(messages)
            waiting = asyncio.ensure_future(anext(messages))
            fake.connection.transport.abort()
            await until(lambda: len(fake.connections) > 2, 'the client tries to reconnect')
            await (messages.aclose() if end == 'aclose' else client.disconnect())
            with pytest.raises(error, match=text):
                await waiting


@pytest.mark.own_clock
async def test_dropped_subscription_stops_reconnecting() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake:
        fake.handlers[Step.OPEN] = refusing(fake)
        async with rbs.streams_client(fake.uri) as client:
            messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=0.05)
            await anext(messages)
            fake.connection.transport.abort()
            with pytest.raises(MessageTimeout):
                await anext(messages)
            assert len(asyncio.all_tasks()) > 1
            del messages
            gc.collect()
            await until(lambda: len(asyncio.all_tasks()) == 1, 'no task reconnects')


async def test_disconnect_ends_the_wait() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake:
        client = rbs.streams_client(fake.uri)
        messages = subscribe(client)
        await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await client.disconnect()
        with pytest.raises(StreamConnectionError, match='disconnected'):
            await waiting
        stream.append(b'1')
        # The next call reconnects the client.
        assert await anext(messages) == b'1'
        await client.disconnect()


async def test_close_ends_if_the_connection_is_lost() -> None:
    stream = FakeStream()
    stream.append(b'0')
    handlers = stream.handlers() | {wire.UNSUBSCRIBE: wire.RESETTING}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        messages = subscribe(client)
        await anext(messages)
        async with asyncio.timeout(HANG):
            await messages.aclose()


# -- a real broker


async def test_subscriptions_continue_after_a_broker_restart(
    private_broker: Callable[[], RabbitMQ],
) -> None:
    """They return messages from before and after the restart once and in order."""
    broker = await asyncio.to_thread(private_broker)
    name = 'test-restart'
    async with rbs.streams_client(broker.uri) as client:
        await client.create_stream(name)
        async with client.publisher(name) as publisher:
            for i in range(5000):
                publisher.batch(i)
            await publisher.flush()
        async with (
            client.subscribe(name, offset=rbs.Offset.FIRST, timeout=240) as from_start,
            client.subscribe(name, offset=rbs.Offset.NEXT, timeout=240) as from_next,
        ):
            found = [await anext(from_start) for _ in range(100)]
            waiting = asyncio.ensure_future(anext(from_next))
            connection = await client.get_protocol()
            await until(
                lambda: len(connection.subscription_ids) == FREE_IDS - 2, 'both subscriptions exist'
            )
            await client.delete_stream('no-such-stream')
            # An orderly restart: a killed RabbitMQ 4.0.5 forgets the leader of a new stream.
            await asyncio.to_thread(broker.restart_node, 0)
            async with (
                rbs.streams_client(broker.uri) as other,
                other.publisher(name) as publisher,
            ):
                for i in range(5000, 6000):
                    publisher.batch(i)
                await publisher.flush()
            found += [await anext(from_start) for _ in range(5900)]
            assert found == list(range(6000))
            assert [await waiting, *[await anext(from_next) for _ in range(999)]] == list(
                range(5000, 6000)
            )
        await client.delete_stream(name)
