"""A node: where clients connect."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from ..protocol.commands import Broker
from .faults import Faults
from .wire import STEP_TIMEOUT, Wire


class Node:
    """One server of the broker.

    :ivar number: which node it is, from 0.
    :ivar host: its address.
    :ivar port: its port; 0 until it was opened first, if it may be any.
    :ivar ssl: what its TLS is made with; None for none.
    :ivar wires: connections that are open.
    :ivar connected: how many there have been.
    """

    def __init__(
        self, number: int, host: str, port: int, faults: Faults, ssl: ssl.SSLContext | None = None
    ) -> None:
        self.number = number
        self.host = host
        self.port = port
        self.ssl = ssl
        self.wires: dict[Wire, None] = {}
        self.connected = 0
        self.make: Callable[[Node], Wire]
        self._faults = faults
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[asyncio.Server] | None = None
        self._empty: asyncio.Event | None = None  # set with the end of the last connection

    @property
    def running(self) -> bool:
        return self._socket is not None

    @property
    def address(self) -> Broker:
        """Address that clients are told."""
        return Broker(self.host, self.port)

    def open(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[asyncio.Server]:
        """Listen; who connects from now on waits for the task at most.

        :raises OSError: the address is in use, or none of this machine.
        """
        family = socket.AF_INET6 if ':' in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, self.port), family=family, backlog=512)
        self._socket.setblocking(False)
        # asyncio sets it only for sockets that name their protocol; connections have it from here
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._socket.getsockname()[1]
        limit = STEP_TIMEOUT if self.ssl else None
        listening = loop.create_server(
            self._accept,
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

        :return: the server, whose end can be waited for.
        """
        server = None
        if self._serving is not None and self._socket is not None:
            if self._serving.done() and not self._serving.cancelled():
                server = self._serving.result()
                server.close()
            else:
                self._serving.cancel()
                self._socket.close()
        self._serving = self._socket = None
        for wire in [*self.wires]:
            wire.abort()
        return server

    async def end(self) -> None:
        """Close it, and wait until all is closed."""
        server = self.close()
        if self.wires:
            self._empty = asyncio.Event()
            await self._empty.wait()
        if server is not None:
            abort = getattr(server, 'abort_clients', None)  # of asyncio's, from Python 3.13 on
            if abort is not None:
                abort()  # who is in the TLS handshake yet
            elif isinstance(server, asyncio.Server):
                return  # 3.12's would wait for them
            await server.wait_closed()

    def abandon(self) -> None:
        """Clean up after an event loop that was closed before the broker stopped."""
        if self._socket is not None:
            self._socket.close()
        self._serving = self._socket = None
        for wire in [*self.wires]:
            wire.connection_lost(None)

    def cut(self) -> None:
        for wire in [*self.wires]:
            wire.cut()

    def _accept(self) -> Wire:
        wire = self.make(self)
        self.connected += 1
        wire.number = self.connected
        wire.on_end = self._forget
        wire.on_made = self._made
        return wire

    def _made(self, wire: Wire) -> None:
        self.wires[wire] = None
        if not self.running or self._faults.refusing:
            wire.abort()

    def _forget(self, wire: Wire) -> None:
        self.wires.pop(wire, None)
        if self._empty is not None and not self.wires:
            self._empty.set()
