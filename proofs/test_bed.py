"""The test bed of a proof: a broker with faults, whose streams it reads and writes on its own."""

import asyncio
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    suppress,
)
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from random import Random
from typing import Any, TypeVar

import rbfly.streams as rbs
from brokers import Progress, RabbitMQ, wire
from brokers.probe import parse_uri, peer_properties
from brokers.proxy import Direction, Proxy
from brokers.state import free_ports
from perf import super_stream_wire
from rbfly.testing import StreamBroker
from rbfly.testing.stream import Subscription

from .history import Messages
from .run import ProofError

T = TypeVar('T')
Faults = dict[str, Callable[[], Awaitable[Any]]]

ANSWER = 60.0  # seconds to create or delete a super stream of many partitions
SETTLED = 60.0  # seconds to elect a leader and to restore replicas
MOVES = 5  # attempts to move a leader
MOVED = 10.0  # seconds until an attempt to move a leader has failed
SYNC = 'lists:foreach(fun dets:sync/1, dets:all()).'
WIDTH = 10  # digits in a body
ENTRY_UP = 8 + 4 + 5 + WIDTH  # bytes of a message in a Publish frame: id, size, AMQP header, body
ENTRY_DOWN = 4 + 5 + WIDTH  # bytes of a message in a chunk
CONFIRM_DOWN = 8  # bytes of a confirm
LAST_CHUNK = b'\0\2\0\1'  # the start of a subscription, and credit for one chunk


def body(number: int) -> bytes:
    """The body of the message with this number."""
    return b'%010d' % number


class Bed:
    """A broker: the client connects to `uris`, where faults happen, and the checks to `direct`."""

    proxies: Sequence[Proxy] = ()

    def __init__(self, uris: Sequence[str], direct: Sequence[str]) -> None:
        self.uris = list(uris)
        self.direct = list(direct)
        self._written = 0

    def about(self) -> dict[str, str]:
        """Product and version of the broker."""
        for uri in self.direct:
            with suppress(OSError):
                found = peer_properties(parse_uri(uri))
                return {name: found.get(name, '') for name in ('product', 'version')}
        return {}

    def client(self, name: str = 'proof', **options: Any) -> rbs.StreamsClient:
        """A client whose connections suffer the faults."""
        return rbs.streams_client(self.uris, connection_name=name, **options)

    # -- streams

    async def create(self, stream: str, **arguments: str) -> None:
        await self.ask(lambda connection: connection.create_stream(stream, arguments))

    async def delete(self, stream: str) -> None:
        await self.ask(lambda connection: connection.delete_stream(stream))

    @asynccontextmanager
    async def stream(self, **arguments: str) -> AsyncIterator[str]:
        """Create a stream, and delete it at the end."""
        name = f'proof-{secrets.token_hex(4)}'
        await self.create(name, **arguments)
        try:
            yield name
        finally:
            with suppress(wire.WireError, OSError):
                await self.delete(name)

    @asynccontextmanager
    async def super_stream(self, count: int) -> AsyncIterator[tuple[str, list[str]]]:
        """Create a super stream; yield its name and its partitions', and delete it at the end."""
        name = f'proof-{secrets.token_hex(4)}'
        # by default, the node that creates a super stream leads all of its partitions
        balanced = {'queue-leader-locator': 'balanced'}
        parts = super_stream_wire.partitions_of(name, count)
        await self.ask(
            lambda connection: super_stream_wire.create(connection, name, parts, balanced)
        )
        try:
            yield name, parts
        finally:
            with suppress(wire.WireError, OSError):
                await self.ask(lambda connection: super_stream_wire.delete(connection, name))

    async def write(self, stream: str, numbers: Sequence[int]) -> None:
        """Store messages in one chunk, without duplicates."""
        first = self._written + 1
        self._written += len(numbers)

        def publish(connection: wire.Connection) -> None:
            connection.declare_publisher(stream, 'bed')  # the broker discards duplicates
            frames = wire.publish_frames([*map(body, numbers)], len(numbers), first)
            connection.publish(frames, len(numbers), len(numbers))

        await self.ask(publish, stream)

    async def stored(self, stream: str) -> Messages:
        """Read the numbers and offsets of the messages that a stream's leader has stored."""
        return await self.ask(partial(read_stored, stream), stream)

    async def leader(self, stream: str, *, replicated: bool = False) -> int:
        """Wait for a stream to have a leader; return the number of the leader's node.

        :param replicated: also wait for a running replica on every other node.
        """
        raise NotImplementedError

    async def replicated(self, streams: Sequence[str]) -> None:
        """Wait until all streams have a leader and replicas."""
        for stream in streams:
            await self.leader(stream, replicated=True)

    async def ask(self, question: Callable[[wire.Connection], T], stream: str = '') -> T:
        """Ask the leader of a stream, or the first node, until it answers.

        The leader may change shortly after a fault.
        """

        def ask_node(node: int) -> T:
            with closing(wire.Connection(self.direct[node], 'proof', timeout=ANSWER)) as connection:
                return question(connection)

        limit = time.monotonic() + SETTLED
        while True:
            try:
                node = await self.leader(stream) if stream else 0
                return await asyncio.to_thread(ask_node, node)
            except (wire.WireError, OSError):
                if time.monotonic() > limit:
                    raise
            await asyncio.sleep(0.5)

    # -- faults

    async def call(self, name: str, *args: Any) -> Any:
        """Call a method of the in-memory broker, or do the same with the proxies."""
        raise NotImplementedError

    async def awhile(self, rnd: Random, name: str, *args: Any, cut: bool = False) -> None:
        """Inject a fault that lasts for some time."""
        await self.call(name, *args)
        if cut:
            await self.call('cut')
        await asyncio.sleep(rnd.uniform(0, 1.5))
        await self.call('heal')

    def faults(self, rnd: Random, streams: Sequence[str]) -> Faults:
        """Functions that inject one fault each and return when it is over, by name."""
        awhile = partial(self.awhile, rnd)
        return {
            'connections cut': partial(self.call, 'cut'),
            'cut at a byte': lambda: self.call('cut', rnd.randrange(1, 100_000)),
            'connections refused': partial(awhile, 'refuse', cut=True),
            'stalled': partial(awhile, 'stall'),
            'delayed': lambda: awhile('delay', rnd.uniform(0, 0.05)),
            'split': lambda: awhile('split', rnd.randrange(20, 1000)),
        }


def stored(stream: str, connection: wire.Connection) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of every committed message, after checking the chunk's CRC."""
    # the committed chunk may contain only a stored offset, which is not delivered
    if connection.stats(stream)['committed_chunk_id'] >= 0:
        connection.request(wire.SUBSCRIBE, b'\0' + wire.string(stream) + LAST_CHUNK)
        chunk_id, (last, _) = -1, wire.read_chunk(connection.read(wire.DELIVER)[1:])
        connection.unsubscribe()
        connection.subscribe(stream)
        while chunk_id < last:
            chunk_id, messages = wire.read_chunk(connection.read(wire.DELIVER)[1:])
            connection.socket.sendall(wire.frame(wire.CREDIT, b'\0\0\1'))
            yield from enumerate(messages, chunk_id)
        connection.unsubscribe()


def read_stored(stream: str, connection: wire.Connection) -> Messages:
    """Read the numbers and offsets of the messages in a stream."""
    numbers, offsets = array('q'), array('q')
    stats = connection.stats(stream)
    if stats['committed_chunk_id'] != stats['last_chunk_id']:  # after a change of leader
        raise wire.WireError('the stream has chunks that are not yet committed')
    for offset, message in stored(stream, connection):
        if message[:5] != b'\x00\x53\x75\xa0' + bytes((WIDTH,)):
            raise ProofError(f'unexpected message at offset {offset}: {message!r}')
        numbers.append(int(message[5:]))
        offsets.append(offset)
    return numbers, offsets


# -- RabbitMQ


def behind_proxies(
    nodes: int, progress: Progress | None = None, version: str | None = None
) -> tuple[RabbitMQ, int]:
    """A private RabbitMQ whose nodes advertise the ports of proxies, and its MQTT port."""
    *ports, mqtt = free_ports(nodes + 1)
    single = nodes == 1
    broker = RabbitMQ.private(
        nodes,
        version=version,
        advertised_ports=ports,
        plugins=['rabbitmq_mqtt', 'rabbitmq_auth_backend_oauth2'] if single else [],
        config=[f'mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}', *TOKENS] if single else [],
        progress=progress,
    )
    return broker, mqtt


@asynccontextmanager
async def with_proxies(broker: RabbitMQ, mqtt: int, seed: int) -> AsyncIterator['ClusterBed']:
    """Start proxies for a running broker."""
    async with AsyncExitStack() as stack:
        proxies = []
        for i, node in enumerate(broker.nodes):
            proxy = Proxy((node.host, node.stream_port), port=node.advertised_port, seed=seed + i)
            proxies.append(await stack.enter_async_context(proxy))
        yield ClusterBed(broker, proxies, mqtt, Random(seed))


@asynccontextmanager
async def on_rabbitmq(nodes: int, seed: int) -> AsyncIterator['ClusterBed']:
    """Start a separate RabbitMQ."""
    broker, mqtt = behind_proxies(nodes, Progress())
    await asyncio.to_thread(broker.start)
    try:
        async with with_proxies(broker, mqtt, seed) as bed:
            yield bed
    finally:
        await asyncio.to_thread(broker.stop, orderly=False)


# Passwords may also be tokens, which the key of the broker's certificate signs.
TOKENS = [
    'auth_backends.1 = internal',
    'auth_backends.2 = rabbit_auth_backend_oauth2',
    'auth_oauth2.resource_server_id = rabbitmq',
    'auth_oauth2.signing_keys.bed = /srv/tls/server.pem',
    'auth_oauth2.default_key = bed',
]


class ClusterBed(Bed):
    """One or several nodes of RabbitMQ, each behind a proxy."""

    def __init__(
        self, broker: RabbitMQ, proxies: Sequence[Proxy], mqtt: int, random: Random
    ) -> None:
        super().__init__([proxy.uri for proxy in proxies], broker.uris)
        self.broker = broker
        self.proxies = proxies
        self.mqtt = mqtt
        self.random = random

    @property
    def token_key(self) -> str:
        """The key that signs tokens, in PEM."""
        return (self.broker.srv / 'tls' / 'server.key').read_text()

    @property
    def nodes(self) -> range:
        return range(len(self.proxies))

    def carried(self, direction: Direction) -> list[int]:
        """The number of bytes that each proxy has forwarded."""
        return [proxy.bytes[direction] for proxy in self.proxies]

    def busiest(self, direction: Direction, since: Sequence[int]) -> int:
        """The number of the node with most traffic since an earlier result of `carried`."""
        more = [now - then for now, then in zip(self.carried(direction), since, strict=True)]
        return more.index(max(more))

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
                with suppress(wire.WireError, OSError):
                    with closing(wire.Connection(uri, 'proof', timeout=5)) as connection:
                        found = address, replicas = connection.leader(stream)
                    if address is not None and replicas >= wanted:
                        node = ports.index(address[1])
                        if node != not_node:
                            return node
            time.sleep(0.2)
        raise ProofError(
            f'no suitable leader of the stream after {within:.0f} s; the last answer was'
            f' (leader, replicas) = {found}'
        )

    async def move_leader(self, stream: str, before: int, after: int) -> None:
        """Restart a stream, repeatedly if necessary, until another node leads it."""
        args = 'restart_stream', stream, '--preferred-leader-node', self.broker.nodes[after].name
        for left in reversed(range(MOVES)):
            await asyncio.to_thread(self.broker.tool, 'rabbitmq-streams', *args)
            try:
                await self.leader(stream, not_node=before, within=MOVED)
            except ProofError:
                if not left:
                    raise
            else:
                return

    async def stop_node(self, node: int, how: str) -> None:
        """Kill or stop a node."""
        if how == 'kill':
            # A node writes its votes for stream leaders to disk after up to three minutes, and
            # would forget them.
            await asyncio.to_thread(partial(self.broker.ctl, 'eval', SYNC, node=node))
            await asyncio.to_thread(self.broker.kill_node, node)
        else:
            await asyncio.to_thread(self.broker.stop_node, node)

    async def lose_node(self, node: int, how: str) -> None:
        """Kill or stop a node, and restart it."""
        await self.stop_node(node, how)
        await asyncio.to_thread(self.broker.start_node, node)

    async def pause_node(self, node: int, seconds: float) -> None:
        """Suspend the process of a node, and resume it."""
        try:
            await asyncio.to_thread(self.broker.pause_node, node)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self.broker.resume_node, node)

    async def isolate_node(self, node: int, seconds: float) -> bool:
        """Partition a node from the others and rejoin it; return whether this restarted it."""
        try:
            await asyncio.to_thread(self.broker.isolate_node, node)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self.broker.join_node, node)
        # RabbitMQ 4.0 uses Mnesia, which does not heal a partition before one side restarts.
        if restarts := self.broker.release.startswith('4.0'):
            await asyncio.to_thread(self.broker.restart_node, node)
        return restarts

    async def call(self, name: str, *args: Any) -> None:
        rnd = self.random
        if name == 'cut' and args:
            (size,) = args
            direction: Direction = rnd.choice(('up', 'down'))
            rnd.choice(self.proxies).cut_after(size, direction)
            return
        stalled = rnd.choice((('up',), ('down',), ('up', 'down')))
        for proxy in self.proxies:
            if name == 'cut':
                proxy.cut(reset=rnd.random() < 0.5)
            elif name == 'refuse':
                proxy.refuse()
            elif name == 'stall':
                proxy.stall(*stalled)
            elif name == 'delay':
                (proxy.delay,) = args
            elif name == 'split':
                proxy.split = True
            else:
                proxy.delay, proxy.split = 0.0, False
                proxy.resume()
                proxy.accept()

    def faults(self, rnd: Random, streams: Sequence[str]) -> Faults:
        async def lose(how: str) -> None:
            await self.lose_node(rnd.choice(self.nodes), how)
            await self.replicated(streams)

        async def move() -> None:
            stream = rnd.choice(streams)
            before = await self.leader(stream, replicated=True)
            with suppress(ProofError):
                others = [node for node in self.nodes if node != before]
                await self.move_leader(stream, before, rnd.choice(others))

        return super().faults(rnd, streams) | {
            'node killed': lambda: lose('kill'),
            'node stopped': lambda: lose('stop'),
            'node paused': lambda: self.pause_node(rnd.choice(self.nodes), rnd.uniform(0, 5)),
            'leader moved': move,
        }


# -- the in-memory broker


class Memory(StreamBroker):
    """The in-memory broker, with methods for calls from another process."""

    def where(self) -> list[str]:
        return self.uris

    def readers(self, stream: str) -> int:
        clients = self._call(lambda: [*self._stream(stream, None).clients])
        return sum(isinstance(client, Subscription) for client in clients)


class Manager(BaseManager):
    Memory: Callable[..., Any]


Manager.register('Memory', Memory)


@asynccontextmanager
async def in_memory(nodes: int, seed: int) -> AsyncIterator['MemoryBed']:
    """Start the in-memory broker in a separate process."""
    manager = Manager(ctx=get_context('spawn'))
    await asyncio.to_thread(manager.start)
    try:
        broker = manager.Memory(nodes=nodes, seed=seed)
        broker.start()
        yield MemoryBed(broker)
        broker.stop()
    finally:
        await asyncio.to_thread(manager.shutdown)


class MemoryBed(Bed):
    """The in-memory broker in a separate process, so that its memory is not the client's.

    Its faults also hit connections of the proof, so the proof calls it instead of connecting.
    """

    def __init__(self, broker: Any) -> None:
        uris = broker.where()
        super().__init__(uris, uris)
        self.broker = broker

    async def call(self, name: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(self.broker, name), *args)

    async def leader(self, stream: str, *, replicated: bool = False) -> int:
        found: int = await self.call('leader', stream)
        return found

    async def create(self, stream: str, **arguments: str) -> None:
        await self.call('create_stream', stream)

    async def delete(self, stream: str) -> None:
        await self.call('delete_stream', stream)

    async def write(self, stream: str, numbers: Sequence[int]) -> None:
        await self.call('publish', stream, *map(body, numbers))

    @asynccontextmanager
    async def unseen(self) -> AsyncIterator[None]:
        """Cut the connections of new subscriptions before they receive a chunk."""
        await self.call('silence')
        try:
            yield
        finally:
            await self.call('cut')
            await self.call('heal')

    def faults(self, rnd: Random, streams: Sequence[str]) -> Faults:
        call, awhile = self.call, partial(self.awhile, rnd)

        async def lose_confirms() -> None:
            await call('lose_confirms', rnd.randrange(1, 500))
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('cut')  # otherwise a client would not notice
            await call('heal')

        async def stop_node() -> None:
            node = rnd.randrange(len(self.uris))
            await call('stop_node', node)
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('start_node', node)

        def stream() -> str:
            return rnd.choice(streams)

        return super().faults(rnd, streams) | {
            'silent': partial(awhile, 'silence'),
            'authentication refused': partial(awhile, 'fail_authentication', cut=True),
            'messages refused': lambda: call('publish_error', 0x11, rnd.randrange(1, 100)),
            'confirms withheld': partial(awhile, 'withhold_confirms'),
            'confirms lost': lose_confirms,
            'confirms out of order': partial(awhile, 'shuffle_confirms'),
            'chunk with a wrong CRC': partial(call, 'damage_chunk'),
            'chunk corrupted': partial(call, 'corrupt_chunk'),
            'stream unavailable': lambda: call('metadata_update', stream()),
            'connections closed': partial(call, 'close_connections'),
            'leader moved': lambda: call('move_leader', stream(), rnd.randrange(len(self.uris))),
            "broker's clock": lambda: call('advance', rnd.uniform(0, 100)),
            'node stopped': stop_node,
        }


BEDS: dict[str, Callable[[int, int], AbstractAsyncContextManager[Bed]]] = {
    'rabbitmq': on_rabbitmq,
    'memory': in_memory,
}
