"""A short soak on the in-memory broker holds, and a soak detects violations."""

import logging
from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import rbfly.streams as rbs
from proofs import soak
from proofs.catalogue import PROOFS
from proofs.history import CONFIRMED, MESSAGES, REFUSED, Log
from proofs.run import Run, prove
from proofs.soak.activity import Activity
from proofs.soak.starting import DAMAGED, GONE, Follower, Recreating
from proofs.trouble import in_memory
from tests.seed import of_run


def activity(cls: type[Activity]) -> tuple[Any, Counter[str]]:
    scene: Any = SimpleNamespace(site=None, random=None, wrong=Counter())
    return cls(scene), scene.wrong


async def short(**settings: Any) -> Run:
    run = Run(PROOFS['soak'], of_run(), seconds=6, on='memory', **settings)
    async with in_memory(3, of_run()) as site:
        await prove(run, site)
    return run


async def test_soak(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, logger='rbfly'):  # captured errors would keep frames
        run = await short()
    assert run.holds, '\n'.join(run.summary())
    assert run.found['rounds'] == 2
    assert run.found['stored'] > 0
    assert sum(run.found['faults injected'].values()) > 0


async def test_soak_fails_if_a_round_has_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one_round(run: Run, *_: object) -> Counter[str]:
        run.found['calls'] = 1
        return Counter({'confirmed and lost': 7})

    monkeypatch.setattr(soak, 'one_round', one_round)
    run = await short()
    assert not run.holds
    assert any('NO  no message confirmed and lost (7)' in line for line in run.summary())


def test_log_counts_contradictions_with_stored_messages() -> None:
    log = Log('send', 'test', named=True)
    numbers = log.take(10)
    log.note(numbers[:4], CONFIRMED)
    log.note(numbers[4:5], REFUSED)
    assert not log.wrong(array('q', [0, 1, 2, 3]))
    assert not log.wrong(array('q', [0, 1, 2, 3, 5, 9]))
    assert log.wrong(array('q', [0, 1, 3])) == {'confirmed and lost': 1}
    assert log.wrong(array('q', [0, 1, 2, 3, 4])) == {'refused and stored': 1}
    assert log.wrong(array('q', [0, 1, 2, 2, 3])) == {'duplicated': 1}
    assert log.wrong(array('q', [0, 2, 1, 3])) == {'out of order': 1}
    assert log.wrong(array('q', [0, 1, 2, 3, 11])) == {'never sent': 1}
    assert log.wrong(array('q', [0, 1, 2, 3, MESSAGES])) == {'never sent': 1}
    assert not Log('sub-entries', 'test', named=False).wrong(array('q'))


@pytest.mark.parametrize(
    ('found', 'wrong'),
    [
        ([(0, 0), (0, 1), GONE, (1, 0), (1, 1)], ''),
        ([(0, 0), GONE, GONE, (2, 0)], ''),
        ([(0, 0), DAMAGED, (0, 5)], ''),
        ([(0, 0), GONE, DAMAGED, (1, 2)], ''),
        ([(0, 0), (1, 0)], 'recreation not reported'),
        ([(0, 0), DAMAGED, (1, 0)], 'recreation not reported'),
        ([(0, 0), GONE, (1, 1)], 'does not start at 0'),
        ([(0, 0), (0, 2)], 'lost, duplicated or out of order'),
        ([(0, 0), (0, 0)], 'lost, duplicated or out of order'),
        ([(0, 0), DAMAGED, (0, 0)], 'lost, duplicated or out of order'),
        ([(1, 0), GONE, (0, 0)], 'messages of an earlier incarnation'),
    ],
)
def test_order_check_of_a_recreated_stream(found: list[tuple[int, int]], wrong: str) -> None:
    recreating, seen = activity(Recreating)
    follower = Follower('bodies', rbs.Offset.FIRST)
    follower.found = found
    recreating.check_order(follower)
    assert [*seen] == ([f'recreated stream, bodies: {wrong}'] if wrong else [])


async def test_unknown_activity_is_refused() -> None:
    run = await short(doing='closing,dancing')
    assert 'unknown activity dancing' in run.error


def test_command_contains_the_seed() -> None:
    run = Run(PROOFS['soak'], 7, doing='closing')
    expected = 'python -m proofs soak --seed 7 --seconds 3600 --on rabbitmq --doing closing'
    assert run.command == expected
