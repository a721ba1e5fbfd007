"""Subscriptions that lose their connection or their node.

test_resume.py tests where they continue.  Proofs run full restarts and leader changes:
`python -m perf prove consume-restart`, `consume-leader`.
"""

import asyncio
import contextlib
import struct
import tracemalloc
from collections.abc import Callable

import pytest

import rbfly.streams as rbs
from rbfly.error import FrameError
from rbfly.net import registration
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.sizes import sized
from tests.streams.publish.test_publish_recovery import default, once

HANG = 20.0  # seconds; only a safeguard


def subscribe(client: rbs.StreamsClient) -> rbs.Subscription:
    return client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=HANG)


def members(*nodes: FakeBroker) -> Callable[[Peer, Frame], None]:
    """Answer Metadata requests with a leader, the first node, and its replicas."""

    def metadata(connection: Peer, request: Frame) -> None:
        brokers = struct.pack('>I', len(nodes)) + b''.join(
            struct.pack('>H', i) + wire.string('127.0.0.1') + struct.pack('>I', node.port)
            for i, node in enumerate(nodes)
        )
        others = [struct.pack('>H', i) for i in range(1, len(nodes))]
        stream = struct.pack('>I', 1) + request.body[8:] + struct.pack('>HHI', 1, 0, len(others))
        body = request.body[:4] + brokers + stream + b''.join(others)
        connection.send(wire.frame(0x8000 | wire.METADATA, body))

    return metadata


def subscriptions(node: FakeBroker) -> int:
    return sum(peer.commands().count(wire.SUBSCRIBE) for peer in node.connections)


async def test_publisher_and_subscription_lose_connections_independently() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
        client.publisher('test') as publisher,
    ):
        assert await anext(messages) == b'0'
        consuming, publishing = fake.connections
        publishing.transport.abort()
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await publisher.send(b'x')
        publishing = fake.connections[-1]
        consuming.transport.abort()
        await consuming.lost
        stream.append(b'2')
        assert await anext(messages) == b'2'
        await publisher.send(b'y')
        assert publishing.commands().count(wire.PUBLISH) == 2
        assert len(fake.connections) == 4


async def test_subscription_reads_a_replica_or_the_leader_without_one() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as leader,
        FakeBroker(on=stream.handlers()) as replica,
        rbs.streams_client(leader.uri) as client,
        contextlib.aclosing(subscribe(client)) as messages,
    ):
        leader.handlers[wire.METADATA] = replica.handlers[wire.METADATA] = members(leader, replica)
        assert await anext(messages) == b'0'
        assert (subscriptions(leader), subscriptions(replica)) == (0, 1)
        # The replica is removed.
        leader.handlers[wire.METADATA] = replica.handlers[wire.METADATA] = members(leader)
        stream.reader.live = False
        moved = struct.pack('>H', 0x06) + wire.string('test')
        stream.reader.peer.send(wire.frame(wire.METADATA_UPDATE, moved))
        stream.append(b'1')
        assert await anext(messages) == b'1'
        assert (subscriptions(leader), subscriptions(replica)) == (1, 1)
        # The replica is back.
        leader.handlers[wire.METADATA] = replica.handlers[wire.METADATA] = members(leader, replica)
        stream.reader.peer.transport.abort()
        stream.append(b'2')
        assert await anext(messages) == b'2'
        assert subscriptions(replica) == 2


async def test_client_dials_the_next_address_if_the_first_fails() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as second,
        FakeBroker(on=stream.handlers()) as first,
        rbs.streams_client([first.uri, second.uri]) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        first.handlers[Step.PEER_PROPERTIES] = wire.RESETTING
        stream.reader.peer.transport.abort()
        stream.append(b'1')
        assert await anext(messages) == b'1'
        assert (subscriptions(first), subscriptions(second)) == (1, 1)


async def test_load_balancer_is_dialled_until_it_leads_to_the_replica() -> None:
    stream = FakeStream()
    stream.append(b'0')
    opened = 0

    def other_node(connection: Peer, request: Frame) -> None:
        nonlocal opened
        opened += 1
        port = '1' if opened < 5 else str(fake.port)
        body = wire.string_map({'advertised_host': '127.0.0.1', 'advertised_port': port})
        connection.answer(request, body)

    async with (
        FakeBroker(on=stream.handlers(), at={Step.OPEN: other_node}) as fake,
        FakeBroker() as leader,
        rbs.streams_client(fake.uri, load_balancer=True) as client,
        subscribe(client) as messages,
    ):
        fake.handlers[wire.METADATA] = members(leader, fake)
        assert await anext(messages) == b'0'
        assert opened == 5
        assert not leader.connections


@pytest.mark.parametrize(
    'key', [wire.METADATA, wire.STREAM_STATS, wire.SUBSCRIBE, Step.OPEN, Step.TUNE]
)
async def test_subscription_recovers_if_the_reconnect_fails(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, 'STABLE', 0.0)
    stream = FakeStream()
    stream.append(b'0', b'1')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        fake.handlers[key] = once(wire.RESETTING, fake.handlers.get(key, default))
        stream.reader.peer.transport.abort()
        assert await anext(messages) == b'1'
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'the client has resubscribed')
        stream.append(b'2')
        assert await waiting == b'2'
        assert len(fake.connections) == 3


async def test_silent_connection_is_replaced() -> None:
    """Without heartbeats of the broker, the client reconnects and misses no message."""
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers(), tune=(1048576, 1)) as fake,
        rbs.streams_client(fake.uri, heartbeat=1) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        stream.reader.live = False
        stream.append(b'1')
        assert await anext(messages) == b'1'
        assert len(stream.readers) == 2


async def test_memory_does_not_grow_over_many_connects_and_requests() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as asking:
        assert await asking.stream_exists('test')
        first = fake.connection

        async def connect(n: int) -> None:
            for _ in range(n):
                async with rbs.streams_client(fake.uri) as client, subscribe(client) as messages:
                    assert await anext(messages) == b'0'
                del fake.connections[1:]
                stream.readers.clear()

        async def ask(n: int) -> None:
            for _ in range(n):
                assert await asking.stream_exists('test')
                first.frames.clear()
                first.reads.clear()

        for work, n in ((connect, sized(300, 1000)), (ask, sized(3_000, 10_000))):
            await work(n // 10)
            tracemalloc.start()
            try:
                await work(n // 10)
                before, _ = tracemalloc.get_traced_memory()
                await work(n - n // 5)
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert after - before < 200_000


async def test_each_subscription_raises_its_own_error() -> None:
    stream = FakeStream()
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        reading = [asyncio.create_task(anext(client.subscribe('test'))) for _ in range(2)]
        await until(lambda: len(stream.readers) == 2, 'both subscriptions exist')
        stream.reader.peer.send(b'\0\0\0\1\0')  # a frame of one byte
        first, second = await asyncio.gather(*reading, return_exceptions=True)
        assert isinstance(first, FrameError)
        assert isinstance(second, FrameError)
        assert first is not second  # each raise adds to its traceback
