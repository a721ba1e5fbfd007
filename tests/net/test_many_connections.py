"""Clients that come and go leave nothing behind, however many there were."""

import gc
import sys

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.leaks import Snapshot

CYCLES = 10_000
WARM_UP = 1_000
BLOCKS = 1_000  # of memory; one each cycle would be nine times as many


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.long
async def test_ten_thousand_connections() -> None:
    async with StreamBroker() as memory:
        for i in range(CYCLES):
            if i == WARM_UP:
                before, things = blocks(), Snapshot(futures=True)
            async with rbs.streams_client(memory.uri) as client:
                await client.get_protocol()
        assert blocks() - before < BLOCKS
        await things.check()
        assert memory.connections == 0
