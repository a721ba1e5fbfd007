"""Short versions of the proofs without faults hold; other files run those with faults."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from proofs.catalogue import PROOFS
from proofs.run import loop_factory
from tests.proofs.short_runs import Beds, beds, holds

pytestmark = pytest.mark.broker


@pytest.fixture(scope='module')
def one_node() -> Iterator[Beds]:
    yield from beds(1)


async def test_tasks(one_node: Beds) -> None:
    await holds(one_node, 'tasks', tasks=200, messages=20_000)


async def test_cancels(one_node: Beds) -> None:
    run = await holds(one_node, 'cancels', messages=3_000, cuts=500)
    assert run.found['cancelled after turns']
    assert run.found['cancelled after a time']
    assert run.found['unknown and stored']


async def test_latency(one_node: Beds) -> None:
    run = await holds(one_node, 'latency', messages=300)
    assert 0 < run.found['send p50, us'] <= run.found['send p99, us']


@pytest.mark.parametrize('by', ['send', 'flush', 'send-many'])
async def test_memory(one_node: Beds, by: str) -> None:
    await holds(one_node, 'memory', messages=50_000, by=by)


@pytest.mark.parametrize('by', ['body', 'context', 'batch'])
async def test_consume_memory(one_node: Beds, by: str) -> None:
    await holds(one_node, 'consume-memory', messages=100_000, by=by)


def test_rtt(one_node: Beds) -> None:
    async def run() -> Any:
        return await holds(one_node, 'rtt', rounds=1, milliseconds=20)

    with asyncio.Runner(loop_factory=loop_factory(PROOFS['rtt'])) as runner:
        found = runner.run(run()).found
    assert found['0 ms, send']['rate'] > found['50 ms, send']['rate']


async def test_consume_anything(one_node: Beds) -> None:
    await holds(one_node, 'consume-anything', messages=5_000)


async def test_consume_foreign(one_node: Beds) -> None:
    await holds(one_node, 'consume-foreign', messages=900)
