"""What the client's settings of 0 and None mean, and how it closes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import ConfirmTimeout, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Step

own_clock = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


def lose(fake: FakeBroker) -> None:
    for peer in fake.connections:
        peer.transport.abort()


async def test_ping_returns_the_seconds_of_the_round_trip(client: rbs.StreamsClient) -> None:
    begin = time.perf_counter()
    seconds = [await client.ping() for _ in range(3)]
    assert all(item > 0 for item in seconds)
    assert sum(seconds) < time.perf_counter() - begin


async def test_ping_does_not_count_the_time_to_connect() -> None:
    def slow(peer: wire.FakeConnection, request: wire.Frame) -> None:
        asyncio.get_running_loop().call_later(0.2, peer.broker.default, peer, request)

    async with FakeBroker(at={Step.OPEN: slow}) as fake, rbs.streams_client(fake.uri) as client:
        begin = time.perf_counter()
        seconds = await client.ping()
        assert seconds < time.perf_counter() - begin - 0.2


@own_clock
async def test_ping_that_does_not_wait_fails_at_once() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        begin = now()
        with pytest.raises(rbs.ConnectTimeout):
            await client.ping(0)
        await client.ping()
        with pytest.raises(rbs.RequestTimeout):
            await client.ping(0)
        assert now() - begin < 0.1


async def use_offset(client: rbs.StreamsClient) -> object:
    return await client.read_offset('s', 'r')


@own_clock
async def test_client_that_does_not_wait_for_a_reconnect_fails_at_the_loss() -> None:
    """The next use of each object connects again."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0) as client,
        client.publisher('s') as publisher,
    ):
        messages = client.subscribe('s')
        await messages.open()
        fake.handlers.update({wire.PUBLISH: SILENT, wire.QUERY_OFFSET: SILENT})
        calls: list[Awaitable[Any]] = [publisher.send('x'), anext(messages), use_offset(client)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        sent = {wire.PUBLISH, wire.QUERY_OFFSET}
        await until(
            lambda: sent <= {key for peer in fake.connections for key in peer.commands()},
            'the requests have arrived',
        )
        begin = now()
        lose(fake)
        for task in tasks:
            with pytest.raises(StreamConnectionError, match='connection lost') as caught:
                await task
            assert not isinstance(caught.value, TimeoutError)
        assert now() - begin < 0.1
        fake.handlers.clear()
        assert await use_offset(client) == 0
        await publisher.send('y')
        waiting = asyncio.ensure_future(anext(messages))
        await until(
            lambda: sum(wire.SUBSCRIBE in peer.commands() for peer in fake.connections) == 2,
            'it has subscribed again',
        )
        waiting.cancel()


@own_clock
async def test_client_that_does_not_wait_for_a_reconnect_waits_for_a_connect() -> None:
    """The limit of the next use is `connect_timeout`."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, connect_timeout=3, reconnect_timeout=0) as client,
    ):
        await client.ping()
        fake.handlers[Step.PEER_PROPERTIES] = SILENT
        lose(fake)
        await until(lambda: not client.connected, 'the connection is lost')
        begin = now()
        with pytest.raises(rbs.ConnectTimeout):
            await use_offset(client)
        assert 2.9 < now() - begin < 3.1


async def test_call_on_a_connection_that_the_program_replaces_is_repeated() -> None:
    async with (
        FakeBroker(on={wire.QUERY_OFFSET: SILENT}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0) as client,
    ):
        call = asyncio.ensure_future(use_offset(client))
        await until(
            lambda: any(wire.QUERY_OFFSET in peer.commands() for peer in fake.connections),
            'the request has arrived',
        )
        fake.handlers.clear()
        await client.reconnect()
        assert await call == 0


@own_clock
async def test_client_that_does_not_wait_closes_at_once() -> None:
    async with FakeBroker(on={wire.PUBLISH: SILENT, wire.CLOSE: SILENT}) as fake:
        client = rbs.streams_client(fake.uri, close_timeout=0)
        publisher = await client.publisher('s')
        confirmation = await publisher.submit('x')
        begin = now()
        with pytest.raises(ConfirmTimeout) as caught:
            await publisher.close()
        assert caught.value.unconfirmed == 1
        await client.close()
        assert now() - begin < 0.1
        assert not client.connected
        assert confirmation.exception() is not None


Close = Callable[[rbs.StreamsClient], Awaitable[None]]


@pytest.mark.parametrize('name', ['close', 'disconnect'])
async def test_client_can_be_used_again_after_it_is_closed(
    client: rbs.StreamsClient, name: str
) -> None:
    await client.ping(None)
    for _ in range(2):
        await getattr(client, name)()
        assert not client.connected
    await client.ping(None)
    assert client.connected
