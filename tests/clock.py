"""An event loop with a virtual clock: when nothing is ready, time jumps to the next timer.

It suits tests with a scripted broker in the same loop. Client and broker are connected by a pair of
Unix sockets: written data can be read at once, so nothing is in flight when no socket is ready. TCP
on loopback does not promise this: on a busy machine, the kernel delivers later.
"""

import asyncio
import selectors
import socket
from typing import Any


class Selector(selectors.DefaultSelector):
    """Advances the clock instead of waiting.

    :ivar passed: virtual time in seconds.
    """

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:  # only another thread can wake the loop
            return super().select()
        if not found and timeout:
            self.passed += timeout
        return found


class ClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = Selector()
        self._servers: dict[tuple[str, int], tuple[asyncio.Server, Any]] = {}
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        server = await super().create_server(protocol_factory, *args, **kwargs)
        if not kwargs.get('ssl'):
            self._servers[server.sockets[0].getsockname()[:2]] = server, protocol_factory
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any
    ) -> Any:
        if (host, port) in self._servers:
            server, broker_factory = self._servers[host, port]
            if server.is_serving():
                ours, theirs = socket.socketpair()
                try:
                    await self.connect_accepted_socket(broker_factory, theirs)
                except BaseException:  # cancelled
                    ours.close()
                    raise
                return await super().create_connection(protocol_factory, sock=ours)
        return await super().create_connection(protocol_factory, host, port, **kwargs)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()  # its threads use the real clock
