"""Short versions of the proof of atomic batches hold, and its checks find parts of batches."""

from collections.abc import Iterator

import pytest

from proofs.atomic import Batches, count_batches
from proofs.history import Messages
from proofs.test_bed import MemoryBed
from tests.proofs.short_runs import Beds, beds, holds, run_in_memory


def stored(*batches: int) -> list[int]:
    known = Batches(7)
    return [number for batch in batches for number in known.numbers(batch)]


def test_whole_batches_are_counted() -> None:
    copies, parts = count_batches(Batches(7), stored(0, 1, 2, 2, 5, 1))
    assert (copies, parts) == ({0: 1, 1: 2, 2: 2, 5: 1}, '')
    assert [*copies] == [0, 1, 2, 5]


@pytest.mark.parametrize('cut', [slice(1, None), slice(0, -1), slice(0, 1), slice(1, 2)])
def test_part_of_a_batch_is_found(cut: slice) -> None:
    for rest in ([], stored(4)):
        copies, parts = count_batches(Batches(7), [*stored(0, 1), *stored(3)[cut], *rest])
        assert parts.startswith(f'a part of a batch at message {len(stored(0, 1)):,}')
        assert copies == {0: 1, 1: 1}


@pytest.mark.parametrize('unnamed', [False, True])
async def test_atomic_in_memory(unnamed: bool) -> None:
    run = await run_in_memory('atomic', kills=4, unnamed=unnamed)
    assert run.holds, '\n'.join(run.summary())


@pytest.mark.parametrize('lost', [slice(0, 1), slice(-1, None)])
async def test_atomic_fails_if_messages_are_lost(
    lost: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MemoryBed.stored

    async def stored(self: MemoryBed, stream: str) -> Messages:
        numbers, offsets = await read(self, stream)
        del numbers[lost]
        return numbers, offsets

    monkeypatch.setattr(MemoryBed, 'stored', stored)
    run = await run_in_memory('atomic', kills=4)
    assert not run.error
    assert not run.holds


@pytest.fixture(scope='module')
def one_node() -> Iterator[Beds]:
    yield from beds(1)


@pytest.mark.broker
async def test_atomic(one_node: Beds) -> None:
    await holds(one_node, 'atomic', kills=10)
