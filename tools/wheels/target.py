"""What a wheel is for: a version of Python, a processor and a C library."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

PYTHONS = ('3.11', '3.12', '3.13', '3.14', '3.15')
ARCHES = ('x86_64', 'aarch64')
LIBCS = ('glibc', 'musl')
GLIBC = '2.17'
POLICIES = {'glibc': 'manylinux_2_17', 'musl': 'musllinux_1_2'}


@dataclass(frozen=True)
class Target:
    python: str
    arch: str
    libc: str

    def __str__(self) -> str:
        return f'{self.interpreter}-{self.policy}'

    @property
    def interpreter(self) -> str:
        """The tag of the Python and its ABI."""
        return 'cp' + self.python.replace('.', '')

    @property
    def policy(self) -> str:
        """The platform tag of a finished wheel."""
        return f'{POLICIES[self.libc]}_{self.arch}'

    @property
    def triple(self) -> str:
        """What the C compiler calls the platform."""
        return f'{self.arch}-linux-' + (f'gnu.{GLIBC}' if self.libc == 'glibc' else 'musl')

    @property
    def suffix(self) -> str:
        """How the file name of an extension module ends."""
        libc = 'gnu' if self.libc == 'glibc' else 'musl'
        return f'.cpython-{self.python.replace(".", "")}-{self.arch}-linux-{libc}.so'


def targets(python: str | None, arch: str | None, libc: str | None) -> Iterator[Target]:
    """All targets, or those with this Python, processor and C library."""
    for one in product(PYTHONS, ARCHES, LIBCS):
        if all(
            wanted in (None, part) for wanted, part in zip((python, arch, libc), one, strict=True)
        ):
            yield Target(*one)


def target_of(wheel: Path) -> Target:
    """The target that the file name of a wheel states."""
    found = re.search(r'-cp3(\d+)-cp3\d+-(?:.*\.)?(many|musl)linux_\d+_\d+_(\w+)\.whl$', wheel.name)
    if not found or found[3] not in ARCHES:
        raise ValueError(f'{wheel.name} is not a wheel for Linux on {" or ".join(ARCHES)}')
    return Target(f'3.{found[1]}', found[3], 'glibc' if found[2] == 'many' else 'musl')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select targets; without them, all are selected."""
    parser.add_argument('--python', choices=PYTHONS)
    parser.add_argument('--arch', choices=ARCHES)
    parser.add_argument('--libc', choices=LIBCS)
