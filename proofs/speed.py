"""Measurements among the proofs: latency at a fixed rate, and rates over slow connections.

The client and the floors work as in the benchmark.
"""

import asyncio
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter

import uvloop

from perf import stats
from perf.clients import bare_uvloop, raw_socket
from perf.clients import rbfly as client
from perf.clients.base import Target, Work
from perf.histogram import Histogram
from perf.lanes import KINDS, Kind

from .checker import check_stored
from .history import CONFIRMED, History
from .processes import in_child
from .run import ProofError, Run
from .test_bed import ClusterBed

Program = Callable[[Kind, Target], Work]

# -- latency

AT_FIXED_RATE = KINDS['percentiles-1000']
BLOCK = 1_000  # messages that each side sends in turn
QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}


async def latency(run: Run, bed: ClusterBed) -> None:
    """Measure the latency of `send` at 1,000 messages per second, alternating with the floor.

    It is measured from the time when a message was due.
    """
    total = run['messages']
    found = {'send': Histogram(), 'floor': Histogram()}
    async with bed.stream() as stream, bed.stream() as other:
        history = History('', stream, True, total)
        works = {
            'send': client.make(AT_FIXED_RATE, Target(bed.direct[0], stream)),
            'floor': bare_uvloop.make(AT_FIXED_RATE, Target(bed.direct[0], other)),
        }
        async with AsyncExitStack() as stack:
            for work in works.values():
                await work.open()
                stack.push_async_callback(work.close)
            for _ in range(0, total, BLOCK):
                numbers = history.take(BLOCK)
                for who, work in works.items():
                    await work.prepare(len(numbers))
                    await work.run()
                    await work.finish()
                    found[who].merge(work.histograms['confirm'])
                history.note(numbers, CONFIRMED)
                run.done = len(found['send'])
        stored, _ = await bed.stored(stream)
    for name, q in QUANTILES.items():
        ours, floor = (histogram.quantile(q) for histogram in found.values())
        run.found[f'send {name}, us'] = round(ours * 1e6, 1)
        run.found[f'floor {name}, us'] = round(floor * 1e6, 1)
        run.found[f'ratio {name}'] = round(ours / floor, 3)
    check_stored(run, history, [stored])
    run.check_returned()


# -- round trips

DELAYS = (0, 1, 5, 50)  # injected round-trip times in milliseconds
TARGET = 0.8  # fraction of the floor's rate that send_many must reach
ROUNDS = 5  # minimum number of rounds to check the target
FAR_WINDOW = 40_000
PER_MESSAGE = 2e-6  # estimated seconds per message in a program that never waits
ROUND_TRIP = 4e-4  # estimated seconds of a round trip without delay


def kinds(delay: int) -> dict[str, Kind]:
    window = KINDS['window']
    windows = [window]
    if delay == max(DELAYS):
        windows.append(replace(window, window=FAR_WINDOW))
    found = {f'send_many, window {kind.window:,}': kind for kind in windows}
    return {'send': KINDS['single'], 'batch of 100': KINDS['batch'], **found}


def publish(program: Program, kind: Kind, target: Target, counts: Sequence[int]) -> list[float]:
    """Publish these numbers of messages with a program; return the seconds of each part."""

    async def work() -> list[float]:
        found = []
        publishing = program(kind, target)
        await publishing.open()
        try:
            for count in counts:
                await publishing.prepare(count)
                start = perf_counter()
                done = await publishing.run()
                found.append(perf_counter() - start)
                if done != count:
                    raise ProofError(f'only {done:,} of {count:,} messages are confirmed')
        finally:
            await publishing.close()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


async def rtt(run: Run, bed: ClusterBed) -> None:
    """Measure rates through a proxy that delays, as ratios to the floor through the same proxy."""
    rates: dict[tuple[int, str], dict[Program, list[float]]] = {}
    wrong = []
    for delay, (name, kind) in rounds(run):
        bed.proxies[0].delay = delay / 2000
        window = kind.window
        trip = max(delay / 1000 + ROUND_TRIP, window * PER_MESSAGE)
        trips = max(math.ceil(run['milliseconds'] / 1000 / trip), 2)
        programs: list[Program] = [client.make, raw_socket.make]
        run.random.shuffle(programs)
        for program in programs:
            counts = [window, trips * window]
            async with bed.stream() as stream:
                target = Target(bed.uris[0], stream)
                *_, seconds = await in_child(publish, program, kind, target, counts)
                stored, _ = await bed.stored(stream)
            if len(stored) != sum(counts):
                wrong.append(f'{name}: {len(stored):,} of {sum(counts):,}')
            both = rates.setdefault((delay, name), {client.make: [], raw_socket.make: []})
            both[program].append(trips * window / seconds)
            run.done += 1
    for (delay, name), both in rates.items():
        check_rates(run, delay, name, *both.values())
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
