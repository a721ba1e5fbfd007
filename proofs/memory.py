"""Proofs that memory does not grow with the number of messages."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import rbfly.streams as rbs

from .consume import lead, read_all
from .fault_injection import Gate
from .peers import publishing
from .publish import Sent, send_all, way
from .run import Run
from .site import Site, body

__all__ = ['consume_memory', 'memory']

GROWTH = 5 * 2**20  # bytes that a run may grow by after its warm-up
WARM_UP = 10  # the first tenth of the messages is the warm-up
SAMPLES = 100
# A run may be larger than the disk, so the broker discards old messages.
RETENTION = {
    'max-length-bytes': '1000000000',
    'stream-max-segment-size-bytes': '50000000',
}
LEAD = 2_000_000  # messages ahead of the consumer, far fewer than the broker keeps


def resident() -> int:
    """Resident memory of this process in bytes."""
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


@asynccontextmanager
async def sampled(run: Run) -> AsyncIterator[None]:
    """Sample the memory while messages flow, and check that it does not grow."""
    total = run['messages']
    samples: list[tuple[int, int]] = []

    async def look() -> None:
        while True:
            if run.done >= len(samples) * total // SAMPLES:
                gc.collect()
                samples.append((run.done, resident()))
            await asyncio.sleep(0.005)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    warm = [size for done, size in samples if done >= total // WARM_UP]
    run.found['memory at the start'] = samples[0][1]
    run.found['memory after the warm-up'] = warm[0]
    run.found['memory at the end'] = warm[-1]
    run.found['samples'] = len(samples)
    growth = max(warm) - warm[0]
    run.check('memory grows by less than 5 MB', growth < GROWTH, f'at most {growth:,} bytes')


async def memory(run: Run, site: Site) -> None:
    """Publish many messages."""
    total = run['messages']
    cls = way(run)
    gate = Gate(total)
    sent = Unnoted(run)
    async with (
        site.stream(**RETENTION) as stream,
        rbs.streams_client(site.direct[0], connection_name='proof') as client,
        client.publisher(stream, cls=cls) as publisher,
        sampled(run),
    ):
        await send_all(run, publisher, gate, sent)
    run.check('every send returned', run.done == total, f'{run.done:,} of {total:,}')


class Unnoted(Sent):
    """Counts messages without recording them, so that only the client's memory can grow."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, 0, lambda: 0)

    def call(self, number: int) -> bytes:
        return body(number)

    def done(self, number: int) -> None:
        self.run.done += 1


async def consume_memory(run: Run, site: Site) -> None:
    """Consume many messages with one subscription while they are published."""
    total = run['messages']
    gate = Gate(total)
    async with (
        site.stream(**RETENTION) as stream,
        publishing(site, stream, total, size=1_000, window=20_000) as limit,
        rbs.streams_client(site.direct[0], connection_name='proof') as client,
        asyncio.TaskGroup() as group,
    ):
        feeder = group.create_task(lead(run, gate, limit, LEAD))
        async with sampled(run):
            await read_all(run, client, stream)
        feeder.cancel()
