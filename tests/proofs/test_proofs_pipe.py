"""Short versions of the proof of pipes hold, and its checks find lost and repeated outputs."""

from array import array
from collections.abc import Iterator

import pytest

from perf.super_stream_wire import partition_of
from proofs.pipe import key_of, misplaced, outputs_of, separated, wrong_copies
from tests.proofs.short_runs import Beds, beds, holds, lose_or_repeat, run_in_memory

TOTAL = 3_000


def placed() -> list['array[int]']:
    """The outputs of all messages, in four partitions."""
    stored = [array('q') for _ in range(4)]
    for number in range(TOTAL):
        partition = stored[partition_of(key_of(number, TOTAL).encode(), 4)]
        partition.extend(outputs_of(number, TOTAL))
    return stored


def test_outputs_that_are_right() -> None:
    stored = placed()
    assert not wrong_copies(stored, TOTAL)
    assert not misplaced(stored, TOTAL)
    assert not separated(stored, TOTAL)


def test_lost_and_repeated_outputs_are_found() -> None:
    stored = placed()
    stored[1].append(stored[0].pop())
    assert misplaced(stored, TOTAL)
    assert not wrong_copies(stored, TOTAL)
    lost = stored[1].pop()
    assert wrong_copies(stored, TOTAL) == '1 lost, 0 repeated'
    stored[0].extend([lost, stored[2][0]])
    assert wrong_copies(stored, TOTAL) == '0 lost, 1 repeated'


def test_order_of_each_key() -> None:
    stored = placed()
    first = stored[0].pop(0)
    stored[0].append(first)
    assert misplaced(stored, TOTAL) == f'{first:,} comes too late'


def test_parts_of_a_batch_are_found() -> None:
    stored = placed()
    index = next(i for i, number in enumerate(stored[0]) if number >= TOTAL)
    second = stored[0].pop(index)
    assert separated(stored, TOTAL)
    stored[0].insert(index + 1, second)
    assert separated(stored, TOTAL)


async def test_pipe_in_memory() -> None:
    run = await run_in_memory('pipe', messages=10_000, kills=5)
    assert run.holds, '\n'.join(run.summary())


@pytest.mark.parametrize('copies', [0, 2])
async def test_pipe_fails_if_an_output_is_lost_or_repeated(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_or_repeat(monkeypatch, copies)
    run = await run_in_memory('pipe', messages=1_000, kills=1)
    assert not run.error
    wrong = [item['what'] for item in run.checks if not item['holds']]
    assert 'each output is stored exactly once' in wrong


@pytest.fixture(scope='module')
def one_node() -> Iterator[Beds]:
    yield from beds(1)


@pytest.mark.broker
async def test_pipe(one_node: Beds) -> None:
    await holds(one_node, 'pipe', messages=20_000, kills=8)
