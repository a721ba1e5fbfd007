"""A TCP proxy in front of a broker node that injects network faults.

It can cut, stall, delay and refuse connections, and split what it forwards.

A fault test proves nothing unless its traffic goes through the proxy: let the node advertise the
proxy's port and assert on the proxy's counters. "Up" is the direction from client to broker.
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
RESET = struct.pack('ii', 1, 0)  # SO_LINGER on, with a timeout of zero
QUEUE_MAX = 64 * 2**20  # bytes queued per direction of a connection
WRITE_HIGH = 2**20
PIECE_MAX = 200  # bytes of a piece when splitting reads


class Proxy:
    """Listen on a loopback port and forward to a node while inside `async with`.

    :ivar target: host and port of the node.
    :ivar port: port the proxy listens on; if not given, it is known once the proxy is open.
    :ivar delay: seconds to hold back bytes in each direction, without reordering or throttling.
    :ivar split: forward reads in random pieces, one per event loop iteration.  Client frames up to
        and including Open are forwarded whole: brokers before 4.2.5 close the connection otherwise.
    :ivar bytes: number of bytes forwarded, by direction.
    :ivar connections: number of accepted connections.
    :ivar failed: number of connections that failed because the node was unreachable.
    :ivar cuts: number of connections cut.
    :ivar on_cut: called after each cut.
    :ivar watch: called with the connection number, direction and bytes of everything forwarded.
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
        """Stream URI of the proxy."""
        return f'rabbitmq-stream://guest:guest@{HOST}:{self.port}/'

    def stats(self) -> dict[str, int]:
        """The proxy's counters."""
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

    # -- faults

    def cut_after(self, size: int, direction: Direction = 'up', *, reset: bool = True) -> None:
        """Cut a connection once this many more bytes have been forwarded in a direction.

        Bytes of all connections count, handshakes included.  The connection that carries the last
        of them is cut, after forwarding that byte.  Several cuts can be scheduled.

        :param reset: send RST to both sides, which may lose unread data; otherwise close in order.
        """
        heapq.heappush(self._planned[direction], (self.bytes[direction] + size, reset))

    def cut(self, *, reset: bool = True) -> None:
        """Cut all connections now."""
        for link in list(self._links):
            self._cut(link, reset)

    def stall(self, *directions: Direction) -> None:
        """Stop forwarding in the given directions, or in both; connections stay open."""
        self.stalled |= set(directions or ('up', 'down'))
        self._update()

    def resume(self) -> None:
        """Resume forwarding."""
        self.stalled.clear()
        self._update()

    def refuse(self) -> None:
        """Refuse new connections; open ones stay."""
        listener = self._listener
        if listener is not None:
            self._accept(listener)  # do not reset connections that are already in the backlog
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
            self._listener = None

    def accept(self) -> None:
        """Accept connections, on the same port as before."""
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
        forwarded = self.bytes[direction]
        planned = self._planned[direction]
        cut = planned and planned[0][0] <= forwarded + len(data)
        if cut:
            data = data[: max(planned[0][0] - forwarded, 0)]
        if data:
            self.bytes[direction] = forwarded + len(data)
            if not sink.is_closing():  # the other direction may have ended first
                sink.write(data)
            if self.watch is not None:
                self.watch(pipe.link.number, direction, data)
        if cut:
            self._cut(pipe.link, heapq.heappop(planned)[1])


class Link:
    """A client connection paired with its connection to the node."""

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
        """Close both sides and drop what has not been forwarded."""
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
    """One socket: either to the client or to the node."""

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
        # do not read before there is a sink to forward to
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
    """One direction of a connection and its queue of data to forward."""

    def __init__(self, link: Link, direction: Direction) -> None:
        self.link = link
        self.proxy = link.proxy
        self.direction = direction
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.full = False  # the sink has paused writing
        self.reading = False
        self.handshake = direction == 'up'
        self.rest = b''  # start of an incomplete handshake frame
        self.queue: deque[tuple[float, bytes | None]] = deque()  # (due time, data); None is EOF
        self.size = 0
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.Handle | None = None

    def feed(self, data: bytes) -> None:
        """Process data read from the source."""
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
        """Queue whole frames up to Open; return what follows it."""
        self.rest = b''
        while self.handshake and data:
            if data[0]:  # not a stream frame: TLS or another protocol
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
        """The source has ended; close the sink after forwarding what is queued."""
        if self.rest:
            self.put(self.rest)
        self.put(None)
        self.pump()

    def pump(self) -> None:
        """Forward the data that is due."""
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
        """Pause or resume reading from the source."""
        if self.source is None or self.sink is None or self.source.is_closing():
            return
        reading = not self.stalled and not self.full and self.size < QUEUE_MAX
        if reading != self.reading:
            self.reading = reading
            if reading:
                self.source.resume_reading()
            else:
                self.source.pause_reading()

    def clear(self) -> None:
        """Drop queued data."""
        self.queue.clear()
        self.size = 0
        self.rest = b''
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
