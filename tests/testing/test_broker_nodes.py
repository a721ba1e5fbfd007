"""An in-memory broker with several nodes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.protocol.commands import MetadataUpdate, Subscribe
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.leaks import Snapshot
from tests.raw_client import connect_and_open

HANG = 20.0  # seconds; only a bug makes a test wait that long


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    async with StreamBroker(nodes=3) as memory:
        memory.create_stream('orders')
        yield memory


async def test_metadata(memory: StreamBroker) -> None:
    nodes = [
        commands.NodeAddress('127.0.0.1', int(uri.rpartition(':')[2][:-1])) for uri in memory.uris
    ]
    async with connect_and_open(memory.uri) as client:
        assert await client.value(commands.Metadata(('orders',))) == {
            'orders': commands.StreamMetadata(1, nodes[0], (nodes[1], nodes[2]))
        }
        memory.move_leader('orders', 2)
        memory.stop_node(1)
        assert await client.value(commands.Metadata(('orders',))) == {
            'orders': commands.StreamMetadata(1, nodes[2], (nodes[0],))
        }
        memory.start_node(1)
        await client.value(commands.Create('few', {'initial-cluster-size': '1'}))
        found = await client.value(commands.Metadata(('few',)))
        assert found['few'] == commands.StreamMetadata(1, nodes[0], ())


@pytest.mark.both_loops
async def test_publish_and_consume_while_the_leader_moves() -> None:
    before = Snapshot(futures=True)
    async with StreamBroker(nodes=3) as memory, rbs.streams_client(memory.uris) as client:
        await client.create_stream('orders')
        options: Any = {'offset': rbs.Offset.FIRST, 'timeout': HANG}
        async with (
            client.publisher('orders', name='shop') as publisher,
            client.subscribe('orders', **options) as messages,
        ):
            for i in range(8):
                await publisher.send(i)
                assert await anext(messages) == i
                memory.move_leader('orders', (i + 1) % 3)
                assert memory.leader('orders') == (i + 1) % 3
        assert memory.messages('orders') == [*range(8)]
    await before.check()


@pytest.mark.both_loops
async def test_stopping_and_starting_nodes() -> None:
    async with StreamBroker(nodes=3) as memory, rbs.streams_client(memory.uris) as client:
        await client.create_stream('orders')
        async with client.publisher('orders', name='shop') as publisher:
            for i in range(6):
                await publisher.send(i)
                stopped = memory.leader('orders')
                memory.stop_node(stopped)
                assert memory.leader('orders') != stopped
                await publisher.send(-i)
                memory.start_node(stopped)
        assert len(memory.messages('orders')) == 12


@pytest.mark.both_loops
async def test_node_restarts_within_one_turn_of_the_loop() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send(0)
            memory.stop_node(0)
            memory.start_node(0)
            await publisher.send(1)
        assert memory.messages('orders') == [0, 1]


async def test_all_nodes_stopped(memory: StreamBroker, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        memory.stop_node(number)
    async with rbs.streams_client(memory.uris, connect_timeout=0.2) as client:
        with pytest.raises(rbs.StreamConnectionError):
            await client.stream_exists('orders')
    caplog.clear()
    async with rbs.streams_client(memory.uris) as client:
        found = asyncio.create_task(client.stream_exists('orders'))
        await until(lambda: 'next attempt' in caplog.text, 'the client backs off')
        memory.start_node(1)
        assert await found


async def test_metadata_update_when_the_leader_moves(memory: StreamBroker) -> None:
    declare = commands.DeclarePublisher(0, '', 'orders')
    async with connect_and_open(memory.uri) as publisher, connect_and_open(memory.uri) as reader:
        await publisher.value(declare)
        await reader.value(Subscribe(0, 'orders', Offset.FIRST, 10, {}))
        memory.move_leader('orders', 1)
        for client in (publisher, reader):
            assert await client.receive() == MetadataUpdate(0x06, 'orders')
        await reader.value(Subscribe(0, 'orders', Offset.FIRST, 10, {}))
        await publisher.value(declare)
        memory.move_leader('orders', 2)  # the reader's node remains a replica
        assert await publisher.receive() == MetadataUpdate(0x06, 'orders')
        await reader.ask(commands.Metadata(()))
        assert reader.aside == []
        memory.publish('orders', 1)
        chunk = (await reader.receive()).chunk
        assert int.from_bytes(chunk[16:24]) == 3  # epoch


async def test_subscribing_at_a_node_without_the_stream(memory: StreamBroker) -> None:
    memory.create_stream('few', initial_cluster_size='1')
    memory.move_leader('few', 1)
    assert memory.leader('few') == 1
    async with StreamBroker(nodes=2) as other:
        other.create_stream('few', initial_cluster_size='1')
        async with rbs.streams_client(other.uris[1]) as client:
            connection = await client.get_protocol()
            with pytest.raises(rbs.ProtocolError) as caught:
                await connection.request(Subscribe(0, 'few', Offset.FIRST, 1, {}))
            assert caught.value.code == 0x06


def test_unknown_node() -> None:
    with pytest.raises(ValueError, match='node must be from 0 to 0'):
        StreamBroker().stop_node(1)
