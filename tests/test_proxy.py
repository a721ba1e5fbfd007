"""The fault-injecting proxy, in front of an echo server."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brokers.proxy import Direction, Proxy
from tests.brokers import until

pytestmark = pytest.mark.both_loops

OPEN = 0x15
PUBLISH = 0x02


def frame(key: int, size: int) -> bytes:
    return struct.pack('>IHH', size + 4, key, 1) + bytes(i % 251 for i in range(size))


class Echo:
    """Sends received data back, and records it by connection."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.got)
        self.got.append(b'')
        self.writers.append(writer)
        try:
            while data := await reader.read(2**16):
                self.got[number] += data
                writer.write(data)
        except ConnectionError:
            pass
        self.ended += 1
        writer.close()


class Client:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo(self, data: bytes) -> None:
        self.writer.write(data)
        assert await self.reader.readexactly(len(data)) == data

    async def lost(self) -> type[Exception] | None:
        """Read to the end of the connection; return the type of the error, if any."""
        try:
            await self.reader.read()
        except ConnectionError as ex:
            return type(ex)
        return None


class Site:
    """A proxy and the server behind it."""

    def __init__(self, proxy: Proxy, echo: Echo) -> None:
        self.proxy = proxy
        self.echo = echo
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection('127.0.0.1', self.proxy.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def site(seed: int = 0) -> AsyncIterator[Site]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, '127.0.0.1', 0)
    try:
        async with (
            asyncio.timeout(30),
            Proxy(server.sockets[0].getsockname()[:2], seed=seed) as proxy,
        ):
            found = Site(proxy, echo)
            yield found
            for client in found.clients:
                client.writer.close()
        assert not proxy._links
    finally:
        server.close()
        await until(lambda: echo.ended == len(echo.got), 'the server sees every connection end')


async def test_proxy_forwards_and_counts() -> None:
    async with site() as s:
        one, other = await s.connect(), await s.connect()
        data = bytes(range(256)) * 4096
        await asyncio.gather(one.echo(data), other.echo(b'x' * 100))
        assert s.proxy.bytes == {'up': len(data) + 100, 'down': len(data) + 100}
        assert s.proxy.stats() == {
            'port': s.proxy.port,
            'bytes_up': len(data) + 100,
            'bytes_down': len(data) + 100,
            'connections': 2,
            'failed': 0,
            'cuts': 0,
        }


async def test_end_of_one_side_ends_the_other() -> None:
    async with site() as s:
        client, other = await s.connect(), await s.connect()
        await client.echo(b'x')
        await other.echo(b'x')
        client.writer.close()
        await until(lambda: s.echo.ended == 1, 'the server sees the connection end')
        s.echo.writers[1].close()
        assert await other.lost() is None
        assert s.proxy.cuts == 0


async def test_orderly_cut_is_exact_to_the_byte() -> None:
    async with site() as s:
        s.proxy.cut_after(1000, reset=False)
        s.proxy.cut_after(1700, reset=False)
        client = await s.connect()
        await client.echo(b'x' * 999)
        client.writer.write(b'x' * 50)
        await client.lost()
        client = await s.connect()
        client.writer.write(b'y' * 2000)
        await client.lost()
        await until(lambda: s.echo.ended == 2, 'the server sees both connections end')
        assert s.echo.got == [b'x' * 1000, b'y' * 700]
        assert s.proxy.bytes['up'] == 1700
        assert s.proxy.cuts == 2
        await (await s.connect()).echo(b'again')


async def test_cut_by_reset() -> None:
    async with site() as s:
        client = await s.connect()
        await client.echo(b'x' * 10)
        s.proxy.cut_after(5)
        client.writer.write(b'x' * 10)
        assert await client.lost() is ConnectionResetError
        assert s.proxy.bytes['up'] == 15
        assert s.proxy.cuts == 1


async def test_cut_in_the_other_direction_calls_on_cut() -> None:
    async with site() as s:
        calls = []
        s.proxy.on_cut = lambda: calls.append(s.proxy.cuts)
        s.proxy.cut_after(3, 'down', reset=False)
        client = await s.connect()
        client.writer.write(b'abcdef')
        assert await client.reader.read(10) == b'abc'
        assert await client.lost() is None
        assert s.proxy.bytes == {'up': 6, 'down': 3}
        assert calls == [1]


async def test_cut_now_ends_every_connection() -> None:
    async with site() as s:
        clients = [await s.connect() for _ in range(3)]
        for client in clients:
            await client.echo(b'x')
        s.proxy.cut()
        assert [await client.lost() for client in clients] == [ConnectionResetError] * 3
        assert s.proxy.cuts == 3


@pytest.mark.parametrize('direction', ['up', 'down'])
async def test_stall_of_one_direction(direction: Direction) -> None:
    async with site() as s:
        client = await s.connect()
        await client.echo(b'start')
        s.proxy.stall(direction)
        client.writer.write(b'x' * 100)
        other: Direction = 'down' if direction == 'up' else 'up'
        if direction == 'down':
            await until(lambda: len(s.echo.got[0]) == 105, 'the server receives all bytes')
        read = asyncio.create_task(client.reader.readexactly(100))
        await asyncio.wait([read], timeout=0.05)
        assert not read.done()
        assert s.proxy.bytes[direction] == 5
        assert s.proxy.bytes[other] == (105 if other == 'up' else 5)
        late = await s.connect()  # new connections also stall
        late.writer.write(b'y')
        s.proxy.resume()
        assert await read == b'x' * 100
        assert await late.reader.readexactly(1) == b'y'


async def test_delay_keeps_order_and_throughput() -> None:
    async with site() as s:
        s.proxy.delay = 0.05
        client = await s.connect()
        start = time.monotonic()
        await client.echo(b'x')
        assert time.monotonic() - start > 0.09  # uvloop counts whole milliseconds
        start = time.monotonic()
        data = b''.join(b'%06d' % i for i in range(100))
        for i in range(0, len(data), 6):
            client.writer.write(data[i : i + 6])
            await asyncio.sleep(0)
        # all parts are delayed together; one after the other would take ten seconds
        assert await client.reader.readexactly(len(data)) == data
        assert 0.09 < time.monotonic() - start < 9


async def test_stall_holds_data_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as s:
        client = await s.connect()
        await client.echo(b'start')
        s.proxy.delay = 0.3
        (link,) = s.proxy._links
        feed = link.pipes['up'].feed

        def feed_and_stall(data: bytes) -> None:  # within the delay, even on a busy machine
            feed(data)
            s.proxy.stall('up')

        monkeypatch.setattr(link.pipes['up'], 'feed', feed_and_stall)
        client.writer.write(b'x' * 10)
        await until(lambda: link.pipes['up'].size == 10, 'the data is in flight')
        read = asyncio.create_task(client.reader.readexactly(10))
        await asyncio.wait([read], timeout=0.6)
        assert s.proxy.bytes['up'] == 5
        s.proxy.resume()
        assert await read == b'x' * 10


async def test_data_in_flight_arrives_before_the_end() -> None:
    async with site() as s:
        s.proxy.delay = 0.05
        client = await s.connect()
        client.writer.write(b'last')
        client.writer.close()
        await until(lambda: s.echo.ended == 1, 'the server sees the connection end')
        assert s.echo.got == [b'last']


async def pieces(seed: int) -> list[int]:
    sizes: list[int] = []
    async with site(seed) as s:
        s.proxy.split = True
        s.proxy.watch = lambda number, direction, data: (
            sizes.append(len(data)) if direction == 'up' else None
        )
        client = await s.connect()
        await client.echo(b'x' + bytes(range(256)) * 20)
    return sizes


async def test_seed_determines_random_splits() -> None:
    sizes = await pieces(1)
    assert len(sizes) > 20
    assert len(set(sizes)) > 10
    assert sizes == await pieces(1)
    assert sizes != await pieces(2)


async def test_handshake_is_never_split() -> None:
    handshake = [frame(0x11, 3000), frame(0x12, 0), frame(0x14, 8), frame(OPEN, 7)]
    publish = frame(PUBLISH, 5000)
    parts: list[bytes] = []

    def watch(number: int, direction: Direction, data: bytes) -> None:
        if direction == 'up':
            parts.append(data)

    async with site() as s:
        s.proxy.split = True
        s.proxy.watch = watch
        client = await s.connect()
        first = handshake[0]
        client.writer.write(first[:2])
        await until(lambda: bool(s.proxy._links), 'the proxy accepts the connection')
        (link,) = s.proxy._links
        await until(lambda: link.pipes['up'].rest == first[:2], 'the proxy has half a size')
        client.writer.write(first[2:2000])
        await until(lambda: link.pipes['up'].rest == first[:2000], 'the proxy has half a frame')
        assert not parts
        client.writer.write(first[2000:] + b''.join(handshake[1:]) + publish)
        sent = b''.join(handshake) + publish
        assert await client.reader.readexactly(len(sent)) == sent
        assert parts[:4] == handshake
        assert b''.join(parts[4:]) == publish
        assert len(parts) > 20


async def test_proxy_accepts_again_on_the_same_port() -> None:
    async with site() as s:
        port = s.proxy.port
        client = await s.connect()
        s.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await s.connect()
        await client.echo(b'still here')
        s.proxy.accept()
        assert s.proxy.port == port
        await (await s.connect()).echo(b'x')
        assert s.proxy.connections == 2


async def test_unreachable_node() -> None:
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        async with site() as s:
            s.proxy.target = closed.getsockname()
            client = await s.connect()
            assert await client.lost() is ConnectionResetError
            assert s.proxy.stats()['failed'] == 1
            assert s.proxy.cuts == 0


async def test_slow_reader_slows_the_writer() -> None:
    async with site() as s:
        sock = socket.create_connection(('127.0.0.1', s.proxy.port))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        sent = 0
        data = bytes(2**20)

        async def write() -> None:
            nonlocal sent
            while True:
                await loop.sock_sendall(sock, b'x' + data)
                sent += 1

        task: asyncio.Task[Any] = asyncio.create_task(write())
        # the client does not read the echo, so the proxy must stop reading
        last = -1
        while not sent or sent != last:  # on a busy machine, the first message may take longer
            last = sent
            await asyncio.wait([task], timeout=0.3)
        task.cancel()
        await asyncio.wait([task])
        sock.close()
        assert 0 < sent < 64
