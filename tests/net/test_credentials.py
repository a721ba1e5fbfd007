"""Which user connects, to which address; the password is shown nowhere."""

import asyncio
import logging
import traceback

import pytest

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.net.handshake import connect
from rbfly.net.uri import Address, AuthMechanism, Credentials, parse_uri
from rbfly.protocol._engine import Counters
from rbfly.protocol.commands import Broker, Metadata, StreamMetadata, Tune
from tests import fake as wire
from tests.fake import CLOSING, GARBAGE, FakeBroker, Frame, Handler, Step, refuse
from tests.fake import FakeConnection as Peer

SECRET = 's3cr3t'


def sasl(fake: FakeBroker) -> list[bytes]:
    """What the client sent to authenticate, by connection."""
    return [
        frame.decode().data
        for peer in fake.connections
        for frame in peer.frames
        if frame.key == Step.SASL_AUTHENTICATE
    ]


def vhosts(fake: FakeBroker) -> list[str]:
    return [
        frame.decode().vhost
        for peer in fake.connections
        for frame in peer.frames
        if frame.key == Step.OPEN
    ]


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
        ((address, credentials),) = client._cluster.settings.credentials.items()
        with pytest.raises(RbFlyError) as caught:
            await connect(address, credentials, '', Tune(0, 0), lambda step: None, None, Counters())
        if step > Step.SASL_HANDSHAKE:
            assert sasl(fake)[0] == f'\0user\0{SECRET}'.encode()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = ''.join(shown.format())
    assert "credentials = Credentials(username='user'" in text
    assert SECRET not in text
    assert SECRET not in caplog.text


def test_no_text_of_a_cluster_shows_the_password() -> None:
    cluster = rbs.streams_client(f'rabbitmq-stream://user:{SECRET}@localhost')._cluster
    routes = cluster._routes(None), cluster._routes(Broker('node', 5552))
    assert str(routes[0][0][0]) == 'rabbitmq-stream://localhost:5552'
    for item in (routes, cluster.settings, vars(cluster), cluster.settings.credentials):
        assert SECRET not in repr(item)


def test_credentials_authenticate() -> None:
    info = parse_uri(f'rabbitmq-stream://user:{SECRET}@localhost/v')
    plain = Credentials.of(info, AuthMechanism.PLAIN)
    assert plain.virtual_host == 'v'
    assert plain.authenticate().data == f'\0user\0{SECRET}'.encode()
    assert SECRET not in repr(plain) + str(plain) + repr(plain.authenticate())
    external = Credentials.of(info, AuthMechanism.EXTERNAL).authenticate()
    assert (external.mechanism, external.data) == ('EXTERNAL', b'')


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
        assert sasl(up) == [b'\0two\x002']
        assert vhosts(up) == ['second']


async def test_advertised_node_gets_the_credentials_of_the_uri() -> None:
    def metadata(connection: Peer, request: Frame) -> None:
        names = request.decode().streams
        found = {
            name: StreamMetadata(wire.OK, Broker('127.0.0.1', leader.port), ()) for name in names
        }
        connection.send(Metadata.respond(request.correlation_id, found))

    async with FakeBroker() as leader, FakeBroker(on={wire.METADATA: metadata}) as seed:
        uri = seed.uri.replace('guest:guest', 'user:pass') + 'vhost'
        async with rbs.streams_client(uri) as client, client.publisher('test') as publisher:
            async with asyncio.timeout(10):
                await publisher.send('x')
        assert sasl(leader) == [b'\0user\0pass']
        assert vhosts(leader) == ['vhost']
