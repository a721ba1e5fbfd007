"""Short versions of the proof of `process` hold, and its checks find violations."""

from array import array
from collections.abc import Iterator

import pytest

from proofs.catalogue import PROOFS
from proofs.processing import DONE, STORED, Event, check_events, check_letters, fate
from proofs.run import Run
from tests.proofs.short_runs import Beds, beds, holds, run_in_memory

ORDER = 'messages with the same key are processed in order'
ABOVE = 'only messages above the stored offset are repeated'
EACH = 'each message is processed at least once, or is in the dead-letter stream'


def checked(*events: Event) -> set[str]:
    """The claims that do not hold for ten messages with one key in one partition."""
    run = Run(PROOFS['process'], 1, messages=9001)
    done = {event.number for event in events}
    others = set(range(9001)) - done - set(range(0, 9001, 1000))
    offsets = array('q', range(9001))
    check_events(run, [(offsets, offsets)], iter(events), [50.0], others)
    return {item['what'] for item in run.checks if not item['holds']}


def finish(*numbers: int, begin: float = 0.0) -> list[Event]:
    return [Event(begin + i, DONE, 0, number, number) for i, number in enumerate(numbers)]


ALL = range(0, 9001, 1000)


def test_checks_of_events() -> None:
    assert checked(*finish(*ALL)) == set()
    assert checked(*finish(*ALL[:9])) == {EACH}
    assert checked(*finish(0, 2000, 1000, *ALL[3:])) == {ORDER}
    assert checked(*finish(0, 1000, 0, *ALL[1:])) == set()
    stored = Event(2, STORED, 0, 1000, 0)
    assert checked(*finish(0, 1000), stored, *finish(*ALL[2:], begin=3)) == set()
    assert checked(*finish(0, 1000), stored, *finish(*ALL[1:], begin=3)) == {ABOVE}
    assert checked(*finish(0, 1000), stored, *finish(*ALL[1:], begin=50)) == set()


def test_checks_of_dead_letters() -> None:
    failing = next(number for number in range(100_000) if fate(number, 1) == 'fails')
    numbers = array('q', [failing])
    stored = {'orders-0': (numbers, array('q', [7]))}
    right = (failing, 'orders-0', 7, 2, f'ValueError: cannot process {failing}')

    def wrong(*letters: tuple[int, str, int, int, str]) -> list[str]:
        run = Run(PROOFS['process'], 1)
        check_letters(run, stored, letters, {failing})
        return [item['what'].split()[0] for item in run.checks if not item['holds']]

    assert wrong(right) == []
    assert wrong(right, right) == []
    assert wrong() == ['each']
    assert wrong(right, (1, *right[1:])) == ['no', 'dead']
    assert wrong((failing, 'orders-0', 8, 2, right[4])) == ['dead']
    assert wrong((failing, 'orders-0', 7, 1, right[4])) == ['dead']
    assert wrong((*right[:4], 'OSError')) == ['dead']


async def test_process_in_memory() -> None:
    run = await run_in_memory('process', messages=30_000, cuts=5, partitions=4)
    assert run.holds, '\n'.join(run.summary())


@pytest.fixture(scope='module')
def one_node() -> Iterator[Beds]:
    # RabbitMQ 4.0 can leave a partition without an active member (rabbitmq-server #13657).
    yield from beds(1, version='4.3')


@pytest.mark.broker
async def test_process(one_node: Beds) -> None:
    await holds(one_node, 'process', messages=60_000, cuts=6, partitions=4)
