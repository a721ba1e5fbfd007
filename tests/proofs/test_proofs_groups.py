"""Short versions of the proof of groups hold, and its checks find violations."""

from array import array
from collections.abc import Iterator

import pytest

from proofs.active_periods import (
    ACTIVE,
    DELIVERED,
    NOT_AFTER,
    NOT_AGAIN,
    NOT_BEFORE,
    ORDER,
    Timeline,
    causes,
    gaps,
)
from proofs.history import Fault, Record
from tests.proofs.short_runs import Beds, beds, holds, run_in_memory

COUNT = 400  # messages, with two offsets each
FOREVER = float('inf')


def deliver(begin: float, first: int, end: int) -> list[Record]:
    """Records of messages that are delivered one each 10 ms."""
    return [
        Record(begin + (i - first) / 100, 'message', 'p', 2 * i, 1_000 + i)
        for i in range(first, end)
    ]


def member(
    begin: float, first: int, last: int, *more: Record, end: str = 'inactive'
) -> list[Record]:
    """Records of a member that stores its last offset before its activity ends."""
    records = deliver(begin, first, last)
    stop = records[-1].time
    records += [Record(stop, 'stored', 'p', 2 * (last - 1)), Record(stop, end, 'p'), *more]
    return sorted([Record(begin, 'active', 'p'), *records], key=lambda item: item.time)


def timeline(*histories: list[Record], faults: tuple[Fault, ...] = ()) -> Timeline:
    numbers = array('q', range(1_000, 1_000 + COUNT))
    offsets = array('q', range(0, 2 * COUNT, 2))
    return Timeline('p', numbers, offsets, histories, faults, 2.0)


def test_members_one_after_the_other() -> None:
    line = timeline(member(10, 0, 100), member(20, 100, 300), member(30, 300, COUNT))
    assert [period.member for period in line.periods] == [0, 1, 2]
    assert not line.wrong
    assert not line.repeats() + line.overlaps()
    assert line.repeated() == 0


def test_missing_and_skipped_messages() -> None:
    line = timeline(member(10, 0, 100), member(20, 101, COUNT))
    assert line.wrong.keys() == {DELIVERED, NOT_AFTER}
    assert line.wrong[DELIVERED] == ['p: no member received 1100']
    records = member(10, 0, COUNT)
    del records[51]
    assert timeline(records).wrong == {
        DELIVERED: ['p: no member received 1050'],
        ORDER: ['p, member 0: index 51 after 49'],
    }


@pytest.mark.parametrize(
    ('record', 'wrong'),
    [
        (Record(5, 'message', 'p', 0, 1_000), 'received offset 0 without being active'),
        (Record(11, 'message', 'p', 1, 1_000), 'offset 1 holds no message'),
        (Record(11, 'message', 'p', 2 * COUNT, 1_000), 'holds no message'),
        (Record(11, 'message', 'p', 0, 1_001), 'offset 0 is 1001, not 1000'),
    ],
)
def test_wrong_messages(record: Record, wrong: str) -> None:
    line = timeline(sorted([record, *member(10, 0, COUNT)], key=lambda item: item.time))
    assert line.wrong.keys() == {ACTIVE}
    (found,) = line.wrong[ACTIVE]
    assert wrong in found


def test_message_that_was_noted_before_the_activity() -> None:
    records = member(10, 0, COUNT)
    records.insert(5, records.pop(0)._replace(time=records[5].time))
    line = timeline(records)
    assert not line.wrong
    assert line.periods[0].begin == 10


def test_start_before_the_last_stored_offset() -> None:
    line = timeline(member(10, 0, 100, end='killed'), member(20, 99, COUNT))
    assert not line.wrong  # the killed member had perhaps not sent its last offset
    stored = [Record(10.9, 'stored', 'p', 100), Record(13, 'killed')]
    first = [Record(10, 'active', 'p'), *deliver(10, 0, 90), *stored]
    assert not timeline(first, member(20, 51, COUNT)).wrong
    wrong = timeline(first, member(20, 50, COUNT)).wrong
    assert wrong == {NOT_BEFORE: ['p, member 1: begins at offset 100, though 100 was stored']}
    moved = Fault(12, 14, 'leader moved', 'p')
    assert not timeline(first, member(20, 50, COUNT), faults=(moved,)).wrong


def test_start_after_messages_that_were_not_finished() -> None:
    first = member(10, 0, 100, end='killed')
    assert not timeline(first, member(20, 100, COUNT)).wrong
    assert not timeline(first, member(20, 90, COUNT)).wrong
    first = [item for item in first if item.kind != 'stored']
    assert not timeline(first, member(20, 0, COUNT)).wrong
    wrong = timeline(first, member(20, 1, COUNT)).wrong
    assert wrong == {NOT_AFTER: ['p, member 1: begins at offset 2, though only -1 was stored']}


def test_repeats_after_a_member_that_hands_over() -> None:
    wrong = timeline(member(10, 0, 100), member(20, 99, COUNT)).wrong
    assert wrong == {
        NOT_BEFORE: ['p, member 1: begins at offset 198, though 198 was stored'],
        NOT_AGAIN: ['p, member 1: begins at offset 198, though member 0 had finished 198'],
    }
    late = Record(10.9, 'late', 'p')
    lost = Record(11, 'lost')
    for first in (member(10, 0, 100, late), member(10, 0, 100, lost)):
        assert NOT_AGAIN not in timeline(first, member(20, 99, COUNT)).wrong
    killed = member(10, 0, 100, end='killed')
    assert NOT_AGAIN not in timeline(killed, member(20, 99, COUNT)).wrong


def test_repeated_messages_are_counted_without_those_under_way() -> None:
    # the last 200 messages are delivered less than 2 s before the process is killed
    line = timeline(member(10, 0, 300, end='killed'), member(20, 50, COUNT))
    ((count, seconds),) = line.repeats()
    assert count == pytest.approx(50, abs=1)
    assert seconds == pytest.approx(0.5, abs=0.02)
    assert line.repeated() == 250


def test_members_that_deliver_at_the_same_time() -> None:
    second = member(11, 200, COUNT)
    ((why, seconds),) = timeline(member(10, 0, 200), second).overlaps()
    assert not why
    assert seconds == pytest.approx(0.99, abs=0.02)
    assert timeline(member(10, 0, 200, Record(12, 'lost')), second).overlaps()[0][0] == 'cut off'
    frozen = Record(10.995, 'frozen'), Record(11.8, 'thawed')
    ((why, seconds),) = timeline(member(10, 0, 200, *frozen), second).overlaps()
    assert why == 'frozen'
    assert seconds == pytest.approx(0.19, abs=0.02)


def test_times_without_an_active_member() -> None:
    first = [Record(10, 'active', 'p'), Record(12, 'frozen'), Record(15, 'thawed')]
    first += [Record(20, 'inactive', 'p')]
    second = [Record(14, 'active', 'p'), Record(17, 'killed')]
    third = [Record(25, 'active', 'p')]
    spans = timeline(first, second, third).active()
    assert sorted(spans) == [(10, 12), (14, 17), (15, 20), (25, FOREVER)]
    assert gaps(spans, 30) == [(12, 14), (20, 25)]
    assert gaps([(10, 20)], 30) == [(20, 30)]


def test_causes_of_a_gap() -> None:
    faults = [Fault(10, 11, 'killed'), Fault(12, 13, 'node killed'), Fault(10.9, 20, 'frozen')]
    assert causes((10, 10.5), faults) == ['killed']
    assert causes((10, 12.5), faults) == ['killed', 'frozen', 'node killed']
    assert causes((12, 12.5), faults) == ['node killed', 'frozen', 'killed']
    assert causes((25, 27), faults) == []


async def test_group_churn_in_memory() -> None:
    run = await run_in_memory('group-churn', seconds=10)
    assert run.holds, '\n'.join(run.summary())


@pytest.fixture(scope='module')
def three_nodes() -> Iterator[Beds]:
    # RabbitMQ 4.0 can leave a partition without an active member (rabbitmq-server #13657).
    yield from beds(3, version='4.3')


@pytest.mark.broker
async def test_group_churn(three_nodes: Beds) -> None:
    await holds(three_nodes, 'group-churn', seconds=20, partitions=4, members=3)
