"""Proofs with super streams."""

import asyncio
import gc
import time
import tracemalloc
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle, islice
from typing import Any

import rbfly.streams as rbs

from .. import wire
from ..super_stream_wire import partition_of
from .faults import Gate, note
from .memory import resident
from .peers import in_child
from .publish import WAYS as PUBLISH
from .publish import Sent
from .run import Run
from .site import Site
from .trouble import InMemory, OnCluster, Trouble
from .verify import at_least_once, in_order

__all__ = ['key_of', 'misplaced', 'super_cuts', 'super_links', 'unordered']

PARTITIONS = 8
NAME = 'proof'
KEY = 3  # last digits of a message that are its key
KEYS = 1_000
TICK = 0.01
READ = 30.0  # seconds without a message after which a reader has failed
OPEN = 5.0  # maximum seconds to open all links
FEW = 8  # partitions of another super stream
IDLE = 8 * 2**10  # maximum bytes per idle link
FAULTS = (
    'connections cut',
    'leader moved',
    'cut at a byte',
    'node stopped',
    'leader moved',
    'node killed',
)


def key_of(message: bytes) -> str:
    """The key of a message: the last digits of its number."""
    return message[-KEY:].decode()


def key_of_number(number: int) -> int:
    return number % KEYS


class Shift:
    """The numbers that one run of the service publishes; a gate for the ways of publishing.

    Tasks that wait at the end of the shift may publish a few more.
    """

    def __init__(self, gate: Gate, end: int) -> None:
        self.gate = gate
        self.end = end
        self.first = gate.next

    @property
    def total(self) -> int:
        """Messages taken so far."""
        return self.gate.next - self.first

    async def take(self) -> int | None:
        return None if self.gate.next >= self.end else await self.gate.take()

    def more(self, most: int) -> int:
        return self.gate.more(min(most, self.end - self.gate.next))


class Noted(Sent):
    """Counts the messages that are confirmed."""

    def __init__(self, run: Run, gate: Gate) -> None:
        super().__init__(run, gate.total, lambda: gate.epoch)
        self.gate = gate

    def all_done(self) -> None:
        self.run.done = self.gate.next


def misplaced(stored: Sequence[Sequence[int]]) -> str:
    """Check that each message is stored in the partition of its key."""
    count = len(stored)
    where = {i: partition_of(b'%0*d' % (KEY, i), count) for i in range(KEYS)}
    for i, numbers in enumerate(stored):
        for number in numbers:
            if where[key_of_number(number)] != i:
                return f'{number:,} in partition {i} instead of {where[key_of_number(number)]}'
    return ''


def unordered(stored: Sequence[Sequence[int]]) -> str:
    """Check that the first copies of each key's messages are in order, in a single partition."""
    by_key: dict[int, tuple[int, array[int]]] = {}
    for i, numbers in enumerate(stored):
        for number in numbers:
            home, found = by_key.setdefault(key_of_number(number), (i, array('q')))
            if home != i:
                return f'key {key_of_number(number)} in partitions {home} and {i}'
            found.append(number)
    for which, (_, found) in by_key.items():
        if wrong := in_order(found):
            return f'key {which}: {wrong}'
    return ''


async def super_cuts(run: Run, place: Site) -> None:
    """Publish by key while connections are cut, nodes restarted and leaders moved.

    The service that publishes is itself restarted, and goes on with automatic publishing ids.  One
    subscription reads all partitions at the same time.
    """
    site = place if isinstance(place, InMemory) else OnCluster(place.broker, place.proxies)
    total, services = run['messages'], run['services']
    gate = Gate(total)
    sent = Noted(run, gate)
    async with site.super_stream(PARTITIONS) as (stream, partitions):
        for partition in partitions:
            await site.leader(partition, replicated=True)
        received: dict[str, array[int]] = {partition: array('q') for partition in partitions}
        reader = asyncio.create_task(read(site, stream, received))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(gate.drive(run, faults(run, site, partitions)))
                for service in range(services):
                    end = total * (service + 1) // services
                    await serve(run, site, stream, Shift(gate, end), sent)
            stored = [(await site.stored(partition))[0] for partition in partitions]
            await read_to_end(reader, received, sum(map(len, stored)))
        finally:
            reader.cancel()
            await asyncio.wait([reader])
    run.check('every send returned', run.done == total, f'{run.done:,} of {total:,}')
    run.check(
        f'{run["cuts"]:,} faults', gate.faults == run['cuts'], dict(Counter(run.found['faults']))
    )
    check_stored(run, stored)
    run.check('a subscription has read each partition', [*received.values()] == stored)


async def read(site: Trouble, stream: str, received: dict[str, 'array[int]']) -> None:
    """Read all partitions as one subscription."""
    async with (
        rbs.streams_client(site.uris, connection_name='proof-read') as client,
        client.super_stream(stream).subscribe(offset=rbs.Offset.FIRST) as subscription,
    ):
        async for message in subscription.messages():
            assert message.stream is not None
            received[message.stream].append(int(message.body))


async def read_to_end(
    reader: asyncio.Task[None], received: dict[str, 'array[int]'], count: int
) -> None:
    """Wait until the reader has received so many messages, or has failed, or makes no progress."""
    last = -1
    limit = time.monotonic() + READ
    while not reader.done() and last < count and time.monotonic() < limit:
        if (now := sum(map(len, received.values()))) > last:
            last, limit = now, time.monotonic() + READ
        await asyncio.wait([reader], timeout=TICK)
    if reader.done():
        await reader


async def serve(run: Run, site: Trouble, stream: str, shift: Shift, sent: Sent) -> None:
    """Publish from a new client until the end of the shift."""
    async with (
        rbs.streams_client(site.uris, connection_name='proof') as client,
        client.super_stream(stream).publisher(
            name=None if run['unnamed'] else NAME, route=rbs.by_hash(key_of)
        ) as publisher,
    ):
        await PUBLISH[run['by']][1](publisher, shift, sent, run['tasks'])


def faults(run: Run, site: Trouble, partitions: Sequence[str]) -> Callable[[int], Awaitable[None]]:
    """Inject faults of all kinds in turn."""
    known: dict[str, Any] = site.faults(run.random, partitions)
    names = [*islice(cycle(name for name in FAULTS if name in known), run['cuts'])]

    async def fault(number: int) -> None:
        await known[names[number]]()
        note(run, 'faults', names[number])
        for partition in partitions:
            await site.leader(partition, replicated=True)

    return fault


def check_stored(run: Run, stored: Sequence['array[int]']) -> None:
    """Check what the partitions contain."""
    total = run['messages']
    numbers = [number for part in stored for number in part]
    run.found['stored'] = [len(part) for part in stored]
    if run['unnamed']:
        wrong = at_least_once(numbers, total, lambda number: total)
        run.check('stored at least once', not wrong, wrong)
        run.found['duplicates'] = len(numbers) - len(set(numbers))
    else:
        wrong = at_least_once(numbers, total, lambda number: 1)
        run.check('stored exactly once', not wrong, wrong)
    wrong = misplaced(stored)
    run.check('each message is stored in the partition of its key', not wrong, wrong)
    wrong = unordered(stored)
    run.check("each key's messages are stored in order", not wrong, wrong)


# -- many partitions


async def super_links(run: Run, site: Site) -> None:
    """Open a publisher and a subscription with many partitions, and leave them idle."""
    count = run['partitions']
    async with (
        site.super_stream(FEW) as (few, parts),
        site.super_stream(count) as (many, all_parts),
    ):
        await site.ask(lambda connection: write(connection, [*parts, *all_parts]))
        for what in OPENS:
            run.done += 1
            seconds, resident, allocated = await in_child(
                measure, site.direct[0], what, (few, FEW), (many, count)
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
        connection.delete_publisher()


def publisher(client: rbs.StreamsClient, stream: str, count: int) -> Any:
    return client.super_stream(stream).publisher(name=NAME, route=rbs.by_hash(key_of))


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
    'publisher': publisher,
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
