"""How many bytes the event loop of a client waits for."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import rbfly.streams as rbs
from rbfly.amqp import encode_amqp_bytes
from rbfly.net import connection, receiving
from rbfly.net.receiving import collect_in, is_supported
from tests import fake_broker as wire
from tests.fake_broker import FakeBroker, FakeConnection, Frame

on_linux = pytest.mark.skipif(
    not is_supported(), reason='before Linux 5.12, and on other systems, RbFly waits for any byte'
)
TEXT = bytes(500_000)


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with (
        socket.create_server(('127.0.0.1', 0)) as server,
        socket.create_connection(server.getsockname()) as found,
    ):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**17)
        yield found


@pytest.fixture
def all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop wait for as much as the receive buffer holds: it is small at first."""
    monkeypatch.setattr(receiving, 'SHARE', 1)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the sockets of the client have been set to, one after the other."""
    found: list[int] = []

    def collect(transport: asyncio.BaseTransport) -> Callable[[int], None] | None:
        wait_for = collect_in(transport)
        ours = transport.get_extra_info('socket')

        def record(count: int) -> None:
            assert wait_for is not None
            wait_for(count)
            found.append(awaited(ours))

        return None if wait_for is None else record

    monkeypatch.setattr(connection, 'collect_in', collect)
    return found


def transport(found: object, context: object = None) -> asyncio.BaseTransport:
    return asyncio.BaseTransport({'socket': found, 'sslcontext': context})


def awaited(found: socket.socket) -> int:
    return found.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


@on_linux
@pytest.mark.usefixtures('all_of_it')
def test_socket_waits(tcp: socket.socket) -> None:
    wait_for = collect_in(transport(tcp))
    assert wait_for is not None
    wait_for(40_000)
    assert awaited(tcp) == 40_000
    wait_for(1)
    assert awaited(tcp) == 1


@on_linux
def test_socket_waits_for_a_part_of_its_buffer(
    tcp: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the kernel would take the program for a slow reader, and not enlarge the buffer."""
    wait_for = collect_in(transport(tcp))
    assert wait_for is not None
    size = tcp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    monkeypatch.setattr(receiving, 'SHARE', size // 1000)
    wait_for(131_072)
    assert awaited(tcp) == 1
    monkeypatch.setattr(receiving, 'SHARE', size // 33_000)
    wait_for(131_072)
    assert awaited(tcp) == size // (size // 33_000)


@on_linux
async def test_socket_that_the_loop_has_closed() -> None:
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(lambda reader, writer: writer.close(), '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    wait_for = collect_in(writer.transport)
    assert wait_for is not None
    assert await reader.read() == b''
    writer.close()
    await writer.wait_closed()
    found = writer.get_extra_info('socket')
    await loop.run_in_executor(None, int)  # the loop closes the socket after the callbacks
    assert found.fileno() < 0
    wait_for(40_000)
    server.close()


def test_socket_does_not_wait_with_tls(tcp: socket.socket) -> None:
    """Some of the bytes may have arrived in an incomplete record."""
    assert collect_in(transport(tcp, ssl.create_default_context())) is None


@on_linux
def test_other_transports_do_not_wait() -> None:
    assert collect_in(transport(None)) is None
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert collect_in(transport(ours)) is None
    assert collect_in(transport(SimpleNamespace(family=socket.AF_INET))) is None


@pytest.mark.parametrize(
    ('system', 'release', 'supported'),
    [
        ('linux', '5.12.0', True),
        ('linux', '6.1.0-21-amd64', True),
        ('linux', '10.0', True),
        ('linux', '5.11.22-generic', False),
        ('linux', '4.18.0-553.el8.x86_64', False),
        ('linux', 'unknown', False),
        ('darwin', '23.4.0', False),
        ('win32', '10', False),
    ],
)
def test_kernels_on_which_it_is_safe(system: str, release: str, supported: bool) -> None:
    assert is_supported(system, release) == supported


@pytest.mark.usefixtures('all_of_it')
async def test_slow_connection_is_not_taken_for_a_lost_one(waits: list[int]) -> None:
    """One that needs longer for a chunk than two heartbeat intervals."""
    chunk = wire.deliver(0, wire.chunk(0, [encode_amqp_bytes(TEXT)]))
    parts = [*(chunk[at : at + 1000] for at in range(0, 10_000, 1000)), chunk[10_000:]]

    def send_slowly(peer: FakeConnection, request: Frame) -> None:
        peer.respond(request)
        loop = asyncio.get_running_loop()
        for i, part in enumerate(parts, 1):
            loop.call_later(0.3 * i, peer.transport.write, part)

    async with (
        FakeBroker(tune=(1048576, 1), on={wire.SUBSCRIBE: send_slowly}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0) as client,
    ):
        async for message in client.subscribe('stream', offset=rbs.Offset.FIRST):
            assert message == TEXT
            break
    assert not is_supported() or (max(waits) > 1 and waits[-1] == 1)


@pytest.mark.usefixtures('all_of_it')
async def test_connection_that_ends_within_a_chunk(waits: list[int]) -> None:
    """The client opens another one at once."""

    def cut(peer: FakeConnection, request: Frame) -> None:
        peer.respond(request)
        subscribed.append(peer)
        if len(subscribed) == 1:
            peer.send(chunk[:1000])
            peer.transport.close()
        else:
            peer.send(chunk)

    chunk = wire.deliver(0, wire.chunk(0, [encode_amqp_bytes(TEXT)]))
    subscribed: list[FakeConnection] = []
    async with (
        FakeBroker(tune=(1048576, 0), on={wire.SUBSCRIBE: cut}) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
    ):
        async for message in client.subscribe('stream', offset=rbs.Offset.FIRST):
            assert message == TEXT
            break
    assert len(subscribed) == 2
    assert not is_supported() or (max(waits) > 1 and waits[-1] == 1)
