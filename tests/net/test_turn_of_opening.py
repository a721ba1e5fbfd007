"""Events in the event loop turn in which a publisher opens."""

import asyncio
import struct
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.cluster import Role
from rbfly.protocol import commands
from rbfly.streams.error import StreamConnectionError
from tests import fake as wire
from tests.brokers import until
from tests.fake import FakeBroker, FakeConnection, Frame, frame, string

HANG = 5.0  # seconds; only a safeguard


def ok(request: Frame) -> bytes:
    return frame(0x8000 | request.key, struct.pack('>IH', request.correlation_id, wire.OK))


@pytest.mark.own_clock
async def test_move_in_the_turn_that_opens_the_publisher_is_an_outage() -> None:
    declared = 0

    def declare(connection: FakeConnection, request: Frame) -> None:
        nonlocal declared
        declared += 1
        if declared == 1:
            connection.send(commands.MetadataUpdate(6, 'test').encode() + ok(request))
        else:  # for longer than connect_timeout
            connection.respond(request, code=6 if declared < 8 else wire.OK)

    async with (
        FakeBroker(on={wire.DECLARE_PUBLISHER: declare}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=1, close_timeout=1) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')
        assert declared == 8


async def test_disconnect_in_the_turn_that_opens_the_publisher() -> None:
    held: list[Frame] = []
    used: list[Any] = []

    async def use(client: rbs.StreamsClient) -> None:
        async with client.publisher('test') as publisher:
            used.append(publisher)

    async with FakeBroker(on={wire.DECLARE_PUBLISHER: lambda _, r: held.append(r)}) as fake:
        client = rbs.streams_client(fake.uri, close_timeout=0.1)
        task = asyncio.create_task(use(client))
        await until(lambda: bool(held), 'the publisher is declared')
        [connection] = client._cluster._connections[Role.PUBLISH]
        connection.feed(ok(held[0]))
        closing = asyncio.create_task(client.disconnect())
        close = frame(wire.CLOSE, struct.pack('>IH', 1, 1) + string('bye'))
        asyncio.get_running_loop().call_soon(connection.feed, close)
        try:
            with pytest.raises(StreamConnectionError, match='disconnected'):
                await asyncio.wait_for(task, HANG)
            assert not used
        finally:
            await closing
