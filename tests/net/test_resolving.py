"""Every address of a host name is tried, and a name that was resolved before stays usable."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
import uvloop

import rbfly.streams as rbs
from rbfly.net import resolving
from rbfly.net.dialer import Dialer
from rbfly.net.resolving import KEPT, Recent, Resolver
from rbfly.protocol.commands import NodeAddress, StreamMetadata
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import (
    CLOSING,
    GARBAGE,
    RESETTING,
    SILENT,
    FakeBroker,
    FakeConnection,
    Frame,
    Step,
)
from tests.inside import dialer_of

own_clock = pytest.mark.own_clock

NAME = 'broker.example'
FIRST, SECOND = '127.0.0.1', '127.0.0.2'


class Names:
    """Answers lookups.

    :ivar addresses: the addresses of every name.
    :ivar error: raised instead, if set.
    :ivar asked: number of lookups.
    """

    def __init__(self) -> None:
        self.addresses = [FIRST, SECOND]
        self.error: Exception | None = None
        self.asked = 0

    async def lookup(self, host: str, port: int) -> list[str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return list(self.addresses)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(resolving, 'lookup', found.lookup)
    return found


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses in the order in which they are tried."""
    found: list[str] = []
    dial = Dialer._dial_host

    async def record(self: Dialer, info: Any, host: str, *args: Any) -> Any:
        found.append(host)
        return await dial(self, info, host, *args)

    monkeypatch.setattr(Dialer, '_dial_host', record)
    return found


@asynccontextmanager
async def twice(first: FakeBroker) -> AsyncIterator[FakeBroker]:
    """A second broker, on the other address and the same port as the first one."""
    second = FakeBroker()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FakeConnection(second), SECOND, first.port)
    second.port = first.port
    try:
        yield second
    finally:
        server.close()
        for peer in second.connections:
            await peer.lost


def uri(fake: FakeBroker) -> str:
    return f'rabbitmq-stream://{NAME}:{fake.port}/'


# -- several addresses


@own_clock
@pytest.mark.parametrize('handler', [SILENT, CLOSING, RESETTING], ids=lambda item: item.__name__)
@pytest.mark.parametrize('timeout', [1, 5, 30, None])
async def test_each_address_has_its_share_of_an_attempt(
    names: Names, handler: wire.Handler, timeout: float | None
) -> None:
    async with (
        FakeBroker(at={Step.PEER_PROPERTIES: handler}) as first,
        twice(first) as second,
        rbs.streams_client(uri(first), connect_timeout=timeout) as client,
    ):
        await client.get_protocol()
        assert [len(first.connections), len(second.connections)] == [1, 1]
        # The next attempt begins with the address that worked.
        second.connections[0].transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')
        await client.ping()
        assert [len(first.connections), len(second.connections)] == [1, 2]


@own_clock
@pytest.mark.parametrize('handler', [SILENT, CLOSING, RESETTING], ids=lambda item: item.__name__)
async def test_each_attempt_begins_with_another_address(
    names: Names, tried: list[str], handler: wire.Handler
) -> None:
    names.addresses = [FIRST, SECOND, '127.0.0.3']  # nothing listens on the third one
    async with FakeBroker(at={Step.OPEN: handler}) as first, twice(first) as second:
        second.handlers[Step.OPEN] = handler
        client = rbs.streams_client(uri(first), connect_timeout=None)
        call = asyncio.create_task(client.get_protocol())
        await until(lambda: names.asked >= 4, 'three attempts have ended')
        call.cancel()
        await asyncio.wait([call])
    a, b, c = names.addresses
    assert tried[:9] == [a, b, c, b, c, a, c, a, b]


@own_clock
@pytest.mark.parametrize(
    ('handler', 'error'),
    [(GARBAGE, rbs.FrameError), (wire.refuse(0x08), rbs.AuthenticationError)],
)
async def test_next_call_begins_with_another_address_after_a_final_error(
    names: Names, handler: wire.Handler, error: type[rbs.RbFlyError]
) -> None:
    at = {Step.SASL_AUTHENTICATE: handler}
    async with (
        FakeBroker(at=at) as first,
        twice(first) as second,
        rbs.streams_client(uri(first)) as client,
    ):
        with pytest.raises(error):
            await client.get_protocol()
        assert second.connections == []
        await client.get_protocol()
        assert len(second.connections) == 1


@own_clock
async def test_next_call_begins_with_another_address_after_a_call_gave_up(names: Names) -> None:
    async with (
        FakeBroker(at={Step.OPEN: SILENT}) as first,
        twice(first) as second,
        rbs.streams_client(uri(first), connect_timeout=None) as client,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get_protocol(), 1)
        assert second.connections == []
        await client.get_protocol()
        assert [len(first.connections), len(second.connections)] == [1, 1]


@own_clock
@pytest.mark.parametrize('several', ['addresses', 'URIs'])
async def test_load_balancer_leads_to_each_of_its_addresses(names: Names, several: str) -> None:
    def node(host: str) -> wire.Handler:
        def handler(peer: FakeConnection, request: Frame) -> None:
            peer.respond(request, {'advertised_host': host, 'advertised_port': '5552'})

        return handler

    def metadata(peer: FakeConnection, request: Frame) -> None:
        found = StreamMetadata(1, NodeAddress('second', 5552), ())
        peer.respond(request, dict.fromkeys(request.decode().streams, found))

    on = {wire.METADATA: metadata}
    async with FakeBroker(on=on, at={Step.OPEN: node('first')}) as first, twice(first) as second:
        second.handlers |= {wire.METADATA: metadata, Step.OPEN: node('second')}
        uris = [uri(first)]
        if several == 'URIs':
            uris = [f'rabbitmq-stream://{host}:{first.port}/' for host in names.addresses]
        async with (
            rbs.streams_client(uris, load_balancer=True) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send('x')
        assert any(
            frame.key == wire.PUBLISH for peer in second.connections for frame in peer.frames
        )


# -- lookups


@own_clock
async def test_failed_lookup_of_a_name_that_was_resolved_before(names: Names) -> None:
    names.addresses = [FIRST]
    async with FakeBroker() as fake, rbs.streams_client(uri(fake)) as client:
        await client.get_protocol()
        names.error = socket.gaierror(-3, 'Temporary failure in name resolution')
        fake.connection.transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')
        await client.ping()
        assert (len(fake.connections), names.asked) == (2, 2)


@own_clock
async def test_failed_first_lookup_is_retried(names: Names) -> None:
    names.error = socket.gaierror(-2, 'Name or service not known')
    client = rbs.streams_client(f'rabbitmq-stream://{NAME}/', connect_timeout=5)
    with pytest.raises(rbs.ConnectTimeout, match=f'{NAME}:5552: .*Name or service') as caught:
        await client.get_protocol()
    assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
    assert names.asked > 2


@pytest.mark.both_loops
async def test_busy_executor_does_not_prevent_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, 'LOOKUP', 0.01)
    loop = asyncio.get_running_loop()
    executor, release = ThreadPoolExecutor(1), threading.Event()
    loop.set_default_executor(executor)
    try:
        async with FakeBroker() as fake:
            where = f'rabbitmq-stream://localhost:{fake.port}/'
            async with rbs.streams_client(where) as client:
                await client.get_protocol()
                busy = loop.run_in_executor(None, release.wait)
                fake.connection.transport.abort()
                await until(lambda: not client.connected, 'the connection is lost')
                await client.ping(timeout=20)
                assert not busy.done()
                release.set()
                await busy
    finally:
        release.set()
        executor.shutdown()


class UvLoop(uvloop.Loop):
    """Records lookups, and the hosts of connections."""

    looked_up: list[str]
    hosts: list[str]

    def getaddrinfo(self, host: Any, *args: Any, **kwargs: Any) -> Any:
        self.looked_up.append(host)
        return super().getaddrinfo(host, *args, **kwargs)

    def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.hosts.append(host)
        return super().create_connection(factory, host, *args, **kwargs)


@pytest.fixture
def uv() -> Iterator[UvLoop]:
    loop = UvLoop()
    loop.looked_up, loop.hosts = [], []
    yield loop
    loop.close()


def test_uvloop_looks_a_name_up_once(uv: UvLoop) -> None:
    async def main() -> None:
        async with FakeBroker() as fake:
            where = f'rabbitmq-stream://localhost:{fake.port}/'
            async with rbs.streams_client(where) as client:
                await client.get_protocol()

    uv.run_until_complete(main())
    assert uv.looked_up == ['localhost']
    assert set(uv.hosts) <= {'127.0.0.1', '::1'}  # which need no lookup


async def test_ip_addresses_are_not_looked_up(names: Names) -> None:
    for host in ('127.0.0.1', '::1', 'fe80::1%eth0'):
        assert await Resolver().resolve(host, 5552, 1.0) == [host]
    assert names.asked == 0


# -- advertised addresses


@pytest.mark.both_loops
async def test_advertised_name_that_the_certificate_does_not_have() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('localhost').configure_cert(server)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    async with StreamBroker(ssl=server, nodes=2) as broker:
        ports = [urlsplit(item).port for item in broker.uris]
        uris = [f'rabbitmq-stream+tls://localhost:{port}/' for port in ports]
        broker.create_stream('orders')
        broker.move_leader('orders', 1)
        async with rbs.streams_client(uris[0], ssl=client_side) as client:
            with pytest.raises(rbs.TLSError, match='pass load_balancer=True'):
                await client.publisher('orders')
        balanced = rbs.streams_client(uris, ssl=client_side, load_balancer=True)
        async with balanced as client, client.publisher('orders') as publisher:
            await publisher.send('x')


@own_clock
async def test_address_of_the_uri_is_tried_when_the_advertised_one_refuses(names: Names) -> None:
    names.addresses = [FIRST]

    def elsewhere(peer: FakeConnection, request: Frame) -> None:
        found = StreamMetadata(1, NodeAddress(SECOND, peer.broker.port), ())
        peer.respond(request, dict.fromkeys(request.decode().streams, found))

    async with (
        FakeBroker(on={wire.METADATA: elsewhere}) as fake,
        rbs.streams_client(uri(fake)) as client,
        client.publisher('orders') as publisher,
    ):
        await publisher.send('x')
    assert all(peer.frames for peer in fake.connections)


# -- memory


def test_recent_forgets_the_oldest() -> None:
    found = Recent[int, int]()
    for number in range(KEPT):
        found[number] = 0
    found[0] = 1
    found[KEPT] = 2
    assert len(found) == KEPT
    assert found[0] == 1
    assert 1 not in found


@own_clock
async def test_addresses_of_nodes_that_are_gone_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    monkeypatch.setattr(resolving, 'KEPT', 3)
    opened = 0

    def another_name(peer: FakeConnection, request: Frame) -> None:
        nonlocal opened
        opened += 1
        peer.respond(
            request, {'advertised_host': f'pod-{opened}', 'advertised_port': str(peer.broker.port)}
        )

    def metadata(peer: FakeConnection, request: Frame) -> None:
        found = StreamMetadata(1, NodeAddress(f'pod-{opened + 1}', peer.broker.port), ())
        peer.respond(request, dict.fromkeys(request.decode().streams, found))

    on = {wire.METADATA: metadata}
    async with (
        FakeBroker(on=on, at={Step.OPEN: another_name}) as fake,
        rbs.streams_client(uri(fake)) as client,
    ):
        for number in range(1, 10):
            names.addresses = [f'127.0.1.{number}', FIRST]
            async with client.publisher('orders') as publisher:
                await publisher.send('x')
            for peer in fake.connections:
                peer.transport.abort()
            await until(lambda: not client.connected, 'the connections are lost')
        dialer = dialer_of(client)
        assert opened > 9
        resolver = dialer._resolver
        for kept in (
            dialer._reached,
            dialer._unreachable,
            dialer._failed,
            resolver._known,
            resolver._tried,
        ):
            assert len(kept) <= 3
