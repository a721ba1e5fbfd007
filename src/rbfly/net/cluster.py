"""The connections of a client: which node, and in which role.

Publishing and consuming never share a connection: to slow publishers down, the broker stops reading
from their connection, which delays everything else on it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import warnings
import weakref
from collections.abc import Awaitable, Callable, Sequence
from math import inf

from ..error import (
    ConnectTimeout,
    FrameError,
    ProtocolError,
    RbFlyError,
    RequestTimeout,
    StreamConnectionError,
    StreamDoesNotExist,
    TLSError,
    protocol_error,
    without_frames,
    wrong_loop,
)
from ..protocol._engine import Counters
from ..protocol.commands import Broker, StreamMetadata
from ..protocol.const import Key, ResponseCode
from ..record import replace
from .connection import Attached, Connection, disconnected
from .handshake import connect
from .observer import Observer, Observers, Role, call_each
from .polling import poll_limit
from .resolving import Recent, Resolver
from .retry import Backoff, Deadline, Progress, Refusal, T, can_retry, is_cut
from .sharing import MetadataBatch, SharedConnect, existing, missing
from .uri import ConnectionInfo, Settings, at
from .waiting import IDLE_CLOSE, CloseTimeout

ADDRESS_TIMEOUT = 10.0  # seconds for one address
UNREACHABLE = 10.0  # seconds to avoid a node after a failed connect, if another node will do
MISMATCHES = 62, 64  # OpenSSL: the certificate is for another host name, or IP address
UNUSED = 60.0  # seconds until an unused connection is closed


class Cluster:
    """The connections of one client: one for each node and role, more when its ids run out.

    :ivar loop: event loop that owns the client; None before the first connect, or after the loop
        has ended.
    :ivar generation: number of times that the cluster was closed.
    :ivar registrations: registrations that are not idle.
    :ivar observers: notified of the events of the client.
    :ivar counters: totals of all connections, including those that have ended.
    :ivar refusal: why the broker refused the last connect for good.
    :ivar busy_poll: seconds to poll for each frame of messages; 0 to let the event loop sleep.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0  # of the process that owns the client
        self._connections: dict[Role, list[Connection]] = {role: [] for role in Role}
        self._connects: dict[object, SharedConnect] = {}
        self._metadata: dict[Connection, MetadataBatch] = {}
        self._probes: dict[Connection, asyncio.Task[None]] = {}
        self._resolver = Resolver()
        self._reached = Recent[Broker, ConnectionInfo]()
        self._unreachable = Recent[Broker, float]()  # time until which to avoid the node
        self._failed = Recent[ConnectionInfo, float]()  # time of the last failure
        self._established = False
        self._last_error: StreamConnectionError | None = None  # of any connection
        self._timer: asyncio.TimerHandle | None = None
        self._unused: dict[Connection, int] = {}  # number of requests sent when last checked
        self._sweepings: dict[Connection, asyncio.Task[None]] = {}  # that were unused
        self.generation: int = 0
        self.closing: CloseTimeout = CloseTimeout(settings.close_timeout)
        limit = settings.close_timeout
        self.idle_closing: CloseTimeout = CloseTimeout(
            IDLE_CLOSE if limit is None else min(IDLE_CLOSE, limit)
        )
        self._ended: asyncio.Event | None = None  # while closing; set when closing has ended
        self.registrations: dict[Attached, None] = {}
        self.observers: Observers = Observers()
        self.counters: Counters = Counters()
        self.refusal: Refusal = Refusal()
        self.busy_poll: float = poll_limit(settings.busy_poll or 0.0, settings.log_prefix)

    def __del__(self) -> None:
        left = [item for group in self._connections.values() for item in group if item.is_open]
        if left:
            for connection in left:
                connection.abort_soon()
            where = ', '.join(str(info) for info in self.settings.infos)
            text = f'unclosed client of {where}: use `async with`, or await `close`'
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    @property
    def connected(self) -> bool:
        """True if any connection is open."""
        return any(self._open(role) for role in Role)

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
        self._timer = None
        self._connects.clear()
        self._metadata.clear()
        self._probes.clear()
        self._unused.clear()
        self._sweepings.clear()
        for group in self._connections.values():
            for connection in group:
                connection.abort()
            group.clear()

    @property
    def _connect_limit(self) -> float | None:
        """Seconds to connect: `connect_timeout`, later `reconnect_timeout` unless that is 0."""
        settings = self.settings
        if self._established and settings.reconnect_timeout != 0:
            return settings.reconnect_timeout
        return settings.connect_timeout

    def deadline(self, limit: float | None = None) -> Deadline:
        """Return the deadline of a call or an outage that begins now.

        :param limit: seconds, infinity for no limit; None for `connect_timeout` or
            `reconnect_timeout`.
        :raises EventLoopError: the client belongs to another event loop.
        :raises StreamConnectionError: the client is being closed.
        """
        self.check_loop()
        if self._ended is not None:
            raise disconnected()
        if self.loop is None:
            self.loop, self._pid = asyncio.get_running_loop(), os.getpid()
        if limit is None:
            limit = self._connect_limit
        where = ', '.join(map(str, self.settings.infos))
        limit = None if limit == inf else limit
        deadline = Deadline(limit, where, self.generation, self.refusal)
        deadline.on_wait = self._on_call_waiting  # unless it is that of a registration
        return deadline

    def _on_call_waiting(self, error: RbFlyError | None, retry_at: float) -> None:
        if error is not None:
            self.observers.notify(Observer.on_call_waiting, error, retry_at)

    async def locator(self) -> Connection:
        """Return a connection for requests that any node answers."""
        async with self.deadline() as deadline:
            return await self._locator(deadline)

    async def manager(self) -> Connection:
        """Return a connection for requests that may take long."""
        async with self.deadline() as deadline:
            return await self._get(Role.MANAGE, None, deadline)

    async def leader(self, stream: str) -> tuple[Connection, bool]:
        """Return a connection with a free subscription id: to the leader and true, or to any node.

        :raises StreamDoesNotExist: there is no such stream; the error says if it is a super stream.
        """
        async with self.deadline() as deadline:
            try:
                found = await self.retry(deadline, lambda: self._locate(stream, deadline))
            except StreamDoesNotExist:
                raise await missing(await self._locator(deadline), stream) from None
            assert found.leader is not None
            connection = await self._get(Role.CONSUME, found.leader, deadline)
        return connection, connection.leads_to(found.leader)

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

        return await Backoff(deadline).retry(attempt, helps)

    async def repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Send requests, and repeat them if their connection is lost, or the stream not available.

        The first failure begins an outage: from then on, `reconnect_timeout` limits the time until
        they are sent again, or `connect_timeout` if the client was not connected before.

        :raises RequestTimeout: the broker did not answer in time; that is no lost connection.
        """
        generation, outage, limit = self.generation, None, self._connect_limit
        while True:
            try:
                return await attempt()
            except RbFlyError as ex:
                is_final = isinstance(ex, ConnectTimeout | RequestTimeout)
                if (
                    is_final
                    or not can_retry(ex, declared=False)
                    or self.settings.reconnect_timeout == 0
                    or self.generation != generation
                ):
                    raise
                error = without_frames(ex)
            if outage is None:
                outage = Backoff(self.deadline(inf if limit is None else limit))
            [deadline] = outage.deadlines
            async with deadline:
                await outage.wait(error)
                await self._locator(deadline)

    async def member(
        self, role: Role, stream: str, deadline: Deadline, declared: bool
    ) -> tuple[Connection, int]:
        """Return a connection to publish to a stream, or to consume from it, with an id to use.

        Retries to connect, but does not wait until the stream is available.

        :param declared: the publisher or subscription was declared before.
        :raises StreamDoesNotExist: there is no such stream; the error says if it is a super
            stream, unless it was declared before.
        """
        try:
            found = await self._locate(stream, deadline)
        except StreamDoesNotExist:
            if declared:
                raise
            raise await missing(await self._locator(deadline), stream) from None
        assert found.leader is not None
        node = found.leader
        if role is Role.CONSUME and found.replicas:
            from random import choice

            node = choice([*filter(self._is_reachable, found.replicas)] or found.replicas)
        connection = await self._get(role, node, deadline)
        return connection, connection.ids(role).pop()

    async def _locator(self, deadline: Deadline) -> Connection:
        return self._responsive() or await self._get(Role.CONSUME, None, deadline)

    def _responsive(self) -> Connection | None:
        """Return an open connection that answers requests without delay, if there is one."""
        for connection in self._open(Role.CONSUME):
            return connection
        for connection in self._open(Role.MANAGE):
            if connection.is_unused:
                return connection
        return None

    async def ping(self, limit: float) -> float:
        """Wait for the response to one request, on an open connection or on a new one.

        :param limit: seconds, infinity for no limit; other limits of the client have no effect.
        :returns: seconds from the request to its response.
        :raises RbFlyError: no broker answered in time, or no further try would help.
        """
        async with self.deadline(limit) as deadline:
            deadline.progress.error = self._last_error
            return await self.retry(deadline, lambda: self._ping(deadline))

    async def _ping(self, deadline: Deadline) -> float:
        idle = (item for item in self._open(Role.PUBLISH) if not item.has_unconfirmed)
        connection = self._responsive() or next(idle, None)
        if connection is None:  # connect at once: others may be backing off
            connection = await self._get(Role.CONSUME, None, deadline, is_ping=True)
        deadline.progress = Progress(str(connection.address), RequestTimeout)
        deadline.progress.on_step('pinging the broker')
        return await connection.ping()

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
        connections = [item for group in self._connections.values() for item in group]
        connections += self._sweepings
        try:
            self.generation += 1
            call_each([registration.on_disconnect for registration in list(self.registrations)])
            self.observers.notify(Observer.on_disconnect)
            for shared in list(self._connects.values()):
                shared.task.cancel()
            for probe in self._probes.values():
                probe.cancel()
            self._established = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._unused.clear()
            if wait:
                is_idle = all(item.is_idle for item in connections)
                try:
                    async with (self.idle_closing if is_idle else self.closing).limit():
                        await asyncio.gather(*(item.close(None) for item in connections))
                except TimeoutError:
                    pass
            await asyncio.gather(*(item.close(0) for item in connections))
        finally:
            self._ended = None
            ended.set()
            call_each([item.abort for item in connections])  # if closing was cancelled
            for role in Role:
                self._open(role)  # removes closed connections
            self._last_error = self.refusal.error = None

    # -- nodes

    async def _locate(self, stream: str, deadline: Deadline) -> StreamMetadata:
        locator = await self._locator(deadline)
        deadline.progress.on_step(f'asking where stream {stream!r} is')
        batch = self._metadata.get(locator)
        while batch is None or not batch.add(stream):
            batch = MetadataBatch(locator, lambda: self._metadata.pop(locator, None))
            self._metadata[locator] = batch
        found = existing(await batch.ask(stream), stream)
        if found.leader is None:
            problem = f'stream {stream!r} has no leader'
            code = ResponseCode.STREAM_NOT_AVAILABLE
            raise protocol_error(code, problem, command=Key.METADATA)
        return found

    def _is_reachable(self, node: Broker) -> bool:
        return self._unreachable.get(node, 0.0) <= asyncio.get_running_loop().time()

    def _open(self, role: Role) -> list[Connection]:
        group = self._connections[role]
        for connection in [item for item in group if not item.is_open]:
            group.remove(connection)
            self._last_error = connection.error or self._last_error
        return group

    def _find(self, role: Role, node: Broker | None) -> Connection | None:
        """Return an open connection with a free id: to a node, or to any node for None."""
        for connection in self._open(role):
            if connection.ids(role) and (node is None or connection.leads_to(node)):
                return connection
        return None

    async def _get(
        self, role: Role, node: Broker | None, deadline: Deadline, is_ping: bool = False
    ) -> Connection:
        """Return a connection with a free id: to a node, if it is reachable; None for any node.

        :param is_ping: share a connect with other pings only; it may outlive them.
        """
        key = 'ping' if is_ping else (role, node)
        while True:
            if deadline.generation != self.generation:
                raise disconnected()
            found = self._find(role, node)
            if found is None and node is not None and not self._is_reachable(node):
                found = self._find(role, None)
            if found is not None:
                return found
            shared = self._connects.get(key)
            if shared is None or shared.task.done():
                attempt = functools.partial(self._connect, role, node, is_ping)
                shared = SharedConnect(attempt, linger=is_ping)
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

    # -- connecting

    async def _connect(
        self,
        role: Role,
        node: Broker | None,
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
        own, others = self._routes(node)
        shortest = min((item.limit for item in waiting if item.limit is not None), default=inf)
        if is_ping and not self._failed.keys().isdisjoint(own):
            shortest = self.settings.connect_timeout or inf  # pings may be shorter than handshakes
        limit = shortest / len(own + others)
        progress.where = ', '.join(map(str, own + others))
        for info in own:
            connection = await self._dial(info, limit, progress)
            if connection is None:
                continue
            if node is None or connection.leads_to(node):
                return self._keep(role, connection)
            if self.settings.load_balancer:
                reached = connection.advertised
                self._failed[info] = asyncio.get_running_loop().time()
                await connection.close()
                raise StreamConnectionError(f'{progress.where}: reached {reached}, not {node}')
            # Another node has that address now; one connection to that node is enough.
            if self._find(role, connection.advertised):
                await connection.close()
            else:
                self._keep(role, connection)
        if node is not None and not self.settings.load_balancer:
            self._unreachable[node] = asyncio.get_running_loop().time() + UNREACHABLE
            if found := self._find(role, None):
                return found
        for info in others:
            if connection := await self._dial(info, limit, progress):
                return self._keep(role, connection)
        assert progress.error is not None
        raise progress.error

    def _routes(self, node: Broker | None) -> tuple[list[ConnectionInfo], list[ConnectionInfo]]:
        """Return the addresses of a node, and those that may lead to other nodes.

        First comes the address that led to the node before, then its advertised address.  Behind
        NAT or a proxy, both may be unreachable; the addresses in the URIs lead to some node.
        """
        # Addresses that have failed come last, so that they do not delay the next connect.
        infos = dict.fromkeys(self.settings.infos)
        known = sorted(infos, key=lambda info: self._failed.get(info, 0.0))
        if node is None or self.settings.load_balancer:
            return known, []
        advertised = at(node, known)
        own = list(dict.fromkeys([self._reached.get(node, advertised), advertised]))
        return own, [info for info in known if info not in own]

    def _keep(self, role: Role, connection: Connection) -> Connection:
        self._open(role).append(connection)
        connection.use(role, self.observers)
        for shared in self._connects.values():
            shared.wake()  # a broker answers again
        if self._timer is None:
            self._sweep_later()
        return connection

    async def _dial(
        self, info: ConnectionInfo, limit: float, progress: Progress
    ) -> Connection | None:
        """Connect to an address of a host; each one has its share of the time.

        If all fail, and another try may succeed, set `progress.error` and return None.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        try:
            progress.on_step('resolving the host name')
            async with asyncio.timeout(first := min(ADDRESS_TIMEOUT, limit)):
                hosts = await self._resolver.resolve(info.host, info.port, limit)
        except TimeoutError:
            self._on_timeout(info, first, progress)
            hosts = []
        except (OSError, ValueError, OverflowError) as ex:
            error = StreamConnectionError(f'{info}: {ex}')
            error.__cause__ = ex
            self._on_failure(error, progress)
            hosts = []
        for index, host in enumerate(hosts):
            left = max(0.0, end - loop.time())
            share = min(ADDRESS_TIMEOUT, left / (len(hosts) - index))
            self._resolver.on_try(host, info.port)
            if connection := await self._dial_host(info, host, share, progress):
                return connection
        if hosts:
            self._resolver.on_try(hosts[0], info.port)  # the next attempt begins with another one
        self._failed[info] = loop.time()
        return None

    async def _dial_host(
        self, info: ConnectionInfo, host: str, limit: float, progress: Progress
    ) -> Connection | None:
        """Connect to an IP address; if that fails, do as :meth:`_dial`."""
        try:
            async with asyncio.timeout(limit):
                connection = await connect(
                    info, host, self.settings, progress.on_step, self.counters
                )
        except TimeoutError:
            self._on_timeout(info, limit, progress)
            return None
        except ProtocolError as ex:
            self.refusal.set(ex, progress.step)
            raise  # no retry helps
        except FrameError:
            self.refusal.error = None
            raise  # no retry helps
        except StreamConnectionError as ex:
            if is_cut(ex):
                ex.retriable = self._established  # else it may be the wrong port
            elif isinstance(ex, TLSError):
                self.refusal.error = None
                if info not in self.settings.infos:
                    explain_mismatch(ex)
                raise
            self._on_failure(ex, progress)
            return None
        progress.error = self._last_error = self.refusal.error = None
        self._established = True
        self.closing.left = self.idle_closing.left = None
        self._failed.pop(info, None)
        if not self.settings.load_balancer:  # else the next attempt is to reach another node
            self._resolver.on_success(host, info.port)
        if connection.advertised is not None:
            self._reached[connection.advertised] = info
            self._unreachable.pop(connection.advertised, None)
        return connection

    def _on_timeout(self, info: ConnectionInfo, limit: float, progress: Progress) -> None:
        text = f'{info}: no answer within {limit:.3g} s, while {progress.step}'
        progress.error = self._last_error = ConnectTimeout(text)
        self.refusal.on_timeout(progress.step)

    def _on_failure(self, error: StreamConnectionError, progress: Progress) -> None:
        progress.error = self._last_error = without_frames(error)
        self.refusal.error = None

    def probe(self, connection: Connection) -> None:
        """Abort an unresponsive connection if its node does not accept a new one either."""
        if connection.is_open and connection not in self._probes:
            probe = asyncio.get_running_loop().create_task(self._probe(connection))
            self._probes[connection] = probe
            probe.add_done_callback(lambda _: self._probes.pop(connection, None))

    async def _probe(self, connection: Connection) -> None:
        progress = Progress(str(connection.address))
        address = connection.address
        info = replace(at(address, self.settings.infos), ssl=address.ssl)
        try:
            found = await self._dial(info, ADDRESS_TIMEOUT, progress)
        except RbFlyError:
            return  # the node answers
        if found is not None:
            await found.close(0)
        elif connection.is_open:
            connection.abort(StreamConnectionError(f'the node does not respond: {progress.error}'))

    # -- unused connections

    def _sweep_later(self) -> None:
        # The timer must not keep the client alive.
        self._timer = asyncio.get_running_loop().call_later(UNUSED, sweep, weakref.ref(self))

    def _sweep(self) -> None:
        """Close connections that were unused since the last sweep, but keep at least one."""
        self._timer = None
        opened = [item for role in Role for item in self._open(role)]
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


def explain_mismatch(error: TLSError) -> None:
    """Say what to do if a certificate does not have the name that the broker advertises."""
    if getattr(error.__cause__, 'verify_code', None) in MISMATCHES:
        error.args = (
            f'{error}; the broker advertises this address: pass load_balancer=True to use only the'
            ' addresses of the URIs, or configure the advertised host of the broker',
        )


def sweep(reference: weakref.ref[Cluster]) -> None:
    cluster = reference()
    if cluster is not None:
        cluster._sweep()
