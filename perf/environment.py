"""The environment of a run, which its result file records."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# results are comparable if these are the same
COMPARED = ('python', 'kernel', 'machine', 'cpu', 'cpus', 'libraries', 'brokers', 'revision')


def folder() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent


def describe(libraries: dict[str, str], brokers: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Describe Python, the machine, the libraries, the brokers and the commit."""
    return {
        'time': datetime.now(UTC).isoformat(timespec='seconds'),
        'python': f'{platform.python_implementation()} {platform.python_version()}',
        'compiler': platform.python_compiler(),
        'kernel': f'{platform.system()} {platform.release()}',
        'machine': platform.machine(),
        'cpu': cpu_model(),
        'cpus': cpus(),
        'memory': memory(),
        'load': [round(x, 2) for x in os.getloadavg()],
        'libraries': libraries,
        'brokers': brokers,
        'revision': revision(),
    }


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """List the differences of two environments."""
    found = []
    for name in COMPARED:
        one, other = a.get(name), b.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            pairs = {f'{name}, {key}': (one[key], other[key]) for key in one.keys() & other.keys()}
        else:
            pairs = {name: (one, other)}
        found += [f'{key}: {x} and {y}' for key, (x, y) in sorted(pairs.items()) if x != y]
    return found


def cpu_model() -> str:
    try:
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    except OSError:
        pass
    return platform.processor() or 'unknown'


def cpus() -> int | None:
    """The number of CPUs that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory() -> int | None:
    """Physical memory in bytes."""
    try:
        return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    except (ValueError, OSError):
        return None


def revision() -> str | None:
    """The commit of the checkout, followed by + if there are uncommitted changes."""
    try:
        commit = git('rev-parse', '--short=12', 'HEAD')
        return commit + ('+' if git('status', '--porcelain', '--untracked-files=no') else '')
    except (OSError, subprocess.SubprocessError):
        return None


def git(*words: str) -> str:
    done = subprocess.run(
        ['git', *words], cwd=folder(), capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
