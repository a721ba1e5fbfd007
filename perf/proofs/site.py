"""The site of a proof: a broker, a proxy for each node, and a reader independent of the client."""

import asyncio
import contextlib
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from brokers import Progress, RabbitMQ
from brokers.proxy import Direction, Proxy
from brokers.state import free_ports

from .. import super_stream_wire, wire
from .run import ProofError

__all__ = ['CONFIRM', 'ENTRY_DOWN', 'ENTRY_UP', 'WIDTH', 'Place', 'Site', 'body']

T = TypeVar('T')

CREATED = 60.0  # seconds to create or delete a super stream of many partitions
SETTLED = 60.0  # seconds to elect a leader and to restore replicas
WIDTH = 10  # digits in a body
ENTRY_UP = 8 + 4 + 5 + WIDTH  # bytes of a message in a Publish frame: id, size, AMQP header, body
ENTRY_DOWN = 4 + 5 + WIDTH  # bytes of a message in a chunk
CONFIRM = 8  # bytes of a confirm


def body(number: int) -> bytes:
    """The body of the message with this number."""
    return b'%010d' % number


@dataclass(frozen=True)
class Place:
    """A broker that is not yet started, and the ports for proxies that its nodes advertise.

    :ivar mqtt: MQTT port; 0 in a cluster, which has none.
    """

    broker: RabbitMQ
    ports: Sequence[int]
    mqtt: int

    @classmethod
    def private(
        cls, nodes: int, progress: Progress | None = None, version: str | None = None
    ) -> Self:
        *ports, mqtt = free_ports(nodes + 1)
        if nodes > 1:
            mqtt = 0
        broker = RabbitMQ.private(
            nodes,
            version=version,
            advertised_ports=ports,
            plugins=['rabbitmq_mqtt'] if mqtt else [],
            config=[f'mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}'] if mqtt else [],
            progress=progress,
        )
        return cls(broker, ports, mqtt)


class Site:
    """A broker with a proxy for each of its nodes.

    The client connects through the proxies; the checks connect directly.
    """

    def __init__(self, broker: RabbitMQ, proxies: Sequence[Proxy], mqtt: int = 0) -> None:
        self.broker = broker
        self.proxies = proxies
        self.mqtt = mqtt

    @property
    def proxy(self) -> Proxy:
        """The proxy of the first node."""
        return self.proxies[0]

    @property
    def uris(self) -> list[str]:
        """URIs through the proxies."""
        return [proxy.uri for proxy in self.proxies]

    @property
    def direct(self) -> list[str]:
        """URIs of the nodes themselves."""
        return self.broker.uris

    def about(self) -> dict[str, str]:
        """Product and version of the broker."""
        for uri in self.direct:
            with contextlib.suppress(wire.WireError, OSError):
                connection = wire.Connection(uri, 'proof')
                properties = connection.properties
                connection.close()
                return {name: properties.get(name, '') for name in ('product', 'version')}
        return {}

    @asynccontextmanager
    async def stream(self, **arguments: str) -> AsyncIterator[str]:
        """Create a stream, and delete it at the end."""
        name = f'proof-{secrets.token_hex(4)}'
        await self.create_stream(lambda connection: connection.create_stream(name, arguments))
        try:
            yield name
        finally:
            await self.delete_stream(lambda connection: connection.delete_stream(name))

    @asynccontextmanager
    async def super_stream(self, count: int) -> AsyncIterator[tuple[str, list[str]]]:
        """Create a super stream; yield its name and its partitions', and delete it at the end."""
        name = f'proof-{secrets.token_hex(4)}'
        # by default, the node that creates a super stream leads all of its partitions
        balanced = {'queue-leader-locator': 'balanced'}
        parts = super_stream_wire.partitions_of(name, count)
        await self.create_stream(
            lambda connection: super_stream_wire.create(connection, name, parts, balanced)
        )
        try:
            yield name, parts
        finally:
            await self.delete_stream(lambda connection: super_stream_wire.delete(connection, name))

    async def create_stream(self, create: Callable[[wire.Connection], None]) -> None:
        def call() -> None:
            connection = wire.Connection(self.direct[0], 'proof', timeout=CREATED)
            create(connection)
            connection.close()

        await asyncio.to_thread(call)

    async def delete_stream(self, delete: Callable[[wire.Connection], None]) -> None:
        def call() -> None:
            for uri in self.direct:
                with contextlib.suppress(wire.WireError, OSError):
                    connection = wire.Connection(uri, 'proof', timeout=CREATED)
                    delete(connection)
                    connection.close()
                    return

        await asyncio.to_thread(call)

    async def leader(
        self, stream: str, *, replicated: bool = False, not_node: int = -1, within: float = SETTLED
    ) -> int:
        """Wait for a stream to have a leader; return the number of the leader's node.

        :param replicated: also wait for a running replica on every other node.
        :param not_node: wait for a leader on a node other than this one.
        :raises ProofError: this takes longer than `within` seconds.
        """
        return await asyncio.to_thread(self._leader, stream, replicated, not_node, within)

    def _leader(self, stream: str, replicated: bool, not_node: int, within: float) -> int:
        ports = [proxy.port for proxy in self.proxies]
        wanted = len(ports) - 1 if replicated else 0
        limit = time.monotonic() + within
        found: object = None
        while time.monotonic() < limit:
            for uri in self.direct:
                with contextlib.suppress(wire.WireError, OSError):
                    connection = wire.Connection(uri, 'proof', timeout=5)
                    try:
                        found = address, replicas = connection.leader(stream)
                    finally:
                        connection.close()
                    if address is not None and replicas >= wanted:
                        node = ports.index(address[1])
                        if node != not_node:
                            return node
            time.sleep(0.2)
        raise ProofError(
            f'no suitable leader of the stream after {within:.0f} s; the last answer was'
            f' (leader, replicas) = {found}'
        )

    def carried(self, direction: Direction) -> list[int]:
        """The number of bytes that each proxy has forwarded."""
        return [proxy.bytes[direction] for proxy in self.proxies]

    def busiest(self, direction: Direction, since: Sequence[int]) -> int:
        """The number of the node with most traffic since an earlier result of `carried`."""
        more = [now - then for now, then in zip(self.carried(direction), since, strict=True)]
        return more.index(max(more))

    async def stored(self, stream: str) -> tuple['array[int]', 'array[int]']:
        """Read the numbers and offsets of the messages that a stream's leader has stored.

        This uses neither the client nor a proxy.
        """
        return await self.ask(partial(read_stored, stream), stream)

    async def ask(self, question: Callable[[wire.Connection], T], stream: str = '') -> T:
        """Ask the leader of a stream, or the first node, until it answers.

        The leader may change shortly after a fault.
        """

        def ask_node(node: int) -> T:
            connection = wire.Connection(self.direct[node], 'proof')
            try:
                return question(connection)
            finally:
                connection.close()

        limit = time.monotonic() + SETTLED
        while True:
            try:
                leader = await self.leader(stream) if stream else 0
                return await asyncio.to_thread(ask_node, leader)
            except (wire.WireError, OSError):
                if time.monotonic() > limit:
                    raise
            await asyncio.sleep(0.5)

    @classmethod
    @asynccontextmanager
    async def private(cls, nodes: int, seed: int) -> AsyncIterator['Site']:
        """Start a separate broker whose nodes advertise the ports of the proxies."""
        place = Place.private(nodes, Progress())
        await asyncio.to_thread(place.broker.start)
        try:
            async with cls.before(place, seed) as site:
                yield site
        finally:
            await asyncio.to_thread(place.broker.stop, orderly=False)

    @classmethod
    @asynccontextmanager
    async def before(cls, place: Place, seed: int) -> AsyncIterator['Site']:
        """Start proxies for a running broker."""
        async with AsyncExitStack() as stack:
            proxies = []
            for i, (node, port) in enumerate(zip(place.broker.nodes, place.ports, strict=True)):
                if node.advertised_port != port:
                    raise ProofError(f'{node.name} advertises {node.advertised_port}, not {port}')
                proxy = Proxy((node.host, node.stream_port), port=port, seed=seed + i)
                proxies.append(await stack.enter_async_context(proxy))
            yield cls(place.broker, proxies, place.mqtt)


def read_stored(stream: str, connection: wire.Connection) -> tuple['array[int]', 'array[int]']:
    """Read the numbers and offsets of the messages in a stream."""
    numbers, offsets = array('q'), array('q')
    stats = connection.stats(stream)
    if stats['committed_chunk_id'] != stats['last_chunk_id']:  # after a change of leader
        raise wire.WireError('the stream has chunks that are not yet committed')
    for offset, message in connection.stored(stream):
        if message[:5] != b'\x00\x53\x75\xa0' + bytes((WIDTH,)):
            raise ProofError(f'unexpected message at offset {offset}: {message!r}')
        numbers.append(int(message[5:]))
        offsets.append(offset)
    return numbers, offsets
