"""Proofs that memory does not grow with the number of messages."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import rbfly.streams as rbs

from .consume import lead, read_all
from .fault_injection import Gate
from .history import History
from .processes import publishing
from .publish import Sender
from .run import Run
from .test_bed import Bed

GROWTH = 5 * 2**20  # bytes that a run may grow by after its warm-up
WARM_UP = 10  # the first tenth of the messages is the warm-up
SAMPLES = 100
# A run may be larger than the disk, so the broker discards old messages.
RETENTION = {'max-length-bytes': '1000000000', 'stream-max-segment-size-bytes': '50000000'}
LEAD = 2_000_000  # messages ahead of the consumer, far fewer than the broker keeps


def resident() -> int:
    """Resident memory of this process in bytes."""
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def check_growth(run: Run, sizes: list[int]) -> None:
    """Check the memory after the warm-up."""
    run.found['memory after the warm-up'] = sizes[0]
    run.found['memory at the end'] = sizes[-1]
    growth = max(sizes) - sizes[0]
    run.check('memory grows by less than 5 MB', growth < GROWTH, f'at most {growth:,} bytes')


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
        await asyncio.wait([task])
    run.found['memory at the start'] = samples[0][1]
    run.found['samples'] = len(samples)
    check_growth(run, [size for done, size in samples if done >= total // WARM_UP])


class Unrecorded(History):
    """Records nothing, so that only the client's memory can grow."""

    def send(self, number: int) -> None:
        pass

    def note(self, numbers: Iterable[int], outcome: int) -> None:
        pass


async def publish(run: Run, bed: Bed) -> None:
    """Publish many messages."""
    async with (
        bed.stream(**RETENTION) as stream,
        rbs.streams_client(bed.direct[0], connection_name='proof') as client,
        client.publisher(stream) as publisher,
        sampled(run),
    ):
        nothing = Unrecorded('', stream, named=False, total=0)
        await Sender(run, publisher, Gate(run['messages']), nothing).send_all()
    run.check_returned()


async def consume(run: Run, bed: Bed) -> None:
    """Consume many messages with one subscription while they are published."""
    total = run['messages']
    async with (
        bed.stream(**RETENTION) as stream,
        publishing(bed, stream, total, size=1_000, window=20_000) as limit,
        rbs.streams_client(bed.direct[0], connection_name='proof') as client,
        asyncio.TaskGroup() as group,
    ):
        feeder = group.create_task(lead(run, Gate(total), limit, LEAD))
        async with sampled(run):
            await read_all(run, client, stream)
        feeder.cancel()
