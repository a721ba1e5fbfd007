"""Which user connects, to which address; the password is shown nowhere."""

import asyncio
import gc
import logging
import pickle
import traceback
from types import FunctionType, ModuleType
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.net.handshake import connect
from rbfly.net.login import AuthMechanism, Credentials
from rbfly.net.uri import Address, parse_uri
from rbfly.protocol._engine import Counters
from rbfly.protocol.commands import Metadata, NodeAddress, StreamMetadata
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.fake_broker import CLOSING, GARBAGE, FakeBroker, Frame, Handler, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, dialer_of

SECRET = 's3cr3t'


def sent(fake: FakeBroker, step: Step, field: str) -> list[Any]:
    """What the client sent in a field of a step of the handshake, by connection."""
    return [
        getattr(frame.decode(), field)
        for peer in fake.connections
        for frame in peer.frames
        if frame.key == step
    ]


def users(fake: FakeBroker) -> list[bytes]:
    return sent(fake, Step.SASL_AUTHENTICATE, 'data')


def vhosts(fake: FakeBroker) -> list[str]:
    return sent(fake, Step.OPEN, 'vhost')


# -- secrets


@pytest.mark.parametrize(
    ('step', 'handler'),
    [
        (Step.PEER_PROPERTIES, GARBAGE),
        (Step.SASL_AUTHENTICATE, refuse(0x08)),
        (Step.SASL_AUTHENTICATE, CLOSING),
        (Step.SASL_AUTHENTICATE, GARBAGE),
        (Step.OPEN, refuse(0x0C)),
        (Step.OPEN, CLOSING),
    ],
)
async def test_traceback_with_local_variables_shows_no_password(
    step: Step, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    """Tools that report errors show the local variables of every frame."""
    caplog.set_level(logging.DEBUG)
    async with FakeBroker(at={step: handler}) as fake:
        client = rbs.streams_client(fake.uri.replace('guest:guest', f'user:{SECRET}'))
        settings = cluster_of(client).settings
        [endpoint] = settings.endpoints
        credentials = await endpoint.login.credentials()
        with pytest.raises(RbFlyError) as caught:
            await connect(
                endpoint, '127.0.0.1', credentials, settings, lambda step: None, Counters()
            )
        if step > Step.SASL_HANDSHAKE:
            assert users(fake)[0] == f'\0user\0{SECRET}'.encode()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = ''.join(shown.format())
    assert 'endpoint = Endpoint(' in text
    assert "login=Login(Credentials('user'))" in text
    assert SECRET not in text
    assert SECRET not in caplog.text


def test_no_text_of_a_cluster_shows_the_password() -> None:
    client = rbs.streams_client(f'rabbitmq-stream://user:{SECRET}@localhost')
    cluster = cluster_of(client)
    dialer = dialer_of(client)
    routes = dialer.routes(None), dialer.routes(NodeAddress('node', 5552))
    assert str(routes[0][0][0]) == 'rabbitmq-stream://localhost:5552'
    for item in (routes, cluster.settings, vars(cluster), vars(dialer)):
        assert SECRET not in repr(item)


def test_credentials_authenticate() -> None:
    info = parse_uri(f'rabbitmq-stream://user:{SECRET}@localhost/v')
    assert info.virtual_host == 'v'
    credentials = Credentials(info.username, info.password)
    plain = credentials.request(AuthMechanism.PLAIN)
    assert plain.data == f'\0user\0{SECRET}'.encode()
    assert SECRET not in repr(info) + str(info) + repr(plain) + repr(credentials)
    for mechanism in (AuthMechanism.EXTERNAL, AuthMechanism.ANONYMOUS):
        request = credentials.request(mechanism)
        assert (request.mechanism, request.data) == (mechanism.value, b'')


def test_connection_info_compares_and_pickles_without_the_password() -> None:
    info, other = (parse_uri(f'rabbitmq-stream://user:{name}@localhost/v') for name in 'ab')
    assert info == other
    assert hash(info) == hash(other)
    copy = pickle.loads(pickle.dumps(info))
    assert (copy, copy.password) == (info, '')
    assert parse_uri('rabbitmq-stream://other:a@localhost/v') != info


# -- addresses


def test_address_is_shown_as_a_uri() -> None:
    assert str(Address('localhost', 5552)) == 'rabbitmq-stream://localhost:5552'
    assert str(Address('::1', 7)) == 'rabbitmq-stream://[::1]:7'
    info = parse_uri('rabbitmq-stream+tls://user:secret@host')
    assert info.ssl is not None
    assert info.address == Address('host', 5551, info.ssl)
    assert str(info.address) == 'rabbitmq-stream+tls://host:5551'


async def test_each_uri_has_its_own_user_and_virtual_host() -> None:
    async with FakeBroker(at={Step.PEER_PROPERTIES: CLOSING}) as down, FakeBroker() as up:
        uris = [
            down.uri.replace('guest:guest', 'one:1') + 'first',
            up.uri.replace('guest:guest', 'two:2') + 'second',
        ]
        async with rbs.streams_client(uris) as client:
            await client.get_protocol()
        assert len(down.connections) == 1
        assert users(up) == [b'\0two\x002']
        assert vhosts(up) == ['second']


async def test_two_uris_of_one_address_each_have_their_own_user() -> None:
    def authenticate(connection: Peer, request: Frame) -> None:
        handler = fake.default if request.decode().data == b'\0two\x002' else CLOSING
        handler(connection, request)

    async with FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake:
        uris = [fake.uri.replace('guest:guest', user) for user in ('one:1', 'two:2')]
        async with rbs.streams_client(uris) as client, asyncio.timeout(20):
            await client.get_protocol()
        assert users(fake) == [b'\0one\x001', b'\0two\x002']


async def test_advertised_node_gets_the_credentials_of_the_uri() -> None:
    def metadata(connection: Peer, request: Frame) -> None:
        names = request.decode().streams
        found = {
            name: StreamMetadata(wire.OK, NodeAddress('127.0.0.1', leader.port), ())
            for name in names
        }
        connection.send(Metadata.respond(request.correlation_id, found))

    async with FakeBroker() as leader, FakeBroker(on={wire.METADATA: metadata}) as seed:
        uri = seed.uri.replace('guest:guest', 'user:pass') + 'vhost'
        async with rbs.streams_client(uri) as client, client.publisher('test') as publisher:
            async with asyncio.timeout(20):
                await publisher.send('x')
        assert users(leader) == [b'\0user\0pass']
        assert vhosts(leader) == ['vhost']


async def test_one_object_of_a_connected_client_holds_the_password() -> None:
    """Whoever inspects a client finds the password in its credentials only."""
    holders, seen = [], set[int]()
    with StreamBroker(users={'user': SECRET}) as broker:  # in another event loop
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send('x')
            left: list[Any] = [client]
            while left:
                item = left.pop()
                if id(item) in seen or isinstance(item, ModuleType | type | FunctionType):
                    continue
                seen.add(id(item))
                found = gc.get_referents(item)
                if any(has_secret(value) for value in found):
                    holders.append(item)
                left += found
    assert [type(item) for item in holders] == [Credentials]


def has_secret(value: object) -> bool:
    if isinstance(value, str):
        return SECRET in value
    return isinstance(value, bytes | bytearray) and SECRET.encode() in value
