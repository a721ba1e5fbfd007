"""Nodes whose advertised names resolve nowhere, and of which one is in maintenance.

The in-memory broker and a cluster of RabbitMQ pass the same tests.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.net import moving
from rbfly.net.uri import parse_uri
from rbfly.protocol import commands
from rbfly.testing import StreamBroker
from tests.inside import connection_of

COUNT = 3
NAMES = [f'node-{i}.invalid' for i in range(COUNT)]


class Nodes:
    """The nodes of a broker, of which one can be stopped or put in maintenance.

    :ivar asked: the names that clients have asked for.
    :ivar ports: the port of each name.
    """

    def __init__(self, broker: RabbitMQ | StreamBroker) -> None:
        self.asked: set[str] = set()
        self._broker = broker
        self.ports = {
            name: parse_uri(uri).port for name, uri in zip(NAMES, broker.uris, strict=True)
        }

    def client(self, *nodes: int) -> rbs.StreamsClient:
        """A client that connects to some of the nodes first; to all by default."""
        uris = [self._broker.uris[node] for node in nodes or range(COUNT)]
        return rbs.streams_client(uris, resolve=self._resolve, backoff=(0.05, 1.0))

    def _resolve(self, host: str, port: int) -> tuple[str, int]:
        self.asked.add(host)
        return '127.0.0.1', self.ports[host]

    async def call(self, name: str, node: int) -> None:
        """Stop or start a node; `drain` or `revive` it."""
        broker = self._broker
        if isinstance(broker, StreamBroker):
            methods = {
                'drain': broker.drain_node,
                'revive': broker.start_node,
                'stop': broker.stop_node,
                'start': broker.start_node,
            }
            methods[name](node)
        elif name in ('drain', 'revive'):
            await asyncio.to_thread(broker.tool, 'rabbitmq-upgrade', name, node=node)
        else:
            call = broker.stop_node if name == 'stop' else broker.start_node
            await asyncio.to_thread(call, node)
            if name == 'start':  # it may still be in maintenance
                await asyncio.to_thread(broker.tool, 'rabbitmq-upgrade', 'revive', node=node)


@pytest.fixture(scope='module')
def cluster() -> Iterator[RabbitMQ]:
    with RabbitMQ.private(COUNT, advertised_hosts=NAMES) as broker:
        yield broker


@pytest_asyncio.fixture(params=['memory', pytest.param('rabbitmq', marks=pytest.mark.broker)])
async def nodes(request: pytest.FixtureRequest) -> AsyncIterator[Nodes]:
    if request.param == 'rabbitmq':
        yield Nodes(request.getfixturevalue('cluster'))
        return
    async with StreamBroker(nodes=COUNT) as broker:
        broker.advertise(*NAMES)
        yield Nodes(broker)


@pytest_asyncio.fixture
async def replicated(nodes: Nodes) -> AsyncIterator[str]:
    """A stream with a replica on each node."""
    name = f'test-{uuid4()}'
    async with nodes.client() as client:
        await client.create_stream(name)
        async with asyncio.timeout(60):  # no event announces that
            while len(await members(client, name)) < COUNT:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield name
        await client.delete_stream(name)


async def members(client: rbs.StreamsClient, stream: str) -> list[str]:
    """Hosts of the nodes of a stream: of the leader first, '' if there is none."""
    connection = await client.get_protocol()
    found = (await connection.request(commands.Metadata((stream,))))[stream]
    return [found.leader.host if found.leader else '', *(node.host for node in found.replicas)]


async def test_advertised_names_that_resolve_nowhere(nodes: Nodes, replicated: str) -> None:
    """As in Kubernetes, seen from outside."""
    async with (
        nodes.client() as client,
        client.publisher(replicated) as publisher,
        client.subscribe(replicated, offset=rbs.Offset.FIRST) as messages,
    ):
        await publisher.send(1)
        assert await anext(messages) == 1
        leader, *replicas = await members(client, replicated)
        assert leader in nodes.asked
        assert {*replicas} & nodes.asked
        assert connection_of(publisher).address.port == nodes.ports[leader]


async def test_reconnect_loses_and_repeats_nothing(
    nodes: Nodes, replicated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, 'DRAIN', 60.0)  # a busy cluster may confirm late
    async with (
        nodes.client() as client,
        client.publisher(replicated) as publisher,
        client.subscribe(replicated, offset=rbs.Offset.FIRST) as messages,
    ):
        stop, sent = asyncio.Event(), itertools.count()

        async def publish() -> None:
            while not stop.is_set():
                await publisher.send(next(sent))

        publishing = [asyncio.create_task(publish()) for _ in range(20)]
        before = connection_of(publisher)
        for _ in range(3):
            await client.reconnect()
            assert connection_of(publisher) is not before
            before = connection_of(publisher)
        stop.set()
        await asyncio.gather(*publishing)
        await publisher.send('end')
        found = [body async for body in until_end(messages)]
    assert sorted(found) == [*range(next(sent))]


async def until_end(messages: rbs.Subscription) -> AsyncIterator[int]:
    async for body in messages:
        if body == 'end':
            return
        yield body


async def test_node_in_maintenance(nodes: Nodes, replicated: str) -> None:
    """It keeps its connections, and leads its streams; others pass messages on to it."""
    async with nodes.client() as client:
        leader, *_ = await members(client, replicated)
        drained = NAMES.index(leader)
        others = [node for node in range(COUNT) if node != drained]
        async with (
            client.publisher(replicated, name='shop') as publisher,
            client.subscribe(replicated, offset=rbs.Offset.FIRST) as kept,
        ):
            await publisher.send(0)
            assert await anext(kept) == 0
            assert connection_of(publisher).address.port == nodes.ports[leader]
            found = client.events()
            await nodes.call('drain', drained)
            try:
                await publisher.send(1)  # the connection stays open
                async with nodes.client(*others) as other:
                    assert (await members(other, replicated))[0] == ''
                    with pytest.raises(rbs.ConnectTimeout, match='gave up after'):
                        await refused(nodes.client(drained))
                    async with (
                        other.publisher(replicated) as second,
                        other.subscribe(replicated, offset=rbs.Offset.FIRST) as messages,
                    ):
                        await second.send(2)
                        await client.reconnect()
                        await publisher.send(3)
                        assert connection_of(publisher).address.port != nodes.ports[leader]
                        assert [await anext(messages) for _ in range(4)] == [0, 1, 2, 3]
                        await nodes.call('stop', drained)
                        await publisher.send(4)
                        await second.send(5)
                        assert [await anext(messages) for _ in range(2)] == [4, 5]
                assert [await anext(kept) for _ in range(5)] == [1, 2, 3, 4, 5]
            finally:
                await nodes.call('start', drained)
            await found.close()
            errors = [event async for event in found if isinstance(event, rbs.RecoveryFailed)]
        assert errors == []


async def refused(client: rbs.StreamsClient) -> None:
    """Ask a client for an answer at once."""
    async with client:
        await client.ping(timeout=2)


async def test_node_that_leaves_maintenance(nodes: Nodes, replicated: str) -> None:
    async with nodes.client() as client:
        leader, *_ = await members(client, replicated)
        drained = NAMES.index(leader)
        await nodes.call('drain', drained)
        await nodes.call('revive', drained)
        async with nodes.client(drained) as other, other.publisher(replicated) as publisher:
            await publisher.send(1)
        async with asyncio.timeout(30):  # no event announces that
            while (await members(client, replicated))[0] != leader:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
