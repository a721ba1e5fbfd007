"""Proofs with super streams: publishing by key through faults, and many partitions."""

import asyncio
import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle, islice
from typing import Any

import rbfly.streams as rbs
from brokers import wire

from .checker import check_stored, undelivered
from .fault_injection import Gate
from .history import Delivery, History
from .memory import resident
from .processes import in_child
from .publish import NAME, Sender, keyed, publisher_to
from .run import Run
from .test_bed import Bed

PARTITIONS = 8
READ = 30.0  # seconds without a message after which a reader has failed
OPEN = 5.0  # maximum seconds to open all links
FEW = 8  # partitions of another super stream
DELETE_PUBLISHER = 0x06
IDLE = 8 * 2**10  # maximum bytes per idle link
FAULTS = (
    'connections cut',
    'leader moved',
    'cut at a byte',
    'node stopped',
    'leader moved',
    'node killed',
)


async def super_cuts(run: Run, bed: Bed) -> None:
    """Publish by key while connections are cut, nodes restarted and leaders moved.

    The service that publishes is itself restarted, and goes on with automatic publishing ids.  One
    subscription reads all partitions at the same time.
    """
    total, services = run['messages'], run['services']
    name = None if run['unnamed'] else NAME
    gate = Gate(total)
    async with (
        bed.super_stream(PARTITIONS) as (stream, partitions),
        bed.client('proof-read') as client,
    ):
        await bed.replicated(partitions)
        history = History('', stream, bool(name), total, lambda: gate.epoch)
        delivery = Delivery()
        reader = asyncio.create_task(read(client, stream, partitions, delivery))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(gate.drive(run, faults(run, bed, partitions)))
                for service in range(services):
                    gate.end = total * (service + 1) // services
                    async with publisher_to(bed, stream, name, by_key=True) as publisher:
                        await Sender(run, publisher, gate, history).send_all()
            run.check_returned()
            stored = {partition: await bed.stored(partition) for partition in partitions}

            def received() -> int:
                if reader.done():
                    reader.result()
                return delivery.count

            await run.reach(sum(len(numbers) for numbers, _ in stored.values()), received, READ)
        finally:
            reader.cancel()
            await asyncio.wait([reader])
    run.check(
        f'{run["cuts"]:,} faults', gate.faults == run['cuts'], dict(Counter(run.found['faults']))
    )
    check_stored(run, history, [numbers for numbers, _ in stored.values()], order='key')
    run.check_none('a subscription has read each partition', undelivered(delivery, stored))


async def read(
    client: rbs.StreamsClient, stream: str, partitions: Sequence[str], delivery: Delivery
) -> None:
    """Read all partitions as one subscription, from where the last one has ended."""
    offsets = {name: rbs.Offset.offset(delivery.next(name)) for name in partitions}
    async with client.super_stream(stream).subscribe(offset=offsets) as subscription:
        async for message in subscription.messages():
            assert message.stream is not None
            assert isinstance(message.body, bytes)
            delivery.receive(message.stream, message.stream_offset, int(message.body))


def faults(run: Run, bed: Bed, partitions: Sequence[str]) -> Callable[[int], Awaitable[None]]:
    """Inject faults of all kinds in turn."""
    known = bed.faults(run.random, partitions)
    names = [*islice(cycle(name for name in FAULTS if name in known), run['cuts'])]

    async def fault(number: int) -> None:
        await known[names[number]]()
        run.note('faults', names[number])
        await bed.replicated(partitions)

    return fault


# -- many partitions


async def super_links(run: Run, bed: Bed) -> None:
    """Open a publisher and a subscription with many partitions, and leave them idle."""
    count = run['partitions']
    async with bed.super_stream(FEW) as (few, parts), bed.super_stream(count) as (many, all_parts):
        await bed.ask(lambda connection: write(connection, [*parts, *all_parts]))
        for what in OPENS:
            run.done += 1
            seconds, resident, allocated = await in_child(
                measure, bed.direct[0], what, (few, FEW), (many, count)
            )
            run.check(f'{what} opens in {OPEN:.0f} s', seconds < OPEN, f'{seconds:.2f} s')
            for kind, size in (('resident', resident), ('allocated', allocated)):
                run.check(
                    f'{what}: less than {IDLE:,} bytes {kind} per idle link',
                    size < IDLE * count,
                    f'{size // count:,} bytes',
                )


def write(connection: wire.Connection, partitions: Sequence[str]) -> None:
    """Store a message in each partition, which is then known to have a leader."""
    data = wire.publish_frames([b''], 1)
    for partition in partitions:
        connection.declare_publisher(partition)
        connection.publish(data, 1, 1)
        connection.request(DELETE_PUBLISHER, b'\0')


@asynccontextmanager
async def subscription(client: rbs.StreamsClient, stream: str, count: int) -> AsyncIterator[None]:
    """Subscribe, and read the single message of each partition: it is then open."""
    found = set()
    async with client.super_stream(stream).subscribe(offset=rbs.Offset.FIRST) as subscription:
        async for message in subscription.messages():
            found.add(message.stream)
            if len(found) == count:
                break
        yield


OPENS: dict[str, Callable[[rbs.StreamsClient, str, int], AbstractAsyncContextManager[Any]]] = {
    'publisher': lambda client, stream, _: keyed(client, stream, NAME),
    'subscription': subscription,
}


def measure(
    uri: str, what: str, few: tuple[str, int], many: tuple[str, int]
) -> tuple[float, int, int]:
    """Return the seconds to open all links, and the bytes resident and allocated for them.

    Few links are opened before, so that code and caches do not count.  Allocations are traced with
    new links, since this takes time and memory.
    """

    async def run() -> tuple[float, int, int]:
        await opened(uri, what, few, resident)
        seconds, grown = await opened(uri, what, many, resident)
        tracemalloc.start()
        _, allocated = await opened(uri, what, many, lambda: tracemalloc.get_traced_memory()[0])
        return seconds, grown, allocated

    return asyncio.run(run())


async def opened(
    uri: str, what: str, links: tuple[str, int], memory: Callable[[], int]
) -> tuple[float, int]:
    """Open and close links; return the seconds until they are open, and their memory."""
    async with rbs.streams_client(uri, connection_name='proof') as client:
        await client.get_protocol()  # connects
        gc.collect()
        before = memory()
        begin = time.perf_counter()
        async with OPENS[what](client, *links):
            seconds = time.perf_counter() - begin
            gc.collect()
            return seconds, memory() - before
