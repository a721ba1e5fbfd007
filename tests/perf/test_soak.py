"""A short soak on the broker in memory; that it finds what is wrong."""

from array import array

from perf.proofs import PROOFS
from perf.proofs.main import prove
from perf.proofs.run import Run
from perf.proofs.soak import CONFIRMED, REFUSED, Log, in_memory

SEED = 1


async def test_soak() -> None:
    run = Run(PROOFS['soak'], SEED, seconds=6, on='memory')
    async with in_memory(3, SEED) as site:
        await prove(run, site)
    assert run.holds, '\n'.join(run.summary())
    assert run.found['rounds'] == 1
    assert run.found['stored'] > 0
    assert sum(run.found['faults'].values()) > 0


def test_what_a_soak_calls_wrong() -> None:
    log = Log('send', 'test', named=True)
    numbers = log.take(10)
    log.note(numbers[:4], CONFIRMED)
    log.note(numbers[4:5], REFUSED)
    assert not log.wrong(array('q', [0, 1, 2, 3]))
    assert not log.wrong(array('q', [0, 1, 2, 3, 5, 9]))
    assert log.wrong(array('q', [0, 1, 3])) == {'confirmed and lost': 1}
    assert log.wrong(array('q', [0, 1, 2, 3, 4])) == {'refused and stored': 1}
    assert log.wrong(array('q', [0, 1, 2, 2, 3])) == {'doubled': 1}
    assert log.wrong(array('q', [0, 2, 1, 3])) == {'out of order': 1}
    assert log.wrong(array('q', [0, 1, 2, 3, 11])) == {'never sent': 1}
    assert not Log('sub-entries', 'test', named=False).wrong(array('q'))
