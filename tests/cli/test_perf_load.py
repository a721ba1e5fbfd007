"""The load of `rbfly perf` with a clock and a publisher of the test's own."""

import asyncio
from collections.abc import Sequence

import pytest

import rbfly.streams as rbs
from rbfly.cli import load as module
from rbfly.cli.histogram import Histogram
from rbfly.cli.load import NANO, Load, LoadSettings, Producer, add_latency


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.time = 1_000 * NANO

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, 'now', found)
    return found


class Sender:
    """Confirms messages when the test says so."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.confirm = asyncio.Event()

    async def __call__(self, bodies: Sequence[bytes], progress: rbs.SendProgress) -> int:
        self.bodies += bodies
        await self.confirm.wait()
        progress.taken = len(bodies)
        return len(bodies)


async def started(load: Load, sender: Sender, clock: Clock) -> tuple[Producer, asyncio.Task[None]]:
    load.start = clock.time
    producer = Producer(load, 'orders', sender)
    return producer, asyncio.create_task(producer.run())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_latency_counts_from_when_a_message_was_due(clock: Clock) -> None:
    load, sender = Load(LoadSettings(['orders'], rate=1_000)), Sender()
    producer, running = await started(load, sender, clock)
    await turns()
    assert producer.sent == 1  # the first is due at once
    clock.time += NANO  # nothing wakes the producer for a second
    producer.wake.set()
    await turns()
    assert producer.sent == 1_001
    sender.confirm.set()
    await producer.confirmed()
    histogram = load.interval.confirm
    assert histogram.count == 1_001
    # 1,000 messages had to wait, half a second on average: a sender that waits for each one would
    # have measured a single long wait.
    assert histogram.quantile(1.0) == 1.0
    assert histogram.quantile(0.5) == pytest.approx(0.5, rel=0.01)
    load.stop()
    producer.wake.set()
    running.cancel()


async def test_rate_sends_no_more_than_confirms_allows(clock: Clock) -> None:
    load, sender = Load(LoadSettings(['orders'], rate=1_000_000, confirms=250)), Sender()
    producer, running = await started(load, sender, clock)
    clock.time += NANO
    await turns()
    assert producer.sent == producer.in_flight == len(sender.bodies) == 250
    running.cancel()
    sender.confirm.set()
    await producer.confirmed()


async def test_no_rate_fills_what_confirms_allows(clock: Clock) -> None:
    load, sender = Load(LoadSettings(['orders'], confirms=450, size=20)), Sender()
    producer, running = await started(load, sender, clock)
    await turns()
    assert producer.in_flight == 400  # whole batches of 100
    assert {len(body) for body in sender.bodies} == {20}
    clock.time += NANO // 2
    load.stopping.set()
    sender.confirm.set()
    await producer.confirmed()
    assert load.interval.confirmed == 400
    assert load.interval.confirm.quantile(0.0) == 0.5
    running.cancel()


@pytest.mark.parametrize(('sent', 'counted'), [(-1, 0), (0, 3), (5, 3), (6, 0)])
def test_latency_of_messages_of_another_run_is_not_counted(sent: int, counted: int) -> None:
    histogram = Histogram()
    start = 10**18
    add_latency(histogram, (start + sent).to_bytes(8, 'big'), 3, start, start + 5)
    assert histogram.count == counted
    add_latency(histogram, b'short', 3, start, start + 5)
    assert histogram.count == counted


def test_rates_leave_out_what_arrives_after_the_end(clock: Clock) -> None:
    load = Load(LoadSettings(['orders']))
    load.start = load._taken_at = clock.time
    load.on_sent(500)
    clock.time += 2 * NANO
    taken = load.take()
    assert taken.seconds == load.totals.seconds == 2.0
    assert load.rate('published') == 250
