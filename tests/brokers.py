"""The real broker of the integration tests.

The one that RBFLY_URI names is used; otherwise the shared one of `python -m brokers up`, if
it runs; otherwise one is started for this run.  Where there is none, the tests fail.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import BrokerError, RabbitMQ
from brokers import rabbitmq as recipe

CONNECT_TIMEOUT = 20.0


@pytest.fixture(scope='session')
def private_broker() -> Iterator[Callable[[], RabbitMQ]]:
    """Starts a broker of this run's own, once."""
    started: list[RabbitMQ] = []

    def start() -> RabbitMQ:
        if not started:
            broker = RabbitMQ.private()
            broker.start()
            started.append(broker)
        return started[0]

    yield start
    for broker in started:
        broker.stop(orderly=False)


@pytest.fixture(scope='session')
def broker(private_broker: Callable[[], RabbitMQ]) -> RabbitMQ:
    """A running RabbitMQ, whoever started it."""
    try:
        found = recipe.external() or recipe.running()
        if found is None:
            return private_broker()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'no RabbitMQ for the tests, set RBFLY_URI or see `python -m brokers`: {ex}')
    if not found.alive():
        pytest.fail(f'no RabbitMQ answers at {found.uri}')
    return found


@pytest.fixture(scope='session')
def own_broker(broker: RabbitMQ, private_broker: Callable[[], RabbitMQ]) -> RabbitMQ:
    """A RabbitMQ that was started here: with rabbitmqctl, TLS and AMQP 0.9.1."""
    if not broker.external:
        return broker
    try:
        return private_broker()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'RBFLY_URI names a broker without rabbitmqctl, and none starts here: {ex}')


@pytest.fixture
def broker_uri(broker: RabbitMQ) -> str:
    return broker.uri


@pytest_asyncio.fixture
async def client(broker: RabbitMQ) -> AsyncIterator[rbs.StreamsClient]:
    """A client of the broker, closed behind the test."""
    client = rbs.streams_client(broker.uri, connect_timeout=CONNECT_TIMEOUT)
    yield client
    await client.disconnect()


@pytest_asyncio.fixture
async def own_client(own_broker: RabbitMQ) -> AsyncIterator[rbs.StreamsClient]:
    """The same for the broker that was started here."""
    client = rbs.streams_client(own_broker.uri, connect_timeout=CONNECT_TIMEOUT)
    yield client
    await client.disconnect()


async def create(uri: str, name: str) -> None:
    async with rbs.streams_client(uri, connect_timeout=CONNECT_TIMEOUT) as client:
        await client.create_stream(name)


async def delete(uri: str, name: str) -> None:
    async with rbs.streams_client(uri, connect_timeout=CONNECT_TIMEOUT) as client:
        await client.delete_stream(name)


def new_stream(uri: str) -> Iterator[str]:
    # in a loop of its own: tests without one use it, too
    name = f'test-{uuid4()}'
    asyncio.run(create(uri, name))
    yield name
    asyncio.run(delete(uri, name))


@pytest.fixture
def stream_name(broker: RabbitMQ) -> Iterator[str]:
    """A name for a stream that the test creates; it is deleted behind it."""
    name = f'test-{uuid4()}'
    yield name
    asyncio.run(delete(broker.uri, name))


@pytest.fixture
def stream(broker: RabbitMQ) -> Iterator[str]:
    """A new, empty stream."""
    yield from new_stream(broker.uri)


@pytest.fixture
def own_stream(own_broker: RabbitMQ) -> Iterator[str]:
    """The same on the broker that was started here."""
    yield from new_stream(own_broker.uri)


async def until(condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    """Wait for a condition that nothing announces."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f'not within {timeout} s: {what}'
        await asyncio.sleep(0.01)
