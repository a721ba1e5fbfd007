"""The connections of a client: which node, and in which role.

Publishing and consuming never share a connection: to slow publishers down, the broker stops reading
from their connection, which delays everything else on it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..error import (
    ConnectTimeout,
    RbFlyError,
    RequestTimeout,
    StreamDoesNotExist,
    without_frames,
    wrong_loop,
)
from ..later import Later
from ..protocol._engine import Counters
from .connection import Attached, Connection, disconnected
from .dialer import ADDRESS_TIMEOUT, Dialer
from .locator import Locator, missing
from .moving import move
from .observer import Observer, Observers, Role, call_each
from .pool import Pool
from .retry import Backoff, Deadline, OnWait, Progress, Refusal, T, can_retry
from .uri import Address, Settings
from .waiting import IDLE_CLOSE, CloseTimeout

if TYPE_CHECKING:
    from ..protocol.commands import NodeAddress, StreamMetadata
    from . import totals as totals_module
else:  # needed once there is a publisher or a subscription
    totals_module = Later('rbfly.net.totals')


class Cluster:
    """The connections of one client: a facade over its dialer, its pool and its locator.

    :ivar loop: event loop that owns the client; None before the first connect, or after the loop
        has ended.
    :ivar registrations: registrations that are not idle.
    :ivar known: registrations that are not closed, idle ones too; refers to them weakly.
    :ivar observers: notified of the events of the client.
    :ivar counters: totals of all connections, including those that have ended.
    :ivar busy_poll: seconds to poll for each frame of messages; 0 to let the event loop sleep.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0  # of the process that owns the client
        self.closing: CloseTimeout = CloseTimeout(settings.close_timeout)
        limit = settings.close_timeout
        self.idle_closing: CloseTimeout = CloseTimeout(
            IDLE_CLOSE if limit is None else min(IDLE_CLOSE, limit)
        )
        self._ended: asyncio.Event | None = None  # while closing; set when closing has ended
        self.registrations: dict[Attached, None] = {}
        self.known: WeakSet[Any] = WeakSet()
        self._waiting: tuple[RbFlyError, float] | None = None  # the last error of a call
        self.observers: Observers = Observers()
        self.counters: Counters = Counters()
        self._totals: totals_module.Totals | None = None
        self._dialer = Dialer(settings, self.counters, [self.closing, self.idle_closing])
        self._pool = Pool(settings, self._dialer, self.observers)
        self._locator = Locator(self._pool)
        for endpoint in settings.endpoints:
            endpoint.login.use(self.observers.notify, settings.backoff, settings.connect_timeout)
        self.busy_poll: float = 0.0
        if settings.busy_poll:
            from .busy_poll import poll_limit

            self.busy_poll = poll_limit(settings.busy_poll, settings.log_prefix)

    @property
    def totals(self) -> totals_module.Totals:
        """What the client has done on each stream."""
        if self._totals is None:
            self._totals = totals_module.Totals(self.counters)
        return self._totals

    @property
    def connected(self) -> bool:
        """True if any connection is open."""
        return self._pool.connected

    @property
    def connections(self) -> list[tuple[Role, Connection]]:
        """The open connections, with their roles."""
        return self._pool.by_role

    @property
    def call_problem(self) -> RbFlyError | None:
        """Why a call that concerns no registration waits for a connection; None if none does."""
        if self._waiting is None or self.loop is None or self.connected:
            return None
        error, retry_at = self._waiting
        return error if self.loop.time() <= retry_at + ADDRESS_TIMEOUT else None

    @property
    def server_properties(self) -> dict[str, str]:
        """Properties of the node that the client last connected to."""
        return self._dialer.server_properties

    @property
    def generation(self) -> int:
        """Number of times that the cluster was closed."""
        return self._pool.generation

    @property
    def refusal(self) -> Refusal:
        """Why the broker refused the last connect for good."""
        return self._dialer.refusal

    def on_answer(self) -> None:
        """Note that a broker answers: closing may take its full time again."""
        self.closing.restore()
        self.idle_closing.restore()

    def probe(self, connection: Connection) -> None:
        """Abort an unresponsive connection if its node does not accept a new one either."""
        self._dialer.probe(connection)

    async def problem_of(self, address: Address) -> RbFlyError | None:
        """Return why a node does not accept another connection; None if it does."""
        return await self._dialer.problem_of(address)

    @property
    def is_forked(self) -> bool:
        """True in a forked child: the connections belong to its parent."""
        return self.loop is not None and self._pid != os.getpid()

    def check_loop(self) -> None:
        """Check that the caller runs in the client's event loop and process.

        After the client's event loop has ended, another one may use the client.

        :raises EventLoopError: the client's own loop is still running, or has open connections.
        """
        loop, running = self.loop, asyncio._get_running_loop()
        if loop is None or (loop is running and self._pid == os.getpid()):
            return
        if not loop.is_closed() and (loop.is_running() or (self.connected and running is not None)):
            raise wrong_loop('the client')
        if running is not None:
            self._leave_loop()

    def _leave_loop(self) -> None:
        """Forget what belongs to an event loop that has ended."""
        for registration in list(self.registrations):
            registration.on_leave_loop()
        self.loop = None
        self._dialer.leave_loop()
        self._pool.leave_loop()
        self._locator.leave_loop()

    def deadline(self, limit: float | None = None, on_wait: OnWait | None = None) -> Deadline:
        """Return the deadline of a call or an outage that begins now.

        :param limit: seconds, infinity for no limit; None for `connect_timeout` or
            `reconnect_timeout`.
        :param on_wait: see :class:`.Deadline`; None for a call that concerns no registration.
        :raises EventLoopError: the client belongs to another event loop.
        :raises StreamConnectionError: the client is being closed.
        """
        self.check_loop()
        if self._ended is not None:
            raise disconnected()
        if self.loop is None:
            self.loop, self._pid = asyncio.get_running_loop(), os.getpid()
        if limit is None:
            limit = self._dialer.limit
        where = ', '.join(map(str, self.settings.endpoints))
        limit = None if limit == inf else limit
        on_wait = on_wait or self._on_call_waiting
        return Deadline(limit, where, self.generation, self.refusal, on_wait)

    def _on_call_waiting(self, error: RbFlyError | None, retry_at: float) -> None:
        if error is not None:
            self._waiting = error, retry_at
            self.observers.notify(Observer.on_call_waiting, error, retry_at)

    async def locator(self) -> Connection:
        """Return a connection for requests that any node answers."""
        async with self.deadline() as deadline:
            return await self._locator.connection(deadline)

    async def manager(self) -> Connection:
        """Return a connection for requests that may take long."""
        async with self.deadline() as deadline:
            return await self._pool.get(Role.MANAGE, None, deadline)

    async def leader(self, stream: str) -> tuple[Connection, bool]:
        """Return a connection with a free subscription id: to the leader and true, or to any node.

        It is another node if the leader cannot be reached, or is in maintenance.

        :raises StreamDoesNotExist: there is no such stream; the error says if it is a super stream.
        """
        async with self.deadline() as deadline:
            try:
                found = await self.retry(deadline, lambda: self._locator.locate(stream, deadline))
            except StreamDoesNotExist:
                raise await missing(await self._locator.connection(deadline), stream) from None
            node = found.leader or self._replica(found)
            connection = await self._pool.get(Role.CONSUME, node, deadline)
        return connection, found.leader is not None and connection.leads_to(node)

    async def retry(
        self,
        deadline: Deadline,
        attempt: Callable[[], Awaitable[T]],
        also: type[RbFlyError] | tuple[()] = (),
    ) -> T:
        """Repeat an attempt until it succeeds, no further try helps, or the client is closed.

        :param also: class of the errors that are also retried.
        """

        def helps(error: RbFlyError) -> bool:
            wanted = isinstance(error, also) or can_retry(error, declared=False)
            return wanted and self.generation == deadline.generation

        return await Backoff(deadline, delays=self.settings.backoff).retry(attempt, helps)

    async def repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Send requests, and repeat them if their connection is lost, or the stream not available.

        The first failure begins an outage: from then on, `reconnect_timeout` limits the time until
        they are sent again, or `connect_timeout` if the client was not connected before.

        :raises RequestTimeout: the broker did not answer in time; that is no lost connection.
        """
        generation, outage, limit = self.generation, None, self._dialer.limit
        while True:
            try:
                return await attempt()
            except RbFlyError as ex:
                is_final = isinstance(ex, ConnectTimeout | RequestTimeout)
                if (
                    is_final
                    or not can_retry(ex, declared=False)
                    or (self.settings.reconnect_timeout == 0 and not ex._is_move)
                    or self.generation != generation
                ):
                    raise
                error = without_frames(ex)
            if outage is None:
                deadline = self.deadline(inf if limit is None else limit)
                outage = Backoff(deadline, delays=self.settings.backoff)
            [deadline] = outage.deadlines
            async with deadline:
                await outage.wait(error)
                await self._locator.connection(deadline)

    async def reserve(
        self, role: Role, stream: str, deadline: Deadline, declared: bool
    ) -> tuple[Connection, int]:
        """Return a connection to publish to a stream, or to consume from it, with an id to use.

        Retries to connect, but does not wait until the stream is available.

        :param declared: the publisher or subscription was declared before.
        :raises StreamDoesNotExist: there is no such stream; the error says if it is a super
            stream, unless it was declared before.
        """
        try:
            found = await self._locator.locate(stream, deadline)
        except StreamDoesNotExist:
            if declared:
                raise
            raise await missing(await self._locator.connection(deadline), stream) from None
        node = found.leader
        if node is None or (role is Role.CONSUME and found.replicas):
            node = self._replica(found)
        connection = await self._pool.get(role, node, deadline)
        return connection, connection.ids(role).pop()

    def _replica(self, found: StreamMetadata) -> NodeAddress:
        """Choose a replica, if possible one that the client can connect to."""
        from random import choice

        return choice([*filter(self._dialer.is_reachable, found.replicas)] or found.replicas)

    async def ping(self, limit: float) -> float:
        """Wait for the response to one request, on an open connection or on a new one.

        :param limit: seconds, infinity for no limit; other limits of the client have no effect.
        :returns: seconds from the request to its response.
        :raises RbFlyError: no broker answered in time, or no further try would help.
        """
        async with self.deadline(limit) as deadline:
            deadline.progress.on_error(self._dialer.last_error)
            return await self.retry(deadline, lambda: self._ping(deadline))

    async def _ping(self, deadline: Deadline) -> float:
        connection = self._pool.responsive(is_ping=True)
        if connection is None:  # connect at once: others may be backing off
            connection = await self._pool.get(Role.CONSUME, None, deadline, is_ping=True)
        deadline.follow(Progress(str(connection.address), RequestTimeout))
        deadline.progress.on_step('pinging the broker')
        return await connection.ping()

    async def reconnect(self) -> None:
        """Replace the connections that are open now, one after another."""
        self.check_loop()
        for connection in self._pool.opened:
            if connection.is_open:
                await move(connection, self.observers)

    async def close(self, *, wait: bool = True) -> None:
        """Close every connection; the cluster can be used again afterwards.

        :param wait: wait for the broker's answers.
        """
        self.check_loop()
        if self._ended is not None:  # another task closes the cluster
            if wait:
                await self._ended.wait()
            return
        self._ended = ended = asyncio.Event()
        connections = self._pool.stop()
        try:
            call_each([registration.on_disconnect for registration in list(self.registrations)])
            self.observers.notify(Observer.on_disconnect)
            self._dialer.stop()
            is_idle = all(item.is_idle for item in connections)
            limit = self.idle_closing if is_idle else self.closing
            await self._pool.close(connections, limit if wait else None)
        finally:
            self._ended = None
            ended.set()
            self._pool.abort(connections)  # if closing was cancelled
            self._dialer.forget_errors()
            self._waiting = None
