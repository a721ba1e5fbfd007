"""Open-loop lanes confirm and consume each message once and time it from when it was due."""

import sys
import time
from typing import Any

import pytest

from perf import clients, lanes, worker
from perf.clients import open_loop
from perf.clients.base import Target, Work
from perf.clients.open_loop import OpenLoop
from perf.lanes.kinds import RATES
from perf.store import RabbitStore

KIND = lanes.KINDS['percentiles-1000']


async def measure(work: Work, count: int) -> dict[str, Any]:
    await work.prepare(count)
    return await worker.measure(work)


COUNT = 500
RABBITMQ = ('bare-uvloop', 'rbfly', 'rstream')


def lane_of(name: str, target: Target) -> OpenLoop:
    work = clients.make(lanes.find(f'{name}-{KIND.name}'), target)
    assert isinstance(work, OpenLoop)
    return work


async def check_rounds(work: OpenLoop) -> None:
    """Run two rounds; check that each message has latencies, counted from when it was due."""
    await work.open()
    try:
        for _ in range(2):
            answer = await measure(work, COUNT)
            assert answer['count'] == COUNT
            assert answer['ended'] - answer['begun'] > COUNT / 1000 - 0.01
            assert set(answer['histograms']) == {'confirm', 'end to end'}
            for name, found in work.histograms.items():
                assert len(found) == sum(answer['histograms'][name].values()) == COUNT
                assert found.quantile(0) > 2e-9  # smaller if a message was sent before it was due
    finally:
        await work.close()


@pytest.mark.parametrize('name', RABBITMQ)
async def test_lane_on_rabbitmq(name: str, stream: str, broker_uri: str) -> None:
    work = lane_of(name, Target(broker_uri, stream))
    await check_rounds(work)
    store = RabbitStore(broker_uri)
    store.counted[stream] = (0, 0)
    store.chunks[stream] = 0
    assert store.count(stream) == 2 * COUNT
    store.connection.close()


@pytest.mark.parametrize('name', RABBITMQ)
async def test_round_fails_if_the_consumer_misses_a_message(
    name: str, stream: str, broker_uri: str
) -> None:
    work = lane_of(name, Target(broker_uri, stream))
    consumed = work.consumed
    bodies: list[Any] = []

    def miss(body: Any) -> None:
        bodies.append(body)
        if len(bodies) != 10:
            consumed(body)

    work.consumed = miss  # type: ignore[method-assign]
    await work.open()
    try:
        await work.prepare(20)
        with pytest.raises(ValueError, match=r"expected message 9, .*'0000000010'"):
            await work.run()
    finally:
        await work.close()


# -- without a broker


class Echo(OpenLoop):
    """Confirms and consumes messages as soon as they are sent, unless a test overrides it."""

    patience = 0.05

    def __init__(self, kind: lanes.Kind = KIND) -> None:
        super().__init__(kind, Target('', ''))
        self.sent: list[int] = []

    async def open(self) -> None: ...

    async def close(self) -> None:
        await self.end_tasks()

    def send(self, first: int, end: int) -> None:
        for index in range(first, end):
            self.sent.append(index)
            self.confirm(index)
            self.consume(index)

    def confirm(self, index: int) -> None:
        self.confirmed(index)

    def consume(self, index: int) -> None:
        self.consumed(self.bodies[index])


async def run_of(work: OpenLoop, count: int = 50) -> int:
    await work.prepare(count)
    try:
        return await work.run()
    finally:
        await work.finish()
        await work.close()


PACES: list[Any] = [open_loop.LoopPace]
if sys.platform == 'linux':
    PACES.append(open_loop.KernelPace)


@pytest.mark.both_loops
@pytest.mark.parametrize('rate', RATES)
@pytest.mark.parametrize('pace', PACES)
async def test_no_message_is_sent_before_it_is_due(
    pace: Any, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop, 'PACE', pace)
    work = Echo(lanes.KINDS[f'percentiles-{rate}'])
    count = work.rate // 5
    assert await run_of(work, count) == count
    assert work.sent == list(range(count))
    for found in work.histograms.values():
        assert len(found) == count
        assert found.quantile(0) > 2e-9


async def test_latency_counts_from_when_a_message_was_due() -> None:
    work = Echo()

    def send(first: int, end: int) -> None:
        if not work.sent:
            time.sleep(0.1)  # about 100 messages come due meanwhile
        Echo.send(work, first, end)

    work.send = send  # type: ignore[method-assign]
    assert await run_of(work, 200) == 200
    times = work.histograms['confirm']
    assert times.quantile(0.8) > 0.04  # a sleep does not end early
    assert times.quantile(1) > 0.09


@pytest.mark.parametrize(
    ('name', 'indices', 'message'),
    [
        ('consume', [0, 0], 'expected message 1, but received'),
        ('consume', [0, 1, 3, 2], 'expected message 2, but received'),
        ('consume', [0, 2], 'expected message 1, but received'),
        ('consume', [0], '0 of 50 messages were not confirmed, 49 not consumed'),
        ('confirm', [0, 0], 'confirm for message 0, which is not unconfirmed'),
        ('confirm', [0, -1], 'confirm for message -1, which is not unconfirmed'),
        ('confirm', [0, 60], 'confirm for message 60, which is not unconfirmed'),
        ('confirm', [0, 1], '48 of 50 messages were not confirmed, 0 not consumed'),
    ],
)
async def test_round_fails_if_messages_are_lost_duplicated_or_reordered(
    name: str, indices: list[int], message: str
) -> None:
    work = Echo()
    real = getattr(work, name)
    left = list(indices)

    def wrong(index: int) -> None:
        if left:
            real(left.pop(0))

    setattr(work, name, wrong)
    with pytest.raises(ValueError, match=message):
        await run_of(work)


async def test_round_fails_if_a_body_differs() -> None:
    work = Echo()
    work.consume = lambda index: work.consumed(b'other')  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="expected message 0, but received the body b'other'"):
        await run_of(work)


async def test_duplicate_after_a_round_fails_the_next() -> None:
    work = Echo()
    await run_of(work)
    work.consumed(b'0000000049')
    with pytest.raises(ValueError, match="received the body b'0000000049'"):
        await run_of(work)


async def test_round_raises_the_error_of_a_task() -> None:
    work = Echo()

    async def one() -> None:
        raise RuntimeError('no')

    work.send = lambda first, end: work.spawn(one())  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match='no'):
        await run_of(work)


async def test_round_reports_that_a_lane_fell_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loop, 'LATE', 60.0)  # a busy machine may be late by a second
    assert not (await measure(Echo(), 20))['late']
    monkeypatch.setattr(open_loop, 'LATE', 0.05)
    work = Echo()

    def send(first: int, end: int) -> None:
        if end == work.count:
            time.sleep(0.1)
        Echo.send(work, first, end)

    work.send = send  # type: ignore[method-assign]
    answer = await measure(work, 20)
    assert 0.05 < answer['late'] < answer['ended'] - answer['begun']
    assert sum(answer['histograms']['confirm'].values()) == 20


def test_timer_interval_is_a_whole_number_of_nanoseconds() -> None:
    for rate in {kind.rate for kind in lanes.KINDS.values()} - {0}:
        assert open_loop.NANO % rate == 0
        assert rate % min(rate, open_loop.TICK) == 0
