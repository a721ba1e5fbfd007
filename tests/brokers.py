"""The RabbitMQ of the integration tests.

RBFLY_URI names a broker. Otherwise tests use the shared broker of `python -m brokers up`, if it is
running, or start a broker for this run. RBFLY_RABBITMQ names the version of both (4.0 by default).
Without RabbitMQ, see `requirements.py`.

Tests run in parallel, so they change only what they have created. A test that stops a node or sets
an alarm uses `private_broker`.
"""

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import BrokerError, RabbitMQ
from tests.requirements import in_memory

CONNECT_TIMEOUT = 20.0
# Commands of rabbitmqctl that affect more than a user, a virtual host or a stream.
OF_THE_NODE = (
    'close_all_connections',
    'reset',
    'set_disk_free_limit',
    'set_vm_memory_high_watermark',
    'stop_app',
    'suspend_listeners',
)


@pytest.fixture(scope='session')
def joined_broker() -> Iterator[Callable[[], RabbitMQ]]:
    """Starts the broker of this run once; the workers of pytest-xdist share it."""
    worker = 'PYTEST_XDIST_WORKER' in os.environ
    name = f'private-{os.getppid() if worker else os.getpid()}-tests'
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(RabbitMQ.joined(name)))


@pytest.fixture(scope='session')
def private_broker() -> Iterator[Callable[[], RabbitMQ]]:
    """Starts a broker once, which tests of this process may stop and change."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(RabbitMQ.private()))


@pytest.fixture(scope='session')
def memory_uri() -> Iterator[str]:
    """The in-memory broker in its own process."""
    command = [sys.executable, '-m', 'rbfly', 'broker', '--port', '0', '--quiet']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(scope='session')
def broker(request: pytest.FixtureRequest, joined_broker: Callable[[], RabbitMQ]) -> RabbitMQ:
    """A running RabbitMQ, or the in-memory broker without one."""
    if in_memory(request.config):
        found = RabbitMQ.named({RabbitMQ.variable: request.getfixturevalue('memory_uri')})
        assert found is not None
        return guarded(found)
    try:
        found = RabbitMQ.named() or RabbitMQ.running() or joined_broker()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'no RabbitMQ for the tests, set RBFLY_URI or see `python -m brokers`: {ex}')
    if not found.alive():
        pytest.fail(f'no RabbitMQ answers at {found.uri}')
    return guarded(found)


@pytest.fixture(scope='session')
def own_broker(broker: RabbitMQ, joined_broker: Callable[[], RabbitMQ]) -> RabbitMQ:
    """A RabbitMQ that this machine runs: with rabbitmqctl, TLS and AMQP 0.9.1."""
    if not broker.external:
        return broker
    try:
        return guarded(joined_broker())
    except (BrokerError, OSError) as ex:
        pytest.fail(f'RBFLY_URI names a broker without rabbitmqctl, and none starts here: {ex}')


def guarded(broker: RabbitMQ) -> RabbitMQ:
    """Fail calls that would disturb other tests on a shared broker."""
    ctl = broker.ctl

    def refuse(*args: object, **options: object) -> None:
        pytest.fail('other tests use this broker, too: use `private_broker` to disturb one')

    def ctl_of_others(*args: str, **options: Any) -> str:
        if args[0] in OF_THE_NODE:
            refuse()
        return ctl(*args, **options)

    names = ('stop_node', 'restart_node', 'kill_node', 'pause_node', 'isolate_node', 'join_node')
    refused = dict.fromkeys(names, refuse)
    vars(broker).update(refused, ctl=ctl_of_others)
    return broker


@pytest.fixture
def broker_uri(broker: RabbitMQ) -> str:
    return broker.uri


@pytest_asyncio.fixture
async def client(broker: RabbitMQ) -> AsyncIterator[rbs.StreamsClient]:
    """A client of the broker; the fixture closes it."""
    client = rbs.streams_client(broker.uri, connect_timeout=CONNECT_TIMEOUT)
    yield client
    await client.disconnect()


@pytest_asyncio.fixture
async def own_client(own_broker: RabbitMQ) -> AsyncIterator[rbs.StreamsClient]:
    """A client of `own_broker`."""
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
    # in its own event loop, for blocking tests
    name = f'test-{uuid4()}'
    asyncio.run(create(uri, name))
    yield name
    asyncio.run(delete(uri, name))


@pytest.fixture
def stream_name(broker: RabbitMQ) -> Iterator[str]:
    """A name for a stream that the test creates; the fixture deletes it."""
    name = f'test-{uuid4()}'
    yield name
    asyncio.run(delete(broker.uri, name))


@pytest.fixture
def stream(broker: RabbitMQ) -> Iterator[str]:
    """A new, empty stream."""
    yield from new_stream(broker.uri)


@pytest.fixture
def own_stream(own_broker: RabbitMQ) -> Iterator[str]:
    """A new, empty stream at `own_broker`."""
    yield from new_stream(own_broker.uri)


@pytest.fixture
def private_stream(private_broker: Callable[[], RabbitMQ]) -> Iterator[str]:
    """A new, empty stream at `private_broker`."""
    broker = private_broker()
    for name in new_stream(broker.uri):
        # RabbitMQ registers its stream coordinator on disk with a delay: a node that is killed
        # before that has no stream leaders after a restart.
        broker.ctl('eval', '[dets:sync(Table) || Table <- dets:all()].')
        yield name


async def until(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    """Poll a condition that no event announces.

    RabbitMQ 4.0 sometimes accepts no new connection for 5 s after a stream was deleted, even twice
    in a row; the timeout allows for that.

    :param what: the condition as a clause, such as 'the client has reconnected'.
    """
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f'timed out after {timeout:g} s waiting until {what}'
        await asyncio.sleep(0.01)
