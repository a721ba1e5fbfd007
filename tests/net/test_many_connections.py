"""Many clients, one after another, leak nothing."""

import gc
import sys

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.leaks import Snapshot

WARM_UP = 500


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.long
@pytest.mark.parametrize('count', [1_500, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_clients_leak_nothing(count: int) -> None:
    async with StreamBroker() as memory:
        for i in range(count):
            if i == WARM_UP:
                before, snapshot = blocks(), Snapshot(futures=True)
            async with rbs.streams_client(memory.uri) as client:
                await client.get_protocol()
        assert blocks() - before < (count - WARM_UP) / 2  # less than one per client
        await snapshot.check()
        assert memory.connections == 0
