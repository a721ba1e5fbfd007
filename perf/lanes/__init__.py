"""What the benchmark measures: scenarios, kinds of work, and libraries.

A lane is one library doing one kind of work.  This table is plain data.  A lane's code is in a
module of :mod:`perf.clients`, which only the process of that lane imports, so reading the table
does not require any of the measured libraries.
"""

import importlib.metadata
from collections.abc import Iterable
from fnmatch import fnmatchcase

from .. import UsageError, other_python, programs
from . import cost, libraries, pythons, tls
from .kinds import KINDS, ROUNDS, SCENARIOS
from .libraries import DISTRIBUTION, LIBRARIES, REFERENCES
from .model import Kind, Lane, Library, Scenario, Stored

__all__ = [
    'DISTRIBUTION',
    'INSTALL',
    'KINDS',
    'LANES',
    'LIBRARIES',
    'REFERENCES',
    'ROUNDS',
    'SCENARIOS',
    'USES',
    'Kind',
    'Lane',
    'Library',
    'Scenario',
    'Stored',
    'find',
    'missing',
    'select',
    'version',
    'versions',
]

USES = (*libraries.USES, *pythons.USES, *tls.USES, *cost.USES)
LANES = {lane.name: lane for lane in (Lane(use, KINDS[kind]) for use in USES for kind in use.kinds)}

# Commands that install the missing packages.
INSTALL = "pip install '.[uvloop]' in the checkout"
PEERS = 'pip install --group perf in the checkout'


def find(name: str) -> Lane:
    """Return the lane with this name."""
    return LANES[name]


def select(words: list[str], scenarios: list[str]) -> list[Lane]:
    """Return the lanes of the scenarios that match a word: a lane, library, kind or pattern.

    Without words or scenarios, all match.

    :raises UsageError: a name is unknown.
    """
    for scenario in scenarios:
        if scenario not in SCENARIOS:
            raise UsageError(f'no scenario {scenario}; there are {", ".join(SCENARIOS)}')
    lanes = [ln for ln in LANES.values() if not scenarios or ln.kind.scenario in scenarios]
    if not words:
        return lanes
    chosen = set()
    for word in words:
        names = {
            ln.name
            for ln in lanes
            if word in (ln.library.name, ln.kind.name) or fnmatchcase(ln.name, word)
        }
        if not names:
            known = ', '.join(ln.name for ln in lanes)
            raise UsageError(f'no lane, library or kind {word}; lanes are {known}')
        chosen |= names
    return [ln for ln in lanes if ln.name in chosen]


def missing(lane: Lane) -> str:
    """Return what is not installed and how to install it; empty if nothing is missing."""
    if lane.library.program:
        return programs.missing(lane.library.program)
    if lane.use.python:
        return other_python.missing(lane.use.python)
    absent = [name for name in lane.needs if version(name) is None]
    if not absent:
        return ''
    how = INSTALL if DISTRIBUTION in absent else PEERS
    return f'{", ".join(absent)} not installed; {how}'


def version(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(lanes: Iterable[Lane]) -> dict[str, str]:
    """Versions of the distributions and programs that these lanes need."""
    chosen = list(lanes)
    texts = {name: version(name) for name in sorted({name for ln in chosen for name in ln.needs})}
    used = {ln.library.program for ln in chosen} - {''}
    texts |= {program: programs.version(program) for program in sorted(used)}
    for other in sorted({ln.use.python for ln in chosen} - {''}):
        texts[f'Python {other}'] = other_python.found(other_python.command(other))
    return {name: text for name, text in texts.items() if text is not None}
