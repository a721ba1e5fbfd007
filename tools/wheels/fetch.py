"""Fetch Python's headers, and the Python that no Debian release has.

apt downloads the packages of any processor into a folder of its own, and checks their signatures.
Python 3.12 comes from Maven Central, where JavaCPP publishes it for programs in Java.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from brokers.state import making

ROOT = Path(__file__).parents[2]
CACHE = ROOT / 'build' / 'wheels' / 'cache'
# Debian releases, and what Debian calls a processor
SUITES = {'3.11': 'bookworm', '3.13': 'trixie', '3.14': 'forky', '3.15': 'forky'}
ARCHES = {'x86_64': 'amd64', 'aarch64': 'arm64'}
KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'

JAVACPP_PYTHON = '3.12'
JAVACPP = 'org.bytedeco:cpython:3.12.1-1.5.10:jar'
# what JavaCPP calls a processor, and the SHA-256 of the archive
JARS = {
    'x86_64': (
        'linux-x86_64',
        'a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd',
    ),
    'aarch64': (
        'linux-arm64',
        '4876e6a9eb45c4e2faf7c9f9ef8cb9f16a462c45c3440d4c2e15e6acc8f4e0df',
    ),
}


def run(command: Sequence[object], folder: Path = ROOT) -> str:
    """Return the output of a program; raise it if the program fails."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'{command}: {done.stdout}{done.stderr}')
    return done.stdout


def mirror() -> str:
    """The address of Debian's packages that this system uses."""
    if chosen := os.environ.get('RBFLY_DEBIAN_MIRROR'):
        return chosen
    targets = ['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages']
    return run(targets).split()[0]


def headers(python: str, arch: str) -> Path:
    """The folder that holds Python.h."""
    if python == JAVACPP_PYTHON:
        return javacpp_python(arch) / 'include' / f'python{python}'
    folder = CACHE / f'python{python}-{arch}'
    name = f'libpython{python}-dev'
    with making(folder) as new:
        if new:
            debian_package(new, name, SUITES[python], ARCHES[arch])
            included = new / 'usr' / 'include'
            # Debian's own includes that of the processor, which is in the folder of the compiler.
            shutil.copy(
                included / f'{arch}-linux-gnu/python{python}/pyconfig.h',
                included / f'python{python}/pyconfig.h',
            )
    return folder / 'usr' / 'include' / f'python{python}'


def debian_package(folder: Path, package: str, suite: str, arch: str) -> None:
    """Unpack a package of Debian."""
    apt = folder / 'apt'
    for name in ('etc/preferences.d', 'state/lists/partial', 'cache/archives/partial'):
        (apt / name).mkdir(parents=True)
    (apt / 'sources').write_text(f'deb [signed-by={KEYRING}] {mirror()} {suite} main\n')
    (apt / 'state/status').touch()
    settings = {
        'Dir::Etc': apt / 'etc',
        'Dir::Etc::SourceList': apt / 'sources',
        'Dir::State': apt / 'state',
        'Dir::State::Status': apt / 'state/status',
        'Dir::Cache': apt / 'cache',
        'APT::Architecture': arch,
        'APT::Architectures': arch,
        'APT::Sandbox::User': 'root',
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled': 'false',
    }
    command = ['apt-get', '-q', *(f'-o{name}={value}' for name, value in settings.items())]
    for words in (['update'], ['download', package]):
        run([*command, *words], apt)
    (file,) = apt.glob('*.deb')
    run(['dpkg-deb', '-x', file, folder])
    shutil.rmtree(apt)


def javacpp_python(arch: str) -> Path:
    """The prefix of a Python 3.12 with its standard library and headers."""
    folder = CACHE / f'python3.12-{arch}'
    system, digest = JARS[arch]
    with making(folder) as new:
        if new:
            run([ROOT / 'tools' / 'system-packages', 'maven'])
            copy = f'-Dartifact={JAVACPP}:{system}', f'-DoutputDirectory={new}'
            run(['mvn', '--batch-mode', '--quiet', 'dependency:copy', *copy], new)
            (jar,) = new.glob('*.jar')
            found = hashlib.sha256(jar.read_bytes()).hexdigest()
            if found != digest:
                raise RuntimeError(f'{jar.name}: SHA-256 is {found}, not {digest}')
            with zipfile.ZipFile(jar) as archive:
                archive.extractall(new)
            jar.unlink()
            (prefix,) = (new / 'org/bytedeco/cpython').iterdir()
            prefix.rename(new / 'prefix')
            for program in (new / 'prefix/bin').iterdir():
                program.chmod(0o755)
            for library in (new / 'prefix').glob('libffi.so.*'):  # where ctypes looks for it
                (new / 'prefix/lib/python3.12/lib-dynload' / library.name).symlink_to(
                    f'../../../{library.name}'
                )
    return folder / 'prefix'


if __name__ == '__main__':
    print(javacpp_python(platform.machine()))
