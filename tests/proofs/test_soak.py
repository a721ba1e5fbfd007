"""A short soak on the in-memory broker holds, and a soak detects violations."""

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from proofs import soak
from proofs.catalogue import PROOFS
from proofs.run import Run
from proofs.soak.activity import Activity
from proofs.soak.starting import DAMAGED, GONE, Follower, Recreating
from tests.proofs.short_runs import run_in_memory


def activity(cls: type[Activity]) -> tuple[Any, Counter[str]]:
    scene: Any = SimpleNamespace(bed=None, random=None, wrong=Counter())
    return cls(scene), scene.wrong


async def short(**settings: Any) -> Run:
    return await run_in_memory('soak', seconds=6, **settings)


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
        return Counter({'send: confirmed and lost': 7})

    monkeypatch.setattr(soak, 'one_round', one_round)
    run = await short()
    assert not run.holds
    line = "  NO  no message confirmed and lost ({'send: confirmed and lost': 7})"
    assert line in run.summary()


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
    follower = Follower('body')
    follower.found = found
    recreating.check_order(follower)
    assert [*seen] == ([f'recreated stream, body: {wrong}'] if wrong else [])


async def test_unknown_activity_is_refused() -> None:
    run = await short(doing='closing,dancing')
    assert 'unknown activity dancing' in run.error


def test_command_contains_the_seed() -> None:
    run = Run(PROOFS['soak'], 7, doing='closing')
    expected = 'python -m proofs soak --seed 7 --seconds 3600 --on rabbitmq --doing closing'
    assert run.command == expected
