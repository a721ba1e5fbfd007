"""IO room: which node to connect to, in which role, and when to try again.

Publishing and consuming never share a connection: the broker's flow control for publishers stops
reading, and everything else on that connection with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from . import commands
from .closing import Closing
from .commands import Broker, StreamMetadata, Tune
from .connection import Connection, call_each, disconnected
from .const import ResponseCode
from .error import (
    ConnectTimeout,
    EventLoopError,
    FrameError,
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
    TLSError,
    protocol_error,
)
from .uri import AuthMechanism, ConnectionInfo

__all__ = ['Patience', 'Role', 'Settings', 'Topology', 'backoff']

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.1  # seconds
BACKOFF_LAST = 30.0
ADDRESS_TIMEOUT = 10.0  # for one address


class Role(Enum):
    """What a connection is for; requests that belong to no stream use `CONSUME`."""

    PUBLISH = 'publish'
    CONSUME = 'consume'


@dataclass(frozen=True)
class Settings:
    """How to connect.

    :param infos: addresses, tried in turn.
    :param connect_timeout: seconds until the first connect gives up; None for never.
    :param reconnect_timeout: the same for a client that was connected before.
    :param load_balancer: the addresses lead to any node: none is dialled at its advertised address,
        connecting is repeated until it reaches the wanted one.
    :param request_timeout: seconds for the broker to answer a request; None or 0 for no limit.
    :param close_timeout: seconds that closing may take; None or 0 for no limit.
    """

    infos: Sequence[ConnectionInfo]
    auth_mechanism: AuthMechanism = AuthMechanism.PLAIN
    connection_name: str = ''
    connect_timeout: float | None = 30.0
    reconnect_timeout: float | None = None
    tune: Tune = Tune(0, 60)  # noqa: RUF009 - immutable
    load_balancer: bool = False
    request_timeout: float | None = 10.0
    close_timeout: float | None = 10.0


def backoff() -> Iterator[float]:
    """Seconds to wait before each next try: exponential, with jitter, from 0.1 to 30."""
    delay = BACKOFF_FIRST
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(2 * delay, BACKOFF_LAST)


class Patience:
    """Waits between tries, until the limit of a topology is over or it is closed."""

    def __init__(self, topology: Topology) -> None:
        limit = topology.limit
        self._topology = topology
        self._generation = topology.generation
        self._loop = asyncio.get_running_loop()
        self._deadline = None if limit is None else self._loop.time() + limit
        self._delays = backoff()

    async def wait(self, error: Exception) -> None:
        """Wait before the next try; raises the error if there is no time for one."""
        delay = next(self._delays)
        self._check()
        if self._deadline is not None and self._loop.time() + delay > self._deadline:
            raise error
        logger.warning('%s; trying again in %.1f s', error, delay)
        await asyncio.sleep(delay)
        self._check()

    def _check(self) -> None:
        if self._topology.generation != self._generation:
            raise StreamConnectionError('the client was disconnected meanwhile')


class WrongNodeError(StreamConnectionError):
    """A load balancer has led to another node."""


class Attempt:
    """How far connecting has come, for the error where it ends."""

    def __init__(self, infos: list[ConnectionInfo], limit: float | None) -> None:
        self.infos = infos
        # An address that does not answer leaves time for the others, and for the next round.
        self.address_timeout = min(
            ADDRESS_TIMEOUT, limit / len(infos) if limit else ADDRESS_TIMEOUT
        )
        self.step = 'waiting for another attempt'
        self.error: StreamConnectionError | None = None

    def __str__(self) -> str:
        return ', '.join(str(info) for info in self.infos)

    def on_step(self, step: str) -> None:
        self.step = step


class Topology:
    """The connections of one client: one per node and role, more where its ids run out.

    :ivar generation: how often it was closed; what belongs to an earlier one does not reconnect.
    :ivar on_close: told when it is closed; for what is without connection at that time.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._connections: dict[Role, list[Connection]] = {role: [] for role in Role}
        self._locks: dict[tuple[Role, Broker | None], asyncio.Lock] = {}
        self._reached: dict[Broker, ConnectionInfo] = {}
        self._established = False
        self.generation = 0
        self.closing = Closing(settings.close_timeout, self._connections)
        self._ended: asyncio.Event | None = None  # of the task that closes it
        self.on_close: dict[object, Callable[[], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __del__(self) -> None:
        left = [item for group in self._connections.values() for item in group if item.is_open]
        if left:
            for connection in left:
                connection.abort_soon()
            text = 'unclosed client of ' + ', '.join(str(info) for info in self.settings.infos)
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    @property
    def connected(self) -> bool:
        """True if any connection is open."""
        return any(self._open(role) for role in Role)

    def check_loop(self) -> None:
        """Check that nobody else uses it: another event loop may, when that has ended.

        :raises EventLoopError: another one runs, or has connections open.
        """
        loop = self._loop
        if loop is None or loop is asyncio._get_running_loop() or loop.is_closed():
            return
        if loop.is_running() or self.connected:
            raise EventLoopError('the client belongs to another event loop, which is not closed')

    def _check_use(self) -> None:
        self.check_loop()
        if self._ended is not None:  # it is being closed
            raise disconnected()

    async def locator(self) -> Connection:
        """A connection for requests that any node answers."""
        self._check_use()
        for connection in self._open(Role.CONSUME):
            if self._loop is asyncio.get_running_loop():
                return connection
        return await self._get(Role.CONSUME, None)

    async def publishing(self, stream: str) -> Connection:
        """A connection with a free publisher id to the leader of a stream.

        :raises StreamDoesNotExist: there is no such stream.
        """
        self._check_use()
        return await self._to_member(Role.PUBLISH, stream)

    async def consuming(self, stream: str) -> Connection:
        """A connection with a free subscription id to a replica of a stream, or its leader.

        :raises StreamDoesNotExist: there is no such stream.
        """
        self._check_use()
        return await self._to_member(Role.CONSUME, stream)

    async def _to_member(self, role: Role, stream: str) -> Connection:
        patience = Patience(self)
        while True:
            found = await self._locate(stream)
            assert found.leader is not None
            node = found.leader
            if role is Role.CONSUME and found.replicas:
                node = random.choice(found.replicas)
            try:
                connection = await self._get(role, node)
                if connection.error is None:
                    return connection
                error = StreamConnectionError(str(connection.error))
            except WrongNodeError as ex:
                error = ex
            await patience.wait(error)  # and ask again: the wanted node may have gone

    async def close(self, *, wait: bool = True) -> None:
        """Close every connection; the topology can be used again afterwards.

        :param wait: for the broker's answers.
        """
        self.check_loop()
        if self._ended is not None:  # another task is about it
            if wait:
                await self._ended.wait()
            return
        self._ended = ended = asyncio.Event()
        connections = [item for group in self._connections.values() for item in group]
        try:
            self.generation += 1
            call_each(asyncio.get_running_loop(), self.on_close)
            self._established = False
            if wait:
                try:
                    async with self.closing.limit():
                        await asyncio.gather(*(item.close(None) for item in connections))
                except TimeoutError:
                    pass
            await asyncio.gather(*(item.close(0) for item in connections))
        finally:
            for item in connections:
                item.abort(disconnected())  # if this was cancelled before they closed
            for role in Role:
                self._open(role)  # forgets them
            self._ended = None
            ended.set()

    # -- nodes

    @property
    def limit(self) -> float | None:
        """Seconds to try for; None for no limit."""
        settings = self.settings
        limit = settings.reconnect_timeout if self._established else settings.connect_timeout
        return limit or None

    async def _locate(self, stream: str) -> StreamMetadata:
        patience = Patience(self)
        while True:
            locator = await self.locator()
            try:
                metadata = await locator.request(commands.Metadata((stream,)))
            except StreamConnectionError as ex:
                if isinstance(ex, FrameError):
                    raise
                await patience.wait(ex)
                continue
            found = metadata.get(stream)
            if found is None or found.code == ResponseCode.STREAM_DOES_NOT_EXIST:
                raise StreamDoesNotExist(stream)
            if found.code not in (ResponseCode.OK, ResponseCode.STREAM_NOT_AVAILABLE):
                raise protocol_error(found.code, stream=stream)
            if found.leader is not None:
                return found
            problem = f'stream {stream!r} has no leader'
            await patience.wait(ProtocolError(ResponseCode.STREAM_NOT_AVAILABLE, problem))

    def _open(self, role: Role) -> list[Connection]:
        group = self._connections[role]
        group[:] = [item for item in group if item.is_open]
        return group

    async def _get(self, role: Role, node: Broker | None) -> Connection:
        """A connection with a free id in a role: to a node, or to any for None."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the connections and locks of another one are of no use
            self._loop = loop
            self._locks.clear()
            for group in self._connections.values():
                group.clear()
        limit = self.limit
        attempt = Attempt(self._infos(node), limit)
        lock = self._locks.setdefault((role, node), asyncio.Lock())
        try:
            # The limit covers waiting for another task that is connecting.
            async with asyncio.timeout(limit), lock:
                for connection in self._open(role):
                    if node is not None and node not in (connection.advertised, connection.node):
                        continue
                    ids = connection.publisher_ids
                    if role is Role.CONSUME:
                        ids = connection.subscription_ids
                    if ids:
                        return connection
                generation = self.generation
                connection = await self._connect(attempt)
                if generation != self.generation:
                    await connection.close()
                    raise StreamConnectionError('the client was disconnected meanwhile')
                found = connection.advertised
                if self.settings.load_balancer and node is not None and found not in (None, node):
                    await connection.close()
                    raise WrongNodeError(f'{attempt}: reached {found}, not {node}')
                connection.node = node
                self._open(role).append(connection)
                return connection
        except TimeoutError:
            if attempt.error is None or isinstance(attempt.error, ConnectTimeout):
                raise ConnectTimeout(
                    f'{attempt}: no answer within {limit} s, while {attempt.step}'
                ) from None
            raise StreamConnectionError(f'{attempt.error} (gave up after {limit} s)') from (
                attempt.error
            )

    # -- connecting

    def _infos(self, node: Broker | None) -> list[ConnectionInfo]:
        infos = list(self.settings.infos)
        if node is None or self.settings.load_balancer:
            return infos
        # The address that reached it before, which may be a URI; or the advertised one.  That may
        # not be reachable, through NAT or a proxy: then the URIs, which reach some node.
        first = self._reached.get(node) or replace(infos[0], host=node.host, port=node.port)
        return [first, *(info for info in infos if info != first)]

    async def _connect(self, attempt: Attempt) -> Connection:
        settings = self.settings
        for delay in backoff():
            for info in attempt.infos:
                try:
                    async with asyncio.timeout(attempt.address_timeout):
                        connection = await Connection.open(
                            info,
                            settings.auth_mechanism,
                            settings.connection_name,
                            settings.tune,
                            attempt.on_step,
                            settings.request_timeout,
                        )
                except TimeoutError:
                    attempt.error = ConnectTimeout(
                        f'{info}: no answer within {attempt.address_timeout:.3g} s,'
                        f' while {attempt.step}'
                    )
                except (ProtocolError, FrameError):
                    raise  # no retry can mend these
                except StreamConnectionError as ex:
                    # Nor TLS; but a proxy may take a connection while the node behind it is away.
                    if isinstance(ex, TLSError) and not (
                        self._established and isinstance(ex.__cause__, ConnectionError)
                    ):
                        raise
                    attempt.error = ex
                else:
                    self._established = True
                    if connection.advertised is not None:
                        self._reached[connection.advertised] = info
                    return connection
            logger.warning('%s; trying again in %.1f s', attempt.error, delay)
            await asyncio.sleep(delay)
        raise AssertionError('unreachable')
