"""Signing on to RabbitMQ: passwords that change, rights, limits, certificates that expire.

`test_tokens.py` and `test_addresses.py` test the same with the in-memory broker.
"""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import pytest_asyncio
import trustme

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.net import credentials as renewal
from tests.brokers import until
from tests.next_event import find


class User:
    """A user of RabbitMQ, and a provider of its credentials.

    :ivar known: the password that the provider returns; it may be wrong.
    :ivar expires_in: seconds for which the provider says that the password holds.
    """

    def __init__(self, broker: RabbitMQ) -> None:
        self.broker = broker
        self.name = f'user-{uuid4().hex[:8]}'
        self.known = 'first'
        self.expires_in: float | None = None
        self.calls = 0

    async def ctl(self, *args: str) -> str:
        return await asyncio.to_thread(self.broker.ctl, *args)

    async def allow(self, read: str = '.*', write: str = '.*') -> None:
        await self.ctl('set_permissions', self.name, '.*', write, read)

    async def __call__(self) -> rbs.Credentials:
        self.calls += 1
        expires = None
        if self.expires_in is not None:
            expires = datetime.now(UTC) + timedelta(seconds=self.expires_in)
        return rbs.Credentials(self.name, self.known, expires)

    def client(self, **options: object) -> rbs.StreamsClient:
        host = self.broker.uri.rpartition('@')[2]
        uri = f'rabbitmq-stream://{host}'
        return rbs.streams_client(uri, credentials=self, backoff=(0.05, 1.0), **options)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def user(own_broker: RabbitMQ) -> AsyncIterator[User]:
    made = User(own_broker)
    await made.ctl('add_user', made.name, made.known)
    await made.allow()
    yield made
    await made.ctl('delete_user', made.name)


# -- credentials


async def test_password_that_changes(user: User, own_stream: str) -> None:
    """The provider has the old one at first: the client asks until it has the new one."""
    async with user.client() as client, client.publisher(own_stream) as publisher:
        await publisher.send(1)
        await user.ctl('change_password', user.name, 'second')
        before = user.calls
        moving = asyncio.create_task(client.reconnect())
        sending = asyncio.create_task(publisher.send(2))
        await until(lambda: user.calls > before + 1, 'the provider is asked again')
        assert not sending.done()
        user.known = 'second'
        await asyncio.gather(moving, sending)


async def test_wrong_password_fails_at_once(user: User) -> None:
    user.known = 's3cr3t'
    client = user.client()
    with pytest.raises(rbs.AuthenticationError) as caught:
        await client.create_stream('x')
    assert 's3cr3t' not in repr(caught.value)
    assert user.calls == 1
    await client.close()


async def test_renewal_keeps_the_connections(
    user: User, own_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, 'SHORTEST', 0.02)
    user.expires_in = 0.2
    async with user.client() as client:
        found = client.events()
        async with (
            client.publisher(own_stream) as publisher,
            client.subscribe(own_stream, offset=rbs.Offset.FIRST) as messages,
        ):
            number = 0
            while user.calls < 10:
                await publisher.send(number)
                assert await anext(messages) == number
                number += 1
        await found.close()
        assert [event async for event in found if isinstance(event, rbs.ConnectionLost)] == []


async def test_another_user_is_refused_on_an_open_connection(
    user: User, own_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, 'SHORTEST', 0.02)
    other = User(user.broker)
    await other.ctl('add_user', other.name, other.known)
    await other.allow()
    try:
        user.expires_in = 0.5
        async with user.client() as client, client.publisher(own_stream) as publisher:
            found = client.events()
            await publisher.send(1)
            user.name, other.name = other.name, user.name
            event = await find(found, rbs.RenewalRefused)
            assert '0x15' in str(event.error)
            user.expires_in = None
            await publisher.send(2)
    finally:
        await other.ctl('delete_user', other.name)


# -- rights


async def test_no_right_to_one_of_two_streams(user: User, own_stream: str) -> None:
    secret = f'secret-{own_stream}'
    async with rbs.streams_client(user.broker.uri) as admin:
        await admin.create_stream(secret)
        try:
            await user.allow(read=f'^{own_stream}$', write=f'^{own_stream}$')
            async with user.client() as client:
                with pytest.raises(rbs.ProtocolError, match=r'permission.*0x10') as caught:
                    await client.publisher(secret)
                assert secret in str(caught.value)
                with pytest.raises(rbs.ProtocolError, match=r'permission.*0x10'):
                    await anext(client.subscribe(secret))
                async with (  # the other stream is not concerned
                    client.publisher(own_stream) as publisher,
                    client.subscribe(own_stream, offset=rbs.Offset.FIRST) as messages,
                ):
                    await publisher.send(1)
                    assert await anext(messages) == 1
        finally:
            await admin.delete_stream(secret)


async def test_right_that_is_taken_away(user: User, own_stream: str) -> None:
    """The broker checks it when the client declares the publisher again; then it may return."""
    async with user.client() as client:
        publisher = await client.publisher(own_stream)
        await publisher.send(1)
        await user.allow(write='^$')
        await client.reconnect()
        with pytest.raises(rbs.ProtocolError, match='0x10'):
            await publisher.send(2)
        assert not client.health().ok
        await user.allow()
        await publisher.send(3)  # the next use declares the publisher again
        await publisher.close()
        async with client.subscribe(own_stream, offset=rbs.Offset.FIRST) as messages:
            assert [await anext(messages) for _ in range(2)] == [1, 3]


# -- nodes that refuse


async def test_full_virtual_host(own_broker: RabbitMQ) -> None:
    """RabbitMQ 4.3 limits the connections of streams; 4.0 does not."""
    vhost = f'full-{uuid4().hex[:8]}'

    async def ctl(name: str, *args: str) -> None:
        await asyncio.to_thread(own_broker.ctl, name, '-p', vhost, *args)

    await asyncio.to_thread(own_broker.ctl, 'add_vhost', vhost)
    try:
        await ctl('set_permissions', 'guest', '.*', '.*', '.*')
        uri = f'{own_broker.uri.rstrip("/")}/{vhost}'
        async with (
            rbs.streams_client(uri, backoff=(0.05, 1.0)) as client,
            rbs.streams_client(uri) as other,
        ):
            await client.create_stream('orders')
            async with client.publisher('orders') as publisher:
                await publisher.send(1)
                await ctl('set_vhost_limits', '{"max-connections": 0}')
                found = client.events()
                moving = asyncio.create_task(client.reconnect())
                if own_broker.release >= '4.1':
                    with pytest.raises(rbs.VirtualHostError, match='a limit of connections'):
                        await other.ping()
                    await find(found, rbs.RecoveryScheduled)  # the client tries again
                    assert not moving.done()
                    await ctl('clear_vhost_limits')
                await moving
                await publisher.send(2)
    finally:
        await asyncio.to_thread(own_broker.ctl, 'delete_vhost', vhost)


# -- addresses


async def test_name_in_the_certificate(own_broker: RabbitMQ, own_stream: str) -> None:
    assert own_broker.ca_file is not None
    assert own_broker.tls_uri is not None
    context = ssl.create_default_context(cafile=str(own_broker.ca_file))
    uri = own_broker.tls_uri.replace('localhost', '127.0.0.1')
    async with (
        rbs.streams_client(uri, ssl=context, server_hostname='localhost') as client,
        client.publisher(own_stream) as publisher,
    ):
        await publisher.send(1)
    other = rbs.streams_client(uri, ssl=context, server_hostname='broker.example')
    with pytest.raises(rbs.TLSError, match='not valid for'):
        await other.create_stream('x')
    await other.close()


async def test_properties_and_limits(
    private_broker: Callable[[], RabbitMQ], private_stream: str
) -> None:
    """RabbitMQ 4.0 cannot list its connections while another one is in its handshake."""
    broker = private_broker()
    pod = f'pod-{uuid4().hex[:8]}'
    listing = ('list_stream_connections', '-q', 'client_properties')
    async with (
        rbs.streams_client(
            broker.uri, publishers_per_connection=2, client_properties={'pod': pod}
        ) as client,
        AsyncExitStack() as stack,
    ):
        for _ in range(5):
            await stack.enter_async_context(client.publisher(private_stream))
        assert client.server_properties['version'] == broker.release
        listed = await asyncio.to_thread(broker.tool, 'rabbitmq-streams', *listing)
        described = client.describe().connections
        assert [connection.role for connection in described].count('publish') == 3
        assert listed.count(pod) == len(described)


async def test_initial_offset_of_a_broker_that_does_not_know_it(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient
) -> None:
    name = f'test-{uuid4()}'
    await own_client.create_stream(name, initial_offset=1000)
    try:
        async with own_client.publisher(name) as publisher:
            await publisher.send('x')
        async with own_client.subscribe(name, offset=rbs.Offset.FIRST) as messages:
            assert (await anext(messages.messages())).stream_offset in (0, 1000)
    finally:
        await own_client.delete_stream(name)


# -- a certificate that expires

SERVER = 'server.pem', 'server.key'


@pytest.fixture
def authority(private_broker: Callable[[], RabbitMQ]) -> Iterator[trustme.CA]:
    """An authority; the private broker has its old certificate again afterwards."""
    folder = private_broker().srv / 'tls'
    kept = folder.with_name('tls-kept')
    shutil.copytree(folder, kept)
    yield trustme.CA()
    install(private_broker(), *((kept / name).read_bytes() for name in SERVER))
    shutil.rmtree(kept)


def install(broker: RabbitMQ, *contents: bytes) -> None:
    """Replace the files of the certificate, and let the broker read them again."""
    for name, data in zip(SERVER, contents, strict=True):
        (broker.srv / 'tls' / name).write_bytes(data)  # keeps the owner
    broker.ctl('eval', 'ssl:clear_pem_cache().')


async def test_certificate_that_expires_while_connected(
    private_broker: Callable[[], RabbitMQ], private_stream: str, authority: trustme.CA
) -> None:
    broker = private_broker()
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def use(certificate: trustme.LeafCert) -> None:
        chain = b''.join(part.bytes() for part in certificate.cert_chain_pems)
        key = certificate.private_key_pem.bytes()
        await asyncio.to_thread(install, broker, chain, key)

    await use(authority.issue_cert('localhost', '127.0.0.1'))
    assert broker.tls_uri is not None
    async with rbs.streams_client(broker.tls_uri, ssl=context) as client:
        publisher = await client.publisher(private_stream)
        await publisher.send(1)
        past = datetime(2020, 1, 1, tzinfo=UTC)
        await use(
            authority.issue_cert(
                'localhost', '127.0.0.1', not_before=past, not_after=past + timedelta(days=1)
            )
        )
        await publisher.send(2)  # the connection stays
        await client.reconnect()
        with pytest.raises(rbs.TLSError, match='certificate has expired'):
            await publisher.send(3)
        await use(authority.issue_cert('localhost', '127.0.0.1'))
        await publisher.send(4)  # the next use connects again
        await publisher.close()
