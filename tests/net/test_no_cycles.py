"""Failures create no reference cycles: a client is released without a garbage collection."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.net import retry
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import (
    CLOSING,
    GARBAGE,
    SILENT,
    FakeBroker,
    FakeConnection,
    Frame,
    Step,
    refuse,
)
from tests.inside import cluster_of

UNAVAILABLE = 0x06
PRECONDITION = 0x11
LIMIT = 0.2  # timeout in seconds, for tests in which it expires


@pytest_asyncio.fixture(autouse=True)
async def _no_collection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def refuse_once(key: int) -> Callable[[FakeConnection, Frame], None]:
    """Refuse a command the first time only."""
    seen: list[Frame] = []

    def answer(connection: FakeConnection, request: Frame) -> None:
        seen.append(request)
        connection.respond(request, code=wire.OK if len(seen) > 1 else UNAVAILABLE)

    return answer


async def check_released(
    use: Callable[[rbs.StreamsClient, FakeBroker], Awaitable[None]],
    connect_timeout: float = LIMIT,
    **broker: Any,
) -> None:
    """Use a client, disconnect it, and check that it is released."""
    async with FakeBroker(**broker) as fake:
        client = rbs.streams_client(
            fake.uri, connect_timeout=connect_timeout, request_timeout=LIMIT, close_timeout=LIMIT
        )
        left = weakref.ref(cluster_of(client))
        with suppress(RbFlyError, asyncio.CancelledError):
            await use(client, fake)
        await client.disconnect()
        del client
        await until(lambda: left() is None, 'the client is released')


async def publish(client: rbs.StreamsClient, fake: FakeBroker) -> None:
    async with client.publisher('test') as publisher:
        await publisher.send(b'x')


async def read(client: rbs.StreamsClient, fake: FakeBroker) -> None:
    async for _ in client.subscribe('test', timeout=LIMIT):
        pass


async def cancel(client: rbs.StreamsClient, fake: FakeBroker) -> None:
    task = asyncio.create_task(publish(client, fake))
    await until(lambda: bool(fake.connections) or task.done(), 'the client connects')
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():  # it gave up before: the machine is busy
        task.exception()


async def disconnect(client: rbs.StreamsClient, fake: FakeBroker) -> None:
    task = asyncio.create_task(publish(client, fake))
    await until(lambda: bool(fake.connections) or task.done(), 'the client connects')
    await client.disconnect()
    await asyncio.wait([task])
    task.exception()


DECLARE = wire.DECLARE_PUBLISHER


@pytest.mark.parametrize('use', [publish, cancel, disconnect])
@pytest.mark.parametrize(
    'broker',
    [
        {},
        {'on': {DECLARE: refuse(PRECONDITION)}},
        {'on': {DECLARE: refuse(UNAVAILABLE)}},
        {'on': {DECLARE: SILENT}},
        {'on': {DECLARE: refuse_once(DECLARE)}},
        {'at': {Step.OPEN: CLOSING}},
        {'at': {Step.OPEN: GARBAGE}},
        {'at': {Step.OPEN: SILENT}},
    ],
    ids=[
        'stores', 'refuses', 'is unavailable', 'is silent', 'refuses once', 'closes',
        'sends garbage', 'never opens',
    ],
)  # fmt: skip
async def test_client_is_released_after_publishing_to_a_broker_that(
    use: Any, broker: dict[str, Any]
) -> None:
    await check_released(use, **broker)


@pytest.mark.parametrize(
    'on',
    [{}, {wire.SUBSCRIBE: refuse(PRECONDITION)}, {wire.SUBSCRIBE: refuse_once(wire.SUBSCRIBE)}],
    ids=['is silent', 'refuses', 'refuses once'],
)
async def test_client_is_released_after_reading_from_a_broker_that(on: dict[int, Any]) -> None:
    await check_released(read, on=on)


async def close_publisher(client: rbs.StreamsClient) -> None:
    async with client.publisher('test') as publisher:
        await publisher.close()


async def close_subscription(client: rbs.StreamsClient) -> None:
    messages = client.subscribe('test', timeout=LIMIT)
    await messages.open()
    with suppress(TimeoutError):
        await anext(messages)
    await messages.aclose()


async def disconnect_client(client: rbs.StreamsClient) -> None:
    await client.get_protocol()
    await client.disconnect()


@pytest.mark.parametrize(
    ('close', 'unanswered'),
    [
        (close_publisher, wire.DELETE_PUBLISHER),
        (close_subscription, wire.UNSUBSCRIBE),
        (disconnect_client, wire.CLOSE),
    ],
)
async def test_client_and_task_are_released_after_a_cancelled_close(
    close: Any, unanswered: int
) -> None:
    async def use(client: rbs.StreamsClient, fake: FakeBroker) -> None:
        task = asyncio.create_task(close(client))
        await until(
            lambda: fake.has_received(unanswered),
            'the request to close is sent',
        )
        task.cancel()
        await asyncio.wait([task])
        left.append(weakref.ref(task))

    left: list[weakref.ref[asyncio.Task[None]]] = []
    # On a busy machine, a client that gave up connecting would have nothing to close.
    await check_released(use, connect_timeout=30.0, on={unanswered: SILENT})
    assert left[0]() is None
