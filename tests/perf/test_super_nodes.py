"""Lanes on a cluster: leaders where the kind of work wants them, and each message stored once."""

from collections import Counter
from collections.abc import Iterator

import pytest

from brokers import RabbitMQ, wire
from perf import clients, lanes, super_stream_wire
from perf.clients.base import Target
from perf.delayed_broker import DelayedBroker
from perf.store import NODES, RabbitStore, connect

BROKER = 'rabbitmq-cluster'

pytestmark = pytest.mark.rabbitmq


@pytest.fixture(scope='module')
def cluster() -> Iterator[RabbitMQ]:
    with RabbitMQ.private(NODES) as broker:
        yield broker


@pytest.fixture
def store(cluster: RabbitMQ) -> Iterator[RabbitStore]:
    found = connect(BROKER, DelayedBroker, lambda: cluster)
    assert isinstance(found, RabbitStore)
    yield found
    for connection in found.connections.values():
        connection.close()


@pytest.mark.parametrize('nodes', [NODES, 1])  # RabbitMQ balances the leaders of all streams
async def test_lanes_publish_to_the_leaders_of_all_partitions(
    store: RabbitStore, nodes: int
) -> None:
    kind = f'super-nodes-publish-{nodes}'
    stream = f'publish-{nodes}'
    partitions = super_stream_wire.partitions_of(stream, lanes.KINDS[kind].partitions)
    assert lanes.find(f'rbfly-{kind}').broker == BROKER
    store.create_super(stream, partitions, nodes)
    found = Counter(super_stream_wire.leaders(store.uri, partitions))
    assert [*found.values()] == [len(partitions) // nodes] * nodes
    for library in ('raw-socket', 'rbfly'):
        assert await work(f'{library}-{kind}', store, stream, 9_000) == 9_000
    assert sum(map(store.count, partitions)) == 18_000
    assert set(store.connections) == {store.uri, *found}
    store.delete_super(stream)


async def test_lanes_consume_all_partitions(store: RabbitStore) -> None:
    name = f'super-nodes-consume-{NODES}'
    kind = lanes.KINDS[name]
    assert kind.stored
    partitions = super_stream_wire.partitions_of('consume', kind.partitions)
    store.create_super('consume', partitions, NODES)
    count = 2 * kind.size  # what RbFly's lanes read to check the messages
    for partition in partitions:
        store.fill(partition, count // len(partitions), kind.stored)
    assert sum(map(store.count, partitions)) == count
    for library in ('raw-socket', 'rbfly', 'rbfly-batches'):
        assert await work(f'{library}-{name}', store, 'consume', count) == count
    store.delete_super('consume')


def test_leaders_on_other_nodes_are_an_error(store: RabbitStore) -> None:
    with pytest.raises(wire.WireError, match=r'orders is led by .*, not by 2 nodes'):
        store.create_super('orders', super_stream_wire.partitions_of('orders', 6), 2)
    store.delete_super('orders')


async def work(lane: str, store: RabbitStore, stream: str, count: int) -> int:
    """Run a lane once; return the number of messages that it reports."""
    made = clients.make(lanes.find(lane), Target(store.address, stream))
    await made.open()
    try:
        await made.prepare(count)
        done = await made.run()
        await made.finish()
    finally:
        await made.close()
    return done
