"""Events in the event loop turn in which a publisher opens."""

import asyncio
import struct
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Role, State
from rbfly.net.retry import Backoff
from rbfly.protocol import commands
from rbfly.streams.error import MessageTimeout, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, FakeConnection, Frame, Step, frame, string
from tests.fake_stream import FakeStream
from tests.inside import pool_of, session_of
from tests.stream_wire import feed

HANG = 30.0  # seconds; only a safeguard


def ok_response(request: Frame) -> bytes:
    return frame(0x8000 | request.key, struct.pack('>IH', request.correlation_id, wire.OK))


@pytest.mark.own_clock
async def test_move_in_the_turn_that_opens_the_publisher_is_an_outage() -> None:
    declared = 0

    def declare(connection: FakeConnection, request: Frame) -> None:
        nonlocal declared
        declared += 1
        if declared == 1:
            connection.send(commands.MetadataUpdate(6, 'test').encode() + ok_response(request))
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
        [connection] = pool_of(client)._connections[Role.PUBLISH]
        feed(connection, ok_response(held[0]))
        closing = asyncio.create_task(client.disconnect())
        close = frame(wire.CLOSE, struct.pack('>IH', 1, 1) + string('bye'))
        asyncio.get_running_loop().call_soon(feed, connection, close)
        try:
            with pytest.raises(StreamConnectionError, match='disconnected'):
                await asyncio.wait_for(task, HANG)
            assert not used
        finally:
            await closing


async def received(messages: rbs.Subscription) -> Any:
    """Return the next message, however often the wait for it times out."""
    while True:
        try:
            return await anext(messages)
        except MessageTimeout:
            pass


async def test_reset_while_a_shared_connect_backs_off() -> None:
    """A subscription that leaves a shared connect changes neither its state nor the connect."""
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        polled = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False, timeout=0.01)
        other = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        assert await received(polled) == await anext(other) == b'0'
        fake.handlers[Step.OPEN] = wire.CLOSING
        for peer in fake.connections:
            peer.transport.abort()
        task = asyncio.create_task(anext(other))
        connects = pool_of(client)._connects

        def backing_off() -> list[Backoff]:
            found = [shared._backoff for shared in connects.values()]
            return [item for item in found if item.error and len(item.deadlines) == 2]

        while not backing_off():
            with pytest.raises(MessageTimeout):
                await anext(polled)
        with pytest.raises(MessageTimeout):
            await anext(polled)  # ends the outage, for it has read a message since it subscribed
        await until(lambda: bool(backing_off()), 'both wait for the connect')
        [backoff] = backing_off()
        registration = session_of(polled).registration
        registration.reset()
        backoff._notify(None)  # in the same turn
        assert registration.state is State.IDLE
        del fake.handlers[Step.OPEN]
        stream.append(b'1')
        assert await asyncio.wait_for(task, HANG) == b'1'
        assert await received(polled) == b'1'
