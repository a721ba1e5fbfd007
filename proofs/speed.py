"""Measurements among the proofs: latency at a fixed rate, and rates over slow connections."""

import asyncio
import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import rbfly.streams as rbs
from perf import stats, wire

from .checker import described, violations
from .history import CONFIRMED, History
from .processes import in_child
from .run import ProofError, Run
from .test_bed import ClusterBed, body

# -- latency

RATE = 1_000  # messages per second
BLOCK = 1_000  # messages that each side sends in turn
QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}


class Floor(asyncio.Protocol):
    """A bare protocol that publishes one message per frame, with a future for each."""

    def __init__(self) -> None:
        self.rest = b''
        self.next = 0
        self.waiting: dict[int, asyncio.Future[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        pos = 0
        while len(data) - pos >= wire.CONFIRM.size:
            size, key, _, _, _ = wire.CONFIRM.unpack_from(data, pos)
            if len(data) < pos + 4 + size:
                break
            if key == wire.PUBLISH_CONFIRM:
                for i in range(pos + wire.CONFIRM.size, pos + 4 + size, 8):
                    self.waiting.pop(int.from_bytes(data[i : i + 8], 'big')).set_result(None)
            pos += 4 + size
        self.rest = data[pos:]

    def send(self, message: bytes) -> 'asyncio.Future[None]':
        future = asyncio.get_running_loop().create_future()
        self.waiting[self.next] = future
        self.transport.write(wire.publish_frame(0, self.next, [wire.data_section(message)]))
        self.next += 1
        return future


async def paced(send: Callable[[bytes], Awaitable[None]], numbers: Sequence[int]) -> list[float]:
    """Send at a fixed rate, however many messages are unconfirmed; return their latencies."""
    times = []

    async def one(message: bytes) -> None:
        start = perf_counter()
        await send(message)
        times.append(perf_counter() - start)

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for i, number in enumerate(numbers):
            left = start + i / RATE - perf_counter()
            if left > 0:
                await asyncio.sleep(max(left, 0.001))  # some event loops count in milliseconds
            group.create_task(one(body(number)))
    return times


def quantiles(times: list[float]) -> dict[str, float]:
    """Quantiles of the latencies in microseconds."""
    times = sorted(times)
    found = {name: times[math.ceil(q * len(times)) - 1] for name, q in QUANTILES.items()}
    return {name: round(value * 1e6, 1) for name, value in found.items()}


@asynccontextmanager
async def floor_to(uri: str, stream: str) -> AsyncIterator[Floor]:
    connection = wire.Connection(uri)
    connection.declare_publisher(stream)
    connection.socket.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Floor, sock=connection.socket)
    try:
        yield protocol
    finally:
        transport.close()


async def latency(run: Run, bed: ClusterBed) -> None:
    """Measure the latency of `send` at 1,000 messages per second, alternating with the floor."""
    total = run['messages']
    ours: list[float] = []
    floor: list[float] = []
    async with bed.stream() as stream, bed.stream() as other:
        history = History('', stream, True, total)
        async with (
            floor_to(bed.direct[0], other) as bare,
            rbs.streams_client(bed.direct[0], connection_name='proof') as client,
            client.publisher(stream) as publisher,
        ):
            for _ in range(0, total, BLOCK):
                numbers = history.take(BLOCK)
                ours += await paced(publisher.send, numbers)
                history.note(numbers, CONFIRMED)
                floor += await paced(bare.send, numbers)
                run.done = len(ours)
        stored, _ = await bed.stored(stream)
    found, under = quantiles(ours), quantiles(floor)
    run.found |= {f'send {name}, us': value for name, value in found.items()}
    run.found |= {f'floor {name}, us': value for name, value in under.items()}
    run.found |= {f'ratio {name}': round(found[name] / under[name], 3) for name in found}
    run.check_none('stored exactly once', described(violations(history, stored, ordered=False)))
    run.check('every send returned', len(ours) == total, f'{len(ours):,} of {total:,}')


# -- round trips

DELAYS = (0, 1, 5, 50)  # injected round-trip times in milliseconds
TARGET = 0.8  # fraction of the floor's rate that send_many must reach
ROUNDS = 5  # minimum number of rounds to check the target
WINDOW, FAR_WINDOW = 10_000, 40_000
FRAME = 1_000  # messages in a frame of the floor of send_many
PER_MESSAGE = 2e-6  # estimated seconds per message in a program that never waits
ROUND_TRIP = 4e-4  # estimated seconds of a round trip without delay

Kind = tuple[int, int]  # messages in a frame and in flight
Program = Callable[[str, str, Kind, Sequence[int]], list[float]]


def kinds(delay: int) -> dict[str, Kind]:
    windows = (WINDOW, FAR_WINDOW) if delay == max(DELAYS) else (WINDOW,)
    found = {f'send_many, window {window:,}': (FRAME, window) for window in windows}
    return {'send': (1, 1), 'batch of 100': (100, 100), **found}


def by_client(uri: str, stream: str, kind: Kind, counts: Sequence[int]) -> list[float]:
    """Publish these numbers of messages with the client; return the seconds of each part."""
    import uvloop

    frame, window = kind
    options: Any = {'max_unconfirmed': window} if window > frame else {}

    async def publish(publisher: rbs.Publisher, parts: list[list[bytes]]) -> None:
        if frame == 1:
            for (message,) in parts:
                await publisher.send(message)
            return
        for part in parts:
            for message in part:
                publisher.batch(message)
            await publisher.flush()

    async def work() -> list[float]:
        found = []
        async with (
            rbs.streams_client(uri) as client,
            client.publisher(stream, **options) as publisher,
        ):
            for count in counts:
                bodies = [body(number) for number in range(count)]
                parts = [bodies[i : i + frame] for i in range(0, count, frame)]
                start = perf_counter()
                if window > frame:
                    check_count(await publisher.send_many(bodies), count)
                else:
                    await publish(publisher, parts)
                found.append(perf_counter() - start)
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def by_floor(uri: str, stream: str, kind: Kind, counts: Sequence[int]) -> list[float]:
    """Like `by_client`, with a blocking socket and prepared frames."""
    frame, window = kind
    found = []
    connection = wire.Connection(uri, timeout=None)
    try:
        connection.declare_publisher(stream)
        for count in counts:
            frames = wire.publish_frames([body(number) for number in range(count)], frame)
            start = perf_counter()
            done = connection.publish(frames, frame, window)
            found.append(perf_counter() - start)
            check_count(done, count)
    finally:
        connection.close()
    return found


def check_count(done: int, count: int) -> None:
    if done != count:
        raise ProofError(f'only {done:,} of {count:,} messages are confirmed')


async def rtt(run: Run, bed: ClusterBed) -> None:
    """Measure rates through a proxy that delays, as ratios to the floor through the same proxy."""
    rates: dict[tuple[int, str], dict[Program, list[float]]] = {}
    wrong = []
    for delay, (name, kind) in rounds(run):
        bed.proxies[0].delay = delay / 2000
        window = kind[1]
        trip = max(delay / 1000 + ROUND_TRIP, window * PER_MESSAGE)
        trips = max(math.ceil(run['milliseconds'] / 1000 / trip), 2)
        programs: list[Program] = [by_client, by_floor]
        run.random.shuffle(programs)
        for program in programs:
            counts = [window, trips * window]
            async with bed.stream() as stream:
                uri = bed.uris[0]
                *_, seconds = await in_child(program, uri, stream, kind, counts)
                stored, _ = await bed.stored(stream)
            if len(stored) != sum(counts):
                wrong.append(f'{name}: {len(stored):,} of {sum(counts):,}')
            both = rates.setdefault((delay, name), {by_client: [], by_floor: []})
            both[program].append(trips * window / seconds)
            run.done += 1
    for (delay, name), both in rates.items():
        check_rates(run, delay, name, both[by_client], both[by_floor])
    run.check_none('all messages are stored', '; '.join(wrong))


def rounds(run: Run) -> Iterator[tuple[int, tuple[str, Kind]]]:
    for _ in range(run['rounds']):
        for delay in DELAYS:
            for item in kinds(delay).items():
                yield delay, item


def check_rates(run: Run, delay: int, name: str, ours: list[float], under: list[float]) -> None:
    """Record rates, and check that they are as fast as they must be."""
    ratio = stats.ratio_interval(ours, under, paired=True)
    run.found[f'{delay} ms, {name}'] = {
        'rate': round(statistics.median(ours)),
        'floor': round(statistics.median(under)),
        'ratio': [round(x, 3) for x in (ratio.value, ratio.low, ratio.high)],
    }
    if name == 'send':
        trip = 1000 / statistics.median(under)
        run.check(
            f'a round trip of the floor takes at least {delay} ms', trip >= delay, f'{trip:.3f} ms'
        )
    if name.startswith('send_many') and run['rounds'] >= ROUNDS:
        run.check(
            f'{name}, at {delay} ms: at least {TARGET} of the rate of the floor',
            ratio.high >= TARGET,
            f'{ratio.value:.3f}, {ratio.low:.3f} to {ratio.high:.3f}',
        )
