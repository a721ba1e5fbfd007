"""Run proofs in tests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from brokers import BrokerError
from proofs.catalogue import PROOFS, Value
from proofs.history import Messages
from proofs.run import Run
from proofs.test_bed import ClusterBed, MemoryBed, behind_proxies, in_memory, with_proxies
from tests.seed import seed_of_run

Beds = Callable[[], AbstractAsyncContextManager[ClusterBed]]


def beds(nodes: int, version: str | None = None) -> Iterator[Beds]:
    """Start a broker whose nodes advertise the ports of proxies, with new proxies for each test.

    :param version: of RabbitMQ; None for that of the run.
    """
    broker, mqtt = behind_proxies(nodes, version=version)
    try:
        broker.start()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'no RabbitMQ behind proxies: {ex}')
    yield lambda: with_proxies(broker, mqtt, seed_of_run())
    broker.stop(orderly=False)


def lose_or_repeat(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    """Let the in-memory test bed read the first message of a stream 0 times, or several times."""
    read = MemoryBed.stored
    changed = False

    async def stored(self: MemoryBed, stream: str) -> Messages:
        nonlocal changed
        numbers, offsets = await read(self, stream)
        if numbers and not changed:
            changed = True
            numbers[:1] *= copies
            offsets[:1] *= copies
        return numbers, offsets

    monkeypatch.setattr(MemoryBed, 'stored', stored)


async def holds(make: Beds, name: str, **settings: Value) -> Run:
    """Run a proof and assert that it holds."""
    run = Run(PROOFS[name], seed_of_run(), **settings)
    async with make() as bed:
        await run.execute(bed)
    assert run.holds, '\n'.join(run.summary())
    return run


async def run_in_memory(name: str, **settings: Value) -> Run:
    """Run a proof on the in-memory broker."""
    run = Run(PROOFS[name], seed_of_run(), on='memory', **settings)
    async with in_memory(3, seed_of_run()) as bed:
        await run.execute(bed)
    return run
