"""Short versions of the proofs with super streams hold, and their checks find violations."""

from array import array
from collections.abc import Iterator

import pytest

from perf.super_stream_wire import partition_of
from proofs.checker import keys_unordered, misplaced
from tests.proofs.short_runs import Beds, beds, holds, lose_or_repeat, run_in_memory


def placed(count: int, partitions: int = 4) -> list['array[int]']:
    """The numbers of messages in each partition."""
    stored = [array('q') for _ in range(partitions)]
    for number in range(count):
        stored[partition_of(b'%03d' % (number % 1000), partitions)].append(number)
    return stored


def test_message_in_the_partition_of_another_key_is_found() -> None:
    stored = placed(3_000)
    assert not misplaced(stored)
    number = stored[0].pop()
    stored[1].append(number)
    assert misplaced(stored) == f'{number:,} in partition 1 instead of 0'


def test_order_of_each_key() -> None:
    assert not keys_unordered(placed(3_000))
    stored = placed(3_000)
    stored[0].append(stored[0][0])  # a second copy
    assert not keys_unordered(stored)
    stored = placed(3_000)
    first = stored[0][0]
    stored[0].remove(first)
    stored[0].append(first)
    assert keys_unordered(stored) == f'key {first}: {first:,} comes too late'
    stored = placed(3_000)
    stored[0].append(stored[1][0])
    assert 'in partitions' in keys_unordered(stored)


@pytest.mark.parametrize('unnamed', [False, True])
@pytest.mark.parametrize('by', ['send', 'flush', 'send-many'])
async def test_super_cuts_in_memory(by: str, unnamed: bool) -> None:
    run = await run_in_memory(
        'super-cuts', messages=30_000, cuts=5, services=3, by=by, unnamed=unnamed
    )
    assert run.holds, '\n'.join(run.summary())


@pytest.mark.parametrize('copies', [0, 2])
async def test_super_cuts_fail_if_a_message_is_lost_or_duplicated(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_or_repeat(monkeypatch, copies)
    monkeypatch.setattr('proofs.super_streams.READ', 0.1)
    run = await run_in_memory('super-cuts', messages=2_000, cuts=1, services=1)
    assert not run.error
    wrong = [item['what'] for item in run.checks if not item['holds']]
    assert wrong == ['stored exactly once', 'a subscription has read each partition']


@pytest.fixture(scope='module')
def three_nodes() -> Iterator[Beds]:
    yield from beds(3)


@pytest.mark.broker
async def test_super_cuts(three_nodes: Beds) -> None:
    await holds(three_nodes, 'super-cuts', messages=10_000, cuts=6, services=3, tasks=100)
