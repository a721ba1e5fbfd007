"""`ping`: one request and its response, within a timeout, whatever state the client is in.

Where time matters, the broker is scripted and time is simulated.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import CLOSING, RESETTING, SILENT, FakeBroker, Frame, Handler, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import pool_of
from tests.streams.publish.test_publish_recovery import default, once

own_clock = pytest.mark.own_clock
SHORT = 0.1  # seconds; long for loopback, short for a test
LONG = 20.0


def now() -> float:
    return asyncio.get_running_loop().time()


def pings(fake: FakeBroker) -> int:
    """Count the requests of pings: they ask for no stream."""
    frames = [frame for peer in fake.connections for frame in peer.frames]
    return sum(item.key == wire.METADATA and item.decode().streams == () for item in frames)


def lose(fake: FakeBroker) -> None:
    for peer in fake.connections:
        peer.transport.abort()


# -- a health check, against a broker that answers, is stalled, or is stopped


async def healthy(client: rbs.StreamsClient, timeout: float | None = SHORT) -> bool:
    """A health check of a service."""
    try:
        await client.ping(timeout)
    except rbs.RbFlyError:
        return False
    return True


async def test_health_check(client: rbs.StreamsClient, stream: str) -> None:
    assert await healthy(client, LONG)  # it connects
    assert client.connected
    async with client.publisher(stream) as publisher, client.subscribe(stream) as messages:
        assert await healthy(client, LONG)
        await publisher.send('x')
        assert await healthy(client, LONG)
        await messages.aclose()
    await client.disconnect()
    assert await healthy(client, LONG)  # like every other call, it connects again


async def test_health_check_of_a_stalled_broker() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send(1)
            assert await healthy(client, LONG)
            broker.stall()
            assert not await healthy(client)
            assert client.connected
            with pytest.raises(rbs.RequestTimeout, match=r'no answer within 0\.1 s, while pinging'):
                await client.ping(SHORT)
            broker.heal()
            assert await healthy(client, LONG)
            await publisher.send(2)
        assert broker.messages('orders') == [1, 2]


async def test_health_check_of_a_stopped_broker() -> None:
    """`stream_exists` would wait until the broker is back."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send(1)
            broker.stop_node(0)
            await until(lambda: not client.connected, 'the connection is lost')
            with pytest.raises(rbs.ConnectTimeout, match=r'^gave up after 1 s: ') as caught:
                await client.ping(1)
            assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
            assert isinstance(caught.value.__cause__.__cause__, OSError)
            broker.start_node(0)
            assert await healthy(client, LONG)
            await publisher.send(2)


async def test_health_check_of_a_stopped_rabbitmq(
    private_broker: Callable[[], RabbitMQ],
) -> None:
    broker = await asyncio.to_thread(private_broker)
    async with rbs.streams_client(broker.uri) as client:
        assert await healthy(client, LONG)
        await asyncio.to_thread(broker.pause_node)
        try:
            with pytest.raises(rbs.RequestTimeout):
                await client.ping(1)
        finally:
            await asyncio.to_thread(broker.resume_node)
        assert await healthy(client, LONG)
        await asyncio.to_thread(broker.kill_node)
        try:
            with pytest.raises(rbs.ConnectTimeout) as caught:
                await client.ping(1)
            assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
        finally:
            await asyncio.to_thread(broker.restart_node)
        assert await healthy(client, 60)


@own_clock
async def test_first_ping_of_a_broker_that_accepts_but_does_not_answer() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.stall()
        with pytest.raises(rbs.ConnectTimeout, match='while exchanging peer properties'):
            await client.ping(SHORT)
        assert not client.connected
        broker.heal()
        await client.ping(LONG)


# -- the time limit


@own_clock
@pytest.mark.parametrize('timeout', [0.05, 1.0, 5.0, 60.0])
@pytest.mark.parametrize('was_connected', [False, True])
@pytest.mark.parametrize(
    ('key', 'handler'),
    [
        (wire.METADATA, SILENT),
        (wire.METADATA, CLOSING),
        (Step.PEER_PROPERTIES, SILENT),
        (Step.OPEN, SILENT),
        (Step.OPEN, CLOSING),
    ],
)
async def test_ping_ends_within_its_timeout(
    key: int, handler: Handler, was_connected: bool, timeout: float
) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, connect_timeout=1000, request_timeout=7) as client,
    ):
        if was_connected:
            await client.ping()
            if key != wire.METADATA:
                lose(fake)
                await until(lambda: not client.connected, 'the connection is lost')
        fake.handlers[key] = handler
        begin = now()
        with pytest.raises(rbs.StreamConnectionError) as caught:
            await client.ping(timeout)
        assert isinstance(caught.value, TimeoutError)
        assert 0.5 * timeout <= now() - begin <= timeout + 0.001
        if handler is CLOSING:
            assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
        fake.handlers.clear()
        if handler is SILENT:
            lose(fake)
        await client.ping()


@own_clock
async def test_ping_without_a_timeout_waits_until_the_broker_answers(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1, reconnect_timeout=1) as client:
        pinging = asyncio.create_task(client.ping(None))
        await asyncio.sleep(1000)
        assert not pinging.done()
        down.handlers.clear()
        await pinging


@own_clock
async def test_ping_tries_again_within_its_timeout(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri) as client:
        pinging = asyncio.create_task(client.ping(5))
        await asyncio.sleep(2)
        assert len(down.connections) > 2
        down.handlers.clear()
        await pinging
        down.handlers[wire.METADATA] = once(RESETTING, default)
        await client.ping(5)  # over a new connection


@own_clock
async def test_cause_of_a_ping_in_a_silent_outage_is_the_loss() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.ping()
        fake.handlers[Step.PEER_PROPERTIES] = SILENT
        lose(fake)
        await until(lambda: not client.connected, 'the connection is lost')
        with pytest.raises(rbs.ConnectTimeout) as caught:
            await client.ping(5)
        assert 'connection lost' in str(caught.value.__cause__)
        fake.handlers.clear()
        await client.ping()
        fake.handlers[wire.METADATA] = SILENT
        with pytest.raises(rbs.RequestTimeout) as later:
            await client.ping(5)
        assert later.value.__cause__ is None  # that loss is over
        await client.disconnect()
        fake.handlers[Step.PEER_PROPERTIES] = SILENT
        with pytest.raises(rbs.ConnectTimeout) as last:
            await client.ping(5)
        assert last.value.__cause__ is None


@own_clock
async def test_ping_does_not_wait_for_the_backoff_of_others() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
        client.subscribe('test') as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: wire.SUBSCRIBE in fake.connection.commands(), 'it has subscribed')
        fake.handlers[Step.OPEN] = CLOSING
        lose(fake)
        await asyncio.sleep(600)  # the publisher and the subscription back off for 30 s
        fake.handlers.clear()
        begin = now()
        await client.ping()
        assert now() - begin < 0.01
        await publisher.send('x')
        waiting.cancel()


@own_clock
async def test_ping_that_connects_ends_the_backoff_of_others() -> None:
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        contextlib.aclosing(client.subscribe('test', amqp=False)) as messages,
    ):
        publisher = await client.publisher('test')
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: bool(stream.readers), 'it has subscribed')
        fake.handlers[Step.OPEN] = CLOSING
        lose(fake)
        await asyncio.sleep(600)  # both back off for up to 30 s
        del fake.handlers[Step.OPEN]
        await client.ping()
        begin = now()
        await publisher.send('x')
        stream.append(b'x')
        assert await waiting == b'x'
        assert now() - begin < 0.1
        await publisher.close()


@own_clock
async def test_short_pings_do_not_shorten_the_connects_of_others() -> None:
    """A handshake takes half a second, and there is always a ping that gives up after 100 ms."""

    def slow(peer: Peer, request: Frame) -> None:
        asyncio.get_running_loop().call_later(0.5, default, peer, request)

    async def ping_often(delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await healthy(client, 0.1)
            await asyncio.sleep(0.01)

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.OPEN] = slow
        lose(fake)
        pinging = [asyncio.create_task(ping_often(delay)) for delay in (0, 0.03, 0.06)]
        async with asyncio.timeout(5):
            await publisher.send('x')
        for task in pinging:
            task.cancel()


def slow(peer: Peer, request: Frame) -> None:
    """Answer after a second."""
    asyncio.get_running_loop().call_later(1.0, default, peer, request)


@own_clock
@pytest.mark.parametrize('timeout', [0.1, 1.0])
@pytest.mark.parametrize('every', [0.05, 1.0, 5.0])
async def test_pings_shorter_than_a_handshake_succeed_once_it_is_over(
    timeout: float, every: float
) -> None:
    """There are several addresses; health checks overlap, or there is none for a while."""
    async with (
        FakeBroker(at={Step.OPEN: SILENT}) as silent,
        FakeBroker(at={Step.SASL_HANDSHAKE: slow, Step.OPEN: slow}) as fake,
        rbs.streams_client([silent.uri, fake.uri]) as client,
    ):
        pinging = set[asyncio.Task[bool]]()
        begin = now()
        while not any(task.done() and task.result() for task in pinging):
            assert now() - begin < 30
            pinging.add(asyncio.create_task(healthy(client, timeout)))
            await asyncio.sleep(every)
        await asyncio.wait(pinging)
        assert len(fake.connections) < 10


@own_clock
@pytest.mark.parametrize(('connect_timeout', 'seconds'), [(7, 7), (None, 10)])
async def test_connect_outlives_pings_for_connect_timeout(
    connect_timeout: float | None, seconds: float
) -> None:
    async with (
        FakeBroker(at={Step.OPEN: SILENT}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=connect_timeout) as client,
    ):
        assert not await healthy(client, 1)
        assert not await healthy(client, 1)
        await asyncio.sleep(seconds - 1.2)  # the second try began a second ago
        assert pool_of(client)._connects
        assert not await healthy(client, 0.05)  # that time is not extended
        await asyncio.sleep(0.5)
        assert not pool_of(client)._connects
        await asyncio.gather(*(peer.lost for peer in fake.connections))
        await asyncio.sleep(1000)
        assert len(fake.connections) == 2


@own_clock
async def test_final_error_after_a_ping_gave_up_is_raised_by_the_next_ping() -> None:
    def refuse_late(peer: Peer, request: Frame) -> None:
        asyncio.get_running_loop().call_later(1.0, wire.refuse(0x08), peer, request)

    async with (
        FakeBroker(at={Step.SASL_AUTHENTICATE: refuse_late}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        for _ in range(2):
            assert not await healthy(client, 0.9)
        await asyncio.sleep(10)
        assert len(fake.connections) == 2
        fake.handlers[Step.SASL_AUTHENTICATE] = wire.refuse(0x08)
        with pytest.raises(rbs.AuthenticationError):
            await client.ping(1)


# -- the connection


@own_clock
async def test_ping_uses_the_connection_of_a_publisher() -> None:
    async with (
        FakeBroker(tune=(0, 0)) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        client.publisher('test'),
    ):
        await asyncio.sleep(1000)  # other connections were closed because they were unused
        opened = len(fake.connections)
        await client.ping()
        assert pings(fake) == 1
        assert len(fake.connections) == opened


@own_clock
async def test_ping_does_not_use_a_connection_with_unconfirmed_messages() -> None:
    """If too many messages are unconfirmed, the broker does not read from it."""
    held: list[tuple[Peer, Frame]] = []
    async with (
        FakeBroker(tune=(0, 0), on={wire.PUBLISH: lambda *item: held.append(item)}) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        client.publisher('test') as publisher,
    ):
        await asyncio.sleep(1000)
        await publisher.submit('x')
        await until(lambda: bool(held), 'the message is sent')
        opened = len(fake.connections)
        for _ in range(2):
            await client.ping()
            assert len(fake.connections) == opened + 1
        default(*held[0])


@own_clock
async def test_connection_that_does_not_answer_a_ping_ends_after_the_request_timeout() -> None:
    """Until then it stays open; afterwards the subscription and later pings use another one."""
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, request_timeout=10) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: bool(stream.readers), 'it has subscribed')
        fake.handlers[wire.METADATA] = SILENT
        for _ in range(3):
            with pytest.raises(rbs.RequestTimeout):
                await client.ping(2)
            assert client.connected
        assert pings(fake) == 1
        fake.handlers[wire.METADATA] = default
        await asyncio.sleep(5)
        assert fake.connection.lost.done()
        stream.append(b'x')
        assert await waiting == b'x'
        await client.ping(2)


@own_clock
async def test_late_answer_keeps_the_connection() -> None:
    held: list[tuple[Peer, Frame]] = []
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        fake.handlers[wire.METADATA] = lambda *item: held.append(item)
        with pytest.raises(rbs.RequestTimeout):
            await client.ping(2)
        default(*held[0])
        fake.handlers.clear()
        await asyncio.sleep(60)
        await client.ping(2)
        assert len(fake.connections) == 1


async def test_malformed_answer_ends_the_connection() -> None:
    async with FakeBroker(on={wire.METADATA: wire.TRUNCATED}) as fake:
        client = rbs.streams_client(fake.uri)
        with pytest.raises(rbs.FrameError, match='does not speak the stream protocol'):
            await client.ping()
        assert not client.connected


# -- several pings


async def test_pings_share_one_request() -> None:
    held: list[tuple[Peer, Frame]] = []
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        fake.handlers[wire.METADATA] = lambda *item: held.append(item)
        tasks = [asyncio.create_task(client.ping()) for _ in range(1000)]
        await until(lambda: bool(held), 'the request has arrived')
        for task in tasks[::2]:
            task.cancel()
        default(*held[0])
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(item) for item in found[:2]] == [asyncio.CancelledError, float]
        assert all(isinstance(seconds, float) for seconds in found[1::2])
        assert len(held) == 1


@own_clock
async def test_pings_share_connects(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri) as client:
        pinging = [asyncio.create_task(client.ping(5)) for _ in range(100)]
        found = await asyncio.gather(*pinging, return_exceptions=True)
        assert {type(item) for item in found} == {rbs.ConnectTimeout}
        assert 2 < len(down.connections) < 20
        down.handlers.clear()
        pinging = [asyncio.create_task(client.ping(5)) for _ in range(100)]
        before = len(down.connections)
        await asyncio.gather(*pinging)
        assert len(down.connections) == before + 1


async def test_cancelled_ping_leaves_nothing() -> None:
    async with FakeBroker(at={Step.OPEN: SILENT}) as fake, rbs.streams_client(fake.uri) as client:
        pinging = asyncio.create_task(client.ping())
        await until(lambda: bool(fake.connections), 'it connects')
        pinging.cancel()
        await asyncio.wait([pinging])
        await fake.connection.lost


# -- errors that no further try fixes


async def test_ping_raises_final_errors_at_once() -> None:
    async with StreamBroker(users={'shop': 'secret'}) as broker:
        wrong: Any = broker.uri.replace('secret', 'wrong')
        with pytest.raises(rbs.AuthenticationError):
            await rbs.streams_client(wrong).ping(None)
        with pytest.raises(rbs.VirtualHostError):
            await rbs.streams_client(broker.uri.rstrip('/') + '/nowhere').ping(None)


async def test_ping_fails_while_the_client_disconnects() -> None:
    async with FakeBroker(on={wire.METADATA: SILENT}) as fake:
        client = rbs.streams_client(fake.uri)
        await client.get_protocol()
        early = asyncio.create_task(client.ping())
        await until(lambda: pings(fake) == 1, 'the request has arrived')
        leaving = asyncio.create_task(client.disconnect())
        await asyncio.sleep(0)
        found = await asyncio.gather(early, client.ping(), return_exceptions=True)
        assert [str(error) for error in found] == ['the client was disconnected'] * 2
        await leaving


@pytest.mark.parametrize(('timeout', 'error'), [(-1, ValueError), ('5', TypeError)])
async def test_invalid_timeout(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match='timeout must be'):
        await rbs.streams_client('rabbitmq-stream://localhost/').ping(timeout)
