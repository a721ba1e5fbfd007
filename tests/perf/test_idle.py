"""Rounds that wait until other programs leave the processors idle."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from perf import idle, report, runner, runs
from perf.results import Settings, read

LANES = ['rbfly-encode-seed', 'msgspec-encode-seed']


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[float]], None]:
    """Let the processors be used by so many per cent, one sample after the other."""

    def choose(samples: Iterable[float]) -> None:
        left = iter(samples)
        monkeypatch.setattr(idle, 'processor_use', lambda: next(left))

    monkeypatch.setattr(idle, 'PAUSE', 0)
    return choose


def test_processors_that_are_idle(use: Callable[[Iterable[float]], None]) -> None:
    said: list[str] = []
    use([9.9])
    idle.wait(said.append)
    assert not said


def test_processors_that_are_busy_for_a_while(use: Callable[[Iterable[float]], None]) -> None:
    said: list[str] = []
    use([80, 10, 9.9])
    idle.wait(said.append)
    assert said == ['waiting: other programs use 80 % of the processors', 'continuing']


def test_processor_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, 'SAMPLE', 0.05)
    assert 0 <= idle.processor_use() <= 100


@pytest.mark.parametrize(('when_idle', 'waits'), [(True, 2), (False, 0)])
def test_each_round_waits(
    use: Callable[[Iterable[float]], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    when_idle: bool,
    waits: int,
) -> None:
    use([50, 0, 0, 50, 0])  # rounds 1, 2 and 3
    settings = Settings(3, 1, {'encode-seed': 10}, LANES, when_idle=when_idle)
    assert runs.measure(tmp_path / 'run.jsonl', settings, [], None, {}, {}) == 0
    assert capsys.readouterr().err.count('waiting: other programs') == waits
    results = read(tmp_path / 'run.jsonl.xz')
    assert len(results.rows) == 6
    assert results.settings == settings
    page = report.write([tmp_path / 'run.jsonl.xz'], tmp_path / 'doc')
    text = ' '.join(page.read_text().split())
    assert ('waited until the processors were idle' in text) == when_idle


def test_rounds_without_a_lane_do_not_wait(
    use: Callable[[Iterable[float]], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All lanes have failed."""

    def fail(*_: object) -> None:
        raise runner.LaneError('it fell')

    monkeypatch.setattr(runner.Turn, 'open', fail)
    use([])
    settings = Settings(3, 1, {'encode-seed': 10}, LANES, when_idle=True)
    runs.measure(tmp_path / 'run.jsonl', settings, [], None, {}, {})
    assert capsys.readouterr().err.count('it fell') == 2
