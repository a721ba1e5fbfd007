"""Super streams of the in-memory broker: its methods, nodes and versions."""

from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.protocol.const import Key
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.raw_client import connect_and_open


async def test_partitions_are_placed_over_the_nodes() -> None:
    async with StreamBroker(nodes=3) as broker:
        broker.create_super_stream('orders', partitions=4, max_age='1h')
        assert broker.streams == [f'orders-{i}' for i in range(4)]
        assert [broker.leader(name) for name in broker.streams] == [0, 1, 2, 0]
        broker.create_super_stream('orders', partitions=5)
        assert len(broker.streams) == 4


async def test_a_deleted_super_stream_notifies_publishers_and_subscriptions() -> None:
    async with StreamBroker() as broker:
        broker.create_super_stream('orders', binding_keys=['a', 'b'])
        async with connect_and_open(broker.uri) as client:
            await client.value(commands.DeclarePublisher(0, '', 'orders-a'))
            await client.value(commands.Subscribe(0, 'orders-b', Offset.FIRST, 1, {}))
            broker.delete_super_stream('orders')
            found = {(await client.receive()).stream for _ in range(2)}
            assert found == {'orders-a', 'orders-b'}
        assert broker.streams == []
        with pytest.raises(rbs.StreamDoesNotExist):
            broker.delete_super_stream('orders')


async def test_bound_and_deleted_partitions() -> None:
    async with StreamBroker() as broker, connect_and_open(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        broker.create_stream('more')
        for _ in range(2):  # the second call changes nothing
            broker.bind('orders', 'more', '1')
        assert await client.value(commands.Route('1', 'orders')) == ('more', 'orders-1')
        broker.delete_stream('orders-1')
        assert await client.value(commands.Route('1', 'orders')) == ('more',)
        assert await client.value(commands.Partitions('orders')) == ('orders-0', 'more')
        for names in (('nothing', 'more'), ('orders', 'nothing')):
            with pytest.raises(rbs.StreamDoesNotExist):
                broker.bind(*names, 'key')


async def test_virtual_hosts_have_their_own_super_streams() -> None:
    async with StreamBroker(vhosts=('/', 'other')) as broker:
        broker.create_super_stream('orders', partitions=2, vhost='other')
        assert broker.streams == []
        with pytest.raises(rbs.StreamDoesNotExist):
            broker.delete_super_stream('orders')
        broker.delete_super_stream('orders', vhost='other')


async def test_partition_without_a_node() -> None:
    """A stopped node leaves a partition with one replica without a leader."""
    async with StreamBroker(nodes=3) as broker, connect_and_open(broker.uri) as client:
        broker.create_super_stream('orders', partitions=3, initial_cluster_size='1')
        broker.stop_node(broker.leader('orders-1'))
        found = await client.value(commands.Metadata(('orders-0', 'orders-1', 'orders-2')))
        assert [item.leader is not None for item in found.values()] == [True, False, True]
        assert len(await client.value(commands.Partitions('orders'))) == 3


@pytest.mark.parametrize(
    ('given', 'error'),
    [
        ({}, rbs.ArgumentError),
        ({'partitions': 2, 'binding_keys': ['a']}, rbs.ArgumentError),
        ({'partitions': 2, 'max_age': 'x'}, rbs.ArgumentError),
        ({'partitions': 2, 'max_age': 1}, rbs.ArgumentTypeError),
        ({'partitions': 2, 'initial_cluster_size': '0'}, rbs.ProtocolError),
        ({'binding_keys': ['x' * 234]}, rbs.ArgumentError),
        ({'binding_keys': ['taken']}, rbs.ProtocolError),
    ],
    ids=str,
)
async def test_refused_super_streams(given: dict[str, Any], error: type[Exception]) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders-taken')
        with pytest.raises(error):
            broker.create_super_stream('orders', **given)
        assert broker.streams == ['orders-taken']


@pytest.mark.parametrize(('version', 'new'), [('4.0', False), ('4.3', True)])
async def test_version(version: Any, new: bool) -> None:
    async with StreamBroker(version=version) as broker, connect_and_open(broker.uri) as client:
        found = await client.value(commands.ExchangeCommandVersions({}))
        assert (Key.RESOLVE_OFFSET_SPEC in found) == new


async def test_unknown_version() -> None:
    with pytest.raises(rbs.ArgumentError, match=r"version must be one of \['4.0', '4.3', '4.4'\]"):
        StreamBroker(version='3.13')  # type: ignore[arg-type]
