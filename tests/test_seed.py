"""Each run prints its seed; a failed test can be repeated alone."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = ('tests.seed', 'xdist.plugin', '_hypothesis_pytestplugin', 'no:cacheprovider')
WALKS = """
import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule


def test_numbers(rng: random.Random) -> None:
    raise AssertionError(f'found {rng.random()}')


as_found = settings(phases=[Phase.generate], database=None)


@as_found
@given(st.lists(st.integers(0, 10**9), min_size=50))
def test_values(values: list[int]) -> None:
    assert sum(values) % 3 != 1, f'found {values}'


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []

    @rule(value=st.integers(0, 10**9))
    def add(self, value: int) -> None:
        self.values.append(value)
        assert len(self.values) < 20 or sum(self.values) % 3 != 1, f'found {self.values}'


TestWalk = Walk.TestCase
TestWalk.settings = as_found
"""
OTHER = """
import others  # has constants that Hypothesis may draw

def test_other() -> None:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / 'project'
    folder.mkdir()
    (folder / 'pytest.ini').write_text('[pytest]\n')
    (folder / 'others.py').write_text(f'VALUES = {[*range(1000, 1200)]}\n')
    (folder / 'walk_file.py').write_text(WALKS)
    (folder / 'a_file.py').write_text(OTHER)
    return folder


def run(folder: Path, *args: str, seed: str = '') -> str:
    plugins = [item for name in PLUGINS for item in ('-p', name)]
    command = [sys.executable, '-m', 'pytest', *plugins, *args]
    path = os.pathsep.join([os.getcwd(), str(folder)])
    environment = os.environ | {'PYTHONPATH': path, 'RBFLY_SEED': seed}
    environment['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'  # which takes longer than the tests
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.stdout


def found(output: str) -> list[str]:
    """Return the values that the tests failed with."""
    return sorted(set(re.findall(r'^E +AssertionError: found (.*)$', output, re.MULTILINE)))


@pytest.mark.parametrize('workers', ['0', '2'])
def test_printed_commands_repeat_the_failures(folder: Path, workers: str) -> None:
    first = run(folder, '-n', workers, 'a_file.py', 'walk_file.py')
    assert len(found(first)) == 3
    commands = re.findall(r'^python -m pytest (--seed=\d+) (\S+)$', first, re.MULTILINE)
    assert len(commands) == 3
    assert len({seed for seed, _ in commands}) == 1
    again = [run(folder, seed, shlex.split(test)[0]) for seed, test in commands]
    assert found('\n'.join(again)) == found(first)


def test_seed_is_new_unless_set(folder: Path) -> None:
    runs = [run(folder, 'a_file.py') for _ in range(2)]
    runs += [run(folder, 'a_file.py', seed='7'), run(folder, 'a_file.py', '-q', '--seed', '8')]
    seeds = [re.findall(r'^seed: (\d+) ', output, re.MULTILINE) for output in runs]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [['7'], ['8']]
