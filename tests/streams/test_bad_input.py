"""Bad addresses, credentials and brokers: one clear error within the timeout, and no leaks."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import RbFlyError
from rbfly.streams.error import (
    AuthenticationError,
    ConnectTimeout,
    FrameError,
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
    URIError,
    VirtualHostError,
)
from tests.closed_port import closed_port
from tests.fake_broker import (
    CLOSING,
    GARBAGE,
    RESETTING,
    SILENT,
    TRUNCATED,
    FakeBroker,
    Frame,
    Step,
)
from tests.fake_broker import FakeConnection as Peer
from tests.leaks import Snapshot

TIMEOUT = 0.4  # connect timeout of tests in which it expires
HANG = 30.0  # seconds; only a safeguard


@pytest_asyncio.fixture
async def clean() -> AsyncIterator[Snapshot]:
    """Fail if a task, a socket or a pending future is left."""
    snapshot = Snapshot(futures=True)
    yield snapshot
    await snapshot.check()


async def failure(client: rbs.StreamsClient) -> RbFlyError:
    """Use a client, close it, and return the error that it raised."""
    async with asyncio.timeout(HANG):
        with pytest.raises(RbFlyError) as caught:
            await client.create_stream('test')
        assert not client.connected
        await client.disconnect()
    return caught.value


async def test_connection_refused(clean: Snapshot) -> None:
    with closed_port() as port:
        client = rbs.streams_client(f'rabbitmq-stream://127.0.0.1:{port}/', connect_timeout=1)
        error = await failure(client)
    assert isinstance(error, StreamConnectionError)
    assert f'127.0.0.1:{port}' in str(error)
    assert 'refused' in str(error).lower() or 'connect call failed' in str(error).lower()


async def test_host_name_does_not_resolve(clean: Snapshot) -> None:
    client = rbs.streams_client('rabbitmq-stream://no-such-host.invalid/', connect_timeout=3)
    error = await failure(client)
    assert isinstance(error, StreamConnectionError)
    assert 'no-such-host.invalid' in str(error)


@pytest.mark.both_loops
async def test_failed_lookup_of_a_cancelled_connect_is_not_reported(clean: Snapshot) -> None:
    client = rbs.streams_client('rabbitmq-stream://no-such-host.invalid/')
    for turns in range(1, 12):
        connecting = asyncio.create_task(client.get_protocol())
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
    for _ in range(10):  # until the threads have finished the lookups above
        with pytest.raises(socket.gaierror):
            await asyncio.get_running_loop().getaddrinfo('no-such-host.invalid', 1)
    gc.collect()


async def test_host_name_is_too_long(clean: Snapshot) -> None:
    client = rbs.streams_client(f'rabbitmq-stream://{"x" * 70}/', connect_timeout=TIMEOUT)
    assert isinstance(await failure(client), StreamConnectionError)


async def test_port_speaks_amqp_091(own_broker: RabbitMQ, clean: Snapshot) -> None:
    port = urlsplit(own_broker.amqp_uri).port
    error = await failure(rbs.streams_client(f'rabbitmq-stream://127.0.0.1:{port}/'))
    assert isinstance(error, FrameError)
    assert f'127.0.0.1:{port} does not speak the stream protocol' in str(error)


async def test_wrong_password(broker: RabbitMQ, clean: Snapshot) -> None:
    address = urlsplit(broker.uri)
    uri = f'rabbitmq-stream://guest:s3cret-wrong@{address.hostname}:{address.port}/'
    error = await failure(rbs.streams_client(uri))
    assert isinstance(error, AuthenticationError)
    assert error.code == 0x08
    assert 's3cret' not in str(error)


async def test_unknown_user(broker: RabbitMQ, clean: Snapshot) -> None:
    address = urlsplit(broker.uri)
    uri = f'rabbitmq-stream://nobody:nothing@{address.hostname}:{address.port}/'
    error = await failure(rbs.streams_client(uri))
    assert isinstance(error, AuthenticationError)
    assert error.code == 0x08


async def test_unknown_virtual_host(broker: RabbitMQ, clean: Snapshot) -> None:
    error = await failure(rbs.streams_client(broker.uri.rstrip('/') + '/no-such-vhost'))
    assert isinstance(error, VirtualHostError)
    assert error.code == 0x0C


async def test_publish_to_unknown_stream(client: rbs.StreamsClient, clean: Snapshot) -> None:
    for name in (None, 'reference'):
        with pytest.raises(StreamDoesNotExist, match='no-such-stream') as caught:
            async with asyncio.timeout(HANG), client.publisher('no-such-stream', name=name):
                pytest.fail('the publisher was opened')
        assert caught.value.code == 0x02
        assert isinstance(caught.value, ProtocolError)
    await client.disconnect()


async def test_subscribe_to_unknown_stream(client: rbs.StreamsClient, clean: Snapshot) -> None:
    with pytest.raises(StreamDoesNotExist, match='no-such-stream'):
        await asyncio.wait_for(anext(client.subscribe('no-such-stream')), HANG)
    await client.disconnect()


@pytest.mark.parametrize('reference', [rbs.Offset.reference('x'), rbs.Offset.FIRST])
async def test_subscribe_to_a_classic_queue(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient, clean: Snapshot, reference: rbs.Offset
) -> None:
    import pika

    name = f'classic-{uuid4()}'
    with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as amqp:
        amqp.channel().queue_declare(name, durable=True)
        try:
            with pytest.raises(StreamDoesNotExist):
                await anext(own_client.subscribe(name, offset=reference))
        finally:
            amqp.channel().queue_delete(name)
    await own_client.disconnect()


@pytest.mark.parametrize(
    'uri',
    [
        '',
        'localhost:5552',
        'http://localhost/',
        'rabbitmq-stream:localhost',
        'rabbitmq-stream://localhost:port/',
        'rabbitmq-stream://localhost:0/',
        'rabbitmq-stream://localhost:99999/',
        'rabbitmq-stream://[::1/',
        'rabbitmq-stream://user:a#b@localhost/',
        'rabbitmq-stream://user:a?b@localhost/',
        'rabbitmq-stream://user:%ff@localhost/',
        'rabbitmq-stream://local host/',
        'rabbitmq-stream://localhost/%00',
    ],
)
def test_malformed_uri(uri: str) -> None:
    with pytest.raises(URIError) as caught:
        rbs.streams_client(uri)
    assert isinstance(caught.value, ValueError)


def test_ssl_context_requires_the_tls_scheme() -> None:
    context = ssl.create_default_context()
    with pytest.raises(URIError):
        rbs.streams_client('rabbitmq-stream://localhost/', ssl=context)


@pytest.mark.both_loops
@pytest.mark.parametrize('scheme', ['rabbitmq-stream', 'rabbitmq-stream+tls'])
async def test_port_never_answers(clean: Snapshot, scheme: str) -> None:
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        uri = f'{scheme}://127.0.0.1:{silent.getsockname()[1]}/'
        error = await failure(rbs.streams_client(uri, connect_timeout=TIMEOUT))
        assert isinstance(error, ConnectTimeout)


@pytest.mark.own_clock
@pytest.mark.parametrize('step', [item for item in Step if item is not Step.TUNE])
async def test_broker_stops_answering_during_handshake(clean: Snapshot, step: Step) -> None:
    async with FakeBroker(at={step: SILENT}) as fake:
        error = await failure(rbs.streams_client(fake.uri, connect_timeout=TIMEOUT))
        assert isinstance(error, ConnectTimeout)
        assert str(fake.port) in str(error)
        assert fake.connection.commands()[-1] == step


async def test_broker_never_sends_tune(clean: Snapshot) -> None:
    def authenticate(connection: Peer, request: Frame) -> None:
        connection.answer(request)

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake:
        error = await failure(rbs.streams_client(fake.uri, connect_timeout=TIMEOUT))
        assert isinstance(error, ConnectTimeout)


@pytest.mark.own_clock
@pytest.mark.parametrize('how', [CLOSING, RESETTING])
@pytest.mark.parametrize('step', list(Step))
async def test_broker_closes_connection_during_handshake(
    clean: Snapshot, step: Step, how: object
) -> None:
    async with FakeBroker(at={step: how}) as fake:  # type: ignore[dict-item]
        error = await failure(rbs.streams_client(fake.uri, connect_timeout=TIMEOUT))
        assert isinstance(error, StreamConnectionError)
        assert 'connection lost while' in str(error)
        assert len(fake.connections) > 1  # the broker may be restarting, so the client retries


@pytest.mark.parametrize(
    ('step', 'how'),
    [(step, GARBAGE) for step in Step if step is not Step.TUNE]
    # the client does not read what follows the code of the response to SaslAuthenticate
    + [(step, TRUNCATED) for step in Step if step not in (Step.TUNE, Step.SASL_AUTHENTICATE)],
)
async def test_broker_sends_garbage_during_handshake(
    clean: Snapshot, step: Step, how: object
) -> None:
    async with FakeBroker(at={step: how}) as fake:  # type: ignore[dict-item]
        error = await failure(rbs.streams_client(fake.uri, connect_timeout=HANG))
        assert isinstance(error, FrameError)
        assert 'does not speak the stream protocol' in str(error)
        assert str(fake.port) in str(error)
        assert len(fake.connections) == 1


async def test_broker_sends_truncated_tune(clean: Snapshot) -> None:
    def authenticate(connection: Peer, request: Frame) -> None:
        connection.answer(request)
        connection.send(bytes.fromhex('00000008 0014 0001 00100000'))

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake:
        assert isinstance(await failure(rbs.streams_client(fake.uri)), FrameError)


@pytest.mark.own_clock
async def test_client_retries_a_handshake_that_is_cut(clean: Snapshot) -> None:
    """The broker cuts the connection twice at each step, then the handshake succeeds."""
    kills: list[Step] = [step for step in Step if step is not Step.TUNE for _ in range(2)]

    def killer(connection: Peer, request: Frame) -> None:
        if kills and request.key == kills[0]:
            kills.pop(0)
            connection.transport.abort()
        else:
            fake.default(connection, request)

    fake = FakeBroker(at=dict.fromkeys(Step, killer))
    async with fake:
        client = rbs.streams_client(fake.uri, connect_timeout=None)
        await client.get_protocol()
        assert client.connected
        await client.disconnect()
        assert len(fake.connections) == 11


@pytest.mark.parametrize('step', [item for item in Step if item is not Step.TUNE])
async def test_cancel_during_handshake(clean: Snapshot, step: Step) -> None:
    reached = asyncio.get_running_loop().create_future()

    def stall(connection: Peer, request: Frame) -> None:
        reached.set_result(None)

    async with FakeBroker(at={step: stall}) as fake:
        client = rbs.streams_client(fake.uri)
        task = asyncio.create_task(client.create_stream('test'))
        await reached
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(HANG):
                await task
        assert not client.connected
        await client.disconnect()


async def test_disconnect_during_handshake(clean: Snapshot) -> None:
    reached = asyncio.get_running_loop().create_future()
    stalled: list[tuple[Peer, Frame]] = []

    def stall(connection: Peer, request: Frame) -> None:
        stalled.append((connection, request))
        reached.set_result(None)

    async with FakeBroker(at={Step.OPEN: stall}) as fake:
        client = rbs.streams_client(fake.uri)
        task = asyncio.create_task(client.create_stream('test'))
        await reached
        await client.disconnect()
        fake.default(*stalled[0])
        with pytest.raises(StreamConnectionError, match='disconnected'):
            await task
        assert not client.connected


async def test_many_tasks_share_one_failed_connect(clean: Snapshot) -> None:
    with closed_port() as port:
        client = rbs.streams_client(f'rabbitmq-stream://127.0.0.1:{port}/', connect_timeout=1)
        async with asyncio.timeout(HANG):  # one after the other would take 100 seconds
            tasks = (client.create_stream(f'test-{i}') for i in range(100))
            errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, StreamConnectionError) for error in errors)


async def test_client_tries_the_second_uri(broker: RabbitMQ, clean: Snapshot) -> None:
    with closed_port() as port:
        dead = f'rabbitmq-stream://127.0.0.1:{port}/'
        async with rbs.streams_client([dead, broker.uri]) as client:
            await client.delete_stream('no-such-stream')
            assert client.connected


def test_repr_and_errors_hide_the_password() -> None:
    client = rbs.streams_client(f'rabbitmq-stream://user:{quote("pä/ss", safe="")}@localhost/')
    assert 'ss' not in repr(client)
    with pytest.raises(URIError) as caught:
        rbs.streams_client('rabbitmq-stream://user:secret/more@localhost/')
    assert 'secret' not in str(caught.value)
