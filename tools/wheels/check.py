"""Install a wheel where there is no compiler, time that, and run the tests with it.

That is a root filesystem of Debian, or an environment of the running Python. The sdist is installed
where there is a compiler.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokers.state import Progress
from tests.examples import examples
from tools.requirements import required

from .fetch import ROOT
from .root import TESTED_ON, WITH_COMPILER, Root
from .target import target_of

WORK = ROOT / 'build' / 'wheels' / 'tests'
# Emulated, a test takes fifty times as long, and cannot start processes.
EMULATED_TESTS = ['tests/amqp/test_values.py', 'tests/protocol/test_chunk.py']
OPTIONS = ['-q', '-p', 'no:cacheprovider', '--broker', 'memory', '-m', 'not broker and not long']
PIP = ['-m', 'pip', 'install', '--disable-pip-version-check', '-q']


class Failed(Exception):
    """A wheel cannot be installed, or a test failed."""


@dataclass(frozen=True)
class Result:
    """The result of testing a wheel in one environment.

    :ivar seconds: of `pip install` and the program of README.md.
    """

    wheel: Path
    place: str
    tests: str
    seconds: str

    def row(self) -> str:
        size = f'{self.wheel.stat().st_size / 1e6:.2f} MB'
        return f'| {self.wheel.name} | {size} | {self.place} | {self.tests} | {self.seconds} |'


def table(results: Iterable[Result]) -> str:
    """The results, in Markdown."""
    head = "| wheel | size | installed in | tests | `pip install` and README's program |"
    return '\n'.join([head, '|---|---|---|---|---|', *(result.row() for result in results)])


class InRoot:
    """An environment in a root filesystem."""

    def __init__(self, root: Root, folder: Path) -> None:
        self.root, self.emulated = root, root.emulated
        self.work, self.checkout = '/wheel', '/checkout'
        self.binds = {'/wheel': folder, '/checkout': ROOT}
        root.make(Progress())
        self.pip = {'PYTHONPATH': root.pip}
        self.succeed(root.interpreter, '-m', 'venv', '--without-pip', '/wheel/env')

    def __str__(self) -> str:
        return str(self.root)

    def call(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return self.root.run(argv, env, self.binds)

    def succeed(self, *argv: str, **env: str) -> str:
        """Run a program and return its output."""
        done = self.call(argv, {'PYTHONPYCACHEPREFIX': f'{self.work}/cache', **env})
        if done.returncode:
            raise Failed(f'{self}: {" ".join(argv)}\n{done.stdout[-8000:]}')
        return done.stdout


class Here(InRoot):
    """An environment of the running Python."""

    def __init__(self, folder: Path) -> None:
        self.emulated, self.pip = False, {}
        self.work, self.checkout = str(folder), str(ROOT)
        venv.create(folder / 'env', with_pip=True, symlinks=True)

    def __str__(self) -> str:
        return f'this system, Python {platform.python_version()}'

    def call(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
        pipe, stdout = subprocess.PIPE, subprocess.STDOUT
        return subprocess.run(argv, env={**kept, **env}, text=True, stdout=pipe, stderr=stdout)


def places(file: Path, here: bool) -> Iterator[InRoot]:
    """Where to test a wheel or the sdist; nowhere if there is no such system."""
    if here:
        yield Here(new_folder(file, 'here'))
    elif file.suffix == '.gz':
        python, suite = WITH_COMPILER
        root = Root(suite, platform.machine(), python, compiler=True)
        yield InRoot(root, new_folder(file, suite))
    elif (target := target_of(file)).libc == 'glibc':
        for suite in TESTED_ON[target.python]:
            root = Root(suite, target.arch, target.python)
            yield InRoot(root, new_folder(file, suite))


def new_folder(file: Path, place: str) -> Path:
    """A folder that holds the file only."""
    folder = WORK / f'{file.name}-{place}'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(file, folder)
    return folder


def check(file: Path, here: bool, tests: bool) -> list[Result]:
    """Test a wheel, or the sdist, in each of its places."""
    found = [check_in(file, place, tests) for place in places(file, here)]
    return found or [Result(file, 'no Python with this C library', 'not run', '')]


def check_in(file: Path, place: InRoot, tests: bool) -> Result:
    """Install the file, run a first program and the tests."""
    python = f'{place.work}/env/bin/python'
    readme = examples()[0][1]
    offline = ['--no-index'] if file.suffix == '.whl' else []  # the sdist needs Cython
    begun, used = time.monotonic(), processor_seconds()
    place.succeed(python, *PIP, *offline, f'{place.work}/{file.name}', **place.pip)
    printed = place.succeed(python, '-I', '-c', readme)
    seconds, used = time.monotonic() - begun, processor_seconds() - used
    if not printed.endswith("99 {'id': 100}\n"):
        raise Failed(f'{place}: the program of README.md printed {printed!r}')
    passed = run_tests(place, python) if tests else 'the program of README.md'
    result = Result(file, str(place), passed, f'{seconds:.1f} s, {used:.1f} s of a processor')
    print(result.row(), flush=True)
    return result


def processor_seconds() -> float:
    """What all processes that have ended used."""
    times = os.times()
    return times.children_user + times.children_system


def run_tests(place: InRoot, python: str) -> str:
    """Run the tests; return what pytest says of them."""
    place.succeed(python, *PIP, '--only-binary', ':all:', *required(['wheel']), **place.pip)
    if place.emulated:
        settings = ['--rootdir=/checkout', '-c', '/checkout/pyproject.toml']
        paths = [f'/checkout/{file}' for file in EMULATED_TESTS]
        printed = place.succeed(python, '-m', 'pytest', *OPTIONS, *settings, *paths)
    else:
        printed = place.succeed(python, f'{place.checkout}/tools/check_wheel.py')
    found = re.search(r'^(?:=+ )?(\d+ passed.*?) in ', printed, re.M)
    if not found:
        raise Failed(f'{place}: {printed[-8000:]}')
    return found[1]


def can_use_roots() -> bool:
    """Whether this system can make root filesystems of Debian."""
    return sys.platform == 'linux' and os.geteuid() == 0 and shutil.which('apt-get') is not None
