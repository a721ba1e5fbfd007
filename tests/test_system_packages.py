"""Targets of make name the system packages that are missing, and install them only if told to."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / 'tools' / 'system-packages'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the only programs of a system; its apt-get lists what it would install."""
    for name in ('sh', 'basename', 'grep', 'find', 'cat', 'mkdir'):
        (tmp_path / name).symlink_to(f'/bin/{name}')
    for name, command in {'apt-get': 'echo "$@" >> installed', 'id': 'echo $USER_ID'}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\n{command}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / 'build').mkdir()
    return tmp_path


def run(programs: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {'PATH': str(programs), 'CC': 'gcc -pthread', **environ}
    return subprocess.run(
        [SCRIPT, *words], cwd=programs, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ('words', 'packages'),
    [
        (['build'], 'python3.14-venv python3.14-dev gcc libc6-dev'),
        (['fuzz'], 'clang llvm libclang-rt-dev'),
        (['maven'], 'maven'),
    ],
)
def test_missing_packages_are_named(programs: Path, words: list[str], packages: str) -> None:
    done = run(programs, *words, PYTHON='/opt/bin/python3.14')
    assert done.returncode == 1
    assert f'apt-get install {packages}\n' in done.stderr
    assert not (programs / 'installed').exists()


def test_missing_packages_are_installed_if_told_to(programs: Path) -> None:
    done = run(programs, 'fuzz', RBFLY_INSTALL='1', USER_ID='1000')
    assert done.returncode == 1
    assert not (programs / 'installed').exists()
    done = run(programs, 'fuzz', RBFLY_INSTALL='1', USER_ID='0')
    assert (done.returncode, done.stderr) == (0, '')
    found = (programs / 'installed').read_text().splitlines()
    assert found[0] == 'update'
    assert found[1].endswith('clang llvm libclang-rt-dev')
