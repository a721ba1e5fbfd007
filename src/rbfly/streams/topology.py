"""IO room: which node to connect to, in which role, and when to try again.

Publishing and consuming never share a connection: the broker's flow control for publishers stops
reading, and everything else on that connection with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from . import commands
from .commands import Broker, StreamMetadata, Tune
from .connection import Connection
from .const import ResponseCode
from .error import (
    ConnectTimeout,
    FrameError,
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
    TLSError,
    protocol_error,
)
from .uri import AuthMechanism, ConnectionInfo

__all__ = ['Role', 'Settings', 'Topology', 'backoff']

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.1  # seconds
BACKOFF_LAST = 30.0


class Role(Enum):
    """What a connection is for; requests that belong to no stream use `CONSUME`."""

    PUBLISH = 'publish'
    CONSUME = 'consume'


Key = tuple[Role, Broker | None]


@dataclass(frozen=True)
class Settings:
    """How to connect.

    :param infos: addresses, tried in turn.
    :param connect_timeout: seconds until the first connect gives up; None for never.
    :param reconnect_timeout: the same for a client that was connected before.
    """

    infos: Sequence[ConnectionInfo]
    auth_mechanism: AuthMechanism = AuthMechanism.PLAIN
    connection_name: str = ''
    connect_timeout: float | None = 30.0
    reconnect_timeout: float | None = None
    tune: Tune = Tune(0, 60)  # noqa: RUF009 - immutable


def backoff() -> Iterator[float]:
    """Seconds to wait before each next try: exponential, with jitter, from 0.1 to 30."""
    delay = BACKOFF_FIRST
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(2 * delay, BACKOFF_LAST)


class Topology:
    """The connections of one client: one per node and role, more where its ids run out."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._connections: dict[Key, list[Connection]] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._last_errors: dict[Key, Exception] = {}
        self._established = False

    @property
    def connected(self) -> bool:
        """True if any connection is open."""
        return any(item.is_open for group in self._connections.values() for item in group)

    async def locator(self) -> Connection:
        """A connection for requests that any node answers."""
        return await self._get(Role.CONSUME, None)

    async def publishing(self, stream: str) -> Connection:
        """A connection with a free publisher id to the leader of a stream.

        :raises StreamDoesNotExist: there is no such stream.
        """
        while True:
            locator = await self.locator()
            found = await self._locate(locator, stream)
            assert found.leader is not None
            connection = await self._node(Role.PUBLISH, found.leader, locator, found)
            if connection.is_open:
                return connection

    async def consuming(self, stream: str) -> Connection:
        """A connection with a free subscription id to a replica of a stream, or its leader.

        :raises StreamDoesNotExist: there is no such stream.
        """
        while True:
            locator = await self.locator()
            found = await self._locate(locator, stream)
            assert found.leader is not None
            node = random.choice(found.replicas) if found.replicas else found.leader
            connection = await self._node(Role.CONSUME, node, locator, found)
            if connection.is_open:
                return connection

    async def check_stream(self, stream: str) -> None:
        """Ask a node whether a stream exists.

        :raises StreamDoesNotExist: there is no such stream.
        """
        await self._locate(await self.locator(), stream)

    async def close(self) -> None:
        """Close every connection; the topology can be used again afterwards."""
        connections = [item for group in self._connections.values() for item in group]
        self._connections.clear()
        self._established = False
        await asyncio.gather(*(item.close() for item in connections))

    # -- nodes

    async def _locate(self, locator: Connection, stream: str) -> StreamMetadata:
        for delay in backoff():
            metadata = await locator.request(commands.Metadata((stream,)))
            found = metadata.get(stream)
            if found is None or found.code == ResponseCode.STREAM_DOES_NOT_EXIST:
                raise StreamDoesNotExist(stream)
            if found.code not in (ResponseCode.OK, ResponseCode.STREAM_NOT_AVAILABLE):
                raise protocol_error(found.code, stream=stream)
            if found.leader is not None:
                return found
            logger.warning('stream %r has no leader now; asking again in %.1f s', stream, delay)
            await asyncio.sleep(delay)
        raise AssertionError('unreachable')

    async def _node(
        self, role: Role, node: Broker, locator: Connection, found: StreamMetadata
    ) -> Connection:
        # The node that the locator reached, or the only one, is dialled at the address that is
        # known to work: an advertised one may not be reachable through NAT or a proxy.
        if node == locator.advertised or (found.leader == node and not found.replicas):
            return await self._get(role, None)
        return await self._get(role, node)

    async def _get(self, role: Role, node: Broker | None) -> Connection:
        settings = self.settings
        key = (role, node)
        limit = settings.reconnect_timeout if self._established else settings.connect_timeout
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            # The limit covers waiting for another task that is connecting.
            async with asyncio.timeout(limit or None), lock:
                for connection in self._group(key):
                    if role is Role.PUBLISH and connection.publisher_ids:
                        return connection
                    if role is Role.CONSUME and connection.subscription_ids:
                        return connection
                self._last_errors.pop(key, None)
                connection = await self._connect(key)
                self._group(key).append(connection)
                return connection
        except TimeoutError:
            last = self._last_errors.get(key)
            if last is None:
                names = ', '.join(str(info) for info in self._infos(node))
                raise ConnectTimeout(f'{names}: no answer within {limit} s') from None
            raise StreamConnectionError(f'{last} (gave up after {limit} s)') from last

    def _group(self, key: Key) -> list[Connection]:
        """The open connections to a node in a role."""
        group = self._connections.setdefault(key, [])
        group[:] = [item for item in group if item.is_open]
        return group

    # -- connecting

    def _infos(self, node: Broker | None) -> list[ConnectionInfo]:
        infos = list(self.settings.infos)
        if node is None:
            return infos
        return [replace(infos[0], host=node.host, port=node.port), *infos]

    async def _connect(self, key: Key) -> Connection:
        settings = self.settings
        infos = self._infos(key[1])
        for delay in backoff():
            for info in infos:
                try:
                    connection = await Connection.open(
                        info,
                        settings.auth_mechanism,
                        settings.connection_name,
                        settings.tune,
                    )
                except (ProtocolError, FrameError):
                    raise  # no retry can mend these
                except StreamConnectionError as ex:
                    # Nor TLS; but a proxy may take a connection while the node behind it is away.
                    if isinstance(ex, TLSError) and not (
                        self._established and isinstance(ex.__cause__, ConnectionError)
                    ):
                        raise
                    self._last_errors[key] = ex
                else:
                    self._established = True
                    return connection
            logger.warning('%s; trying again in %.1f s', self._last_errors[key], delay)
            await asyncio.sleep(delay)
        raise AssertionError('unreachable')
