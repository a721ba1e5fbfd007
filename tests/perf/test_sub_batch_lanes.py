"""Lanes that publish each batch as one entry: the broker stores each message once, in order."""

from typing import Any

import pytest

import rbfly.streams as rbs
from perf import clients, lanes, worker
from perf.clients.base import Target, bodies
from perf.store import RabbitStore

KIND = lanes.KINDS['sub-batch']
BATCHES = 10
COUNT = BATCHES * KIND.size


async def read(uri: str, stream: str) -> list[Any]:
    """Return all bodies of a stream."""
    async with (
        rbs.streams_client(uri) as client,
        client.subscribe(stream, offset=rbs.Offset.FIRST, until='now') as messages,
    ):
        return [body async for body in messages]


@pytest.mark.parametrize('library', ['raw-socket', 'bare-uvloop', 'rbfly', 'rbfly-atomic'])
async def test_lane_publishes_each_message_once(
    library: str, store: RabbitStore, stream_name: str, broker_uri: str
) -> None:
    work: Any = clients.make(lanes.find(f'{library}-sub-batch'), Target(broker_uri, stream_name))
    await work.open()
    try:
        for _ in range(2):
            await work.prepare(COUNT)
            assert (await worker.measure(work))['count'] == COUNT
        if library.startswith('rbfly'):
            assert work.publisher.next_publish_id == 1 + 2 * BATCHES
    finally:
        await work.close()
    assert store.count(stream_name) == 2 * COUNT
    assert await read(broker_uri, stream_name) == 2 * bodies(COUNT)


def test_floor_and_kafka_have_the_same_kind_of_work() -> None:
    found = [lane for lane in lanes.LANES.values() if lane.kind is KIND]
    assert [lane.library.name for lane in found if lane.is_floor] == ['bare-uvloop']
    assert 'aiokafka' in [lane.library.name for lane in found]
