"""Handshake, limits and frames, mostly with the fake broker, which misbehaves on demand."""

import asyncio
import logging
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams.error import (
    AuthenticationError,
    FrameError,
    MessageTooLarge,
    StreamConnectionError,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.registrations import FakeRegistration

HANG = 20.0  # seconds; only a safeguard


# -- authentication


async def test_broker_does_not_offer_the_mechanism() -> None:
    async with FakeBroker(mechanisms=['AMQPLAIN', 'ANONYMOUS']) as fake:
        client = rbs.streams_client(fake.uri)
        with pytest.raises(AuthenticationError, match='AMQPLAIN, ANONYMOUS, not PLAIN') as caught:
            await client.get_protocol()
        assert caught.value.code == 0x07
        assert Step.SASL_AUTHENTICATE not in fake.connection.commands()


@pytest.mark.parametrize('step', list(Step)[:3])
async def test_long_frame_before_the_client_is_authenticated(step: Step) -> None:
    """The client does not read a long frame from an unauthenticated peer."""
    long = struct.pack('>I', 2**16 + 1)
    async with FakeBroker(at={step: lambda peer, request: peer.send(long)}) as fake:
        with pytest.raises(FrameError, match='a frame of 65537 bytes exceeds the limit of 65536'):
            await rbs.streams_client(fake.uri).get_protocol()


async def test_broker_offers_no_mechanism() -> None:
    async with FakeBroker(mechanisms=[]) as fake:
        with pytest.raises(AuthenticationError, match='offers none'):
            await rbs.streams_client(fake.uri).get_protocol()


async def test_broker_does_not_offer_external_without_tls(broker: RabbitMQ) -> None:
    client = rbs.streams_client(broker.uri, rbs.AuthMechanism.EXTERNAL)
    with pytest.raises(AuthenticationError, match='EXTERNAL'):
        await client.get_protocol()


@pytest.mark.parametrize('challenge', [b'', b'\x00\x03abc', b'\xff\xff', b'\xffgarbage' * 50])
async def test_malformed_sasl_challenge(challenge: bytes) -> None:
    def authenticate(connection: Peer, request: Frame) -> None:
        connection.answer(request, challenge, code=0x0A)

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake:
        with pytest.raises(AuthenticationError) as caught:
            await rbs.streams_client(fake.uri).get_protocol()
        assert caught.value.code == 0x0A
        assert len(fake.connections) == 1


@pytest.mark.parametrize('code', [0x07, 0x08, 0x09, 0x0B])
async def test_authentication_refused(code: int) -> None:
    def authenticate(connection: Peer, request: Frame) -> None:
        connection.answer(request, code=code)
        connection.transport.close()

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake:
        with pytest.raises(AuthenticationError) as caught:
            await rbs.streams_client(fake.uri).get_protocol()
        assert caught.value.code == code
        assert len(fake.connections) == 1


# -- non-ASCII names and percent-encoded URIs


@contextmanager
def user(broker: RabbitMQ, name: str, password: str, vhost: str = '/') -> Iterator[None]:
    broker.ctl('add_user', name, password)
    try:
        broker.ctl('set_permissions', '-p', vhost, name, '.*', '.*', '.*')
        yield
    finally:
        broker.ctl('delete_user', name)


@pytest.mark.own_clock
@pytest.mark.parametrize(('length', 'opens'), [(7_900, True), (20_000, False)])
async def test_long_token_against_the_limit_before_open(length: int, opens: bool) -> None:
    """OAuth 2 tokens are long passwords; brokers from 4.3.5 accept 8,192 bytes before Open."""
    sizes: list[int] = []

    def limited(connection: Peer, request: Frame) -> None:
        sizes.append(len(request.body))
        if len(request.body) > 8192:
            wire.CLOSING(connection, request)
        else:
            connection.broker.default(connection, request)

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: limited}) as fake:
        uri = fake.uri.replace('guest:guest', 'user:' + 'x' * length)
        client = rbs.streams_client(uri, connect_timeout=0.5)
        if opens:
            async with client:
                await client.get_protocol()
        else:
            with pytest.raises(StreamConnectionError, match='authenticating'):
                await client.get_protocol()
    assert set(sizes) == {4 + 2 + 5 + 4 + len('\0user\0') + length}


@pytest.mark.parametrize('encoded', [True, False])
async def test_non_ascii_user_and_password(own_broker: RabbitMQ, encoded: bool) -> None:
    name, password = f'zażółć-{uuid4()}', 'gęślą-jaźń-€'
    shown = (quote(name), quote(password)) if encoded else (name, password)
    with user(own_broker, name, password):
        address = urlsplit(own_broker.uri)
        uri = f'rabbitmq-stream://{shown[0]}:{shown[1]}@{address.hostname}:{address.port}/'
        async with rbs.streams_client(uri) as client:
            await client.create_stream(name)
            await client.delete_stream(name)


async def test_password_with_reserved_characters(own_broker: RabbitMQ) -> None:
    name, password = f'a user {uuid4()}', 'p@ss:w/rd?#[x]%2F+&'
    with user(own_broker, name, password):
        address = urlsplit(own_broker.uri)
        login = f'{quote(name, safe="")}:{quote(password, safe="")}'
        uri = f'rabbitmq-stream://{login}@{address.hostname}:{address.port}/'
        async with rbs.streams_client(uri) as client:
            assert (await client.get_protocol()).is_open


async def test_non_ascii_stream_name(client: rbs.StreamsClient) -> None:
    name = f'strumień ✓ 流 🐇 {uuid4()}'
    await client.create_stream(name)
    try:
        async with client.publisher(name, name='wydawca-流') as publisher:
            await publisher.send('zażółć')
        async with client.subscribe(name, offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'zażółć'
        await client.write_offset(name, 'odnośnik-流', 5)
        assert await client.read_offset(name, 'odnośnik-流') == 5
    finally:
        await client.delete_stream(name)


@pytest.mark.parametrize('path', ['', '/', '/%2f', '/%2F'])
async def test_default_virtual_host(broker: RabbitMQ, path: str) -> None:
    async with rbs.streams_client(broker.uri.rstrip('/') + path) as client:
        assert (await client.get_protocol()).is_open


async def test_non_ascii_virtual_host_with_a_slash(own_broker: RabbitMQ) -> None:
    vhost = f'żółw/a b {uuid4()}'
    own_broker.ctl('add_vhost', vhost)
    try:
        own_broker.ctl('set_permissions', '-p', vhost, 'guest', '.*', '.*', '.*')
        uri = own_broker.uri.rstrip('/') + '/' + quote(vhost, safe='')
        async with rbs.streams_client(uri) as client:
            await client.create_stream('in-the-vhost')
        listed = own_broker.ctl('list_queues', '-q', '-p', vhost, 'name')
        assert 'in-the-vhost' in listed
    finally:
        own_broker.ctl('delete_vhost', vhost)


async def test_ipv6_literal() -> None:
    loop = asyncio.get_running_loop()
    async with FakeBroker() as fake:
        server = await loop.create_server(lambda: Peer(fake), '::1', 0)
        port = server.sockets[0].getsockname()[1]
        async with rbs.streams_client(f'rabbitmq-stream://guest:guest@[::1]:{port}/') as client:
            await client.create_stream('test')
        server.close()
        assert wire.CREATE in fake.connection.commands()


async def test_default_user_is_guest() -> None:
    async with FakeBroker() as fake:
        async with rbs.streams_client(f'rabbitmq-stream://127.0.0.1:{fake.port}') as client:
            await client.get_protocol()
        sasl = next(item for item in fake.connection.frames if item.key == Step.SASL_AUTHENTICATE)
        assert sasl.body.endswith(b'\x00\x05PLAIN\x00\x00\x00\x0c\0guest\0guest')
        opened = next(item for item in fake.connection.frames if item.key == Step.OPEN)
        assert opened.body[4:] == b'\x00\x01/'


async def test_broker_receives_the_connection_name() -> None:
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri, connection_name='my-ąpp') as client:
            await client.get_protocol()
        body = fake.connection.frames[0].body
        assert wire.string('connection_name') + wire.string('my-ąpp') in body
        assert wire.string('product') + wire.string('RbFly') in body


# -- tune


@pytest.mark.parametrize(
    ('ours', 'theirs', 'agreed'),
    [
        (None, 0, 0),
        (None, 4096, 4096),
        (4096, 0, 4096),
        (4096, 8192, 4096),
        (8192, 4096, 4096),
        (None, 2**32 - 1, 2**32 - 1),
        (2**32 - 1, 1048576, 1048576),
    ],
)
async def test_tune_frame_max(ours: int | None, theirs: int, agreed: int) -> None:
    async with FakeBroker(tune=(theirs, 60)) as fake:
        async with rbs.streams_client(fake.uri, frame_max=ours) as client:
            connection = await client.get_protocol()
            assert connection.frame_max == agreed
        tune = next(item for item in fake.connection.frames if item.key == Step.TUNE)
        assert struct.unpack('>II', tune.body) == (agreed, 60)


@pytest.mark.parametrize(
    ('ours', 'theirs', 'agreed'),
    [
        (None, 0, 0),
        (None, 30, 30),
        (30, 0, 30),
        (10, 60, 10),
        (60, 10, 10),
        (2**32 - 1, 0, 2**32 - 1),
    ],
)
async def test_tune_heartbeat(ours: int | None, theirs: int, agreed: int) -> None:
    async with FakeBroker(tune=(1048576, theirs)) as fake:
        async with rbs.streams_client(fake.uri, heartbeat=ours) as client:
            connection = await client.get_protocol()
            assert connection.heartbeat == agreed
        tune = next(item for item in fake.connection.frames if item.key == Step.TUNE)
        assert struct.unpack('>II', tune.body) == (1048576, agreed)


@pytest.mark.parametrize('argument', [{'heartbeat': 0}, {'frame_max': 511}, {'frame_max': 2**32}])
def test_tune_out_of_range(argument: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r'must be from (1|512) to'):
        rbs.streams_client('rabbitmq-stream://localhost/', **argument)  # type: ignore[arg-type]


async def test_one_frame_of_the_handshake_in_each_read() -> None:
    """RabbitMQ up to 4.2.4 closes the connection if a read holds more than one frame."""
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        assert fake.connection.commands() == list(Step)
        reads = fake.connection.reads
        # Tune has no response, so Open may follow it in the same segment.
        assert len(reads) in (len(Step), len(Step) - 1)
        for data in reads[:3]:
            assert len(data) == 4 + struct.unpack_from('>I', data)[0]


# -- heartbeats


async def test_heartbeats_are_sent_when_idle() -> None:
    def count(connection: Peer) -> int:
        return connection.commands().count(wire.HEARTBEAT)

    async with FakeBroker(tune=(0, 1)) as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        await heartbeats(fake.connection, lambda: count(fake.connection) >= 3)
        assert client.connected


async def heartbeats(connection: Peer, done: Callable[[], bool]) -> None:
    """Send heartbeats, as a broker does, until `done()`."""
    limit = time.monotonic() + HANG
    while not done():
        assert time.monotonic() < limit
        connection.send(wire.frame(wire.HEARTBEAT, b''))
        await asyncio.sleep(0.2)


async def test_heartbeat_of_zero_disables_without_spinning() -> None:
    async with FakeBroker(tune=(0, 0)) as fake:
        client = rbs.streams_client(fake.uri, heartbeat=None)
        async with client:
            await client.get_protocol()
            before = time.process_time()
            await asyncio.sleep(1.0)
            assert time.process_time() - before < 0.5
            assert client.connected
            assert wire.HEARTBEAT not in fake.connection.commands()


async def test_dead_peer_is_detected() -> None:
    async with FakeBroker(tune=(0, 1), on={wire.CREATE: wire.SILENT}) as fake:
        client = rbs.streams_client(fake.uri, reconnect_timeout=0)
        start = time.monotonic()
        with pytest.raises(StreamConnectionError, match='nothing received for 2 seconds'):
            async with asyncio.timeout(HANG):
                await client.create_stream('test')
        assert time.monotonic() - start > 1.5
        assert not client.connected
        await client.disconnect()


async def test_heartbeats_with_a_real_broker(broker: RabbitMQ) -> None:
    # With an interval of 1 s, a busy machine might delay the client's heartbeats too long.
    async with rbs.streams_client(broker.uri, heartbeat=2) as client:
        connection = await client.get_protocol()
        assert connection.heartbeat == 2
        received = connection.counters.bytes_received
        # RabbitMQ closes a connection 4 to 6 seconds after the last heartbeat from the client.
        await asyncio.sleep(8.0)
        assert connection.is_open
        await until(
            lambda: connection.counters.bytes_received - received >= 3 * 8,
            'the broker has sent three heartbeats',
        )
        await client.delete_stream('no-such-stream')


# -- frames and TCP segments


async def test_frames_split_across_segments() -> None:
    """The broker sends every byte in its own segment."""

    def slowly(connection: Peer, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        queue = pending.setdefault(connection, [])
        queue += [data[i : i + 1] for i in range(len(data))]
        if len(queue) == len(data):
            loop.call_soon(step, connection)

    def step(connection: Peer) -> None:
        queue = pending[connection]
        if queue and not connection.transport.is_closing():
            connection.transport.write(queue.pop(0))
            asyncio.get_running_loop().call_later(0.0005, step, connection)

    pending: dict[Peer, list[bytes]] = {}
    async with (
        FakeBroker(write=slowly) as fake,
        asyncio.timeout(6 * HANG),  # two thousand segments
        rbs.streams_client(fake.uri) as client,
    ):
        await client.create_stream('test')
        async with client.publisher('test') as publisher:
            await asyncio.gather(*(publisher.send(b'x') for _ in range(20)))


def delivering(messages: list[bytes], cut: object = None) -> FakeBroker:
    """A broker that answers Subscribe and sends all messages, ten per chunk."""

    def subscribe(connection: Peer, request: Frame) -> None:
        subscription_id = request.body[4]
        connection.answer(request)
        data = b''.join(
            wire.deliver(subscription_id, wire.chunk(i, messages[i : i + 10]))
            for i in range(0, len(messages), 10)
        )
        connection.send(data)

    return FakeBroker(on={wire.SUBSCRIBE: subscribe}, write=cut)  # type: ignore[arg-type]


async def test_many_frames_in_one_segment() -> None:
    messages = [b'%d' % i for i in range(5000)]
    async with delivering(messages) as fake, rbs.streams_client(fake.uri) as client:
        offset = rbs.Offset.FIRST
        async with client.subscribe(
            'test', offset=offset, amqp=False, initial_credit=len(messages)
        ) as subscription:
            found = [await anext(subscription) for _ in messages]
    assert found == messages


async def test_frames_split_at_random(rng: random.Random) -> None:
    def randomly(connection: Peer, data: bytes) -> None:
        at = 0
        while at < len(data):
            n = rng.choice([1, 2, 3, 7, 50, 1000])
            connection.transport.write(data[at : at + n])
            at += n

    messages = [rng.randbytes(rng.randrange(300)) for i in range(2000)]
    async with delivering(messages, randomly) as fake, rbs.streams_client(fake.uri) as client:
        offset = rbs.Offset.FIRST
        async with client.subscribe(
            'test', offset=offset, amqp=False, initial_credit=len(messages)
        ) as subscription:
            found = [await anext(subscription) for _ in messages]
    assert found == messages


async def test_deliver_larger_than_frame_max(broker: RabbitMQ, stream: str) -> None:
    """RabbitMQ delivers whole chunks, whatever the negotiated limit."""
    messages = [bytes([i]) * 100_000 for i in range(20)]
    async with (
        rbs.streams_client(broker.uri) as client,
        client.publisher(stream) as publisher,
    ):
        for message in messages:
            publisher.batch(message)
        await publisher.flush()
    async with rbs.streams_client(broker.uri, frame_max=4096) as client:
        async with client.subscribe(stream, offset=rbs.Offset.FIRST) as subscription:
            found = [await anext(subscription) for _ in messages]
        assert (await client.get_protocol()).frame_max == 4096
    assert found == messages


# -- the limit of frames to the broker

FRAME_MAX = 512
ROOM = FRAME_MAX - 21  # bytes for the message of a Publish v1 frame


def publishes(fake: FakeBroker) -> list[Frame]:
    return [f for c in fake.connections for f in c.frames if f.key == wire.PUBLISH]


async def test_client_rejects_a_message_larger_than_a_frame(broker: RabbitMQ, stream: str) -> None:
    async with rbs.streams_client(broker.uri, frame_max=FRAME_MAX) as client:
        async with client.publisher(stream, amqp=False) as publisher:
            await publisher.send(b'before')
            with pytest.raises(MessageTooLarge, match=f'limit is {ROOM} bytes'):
                await publisher.send(b'x' * (ROOM + 1))
            await publisher.send(b'y' * ROOM)
            await publisher.send(b'after')
        async with client.publisher(stream, amqp=False) as batch:
            batch.batch(b'batched')
            with pytest.raises(MessageTooLarge, match=f'limit is {ROOM} bytes'):
                batch.batch(b'x' * (ROOM + 1))
            await batch.flush()
        offset = rbs.Offset.FIRST
        async with client.subscribe(stream, offset=offset, amqp=False) as subscription:
            found = [await anext(subscription) for _ in range(4)]
        assert found == [b'before', b'y' * ROOM, b'after', b'batched']


@pytest.mark.parametrize(('extra', 'frames'), [(0, [10]), (1, [9, 1])])
async def test_batch_that_fits_a_frame_exactly_and_one_byte_more(
    extra: int, frames: list[int]
) -> None:
    # a header of 9 bytes, then 10 entries of 12 + n bytes
    size = 9 + 10 * (12 + 30)
    async with (
        FakeBroker(tune=(size, 60)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        for i in range(10):
            publisher.batch(b'x' * (30 + (extra if i == 9 else 0)))
        await publisher.flush()
    sent = publishes(fake)
    assert [len(item.publishing_ids) for item in sent] == frames
    assert [i for item in sent for i in item.publishing_ids] == list(range(1, 11))
    assert max(len(item.body) + 4 for item in sent) <= size


async def test_concurrent_sends_are_split_at_the_limit() -> None:
    async with (
        FakeBroker(tune=(FRAME_MAX, 60)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        await asyncio.gather(*(publisher.send(b'x' * (i % 400)) for i in range(500)))
    sent = publishes(fake)
    assert [i for item in sent for i in item.publishing_ids] == list(range(1, 501))
    assert max(len(item.body) + 4 for item in sent) <= FRAME_MAX


@pytest.mark.parametrize(('extra', 'frames'), [(0, [10]), (1, [9, 1])])
async def test_filter_values_count_towards_the_limit(extra: int, frames: list[int]) -> None:
    value = 'wartość'  # 9 bytes
    size = 9 + 10 * (14 + 9 + 30)
    async with (
        FakeBroker(tune=(size, 60)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False, filter_extract=lambda _: value) as publisher,
    ):
        for i in range(10):
            publisher.batch(b'x' * (30 + (extra if i == 9 else 0)))
        await publisher.flush()
    sent = publishes(fake)
    assert {item.version for item in sent} == {2}
    assert [len(item.publishing_ids) for item in sent] == frames
    assert max(len(item.body) + 4 for item in sent) <= size


async def test_client_rejects_a_message_and_filter_value_larger_than_a_frame() -> None:
    async with (
        FakeBroker(tune=(FRAME_MAX, 60)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False, filter_extract=lambda _: 'abc') as publisher,
    ):
        room = FRAME_MAX - 9 - 14 - 3
        await publisher.send(b'x' * room)
        with pytest.raises(MessageTooLarge, match='does not fit into a frame'):
            await publisher.send(b'x' * (room + 1))
        await publisher.send(b'x')
    assert len(publishes(fake)[0].body) + 4 == FRAME_MAX


# -- Close from the broker


def close_frame(code: int, reason: str, correlation_id: int = 1) -> bytes:
    body = struct.pack('>IH', correlation_id, code) + wire.string(reason)
    return wire.frame(wire.CLOSE, body)


async def test_close_from_the_broker_is_answered_and_its_reason_reported() -> None:
    def closing(connection: Peer, request: Frame) -> None:
        connection.send(close_frame(0x0D, 'unknown frame: no żart', 7))

    async with FakeBroker(on={wire.CREATE: closing}) as fake:
        client = rbs.streams_client(fake.uri, reconnect_timeout=0)
        with pytest.raises(StreamConnectionError, match=r'unknown frame: no żart.*0x0d'):
            await client.create_stream('test')
        await until(fake.connection.lost.done, 'the client closes')
        answer = fake.connection.frames[-1]
        assert answer.key == 0x8000 | wire.CLOSE
        assert struct.unpack('>IH', answer.body) == (7, 1)
        assert not client.connected
        await client.disconnect()


@pytest.mark.own_clock
async def test_close_from_the_broker_during_the_handshake() -> None:
    def closing(connection: Peer, request: Frame) -> None:
        connection.send(close_frame(0x0E, 'frame too large'))

    async with FakeBroker(at={Step.OPEN: closing}) as fake:
        client = rbs.streams_client(fake.uri, connect_timeout=0.5)
        with pytest.raises(StreamConnectionError, match='frame too large'):
            await client.get_protocol()
        assert 0x8000 | wire.CLOSE in fake.connection.commands()


async def test_close_from_a_real_broker(broker: RabbitMQ) -> None:
    async with rbs.streams_client(broker.uri) as client:
        connection = await client.get_protocol()
        lost = asyncio.get_running_loop().create_future()
        connection.registrations[FakeRegistration(lost=lost.set_result)] = None
        connection.write(wire.frame(0x0777, b''))
        async with asyncio.timeout(HANG):
            error = await lost
        assert 'unknown frame' in str(error)
        await client.delete_stream('no-such-stream')  # on a new connection


async def test_publisher_and_subscription_continue_after_a_close() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test') as subscription,
        client.publisher('test') as publisher,
    ):

        def subscribes() -> int:
            return sum(c.commands().count(wire.SUBSCRIBE) for c in fake.connections)

        reading = asyncio.ensure_future(anext(subscription))
        sending = asyncio.create_task(publisher.send('x'))
        await until(
            lambda: bool(publishes(fake)) and subscribes() == 1,
            'the publisher and the subscription are open',
        )
        del fake.handlers[wire.PUBLISH]
        for connection in list(fake.connections):
            connection.send(close_frame(0x01, 'going away'))
        await sending
        await until(lambda: subscribes() == 2, 'the client has resubscribed')
        reading.cancel()


# -- unknown commands and versions


async def test_unknown_commands_and_versions_are_skipped_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def create(connection: Peer, request: Frame) -> None:
        for _ in range(3):
            connection.send(wire.frame(0x0099, b'what is this'))
            connection.send(wire.frame(wire.DELIVER, b'\0' * 20, version=9))
            connection.send(wire.frame(wire.PUBLISH_CONFIRM, b'', version=2))
        connection.answer(request)

    async with (
        FakeBroker(on={wire.CREATE: create}) as fake,
        rbs.streams_client(fake.uri, connection_name='shop') as client,
    ):
        with caplog.at_level(logging.DEBUG, 'rbfly'):
            await client.create_stream('test')
            await client.create_stream('test')
    logged = [item.getMessage() for item in caplog.records if 'skipped' in item.getMessage()]
    assert len(logged) == 3
    assert all(
        item.startswith(f'[shop] rabbitmq-stream://127.0.0.1:{fake.port}') for item in logged
    )
    assert sum('0x0099' in item for item in logged) == 1
    assert sum('version 9' in item for item in logged) == 1


async def test_unexpected_response_is_ignored() -> None:
    def create(connection: Peer, request: Frame) -> None:
        connection.send(wire.frame(0x8000 | wire.CREATE, struct.pack('>IH', 12345, 1)))
        connection.send(wire.frame(0x8000 | wire.CREATE, b''))
        connection.answer(request)
        connection.answer(request)

    async with (
        FakeBroker(on={wire.CREATE: create}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        await client.create_stream('test')
        await client.create_stream('test')
        assert len(fake.connections) == 1


# -- command versions


async def test_command_versions_are_exchanged() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        sent = fake.connection.frames[-1]
        assert sent.key == Step.EXCHANGE_COMMAND_VERSIONS
        # only Deliver, which every broker with this command knows
        assert sent.body[4:] == struct.pack('>IHHH', 1, 8, 1, 2)


@pytest.mark.parametrize('version', ['3.9.29', '3.10.8', '', 'unknown', '4', '3.x'])
async def test_old_brokers_exchange_no_versions(version: str) -> None:
    messages = [b'%d' % i for i in range(25)]
    fake = delivering(messages)
    fake.version = version
    async with fake, rbs.streams_client(fake.uri) as client:
        async with client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as subscription:
            assert [await anext(subscription) for _ in messages] == messages
        async with client.publisher('test') as publisher:
            await publisher.send('x')
    for connection in fake.connections:
        assert Step.EXCHANGE_COMMAND_VERSIONS not in connection.commands()


@pytest.mark.parametrize('version', ['3.11.0', '3.13.7', '4.0.5', '4.3.5+beta.1', '10.0.0'])
async def test_newer_brokers_exchange_versions(version: str) -> None:
    async with FakeBroker(version=version) as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        assert fake.connection.commands()[-1] == Step.EXCHANGE_COMMAND_VERSIONS


# -- damaged frames after the handshake


@pytest.mark.parametrize(
    'data',
    [
        b'\0\0\0\0',
        b'\x7f\xff\xff\xff',
        wire.frame(wire.PUBLISH_CONFIRM, b'\0\xff\xff\xff\xff'),
        wire.frame(wire.METADATA_UPDATE, b'\0'),
        wire.frame(wire.CLOSE, b'\0'),
        wire.deliver(0, b'\x50'),
        wire.deliver(0, b'\x51' + wire.chunk(0, [b'x'])[1:]),
    ],
)
async def test_damaged_frame_ends_the_connection(data: bytes) -> None:
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        reading = asyncio.ensure_future(anext(client.subscribe('test')))
        await until(
            lambda: bool(fake.connections) and wire.SUBSCRIBE in fake.connection.commands(),
            'the client has subscribed',
        )
        fake.connection.send(data)
        with pytest.raises(StreamConnectionError, match='does not speak the stream protocol'):
            async with asyncio.timeout(HANG):
                await reading
        assert not client.connected
        await client.disconnect()


async def test_damaged_frame_right_after_the_response_to_subscribe() -> None:
    def answer(connection: Peer, request: Frame) -> None:
        head = struct.pack('>IH', request.correlation_id, wire.OK)
        connection.send(wire.frame(0x8000 | wire.SUBSCRIBE, head) + b'\0\0\0\0')

    async with FakeBroker(on={wire.SUBSCRIBE: answer}) as fake, asyncio.timeout(HANG):
        client = rbs.streams_client(fake.uri)
        with pytest.raises(StreamConnectionError, match='does not speak the stream protocol'):
            await anext(client.subscribe('test'))
        await client.disconnect()


async def test_truncated_response_ends_the_connection() -> None:
    async with FakeBroker(on={wire.METADATA: wire.TRUNCATED}) as fake:
        client = rbs.streams_client(fake.uri)
        with pytest.raises(StreamConnectionError, match='does not speak the stream protocol'):
            async with client.publisher('test'):
                pytest.fail('no metadata')
        assert not client.connected
        await client.disconnect()


# -- cancellation of requests


@pytest.mark.parametrize(
    'key',
    [
        wire.METADATA,
        wire.DECLARE_PUBLISHER,
        wire.QUERY_PUBLISHER_SEQUENCE,
        wire.PUBLISH,
        wire.DELETE_PUBLISHER,
    ],
)
async def test_cancelled_publisher_leaves_nothing_behind(key: int) -> None:
    """Cancellation takes effect at once, even if the broker does not answer."""
    reached = asyncio.get_running_loop().create_future()

    def stall(connection: Peer, request: Frame) -> None:
        if not reached.done():
            reached.set_result(None)

    async def publish() -> None:
        async with client.publisher('test', name='name') as publisher:
            await publisher.send('x', timeout=None if key == wire.PUBLISH else 60)

    async with FakeBroker(on={key: stall}) as fake:
        client = rbs.streams_client(fake.uri)
        task = asyncio.create_task(publish())
        await reached
        if key == wire.PUBLISH:
            fake.handlers[wire.PUBLISH] = fake.default
            task.cancel()
            # closing waits for the confirm; a second cancellation ends that wait
            await asyncio.wait([task], timeout=0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(HANG):
                await task
        fake.handlers.clear()
        async with asyncio.timeout(HANG), client.publisher('test', name='name') as publisher:
            await publisher.send('y')
        await client.disconnect()


@pytest.mark.parametrize(
    'key', [wire.METADATA, wire.QUERY_OFFSET, wire.SUBSCRIBE, wire.UNSUBSCRIBE]
)
async def test_cancelled_subscription_leaves_nothing_behind(key: int) -> None:
    reached = asyncio.get_running_loop().create_future()

    def stall(connection: Peer, request: Frame) -> None:
        if not reached.done():
            reached.set_result(None)

    async def subscribe() -> None:
        async with client.subscribe('test', offset=rbs.Offset.reference('x'), timeout=0.1) as sub:
            await anext(sub)

    async with FakeBroker(on={key: stall}) as fake:
        client = rbs.streams_client(fake.uri)
        task = asyncio.create_task(subscribe())
        await reached
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            async with asyncio.timeout(HANG):
                await task
        await asyncio.wait_for(client.delete_stream('test'), HANG)
        await client.disconnect()


async def test_cancelled_disconnect_closes_the_connection() -> None:
    async with FakeBroker(on={wire.CLOSE: wire.SILENT}) as fake:
        client = rbs.streams_client(fake.uri)
        await client.get_protocol()
        task = asyncio.create_task(client.disconnect())
        await until(lambda: wire.CLOSE in fake.connection.commands(), 'the client has sent Close')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(fake.connection.lost.done, 'the connection is closed')
        assert not client.connected


async def test_unanswered_close() -> None:
    async with FakeBroker(on={wire.CLOSE: wire.SILENT}) as fake, asyncio.timeout(HANG):
        async with rbs.streams_client(fake.uri) as client:
            await client.get_protocol()
        assert not client.connected
        await until(fake.connection.lost.done, 'the connection is closed')
