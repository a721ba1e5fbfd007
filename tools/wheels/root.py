"""Root filesystems of Debian that hold Python and pip, and no compiler.

They are made once, in the cache folder of the brokers. Commands see the host's network and pip
settings. Commands for another processor run under qemu, which cannot start further processes, since
this needs no settings of the host's kernel.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokers import sandbox
from brokers.inside import HOST_FILES
from brokers.install import ensure_programs, suite_script
from brokers.state import Progress, cache_folder, making

from .fetch import ARCHES, JAVACPP_PYTHON, SUITES, javacpp_python, mirror, run

# The Debian releases where each Python is tested; javacpp's runs on all of them.
TESTED_ON = {python: [suite] for python, suite in SUITES.items()} | {
    JAVACPP_PYTHON: ['bullseye', 'forky']  # the oldest and the newest
}
# where the sdist is tested
WITH_COMPILER = ('3.13', 'trixie')
QEMU = '/qemu-aarch64-static'
PASSED = ('PIP_', 'SSL_', 'http', 'HTTP', 'no_proxy', 'NO_PROXY')

# Arguments: root, number of binds, host and inside path of each, the command.
SCRIPT = f"""
set -e
root=$1; count=$2; shift 2
{sandbox.ROOT_MOUNTS}
for name in shm pts; do mount --bind "/dev/$name" "$root/dev/$name" 2>/dev/null || true; done
while [ "$count" -gt 0 ]; do
    mount --bind "$1" "$root$2"
    shift 2; count=$((count - 1))
done
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Root:
    """A root filesystem with the Python of a wheel."""

    suite: str
    arch: str
    python: str
    compiler: bool = False

    def __str__(self) -> str:
        return f'Debian {self.suite}' + (', under qemu' if self.emulated else '')

    @property
    def emulated(self) -> bool:
        return self.arch != platform.machine()

    @property
    def folder(self) -> Path:
        what = 'compiler' if self.compiler else 'python'
        return cache_folder() / f'{what}-{self.suite}-{self.arch}-2'

    @property
    def interpreter(self) -> str:
        prefix = '/opt' if self.python == JAVACPP_PYTHON else '/usr'
        return f'{prefix}/bin/python{self.python}'

    @property
    def pip(self) -> str:
        """The path inside of a wheel of pip, which Python can import."""
        folder, inside = self.folder / 'usr/share/python-wheels', '/usr/share/python-wheels'
        if self.python == JAVACPP_PYTHON:
            bundled = f'lib/python{self.python}/ensurepip/_bundled'
            folder, inside = javacpp_python(self.arch) / bundled, f'/opt/{bundled}'
        (wheel,) = folder.glob('pip-*.whl')
        return f'{inside}/{wheel.name}'

    def make(self, progress: Progress) -> None:
        """Make the root filesystem, unless it exists."""
        ensure_programs({'debootstrap': 'debootstrap', 'unshare': 'util-linux'}, progress)
        if self.emulated:
            ensure_programs({f'qemu-{self.arch}-static': 'qemu-user-static'}, progress)
        with making(self.folder, progress) as new:
            if new:
                with progress.step(f'making a root filesystem of Debian {self.suite}, {self.arch}'):
                    self.debootstrap(new)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Mapping[str, Path]
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside, where a path of `binds` is that file or folder of the host."""
        mounts = {**binds, **{file: Path(file) for file in HOST_FILES if Path(file).exists()}}
        if self.python == JAVACPP_PYTHON:
            mounts['/opt'] = javacpp_python(self.arch)
            env = {**env, 'LD_LIBRARY_PATH': '/opt'}
        for inside, source in mounts.items():
            place = self.folder / inside[1:]
            (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.touch()
        flat = [str(path) for inside, source in mounts.items() for path in (source, inside)]
        script = ['sh', '-c', SCRIPT, 'sh', str(self.folder), str(len(mounts)), *flat]
        return subprocess.run(
            [*sandbox.UNSHARE, *script, *self.enter(env), *argv],
            env={'PATH': os.environ['PATH']},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def enter(self, env: Mapping[str, str]) -> list[str]:
        """The command inside that runs a program with only these variables."""
        passed = {key: value for key, value in os.environ.items() if key.startswith(PASSED)}
        variables = {'PATH': '/usr/bin:/bin', 'HOME': '/root', 'LANG': 'C.UTF-8', **passed, **env}
        pairs = [f'{key}={value}' for key, value in variables.items()]
        if self.emulated:
            return [QEMU, *(word for pair in pairs for word in ('-E', pair))]
        return ['/usr/bin/env', '-i', *pairs]

    def debootstrap(self, folder: Path) -> None:
        """
        Unpack a Debian release with its Pythons.

        No package is configured, which would need qemu to start processes; Python needs none.
        """
        folder.chmod(0o755)
        pythons = [f'python{python}' for python, suite in SUITES.items() if suite == self.suite]
        # javacpp's Python takes SQLite from the system
        packages = [*pythons, 'python3-pip-whl'] if pythons else ['libsqlite3-0']
        if self.compiler:
            packages += ['gcc', 'libc6-dev', *(f'{python}-dev' for python in pythons)]
        options = ['--foreign', '--variant=minbase', f'--arch={ARCHES[self.arch]}']
        options.append(f'--include={",".join(packages)}')
        source = [self.suite, str(folder), mirror(), str(suite_script(self.suite))]
        run([*sandbox.UNSHARE, 'debootstrap', *options, *source])
        for package in (folder / 'var/cache/apt/archives').glob('*.deb'):
            run(['dpkg-deb', '-x', package, folder])
            package.unlink()
        if (folder / 'proc').is_symlink():
            (folder / 'proc').unlink()
            (folder / 'proc').mkdir()
        (folder / 'etc/hosts').write_text('127.0.0.1 localhost\n::1 localhost\n')
        # Without this file, older versions of glibc ask only DNS for the address of localhost.
        (folder / 'etc/nsswitch.conf').write_text('hosts: files dns\n')
        (folder / 'etc/passwd').write_text('root:x:0:0:root:/root:/bin/sh\n')
        if self.emulated:
            shutil.copy(shutil.which(f'qemu-{self.arch}-static') or '', folder / QEMU[1:])
