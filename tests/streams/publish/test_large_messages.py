"""Publishing large bodies, which a frame does not copy, on both event loops."""

import asyncio

import pytest

import rbfly.streams as rbs
from rbfly.net import retry
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.inside import connection_of
from tests.streams.publish.test_publish_recovery import default, once

pytestmark = pytest.mark.both_loops

SIZES = (10, 4_095, 4_096, 20_000, 100_000, 900_000, 1, 300_000, 255, 256)
BODIES = [bytes([i]) * size for i, size in enumerate(SIZES * 3)]


async def received(client: rbs.StreamsClient, stream: str) -> list[object]:
    subscription = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now')
    return [body async for body in subscription]


@pytest.mark.parametrize('name', [None, 'me'])
async def test_all_methods_send_them(
    client: rbs.StreamsClient, stream: str, name: str | None
) -> None:
    async with client.publisher(stream, name=name) as publisher:
        await publisher.send_many(BODIES)
        for body in BODIES:
            publisher.batch(body)
        await publisher.flush()
        await asyncio.gather(*map(publisher.send, BODIES))
    assert await received(client, stream) == BODIES * 3


async def test_raw_messages(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many(BODIES)
    subscription = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now', amqp=False)
    assert [body async for body in subscription] == BODIES


async def test_resent_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.RESETTING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        await asyncio.gather(*map(publisher.send, BODIES))
        (connection,) = [item for item in fake.connections if item.commands().count(wire.PUBLISH)][
            1:
        ]
        sent = [
            data[4:]
            for frame in connection.frames
            if frame.key == wire.PUBLISH
            for _, _, data in frame.decode().entries
        ]
    assert sent == BODIES


async def test_publisher_stops_writing_while_the_broker_does_not_read() -> None:
    body = bytes(900_000)
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        connection = connection_of(publisher)
        peer = fake.connections[-1]
        peer.transport.pause_reading()
        sending = asyncio.create_task(publisher.send_many([body] * 30))
        await until(lambda: connection.paused, 'the transport is full')
        transport = connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 4 * 2**20
        peer.transport.resume_reading()
        assert await sending == 30
