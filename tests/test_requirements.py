"""A run lists the tests that it cannot run; with RBFLY_TESTS=all, these fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PYTEST = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {'RBFLY_URI': '', 'RBFLY_TESTS': ''} | environ
    return subprocess.run([*PYTEST, *args], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize('workers', ['0', '2'])
def test_tests_without_rabbitmq_are_listed(workers: str) -> None:
    files = ('tests/streams/publish/test_confirms.py', 'tests/streams/test_tls.py')
    done = run('-n', workers, '--broker', 'memory', *files, '-k', 'same_message or real or tls')
    end = done.stdout[done.stdout.index('NOT RUN') :].splitlines()
    found = re.match(r'NOT RUN: (\d+) tests need RabbitMQ', end[0])
    assert found
    counts = {line.split()[-1]: int(line.split()[0]) for line in end[1:3]}
    assert counts.keys() == {*files}
    assert sum(counts.values()) == int(found[1])
    assert end[3] == 'why: --broker memory'
    assert 'RBFLY_URI' in end[4]


def test_tests_without_go_are_listed(tmp_path: Path) -> None:
    path = str(tmp_path)
    done = run('tests/testing/test_broker_go.py', '--broker', 'memory', PATH=path)
    assert 'NOT RUN: 4 tests need Go' in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_tests_without_java_are_listed(tmp_path: Path) -> None:
    path = str(tmp_path)
    done = run('tests/perf/test_programs.py', '-k', 'java', '--broker', 'memory', PATH=path)
    assert 'NOT RUN: 8 tests need Java' in done.stdout
    assert 'Maven' in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(('size', 'count'), [('', 2), ('nightly', 3)])
def test_long_tests_run_at_night(size: str, count: int) -> None:
    done = run('tests/test_pyinstaller.py', '--collect-only', RBFLY_TESTS=size)
    assert f'\n{count}/3 tests' in done.stdout or f'\n{count} tests' in done.stdout


def test_missing_program_fails_tests_if_all_are_required(tmp_path: Path) -> None:
    path = str(tmp_path)
    done = run(
        'tests/testing/test_broker_go.py', '-k', 'not rabbitmq', PATH=path, RBFLY_TESTS='all'
    )
    assert 'NOT RUN' not in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
