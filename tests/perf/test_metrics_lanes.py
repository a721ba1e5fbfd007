"""Lanes with metrics publish and consume each message, and count it."""

from typing import Any

import pytest

from perf import clients, lanes, worker
from perf.clients.base import Target

COUNT = 1_000


@pytest.mark.parametrize('kind', ['single', 'batch', 'tasks-1000'])
async def test_lane_counts_what_it_publishes(kind: str, stream: str, broker_uri: str) -> None:
    lane: Any = clients.make(lanes.find(f'rbfly-metrics-{kind}'), Target(broker_uri, stream))
    await lane.open()
    try:
        await lane.prepare(COUNT)
        assert (await worker.measure(lane))['count'] == COUNT
        assert lane.client.metrics().confirmed == COUNT
        assert lane.options['metrics']._instruments._sources
    finally:
        await lane.close()


async def test_lane_counts_what_it_consumes(stream: str, broker_uri: str) -> None:
    found = lanes.find('rbfly-metrics-consume')
    assert found.kind.stored is not None
    count = found.kind.stored.frame
    target = Target(broker_uri, stream)
    filling = clients.make(lanes.find('rbfly-window'), target)
    await filling.open()
    await filling.prepare(count)
    await worker.measure(filling)
    await filling.close()
    lane: Any = clients.make(found, target)
    await lane.open()
    try:
        opened = lane.client.metrics().consumed
        await lane.prepare(count)
        assert (await worker.measure(lane))['count'] == count
        assert lane.client.metrics().consumed == opened + count
        assert lane.options['metrics']._instruments._sources
    finally:
        await lane.close()
