"""The benchmark runs lanes on a second Python, or explains why it leaves them out."""

import sys

import pytest

from perf import lanes, other_python, runner

RUNNING = f'{sys.version_info[0]}.{sys.version_info[1]}'
LANE = lanes.find('rbfly-py3.14-py-single')


def test_lane_without_the_other_python_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('RBFLY_PYTHON_3_14', raising=False)
    assert lanes.missing(LANE).startswith('RBFLY_PYTHON_3_14 is not set')
    assert lanes.missing(lanes.find('raw-socket-py-single')) == ''


@pytest.mark.parametrize('command', ['false', '/no/such/python'])
def test_command_that_fails_is_missing(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv('RBFLY_PYTHON_3_14', command)
    assert 'does not start a Python with RbFly and uvloop' in lanes.missing(LANE)


def test_another_version_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('uvloop')
    monkeypatch.setenv('RBFLY_PYTHON_3_1', sys.executable)
    assert f'starts Python {RUNNING}.' in other_python.missing('3.1')
    monkeypatch.setenv(other_python.variable(RUNNING), sys.executable)
    assert other_python.missing(RUNNING) == ''


def test_worker_runs_on_the_other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('RBFLY_PYTHON_3_14', "enter 'a root' -- python3.14")
    worker = ['-m', 'perf.worker']
    other = ['enter', 'a root', '--', 'python3.14', *worker, LANE.name]
    assert runner.command(LANE) == other
    same = lanes.find('rbfly-py-single')
    assert runner.command(same) == [sys.executable, *worker, same.name]


def test_each_library_has_its_twin() -> None:
    names = {lane.name for lane in lanes.select([], ['pythons'])}
    newer = {name for name in names if '-py3.14-' in name}
    assert {name.replace('-py3.14-', '-') for name in newer} < names
    assert {'rbfly-py3.14-py-consume', 'msgspec-py3.14-py-decode-seed'} < newer
    assert not any(name.startswith('raw-socket') for name in newer)
