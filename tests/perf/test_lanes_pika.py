"""The AMQP 0.9.1 lanes, pika and aio-pika, store in the stream what they publish."""

import asyncio
import importlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pika
import pytest
from aio_pika.exceptions import ChannelInvalidStateError

from brokers import RabbitMQ, wire
from brokers.proxy import Proxy
from perf import worker
from perf.clients.base import Target
from perf.lanes import KINDS
from perf.store import RabbitStore

pytestmark = pytest.mark.rabbitmq

WAYS = [
    ('pika', 'latency-unconfirmed-0'),
    ('pika', 'latency-each-0'),
    ('pika', 'latency-flight-0'),
    ('pika', 'processes-1-3'),
    ('pika', 'latency-connection-0'),
    ('aio_pika', 'latency-unconfirmed-0'),
    ('aio_pika', 'latency-each-0'),
]
LOST = (
    pika.exceptions.AMQPError,
    aio_pika.exceptions.AMQPError,
    ChannelInvalidStateError,
    OSError,
)
SETTLE_TIMEOUT = 30.0  # seconds for the broker to store unconfirmed messages

every_way = pytest.mark.parametrize(('module', 'kind'), WAYS)


def make(module: str, target: Target, kind: str) -> Any:
    return importlib.import_module(f'perf.clients.{module}').make(KINDS[kind], target)


async def measure(work: Any, count: int) -> dict[str, Any]:
    await work.prepare(count)
    return await worker.measure(work)


@pytest.fixture
def address(broker: RabbitMQ) -> str:
    if broker.amqp_uri is None:
        pytest.skip('RBFLY_URI names a broker, and RBFLY_AMQP_URI does not')
    return broker.amqp_uri


def settled(store: RabbitStore, stream: str, count: int) -> int:
    """Count the messages in the stream once there are `count`, or after the timeout."""
    limit = time.monotonic() + SETTLE_TIMEOUT
    while (found := store.count(stream)) < count and time.monotonic() < limit:
        time.sleep(0.05)
    return found


@contextmanager
def proxied(address: str, delay: float = 0) -> Iterator[tuple[str, Any]]:
    """Yield the address of a proxy, and a function that calls the proxy's methods.

    The proxy runs in its own event loop, because lanes block theirs.
    """
    parts = urlsplit(address)
    assert parts.hostname is not None
    proxy = Proxy((parts.hostname, parts.port or 5672))
    proxy.delay = delay
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)

    async def do(name: str, *args: object) -> None:
        getattr(proxy, name)(*args)

    def call(name: str, *args: object) -> None:
        asyncio.run_coroutine_threadsafe(do(name, *args), loop).result(30)

    thread.start()
    try:
        call('accept')
        account = parts.netloc.rpartition('@')[0]
        yield parts._replace(netloc=f'{account}@127.0.0.1:{proxy.port}').geturl(), call
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@every_way
async def test_published_messages_are_in_the_stream(
    module: str,
    kind: str,
    address: str,
    stream_name: str,
    store: RabbitStore,
) -> None:
    count = 5 if 'connection' in kind else 1_000
    work = make(module, Target(address, stream_name), kind)
    await work.open()
    try:
        for turn in (1, 2):
            assert 0 < await work.round_trip() < 10
            found = await measure(work, count)
            assert found['count'] == count
            if 'unconfirmed' in kind:
                assert settled(store, stream_name, turn * count) == turn * count
            else:
                assert store.count(stream_name) == turn * count
    finally:
        await work.close()
    assert store.count(stream_name) == 2 * count


@every_way
async def test_round_trip_includes_the_delay_of_both_directions(
    module: str, kind: str, address: str, stream_name: str, store: RabbitStore
) -> None:
    with proxied(address, delay=0.03) as (uri, _):
        work = make(module, Target(uri, stream_name), kind)
        await work.open()
        assert await work.round_trip() > 0.055
        await work.close()
    assert store.count(stream_name) == 0


@every_way
async def test_closed_connection_raises(
    module: str, kind: str, address: str, stream_name: str, store: RabbitStore
) -> None:
    with proxied(address) as (uri, call):
        work = make(module, Target(uri, stream_name), kind)
        await work.open()
        await measure(work, 5)
        call('refuse')
        call('cut')
        with pytest.raises(LOST):
            await measure(work, 5)
        with pytest.raises(LOST):
            await work.round_trip()
        await work.close()


@every_way
async def test_connection_lost_during_a_run_raises(
    module: str, kind: str, address: str, stream_name: str, store: RabbitStore
) -> None:
    with proxied(address) as (uri, call):
        work = make(module, Target(uri, stream_name), kind)
        await work.open()
        call('cut_after', 20_000)
        with pytest.raises(LOST):
            await measure(work, 1_000)
        await work.close()
    assert store.count(stream_name) < 1_000


@every_way
async def test_missing_stream_raises(
    module: str, kind: str, address: str, stream_name: str
) -> None:
    work = make(module, Target(address, f'{stream_name}-not'), kind)
    if 'connection' in kind:
        with pytest.raises(LOST):
            await work.open()
        return
    await work.open()
    with pytest.raises(LOST):
        await work.round_trip()
    await work.close()


async def test_unreachable_broker_raises(stream_name: str) -> None:
    with proxied('amqp://guest:guest@127.0.0.1:1/') as (uri, call):
        call('refuse')
        for module, kind in WAYS:
            with pytest.raises(LOST):
                await make(module, Target(uri, stream_name), kind).open()


class Channel:
    """Replaces pika's channel and counts the published messages."""

    def __init__(self) -> None:
        self.published = 0

    def basic_publish(self, exchange: str, key: str, body: bytes) -> None:
        self.published += 1


def answer(kind: Any, tag: int, multiple: bool = False) -> Any:
    return pika.frame.Method(1, kind(delivery_tag=tag, multiple=multiple))


async def test_in_flight_respects_its_window_with_unordered_confirms() -> None:
    work = make('pika', Target('', ''), 'processes-1-5')
    assert {publisher.window for publisher in work.publishers} == {2_000}
    publisher = work.publishers[0]
    publisher.channel = channel = Channel()
    publisher.bodies = [b''] * 2_010
    run = asyncio.create_task(publisher.run())

    async def confirm(tag: int, multiple: bool = False) -> int:
        publisher.on_confirm(answer(pika.spec.Basic.Ack, tag, multiple))
        for _ in range(10):
            await asyncio.sleep(0)
        return channel.published

    for _ in range(10):
        await asyncio.sleep(0)
    assert channel.published == 2_000
    assert await confirm(3) == 2_001
    assert await confirm(2) == 2_002
    assert await confirm(4, multiple=True) == 2_004
    assert await confirm(6) == 2_005
    assert await confirm(5) == 2_006
    assert await confirm(2_000, multiple=True) == 2_010
    assert not run.done()
    assert await confirm(2_010) == 2_010
    assert not run.done()
    await confirm(2_009, multiple=True)
    assert await run == 2_010


async def test_in_flight_raises_for_a_refused_message() -> None:
    work = make('pika', Target('', ''), 'latency-flight-0')
    publisher = work.publishers[0]
    publisher.channel = Channel()
    await work.prepare(5)
    run = asyncio.create_task(work.run())
    await asyncio.sleep(0)
    publisher.on_confirm(answer(pika.spec.Basic.Nack, 2))
    with pytest.raises(wire.WireError, match=r'not confirmed: <Basic\.Nack'):
        await run
