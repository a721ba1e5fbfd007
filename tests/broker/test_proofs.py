"""Short versions of the proofs, `python -m perf prove`: each must hold."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from brokers import BrokerError
from perf.proofs import PROOFS, Value
from perf.proofs.main import loop_factory, prove
from perf.proofs.run import Run
from perf.proofs.site import Place, Site

SEED = 1

Sites = Callable[[], AbstractAsyncContextManager[Site]]


def sites(nodes: int) -> Iterator[Sites]:
    """A broker whose nodes advertise the ports of proxies, and proxies for each test."""
    place = Place.private(nodes)
    try:
        place.broker.start()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'no RabbitMQ behind proxies: {ex}')

    @asynccontextmanager
    async def site() -> AsyncIterator[Site]:
        async with Site.before(place, SEED) as found:
            yield found

    yield site
    place.broker.stop(orderly=False)


@pytest.fixture(scope='module')
def one_node() -> Iterator[Sites]:
    yield from sites(1)


@pytest.fixture(scope='module')
def three_nodes() -> Iterator[Sites]:
    yield from sites(3)


async def holds(site: Sites, name: str, **settings: Value) -> Run:
    """Run a proof and assert that it holds."""
    run = Run(PROOFS[name], SEED, **settings)
    async with site() as found:
        await prove(run, found)
    assert run.holds, '\n'.join(run.summary())
    return run


async def test_tasks(one_node: Sites) -> None:
    await holds(one_node, 'tasks', tasks=200, messages=20_000)


async def test_cancels(one_node: Sites) -> None:
    run = await holds(one_node, 'cancels', messages=3_000, cuts=500)
    assert run.found['cancelled after turns']
    assert run.found['cancelled after a time']
    assert run.found['cancelled and stored']


async def test_latency(one_node: Sites) -> None:
    run = await holds(one_node, 'latency', messages=300)
    assert 0 < run.found['send p50, us'] <= run.found['send p99, us']


@pytest.mark.parametrize('by', ['send', 'flush', 'send-many'])
async def test_memory(one_node: Sites, by: str) -> None:
    await holds(one_node, 'memory', messages=50_000, by=by)


@pytest.mark.parametrize('by', ['body', 'context', 'batch'])
async def test_consume_memory(one_node: Sites, by: str) -> None:
    await holds(one_node, 'consume-memory', messages=100_000, by=by)


def test_rtt(one_node: Sites) -> None:
    async def run() -> Any:
        return await holds(one_node, 'rtt', rounds=1, milliseconds=20)

    with asyncio.Runner(loop_factory=loop_factory(PROOFS['rtt'])) as runner:
        found = runner.run(run()).found
    assert found['0 ms, send']['rate'] > found['50 ms, send']['rate']


# -- faults


@pytest.mark.parametrize('unnamed', [False, True])
@pytest.mark.parametrize('by', ['send', 'flush', 'send-many'])
async def test_publish_cuts(one_node: Sites, by: str, unnamed: bool) -> None:
    await holds(one_node, 'publish-cuts', messages=20_000, cuts=6, by=by, unnamed=unnamed)


@pytest.mark.parametrize('by', ['body', 'context', 'batch'])
async def test_consume_cuts(one_node: Sites, by: str) -> None:
    await holds(one_node, 'consume-cuts', messages=20_000, cuts=6, by=by)


async def test_consume_anything(one_node: Sites) -> None:
    await holds(one_node, 'consume-anything', messages=5_000)


async def test_consume_foreign(one_node: Sites) -> None:
    await holds(one_node, 'consume-foreign', messages=900)


async def test_publish_restart(one_node: Sites) -> None:
    await holds(one_node, 'publish-restart', messages=10_000, cuts=2)


async def test_consume_restart(one_node: Sites) -> None:
    await holds(one_node, 'consume-restart', messages=10_000, cuts=2)


async def test_publish_leader(three_nodes: Sites) -> None:
    await holds(three_nodes, 'publish-leader', messages=6_000, cuts=2)


async def test_consume_leader(three_nodes: Sites) -> None:
    await holds(three_nodes, 'consume-leader', messages=6_000, cuts=2)
