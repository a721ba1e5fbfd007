"""A TCP proxy before one broker node that makes trouble: it cuts, stalls, delays, splits, refuses.

A test of faults proves something only if the traffic goes through its proxy: the node advertises
the proxy's port, and the test asserts what the proxy has counted.  Up is from client to broker.
"""

import asyncio
import heapq
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Literal, Self, cast

__all__ = ['Direction', 'Proxy']

Direction = Literal['up', 'down']

HOST = '127.0.0.1'
OPEN = 0x15
FRAME = struct.Struct('>IH')
RESET = struct.pack('ii', 1, 0)  # SO_LINGER: on, no time
QUEUE_MAX = 64 * 2**20  # bytes on their way in one direction of a connection
WRITE_HIGH = 2**20
PIECE_MAX = 200  # bytes of a piece when reads are split


class Proxy:
    """Listens on a port of loopback and forwards to a node; `async with` opens and closes it.

    :ivar target: host and port of the node.
    :ivar port: where it listens; known at once if it was given, else when it is open.
    :ivar delay: seconds that bytes are on their way, in each direction; order and throughput stay.
    :ivar split: forward reads in random pieces, each in a loop turn of its own.  What goes up is
        forwarded frame by frame until Open is through: brokers before 4.2.5 close otherwise.
    :ivar bytes: how many were forwarded, by direction.
    :ivar connections: how many were accepted.
    :ivar failed: how many of them ended because the node could not be reached.
    :ivar cuts: how many were cut.
    :ivar on_cut: called behind each cut.
    :ivar watch: called with number of connection, direction and bytes of what is forwarded.
    """

    def __init__(self, target: tuple[str, int], *, port: int = 0, seed: int = 0) -> None:
        self.target = target
        self.port = port
        self.delay = 0.0
        self.split = False
        self.bytes: dict[Direction, int] = {'up': 0, 'down': 0}
        self.connections = 0
        self.failed = 0
        self.cuts = 0
        self.on_cut: Callable[[], None] | None = None
        self.watch: Callable[[int, Direction, bytes], None] | None = None
        self.random = random.Random(seed)
        self.stalled: set[Direction] = set()
        self._planned: dict[Direction, list[tuple[int, bool]]] = {'up': [], 'down': []}
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None

    @property
    def uri(self) -> str:
        """Stream URI that leads through the proxy."""
        return f'rabbitmq-stream://guest:guest@{HOST}:{self.port}/'

    def stats(self) -> dict[str, int]:
        """What it has counted."""
        return {
            'port': self.port,
            'bytes_up': self.bytes['up'],
            'bytes_down': self.bytes['down'],
            'connections': self.connections,
            'failed': self.failed,
            'cuts': self.cuts,
        }

    async def __aenter__(self) -> Self:
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        links = list(self._links)
        for link in links:
            link.cut(reset=True)
        await asyncio.gather(*(link.ended for link in links))

    # -- trouble

    def cut_after(self, size: int, direction: Direction = 'up', *, reset: bool = True) -> None:
        """Cut a connection when this many more bytes were forwarded in a direction.

        It is the connection of the last of these bytes, which still goes through; bytes of all
        connections count, those of handshakes as well.  Several cuts may be planned.

        :param reset: with RST on both sides, what is unread there may be lost; else orderly.
        """
        heapq.heappush(self._planned[direction], (self.bytes[direction] + size, reset))

    def cut(self, *, reset: bool = True) -> None:
        """Cut every connection now."""
        for link in list(self._links):
            self._cut(link, reset)

    def stall(self, *directions: Direction) -> None:
        """Forward nothing any more in a direction, or in both; connections stay open."""
        self.stalled |= set(directions or ('up', 'down'))
        self._update()

    def resume(self) -> None:
        """Forward again."""
        self.stalled.clear()
        self._update()

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        listener = self._listener
        if listener is not None:
            self._accept(listener)  # who got through before is not to be reset
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
            self._listener = None

    def accept(self) -> None:
        """Accept connections, on the port it had before."""
        if self._listener is None:
            self._listener = listener = socket.create_server((HOST, self.port), backlog=100)
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            sock.setblocking(False)
            self.connections += 1
            link = Link(self, self.connections)
            self._links.add(link)
            link.connecting = asyncio.create_task(link.connect(sock))

    def _update(self) -> None:
        for link in list(self._links):
            for pipe in link.pipes.values():
                pipe.pump()

    def _cut(self, link: 'Link', reset: bool) -> None:
        self.cuts += 1
        link.cut(reset)
        if self.on_cut is not None:
            self.on_cut()

    def _forward(self, pipe: 'Pipe', sink: asyncio.Transport, data: bytes) -> None:
        direction = pipe.direction
        done = self.bytes[direction]
        planned = self._planned[direction]
        cut = planned and planned[0][0] <= done + len(data)
        if cut:
            data = data[: max(planned[0][0] - done, 0)]
        if data:
            self.bytes[direction] = done + len(data)
            sink.write(data)
            if self.watch is not None:
                self.watch(pipe.link.number, direction, data)
        if cut:
            self._cut(pipe.link, heapq.heappop(planned)[1])


class Link:
    """One connection: the client's, and the one to the node that serves it."""

    def __init__(self, proxy: Proxy, number: int) -> None:
        self.proxy = proxy
        self.number = number
        self.connecting: asyncio.Task[None] | None = None
        self.dead = False
        self.ended = asyncio.get_running_loop().create_future()
        self.pipes: dict[Direction, Pipe] = {'up': Pipe(self, 'up'), 'down': Pipe(self, 'down')}
        self.sides: set[Side] = set()

    async def connect(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        up, down = self.pipes['up'], self.pipes['down']
        try:
            await loop.create_connection(lambda: Side(down, up), *self.proxy.target)
        except OSError:
            self.proxy.failed += 1
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()
        else:
            await loop.connect_accepted_socket(lambda: Side(up, down), sock)
        self.connecting = None
        if self.dead or len(self.sides) < 2:
            self.cut(reset=True)
        for pipe in self.pipes.values():
            pipe.pump()
        self.check_end()

    def cut(self, reset: bool) -> None:
        """End both sides; nothing more is forwarded."""
        self.dead = True
        for pipe in self.pipes.values():
            pipe.clear()
        for side in list(self.sides):
            if reset:
                if not side.transport.is_closing():
                    sock = side.transport.get_extra_info('socket')
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                side.transport.abort()
            else:
                side.transport.close()

    def check_end(self) -> None:
        if not self.sides and self.connecting is None and not self.ended.done():
            self.proxy._links.discard(self)
            self.ended.set_result(None)


class Side(asyncio.Protocol):
    """The socket of the client, or the one to the node."""

    def __init__(self, source_of: 'Pipe', sink_of: 'Pipe') -> None:
        self.source_of = source_of
        self.sink_of = sink_of
        self.link = source_of.link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info('socket')
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport.set_write_buffer_limits(WRITE_HIGH)
        self.source_of.source = self.transport
        self.sink_of.sink = self.transport
        self.link.sides.add(self)
        # nothing is read before there is somebody to forward it to
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.source_of.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.sink_of.clear()
        self.source_of.end()
        self.link.sides.discard(self)
        self.link.check_end()

    def pause_writing(self) -> None:
        self.sink_of.full = True
        self.sink_of.update()

    def resume_writing(self) -> None:
        self.sink_of.full = False
        self.sink_of.pump()


class Pipe:
    """One direction of a connection: what is on its way, and since when."""

    def __init__(self, link: Link, direction: Direction) -> None:
        self.link = link
        self.proxy = link.proxy
        self.direction = direction
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.full = False  # the sink has enough for now
        self.reading = False
        self.handshake = direction == 'up'
        self.rest = b''  # of a frame of the handshake
        self.queue: deque[tuple[float, bytes | None]] = deque()  # when due; None for the end
        self.size = 0
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.Handle | None = None

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        if self.handshake:
            data = self.feed_handshake(self.rest + data)
        if self.proxy.split:
            while len(data) > 1:
                n = self.proxy.random.randint(1, min(len(data), PIECE_MAX))
                self.put(data[:n])
                data = data[n:]
        if data:
            self.put(data)
        self.pump()

    def feed_handshake(self, data: bytes) -> bytes:
        """Take whole frames, up to Open; what is behind it."""
        self.rest = b''
        while self.handshake and data:
            if data[0]:  # no frame begins so: another protocol, or TLS
                self.handshake = False
            elif len(data) < FRAME.size or len(data) < 4 + FRAME.unpack_from(data)[0]:
                self.rest = data
                return b''
            else:
                size, key = FRAME.unpack_from(data)
                self.put(data[: 4 + size])
                self.handshake = key != OPEN
                data = data[4 + size :]
        return data

    def put(self, data: bytes | None) -> None:
        due = self.loop.time() + self.proxy.delay if self.proxy.delay else 0.0
        self.queue.append((due, data))
        self.size += len(data or b'')

    def end(self) -> None:
        """The source has ended: so does the sink, behind what is on its way."""
        if self.rest:
            self.put(self.rest)
        self.put(None)
        self.pump()

    def pump(self) -> None:
        """Forward what is due."""
        self.stop_timer()
        while self.sink is not None and self.queue and not self.full and not self.stalled:
            due, data = self.queue[0]
            if due and due > self.loop.time():
                self.timer = self.loop.call_at(due, self.pump)
                break
            self.queue.popleft()
            if data is None:
                self.sink.close()
                break
            self.size -= len(data)
            self.proxy._forward(self, self.sink, data)
            if self.proxy.split and self.queue:
                self.timer = self.loop.call_soon(self.pump)
                break
        self.update()

    @property
    def stalled(self) -> bool:
        return self.direction in self.proxy.stalled

    def update(self) -> None:
        """Read from the source, or leave what comes in its socket."""
        if self.source is None or self.sink is None or self.source.is_closing():
            return
        wanted = not self.stalled and not self.full and self.size < QUEUE_MAX
        if wanted != self.reading:
            self.reading = wanted
            if wanted:
                self.source.resume_reading()
            else:
                self.source.pause_reading()

    def clear(self) -> None:
        """Drop what is on its way."""
        self.queue.clear()
        self.size = 0
        self.rest = b''
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
