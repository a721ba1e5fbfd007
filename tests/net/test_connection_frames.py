"""Frames that the broker sends by itself."""

import struct

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.protocol._chunk import ChunkQueue
from rbfly.protocol.commands import ConsumerUpdate, Request, Subscribe
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker


async def test_consumer_update_is_answered_with_the_start_of_the_subscription() -> None:
    """RabbitMQ waits a minute for the response, then closes the connection."""
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        peer = fake.connection
        for correlation_id, active in ((0, 1), (1, 0)):
            peer.send(Request(correlation_id, ConsumerUpdate(3, active)).encode())
        key = 0x8000 | wire.CONSUMER_UPDATE
        await until(lambda: peer.commands().count(key) == 2, 'both requests are answered')
        bodies = [frame.body for frame in peer.frames if frame.key == key]
        assert bodies == [struct.pack('>IHH', i, wire.OK, 0) for i in (0, 1)]
        assert await client.stream_exists('test')
        assert len(fake.connections) == 1


@pytest.mark.rabbitmq
async def test_single_active_consumer_receives(broker: RabbitMQ, stream: str) -> None:
    """RabbitMQ delivers nothing to it before the response to ConsumerUpdate."""
    async with rbs.streams_client(broker.uri) as client:
        async with client.publisher(stream, amqp=False) as publisher:
            await publisher.send(b'x')
        connection = await client.get_protocol()
        queue = ChunkQueue(None)
        connection.set_subscription(0, queue)
        properties = {'single-active-consumer': 'true', 'name': 'group'}
        await connection.request(Subscribe(0, stream, rbs.Offset.FIRST, 1, properties))
        await until(lambda: len(queue.chunks) == 1, 'the chunk is delivered')
        assert queue.chunks[0].messages() == [b'x']


async def test_credit_error_is_ignored() -> None:
    """A subscription may end on the broker while a Credit is in flight."""
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        fake.connection.send(wire.frame(0x8000 | wire.CREDIT, b'\x00\x04\x00'))
        assert await client.stream_exists('test')
        assert len(fake.connections) == 1
