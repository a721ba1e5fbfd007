"""The policy of busy polling, with a clock and an event loop of the test."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net import busy_poll
from rbfly.net.busy_poll import (
    REST_FIRST,
    REST_LAST,
    SCORE,
    TRIES,
    BusyPoll,
    poll_limit,
    processors,
)
from tests.inside import cluster_of

LIMIT = 0.0005


class Loop:
    """An event loop whose turns the test takes, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def turn(self, seconds: float = LIMIT / 10) -> None:
        """Run the callbacks of one turn, which ends so many seconds later."""
        soon, self.soon = self.soon, []
        self.now += seconds
        for callback in soon:
            callback()

    @property
    def sleeps(self) -> bool:
        """True if the next turn waits for the kernel."""
        return not self.soon


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def poll(loop: Loop) -> BusyPoll:
    fake: Any = loop
    return BusyPoll(fake, LIMIT, lambda: loop.now)


def miss(loop: Loop, poll: BusyPoll) -> bool:
    """Send a frame that is not confirmed in time; true if the loop polled for it."""
    poll.on_sent()
    polled = poll.is_polling
    while not loop.sleeps:
        loop.turn()
    return polled


def send_and_confirm(loop: Loop, poll: BusyPoll) -> bool:
    """Send a frame that is confirmed in the next turn; true if the loop polled for it."""
    poll.on_sent()
    polled = poll.is_polling
    loop.turn()
    poll.on_confirmed(last=True)
    loop.turn()
    return polled


def test_loop_sleeps_before_the_first_frame(loop: Loop, poll: BusyPoll) -> None:
    assert loop.sleeps
    assert not poll.is_polling


def test_polls_until_the_confirm_arrives(loop: Loop, poll: BusyPoll) -> None:
    poll.on_sent()
    for _ in range(5):
        assert not loop.sleeps
        loop.turn()
    poll.on_confirmed(last=True)
    loop.turn()
    assert loop.sleeps


def test_polls_at_most_for_the_limit(loop: Loop, poll: BusyPoll) -> None:
    poll.on_sent()
    loop.turn(LIMIT * 0.99)
    assert not loop.sleeps
    loop.turn(LIMIT * 0.02)
    assert loop.sleeps
    assert not poll.is_polling


def test_a_confirm_after_the_limit_is_a_miss(loop: Loop, poll: BusyPoll) -> None:
    for _ in range(SCORE):
        poll.on_sent()
        loop.now += LIMIT
        poll.on_confirmed(last=True)
        loop.turn()
        assert loop.sleeps
    assert not any(miss(loop, poll) for _ in range(REST_FIRST))


def test_rests_at_once_when_others_need_the_processor(
    loop: Loop, poll: BusyPoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_run() -> None:
        loop.now += busy_poll.YIELD_MOST

    monkeypatch.setattr(busy_poll, 'yield_processor', others_run)
    assert miss(loop, poll)
    assert not any(miss(loop, poll) for _ in range(REST_FIRST))


def test_each_frame_extends_the_poll(loop: Loop, poll: BusyPoll) -> None:
    for _ in range(5):
        poll.on_sent()
        loop.turn(LIMIT * 0.9)
        assert poll.is_polling
        assert len(loop.soon) == 1
    loop.turn(LIMIT)
    assert loop.sleeps


def test_goes_on_while_other_messages_are_unconfirmed(loop: Loop, poll: BusyPoll) -> None:
    poll.on_sent()
    poll.on_confirmed(last=False)
    loop.turn()
    assert poll.is_polling


def test_one_callback_is_scheduled_however_often_messages_are_sent(
    loop: Loop, poll: BusyPoll
) -> None:
    for _ in range(10):
        poll.on_sent()
        poll.on_confirmed(last=True)
    assert len(loop.soon) == 1


def test_publishers_of_a_loop_share_a_callback(
    loop: Loop, poll: BusyPoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields: list[None] = []
    monkeypatch.setattr(busy_poll, 'yield_processor', lambda: yields.append(None))
    fake: Any = loop
    polls = [poll, *(BusyPoll(fake, LIMIT * i, lambda: loop.now) for i in (2, 3))]
    for item in polls:
        item.on_sent()
    for left in (3, 2, 1):
        assert sum(item.is_polling for item in polls) == left
        yields.clear()
        loop.turn(LIMIT / 10)
        assert (len(yields), len(loop.soon)) == (1, 1)
        loop.turn(LIMIT)
    assert loop.sleeps
    assert not any(item.is_polling for item in polls)
    polls[1].on_sent()
    polls[1].on_confirmed(last=True)
    polls[0].on_sent()  # in the same turn
    assert len(loop.soon) == 1
    loop.turn()
    assert poll.is_polling
    poll.on_confirmed(last=True)
    loop.turn()
    assert loop.sleeps


def test_all_publishers_rest_when_others_need_the_processor(
    loop: Loop, poll: BusyPoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_run() -> None:
        loop.now += busy_poll.YIELD_MOST

    fake: Any = loop
    other = BusyPoll(fake, 100 * busy_poll.YIELD_MOST, lambda: loop.now)
    poll.on_sent()
    other.on_sent()
    with monkeypatch.context() as patched:
        patched.setattr(busy_poll, 'yield_processor', others_run)
        loop.turn()
    assert loop.sleeps
    for item in (poll, other):
        assert not any(miss(loop, item) for _ in range(REST_FIRST))
        assert miss(loop, item)


def test_nothing_keeps_a_loop_without_publishers() -> None:
    loop: Any = Loop()
    poll = BusyPoll(loop, LIMIT)
    left = weakref.ref(loop)
    assert miss(loop, poll)
    del loop, poll
    gc.collect()
    assert left() is None


def test_stops_when_the_connection_is_lost(loop: Loop, poll: BusyPoll) -> None:
    poll.on_sent()
    poll.stop()
    loop.turn()
    assert loop.sleeps
    assert miss(loop, poll)  # polls for the next connection


def test_rests_while_polls_miss(loop: Loop, poll: BusyPoll) -> None:
    assert all(miss(loop, poll) for _ in range(SCORE))
    rest = REST_FIRST
    while rest < REST_LAST:
        assert not any(miss(loop, poll) for _ in range(rest))
        assert all(miss(loop, poll) for _ in range(TRIES))  # now and then, it tries again
        rest *= 2
    for _ in range(2):
        assert not any(miss(loop, poll) for _ in range(REST_LAST))
        assert all(miss(loop, poll) for _ in range(TRIES))


def test_polls_again_when_the_first_poll_after_a_rest_misses(loop: Loop, poll: BusyPoll) -> None:
    while miss(loop, poll):
        pass
    while not miss(loop, poll):
        pass
    assert all(send_and_confirm(loop, poll) for _ in range(100))


def test_polls_again_when_one_poll_hits(loop: Loop, poll: BusyPoll) -> None:
    for _ in range(SCORE):
        miss(loop, poll)
    while not send_and_confirm(loop, poll):
        pass
    assert all(send_and_confirm(loop, poll) for _ in range(100))


def test_polls_on_while_half_of_the_polls_hit(loop: Loop, poll: BusyPoll) -> None:
    for _ in range(100):
        assert send_and_confirm(loop, poll)
        assert miss(loop, poll)


def test_a_distant_broker_costs_few_polls(loop: Loop, poll: BusyPoll) -> None:
    assert sum(miss(loop, poll) for _ in range(10_000)) < 35


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test writes the files of cgroups; this process may run on three processors."""
    monkeypatch.setattr('os.sched_getaffinity', lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(busy_poll, 'CGROUPS', str(tmp_path / 'cgroup'))
    monkeypatch.setattr(busy_poll, 'QUOTAS', str(tmp_path))
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace('__', '.', 1)).write_text(f'{text}\n')


def test_affinity_limits_the_processors(cgroups: Path) -> None:
    assert processors() == 3


@pytest.mark.parametrize(
    ('quota', 'usable'), [('max 100000', 3), ('150000 100000', 1.5), ('900000 100000', 3)]
)
@pytest.mark.parametrize('group', ['', 'system.slice/shop.service', 'system.slice'])
def test_quota_of_each_enclosing_cgroup_limits_the_processors(
    cgroups: Path, group: str, quota: str, usable: float
) -> None:
    write(cgroups, cgroup='0::/system.slice/shop.service')
    write(cgroups / group, cpu__max=quota)
    assert processors() == usable


@pytest.mark.parametrize(('quota', 'usable'), [('-1', 3), ('50000', 0.5)])
def test_quota_of_version_1_limits_the_processors(cgroups: Path, quota: str, usable: float) -> None:
    write(cgroups, cgroup='5:memory:/a\n4:cpu,cpuacct:/docker/a\n0::/')
    write(cgroups / 'cpu,cpuacct' / 'docker' / 'a', cpu__cfs_quota_us=quota)
    write(cgroups / 'cpu,cpuacct' / 'docker' / 'a', cpu__cfs_period_us='100000')
    assert processors() == usable


@pytest.mark.parametrize('quota', ['max 100000', '200000 100000'])
def test_two_processors_suffice(
    cgroups: Path, caplog: pytest.LogCaptureFixture, quota: str
) -> None:
    write(cgroups, cgroup='0::/', cpu__max=quota)
    assert poll_limit(LIMIT, '') == LIMIT
    assert not caplog.records


def test_never_polls_with_fewer_than_two_processors(
    cgroups: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(cgroups, cgroup='0::/', cpu__max='150000 100000')
    client = rbs.streams_client('rabbitmq-stream://127.0.0.1', busy_poll=LIMIT)
    assert cluster_of(client).busy_poll == 0
    assert [record.getMessage() for record in caplog.records] == [
        'busy_poll is off: it needs 2 processors, this process may use 1.5'
    ]


def test_no_warning_without_the_option(cgroups: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(cgroups, cgroup='0::/', cpu__max='50000 100000')
    rbs.streams_client('rabbitmq-stream://127.0.0.1')
    assert not caplog.records
