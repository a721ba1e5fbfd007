"""A node of the broker, to which clients connect."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..protocol.commands import NodeAddress
from .connection import STEP_TIMEOUT, Wire


@dataclass(eq=False, repr=False)
class Node:
    number: int
    host: str
    port: int  # 0 for a free one, chosen at the first start
    ssl: ssl.SSLContext | None  # context for TLS; None for plain TCP
    make: Callable[['Node'], Wire]  # creates the protocol of a new connection
    advertised: str = ''  # host; '' for that at which it listens
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of connections
    wires: dict[Wire, None] = field(default_factory=dict)
    drained: bool = False  # in maintenance: accepts no connections, and keeps those it has
    _socket: socket.socket | None = None
    _serving: asyncio.Task[asyncio.Server] | None = None
    _empty: asyncio.Event | None = None  # set when the last connection closes

    @property
    def running(self) -> bool:
        return self.accepts or self.drained

    @property
    def accepts(self) -> bool:
        """Whether clients can connect."""
        return self._socket is not None

    @property
    def address(self) -> NodeAddress:
        """The advertised address."""
        return NodeAddress(self.advertised or self.host, self.port)

    def open(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[asyncio.Server]:
        """Listen at once; return a task that starts to accept connections.

        :raises OSError: the address is in use, or does not belong to this machine.
        """
        family = socket.AF_INET6 if ':' in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, self.port), family=family, backlog=512)
        self.drained = False
        self._socket.setblocking(False)
        # Connections inherit it; asyncio sets it only for sockets that name their protocol.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._socket.getsockname()[1]
        limit = STEP_TIMEOUT if self.ssl else None
        listening = loop.create_server(
            lambda: self.make(self),
            sock=self._socket,
            backlog=512,
            ssl=self.ssl,
            ssl_handshake_timeout=limit,
            ssl_shutdown_timeout=limit,
        )
        self._serving = loop.create_task(listening)
        return self._serving

    def close(self) -> asyncio.Server | None:
        """Close the server and every connection.

        :returns: the server, so that the caller can wait until it has ended.
        """
        server = self._stop_listening()
        self.drained = False
        for wire in [*self.wires]:
            wire.abort()
        return server

    def drain(self) -> None:
        """Refuse connections from now on, and keep those that are open."""
        self._stop_listening()
        self.drained = True

    def _stop_listening(self) -> asyncio.Server | None:
        server = None
        if self._serving is not None and self._socket is not None:
            if self._serving.done() and not self._serving.cancelled():
                server = self._serving.result()
                server.close()
            else:
                self._serving.cancel()
                self._socket.close()
        self._serving = self._socket = None
        return server

    async def end(self) -> None:
        """Close the node, and wait until all connections are closed."""
        server = self.close()
        if self.wires:
            self._empty = asyncio.Event()
            await self._empty.wait()
        if server is not None:
            abort = getattr(server, 'abort_clients', None)  # asyncio, Python 3.13 and newer
            if abort is not None:
                abort()  # connections still in the TLS handshake
            elif isinstance(server, asyncio.Server):
                return  # Python 3.12 would wait for those
            await server.wait_closed()

    def abandon(self) -> None:
        """Clean up after the event loop was closed before the broker stopped."""
        if self._socket is not None:
            self._socket.close()
        self._serving = self._socket = None
        for wire in [*self.wires]:
            wire.connection_lost(None)

    def add(self, wire: Wire) -> None:
        self.wires[wire] = None
        if not self.accepts or wire.faults.refusing:
            wire.abort()

    def remove(self, wire: Wire) -> None:
        self.wires.pop(wire, None)
        if self._empty is not None and not self.wires:
            self._empty.set()
