"""Instructions per operation of codec lanes, counted by valgrind's callgrind.

A lane runs in two processes, with `COUNT` and with twice `COUNT` operations.  The difference leaves
out start-up and imports, but includes the interpreter's work for the statement.  The hash seed is
fixed, so the same build has the same counts in every run, however busy the machine is.

    python -m perf.instructions LANE COUNT      the process that valgrind runs
"""

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import CommandError, clients, environment, lanes
from .clients.base import Target
from .clients.codec import Codec
from .progress import Progress

COUNT = 1_000
TOTAL = re.compile(r'^(?:summary|totals):\s*(\d+)', re.MULTILINE)


def check() -> None:
    """Check for valgrind.

    :raises CommandError: valgrind is not installed.
    """
    if shutil.which('valgrind') is None:
        raise CommandError('valgrind is not installed; on Debian: apt-get install valgrind')


def total(text: str) -> int:
    """The number of instructions in a callgrind file."""
    found = TOTAL.search(text)
    if found is None:
        raise CommandError('the callgrind file contains no total')
    return int(found.group(1))


def run(lane: str, count: int, out: Path) -> int:
    """Count the instructions of a process that does this many operations."""
    command = ['valgrind', '--tool=callgrind', f'--callgrind-out-file={out}']
    command += [sys.executable, '-m', 'perf.instructions', lane, str(count)]
    # other environment variables would move the stack and change counts slightly
    kept = {name: os.environ[name] for name in ('PATH', 'HOME', 'LANG') if name in os.environ}
    done = subprocess.run(
        command,
        cwd=environment.folder(),
        env={**kept, 'PYTHONHASHSEED': '0', 'PYTHONDONTWRITEBYTECODE': '1'},
        capture_output=True,
        text=True,
    )
    if done.returncode or not out.exists():
        words = done.stderr.strip().splitlines()
        raise CommandError(f'{lane}: {words[-1] if words else "valgrind failed"}')
    return total(out.read_text())


def measure(names: Sequence[str], count: int = COUNT, keep: Path | None = None) -> dict[str, float]:
    """Count the instructions per operation of each lane.

    :param keep: folder for the callgrind files, to use with `callgrind_annotate`.
    """
    check()
    # otherwise the first process would compile these modules
    compileall.compile_dir(Path(__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [(name, n) for name in names for n in (count, 2 * count)]
        counts: dict[tuple[str, int], int] = {}
        with (
            Progress(len(runs), 'instructions', 'runs') as progress,
            ThreadPoolExecutor(environment.cpus()) as pool,
        ):
            files = [folder / f'callgrind.{name}.{n}' for name, n in runs]
            answers = pool.map(run, *zip(*runs, strict=True), files)
            for key, answer in zip(runs, answers, strict=True):
                counts[key] = answer
                progress.step()
    return {name: (counts[name, 2 * count] - counts[name, count]) / count for name in names}


def store(path: Path, found: dict[str, float], count: int = COUNT) -> None:
    """Write counts and their environment to a file."""
    version = subprocess.run(['valgrind', '--version'], capture_output=True, text=True)
    record = {
        'type': 'instructions',
        'environment': environment.describe(lanes.versions(map(lanes.find, found)), {}),
        'valgrind': version.stdout.strip(),
        'count': count,
        'instructions': found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')


def load(path: Path) -> dict[str, float]:
    """Read the counts of a file."""
    try:
        record: Any = json.loads(path.read_text(encoding='utf-8'))
        found: dict[str, float] = record['instructions']
    except OSError as ex:
        raise CommandError(f'cannot read {path}: {ex.strerror}') from None
    except (ValueError, KeyError, TypeError):
        raise CommandError(f'{path} was not written by `python -m perf instructions`') from None
    return found


def report(found: dict[str, float], earlier: dict[str, float] | None = None) -> Iterator[str]:
    """A table of the counts, compared with those of an earlier run if given."""
    from .cells import align

    rows: list[tuple[str, ...]] = [('lane', 'instructions', *(('before', 'ratio') * bool(earlier)))]
    for name, value in found.items():
        cells = [name, f'{value:,.1f}']
        if earlier:
            before = earlier.get(name)
            cells += [f'{before:,.1f}', f'{value / before:.3f}'] if before else ['', '']
        rows.append(tuple(cells))
    yield from align(rows)
    plain, full = found.get('rbfly-decode-seed'), found.get('rbfly-decode-properties')
    if plain and full:
        yield f'decoding a body with properties ÷ decoding a body alone: {full / plain:.2f}'


def main(argv: Sequence[str]) -> int:
    """Run a lane under valgrind."""
    name, count = argv
    lane = lanes.find(name)
    work = clients.make(lane, Target('', ''))
    assert isinstance(work, Codec)
    work.case.check()
    work.case.timer().timeit(int(count))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
