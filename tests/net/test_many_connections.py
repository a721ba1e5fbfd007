"""10,000 clients, one after another, leak nothing."""

import gc
import sys

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.leaks import Snapshot

CYCLES = 10_000
WARM_UP = 1_000
BLOCKS = 1_000  # memory blocks; a leak of one per client would be 9,000


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.long
async def test_ten_thousand_clients_leak_nothing() -> None:
    async with StreamBroker() as memory:
        for i in range(CYCLES):
            if i == WARM_UP:
                before, snapshot = blocks(), Snapshot(futures=True)
            async with rbs.streams_client(memory.uri) as client:
                await client.get_protocol()
        assert blocks() - before < BLOCKS
        await snapshot.check()
        assert memory.connections == 0
