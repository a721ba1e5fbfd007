"""The connections of a client to each node, in each role; they close when nothing uses them."""

from __future__ import annotations

import asyncio
import functools
import warnings
import weakref
from collections.abc import Sequence
from math import inf

from ..error import StreamConnectionError
from ..protocol.commands import NodeAddress
from .connection import Connection, disconnected
from .dialer import Dialer
from .observer import Observers, Role, call_each
from .retry import Deadline, Progress
from .single_flight import SharedConnect
from .uri import Settings
from .waiting import CloseTimeout

UNUSED = 60.0  # seconds until an unused connection is closed


class Pool:
    """The connections of one client: one for each node and role, more when its ids run out.

    :param observers: notified of connections that open and end.
    :ivar generation: number of times that the pool was closed.
    """

    def __init__(self, settings: Settings, dialer: Dialer, observers: Observers) -> None:
        self.generation: int = 0
        self._settings = settings
        self._dialer = dialer
        self._observers = observers
        self._connections: dict[Role, list[Connection]] = {role: [] for role in Role}
        self._connects: dict[object, SharedConnect] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unused: dict[Connection, int] = {}  # number of requests sent when last checked
        self._sweepings: dict[Connection, asyncio.Task[None]] = {}  # that were unused

    def __del__(self) -> None:
        left = [item for item in self._all() if item.is_open]
        if left:
            for connection in left:
                connection.abort_soon()
            where = ', '.join(str(info) for info in self._settings.endpoints)
            text = f'unclosed client of {where}: use `async with`, or await `close`'
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _all(self) -> list[Connection]:
        return [item for group in self._connections.values() for item in group]

    @property
    def connected(self) -> bool:
        """True if any connection is open."""
        return any(self._open(role) for role in Role)

    @property
    def opened(self) -> list[Connection]:
        """All open connections."""
        return [item for role in Role for item in self._open(role)]

    def responsive(self, is_ping: bool = False) -> Connection | None:
        """Return an open connection that answers requests without delay, if there is one.

        :param is_ping: it may also be one that publishes.
        """
        for connection in self._open(Role.CONSUME):
            return connection
        for connection in self._open(Role.MANAGE):
            if connection.is_unused:
                return connection
        if is_ping:
            for connection in self._open(Role.PUBLISH):
                if not connection.has_unconfirmed:
                    return connection
        return None

    async def get(
        self, role: Role, node: NodeAddress | None, deadline: Deadline, is_ping: bool = False
    ) -> Connection:
        """Return a connection with a free id: to a node, if it is reachable; None for any node.

        :param is_ping: share a connect with other pings only; it may outlive them.
        """
        key = 'ping' if is_ping else (role, node)
        while True:
            if deadline.generation != self.generation:
                raise disconnected()
            found = self.find(role, node)
            if found is None and node is not None and not self._dialer.is_reachable(node):
                found = self.find(role, None)
            if found is not None:
                return found
            shared = self._connects.get(key)
            if shared is None or shared.task.done():
                attempt = functools.partial(self._connect, role, node, is_ping)
                shared = SharedConnect(attempt, self._settings.backoff, linger=is_ping)
                self._connects[key] = shared
                shared.task.add_done_callback(functools.partial(self._forget, key))
            found = await shared.join(deadline)
            if (
                found is not None
                and found.is_open
                and found.ids(role)
                and deadline.generation == self.generation
            ):
                return found

    def _forget(self, key: object, task: asyncio.Task[Connection]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved: no task may wait for it
        if key in self._connects and self._connects[key].task is task:
            del self._connects[key]

    def find(self, role: Role, node: NodeAddress | None) -> Connection | None:
        """Return an open connection with a free id: to a node, or to any node for None."""
        for connection in self._open(role):
            if connection.ids(role) and (node is None or connection.leads_to(node)):
                return connection
        return None

    def _open(self, role: Role) -> list[Connection]:
        group = self._connections[role]
        for connection in [item for item in group if not item.is_open]:
            group.remove(connection)
            self._dialer.on_end(connection.error)
        return group

    async def _connect(
        self,
        role: Role,
        node: NodeAddress | None,
        is_ping: bool,
        progress: Progress,
        waiting: Sequence[Deadline],
    ) -> Connection:
        """Try each address once.

        :param is_ping: if a try has failed, the next one may take as long as `connect_timeout`.
        :param waiting: deadlines; all addresses are tried within the shortest.
        :raises StreamConnectionError: `progress.error`; another try may succeed if it is retriable.
        :raises RbFlyError: no further try would help.
        """
        own, others = self._dialer.routes(node)
        shortest = min((item.limit for item in waiting if item.limit is not None), default=inf)
        if is_ping and self._dialer.have_failed(own):
            shortest = self._settings.connect_timeout or inf  # pings may be shorter than handshakes
        limit = shortest / len(own + others)
        progress.on_routes(own + others)
        for info in own:
            connection = await self._dialer.dial(info, limit, progress)
            if connection is None:
                continue
            if node is None or connection.leads_to(node):
                return self._keep(role, connection)
            if self._settings.load_balancer:
                reached = connection.advertised
                self._dialer.on_failed(info)
                await connection.close()
                raise StreamConnectionError(f'{progress.where}: reached {reached}, not {node}')
            # Another node has that address now; one connection to that node is enough.
            if self.find(role, connection.advertised):
                await connection.close()
            else:
                self._keep(role, connection)
        if node is not None and not self._settings.load_balancer:
            self._dialer.avoid(node)
            if found := self.find(role, None):
                return found
        for info in others:
            if connection := await self._dialer.dial(info, limit, progress):
                return self._keep(role, connection)
        assert progress.error is not None
        raise progress.error

    def _keep(self, role: Role, connection: Connection) -> Connection:
        self._open(role).append(connection)
        connection.use(role, self._observers)
        for shared in self._connects.values():
            shared.wake()  # a broker answers again
        if self._timer is None:
            self._sweep_later()
        return connection

    # -- closing

    def stop(self) -> list[Connection]:
        """End all connects, and return the connections that `close` has to close."""
        self.generation += 1
        for shared in list(self._connects.values()):
            shared.task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unused.clear()
        return [*self._all(), *self._sweepings]

    async def close(self, connections: Sequence[Connection], timeout: CloseTimeout | None) -> None:
        """Close connections.

        :param timeout: limits the wait for the broker's answers; None not to wait.
        """
        if timeout is not None:
            try:
                async with timeout.limit():
                    await asyncio.gather(*(item.close(None) for item in connections))
            except TimeoutError:
                pass
        await asyncio.gather(*(item.close(0) for item in connections))

    def abort(self, connections: Sequence[Connection]) -> None:
        """Abort connections that `close` has left open, and forget them."""
        call_each([item.abort for item in connections])
        for role in Role:
            self._open(role)  # removes closed connections

    def leave_loop(self) -> None:
        """Forget what belongs to an event loop that has ended."""
        self._timer = None
        self._connects.clear()
        self._unused.clear()
        self._sweepings.clear()
        for connection in self._all():
            connection.abort()
        for group in self._connections.values():
            group.clear()

    def _sweep_later(self) -> None:
        # The timer must not keep the client alive.
        self._timer = asyncio.get_running_loop().call_later(UNUSED, sweep, weakref.ref(self))

    def _sweep(self) -> None:
        """Close connections that were unused since the last sweep, but keep at least one."""
        self._timer = None
        opened = self.opened
        before = self._unused
        self._unused = {item: item.requests_sent for item in opened if item.is_unused}
        idle = [item for item, requests in self._unused.items() if before.get(item) == requests]
        if len(idle) == len(opened):
            del idle[:1]
        for group in self._connections.values():
            group[:] = [item for item in group if item not in idle]
        for connection in idle:
            self._sweepings[connection] = task = asyncio.ensure_future(connection.close())
            forget = functools.partial(self._sweepings.pop, connection)
            task.add_done_callback(forget)  # which must not keep the client alive
        if len(opened) - len(idle) > 1:
            self._sweep_later()


def sweep(reference: weakref.ref[Pool]) -> None:
    pool = reference()
    if pool is not None:
        pool._sweep()
