"""Measurements among the proofs: latency at a fixed rate, and rates over slow connections."""

import asyncio
import functools
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import rbfly.streams as rbs
from brokers.proxy import Proxy

from .. import stats, wire
from ..clients import raw_socket, rbfly
from ..clients.base import Target, Work
from ..lanes import KINDS
from ..store import RabbitStore
from .peers import in_child
from .run import Run
from .site import Site, body
from .verify import exactly_once

__all__ = ['latency', 'rtt']

RATE = 1_000  # messages per second
BLOCK = 1_000  # messages that each lane sends in turn
QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}


# -- latency


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


async def latency(run: Run, site: Site) -> None:
    """Measure the latency of `send` at 1,000 messages per second, alternating with the floor."""
    total = run['messages']
    uri = site.direct[0]
    ours: list[float] = []
    floor: list[float] = []
    async with site.stream() as stream, site.stream() as other:
        connection = wire.Connection(uri)
        connection.declare_publisher(other)
        connection.socket.setblocking(False)
        transport, protocol = await asyncio.get_running_loop().create_connection(
            Floor, sock=connection.socket
        )
        try:
            async with (
                rbs.streams_client(uri, connection_name='proof') as client,
                client.publisher(stream) as publisher,
            ):
                for first in range(0, total, BLOCK):
                    numbers = range(first, min(first + BLOCK, total))
                    ours += await paced(publisher.send, numbers)
                    floor += await paced(protocol.send, numbers)
                    run.done = len(ours)
        finally:
            transport.close()
        stored, _ = await site.stored(stream)
    found, under = quantiles(ours), quantiles(floor)
    run.found |= {f'send {name}, us': value for name, value in found.items()}
    run.found |= {f'floor {name}, us': value for name, value in under.items()}
    run.found |= {f'ratio {name}': round(found[name] / under[name], 3) for name in found}
    wrong = exactly_once(stored, total)
    run.check('stored exactly once', not wrong, wrong)
    run.check('every send returned', len(ours) == total, f'{len(ours):,} of {total:,}')


# -- round trips

DELAYS = (0, 1, 5, 50)  # injected round-trip times in milliseconds
TARGET = 0.8  # fraction of the floor's rate that send_many must reach
ROUNDS = 5  # minimum number of rounds to check the target
FAR_WINDOW = 40_000
PER_MESSAGE = 2e-6  # estimated seconds per message in a lane that never waits
ROUND_TRIP = 4e-4  # estimated seconds of a round trip without delay


Make = Callable[[Target], Work]


def measure(make: Make, address: str, stream: str, warm_up: int, count: int) -> float:
    """Warm up and run a lane in this process; return the seconds that it took."""

    async def work() -> float:
        lane = make(Target(address, stream))
        await lane.open()
        try:
            for number in (warm_up, count):
                await lane.prepare(number)
                start = perf_counter()
                done = await lane.run()
                seconds = perf_counter() - start
                await lane.finish()
                if done != number:
                    raise ValueError(f'only {done:,} of {number:,} messages are confirmed')
            return seconds
        finally:
            await lane.close()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def pairs(delay: int) -> dict[str, tuple[Make, Make, int]]:
    """RbFly's lane, the floor's lane and their window, by kind of work."""
    kinds = {'send': KINDS['single'], 'batch of 100': KINDS['batch']}
    for window in (10_000, FAR_WINDOW) if delay == max(DELAYS) else (10_000,):
        kinds[f'send_many, window {window:,}'] = replace(KINDS['window'], window=window)
    part = functools.partial
    return {
        name: (part(rbfly.make, kind), part(raw_socket.make, kind), kind.window)
        for name, kind in kinds.items()
    }


async def rtt(run: Run, site: Site) -> None:
    """Measure rates through a proxy that delays, as ratios to the floor through the same proxy."""
    store = await asyncio.to_thread(RabbitStore, site.direct[0])
    try:
        rates, wrong = await rates_over(run, site.proxy, store)
    finally:
        store.connection.close()
    for (delay, name), (over_, under) in rates.items():
        ratio = stats.ratio_interval(over_, under, paired=True)
        run.found[f'{delay} ms, {name}'] = {
            'rate': round(statistics.median(over_)),
            'floor': round(statistics.median(under)),
            'ratio': [round(x, 3) for x in (ratio.value, ratio.low, ratio.high)],
        }
        if name == 'send':
            trip = 1000 / statistics.median(under)
            run.check(
                f'a round trip of the floor takes at least {delay} ms',
                trip >= delay,
                f'{trip:.3f} ms',
            )
        if name.startswith('send_many') and run['rounds'] >= ROUNDS:
            run.check(
                f'{name}, at {delay} ms: at least {TARGET} of the rate of the floor',
                ratio.high >= TARGET,
                f'{ratio.value:.3f}, {ratio.low:.3f} to {ratio.high:.3f}',
            )
    run.check('all messages are stored', not wrong, '; '.join(wrong))


async def rates_over(
    run: Run, proxy: Proxy, store: RabbitStore
) -> tuple[dict[tuple[int, str], tuple[list[float], list[float]]], list[str]]:
    """Rates of RbFly and the floor, by delay and kind of work, and messages that are missing."""
    rates: dict[tuple[int, str], tuple[list[float], list[float]]] = {}
    wrong = []
    for _ in range(run['rounds']):
        for delay in DELAYS:
            proxy.delay = delay / 2000
            for name, (ours, floor, size) in pairs(delay).items():
                trip = max(delay / 1000 + ROUND_TRIP, size * PER_MESSAGE)
                trips = max(math.ceil(run['milliseconds'] / 1000 / trip), 2)
                both = rates.setdefault((delay, name), ([], []))
                lanes = [(ours, both[0]), (floor, both[1])]
                run.random.shuffle(lanes)
                for make, found in lanes:
                    seconds, stored = await over(proxy, store, make, size, trips * size)
                    found.append(trips * size / seconds)
                    run.done += 1
                    if stored != (trips + 1) * size:
                        wrong.append(f'{name}: {stored:,} of {(trips + 1) * size:,}')
    return rates, wrong


async def over(
    proxy: Proxy, store: RabbitStore, make: Make, warm_up: int, count: int
) -> tuple[float, int]:
    """Run a lane through the proxy on a new stream; return the seconds and messages stored."""
    stream = f'proof-rtt-{proxy.connections}'
    await asyncio.to_thread(store.create, stream)
    try:
        seconds = await in_child(measure, make, proxy.uri, stream, warm_up, count)
        return seconds, await asyncio.to_thread(store.count, stream)
    finally:
        await asyncio.to_thread(store.delete, stream)
