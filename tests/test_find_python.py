"""tools/python3.12 names a Python 3.12 of the system, or says that there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / 'tools' / 'python3.12'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the only programs of a system."""
    for name in ('sh', 'dirname'):
        (tmp_path / name).symlink_to(f'/usr/bin/{name}')
    return tmp_path


def add(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{script}\n')
    path.chmod(0o755)


def run(programs: Path) -> subprocess.CompletedProcess[str]:
    tool = programs / 'checkout' / 'tools' / 'python3.12'
    tool.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOOL, tool)
    environment = {'PATH': str(programs), 'HOME': str(programs)}
    return subprocess.run([tool], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    'place',
    [
        '',
        '.pyenv/versions/3.12.1/bin',
        'checkout/build/wheels/cache/python3.12-x86_64/prefix/bin',
    ],
)
def test_python_of_the_system_is_found(programs: Path, place: str) -> None:
    path = programs / place / 'python3.12'
    add(path, 'exit 0')
    found = run(programs)
    assert (found.returncode, found.stdout, found.stderr) == (0, f'{path}\n', '')


def test_python_that_does_not_start_is_not_named(programs: Path) -> None:
    """A shim of pyenv does not if another version is selected."""
    add(programs / 'python3.12', 'exit 127')
    add(programs / 'uname', 'echo Linux riscv64')
    found = run(programs)
    assert (found.returncode, found.stdout) == (1, '')
    assert found.stderr == 'missing on this system: Python 3.12\n'
