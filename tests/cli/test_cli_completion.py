"""Completion by the shell."""

import shutil
import subprocess

import pytest

from tests.command_line import COMMAND, environment, rbfly


def complete(*words: str) -> list[str]:
    """Return what bash offers for the last word."""
    done = rbfly(
        _RBFLY_COMPLETE='bash_complete',
        COMP_WORDS=' '.join(['rbfly', *words]),
        COMP_CWORD=str(len(words)),
    )
    assert done.stderr == ''
    return [line.partition(',')[2] for line in done.stdout.splitlines()]


def test_commands() -> None:
    assert {'publish', 'tail', 'lag', 'stream', 'super-stream', 'offset', 'broker'} <= {
        *complete('')
    }
    assert complete('su') == ['super-stream']
    assert complete('stream', 'c') == ['create']


def test_options() -> None:
    assert complete('tail', '--fo') == ['--follow', '--format']
    assert complete('--ur') == ['--uri']
    assert complete('tail', 'orders', '--pro') == ['--profile']


def test_choices() -> None:
    assert complete('publish', 'orders', '--format', 'j') == ['json']


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_script_of_a_shell(shell: str) -> None:
    done = rbfly(_RBFLY_COMPLETE=f'{shell}_source')
    assert 'rbfly' in done.stdout
    assert done.returncode == 0
    if shutil.which(shell):
        checked = subprocess.run([shell, '-n'], input=done.stdout, text=True, check=False)
        assert checked.returncode == 0


def test_unknown_instruction() -> None:
    done = subprocess.run(
        COMMAND, env=environment(_RBFLY_COMPLETE='nonsense'), capture_output=True, check=False
    )
    assert done.returncode == 1
