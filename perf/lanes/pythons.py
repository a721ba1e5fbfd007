"""Lanes on two versions of Python in the same rounds: that of the run, and a newer one."""

from collections.abc import Iterator
from dataclasses import replace

from . import libraries
from .kinds import KINDS, names
from .libraries import LIBRARIES
from .model import Kind, Use

NEWER = '3.14'
STREAMS = (
    'single', 'batch', 'tasks-100', 'tasks-1000', 'window', 'consume', 'consume-100', 'consume-1k',
    'sub-consume',
)  # fmt: skip
HOT = (*STREAMS, *names('codec'))
# Programs without Python code in the loop run once: the version makes no difference to them.
COMPARED = ('rbfly', 'rbfly-body', 'rbfly-batches', 'bare-uvloop', 'msgspec')
ONCE = ('raw-socket',)


def kinds() -> Iterator[Kind]:
    for name in HOT:
        kind = KINDS[name]
        yield replace(kind, name=f'py-{name}', scenario='pythons', like=kind.like or name)


KINDS.update({kind.name: kind for kind in kinds()})


def uses() -> Iterator[Use]:
    for original in libraries.USES:
        name = original.library.name
        done = tuple(f'py-{kind}' for kind in original.kinds if kind in HOT)
        if not done or name not in COMPARED + ONCE:
            continue
        yield replace(original, kinds=done)
        if name in COMPARED:
            newer = LIBRARIES[f'{name}-py{NEWER}']
            how = f'the same on Python {NEWER}'
            yield replace(original, library=newer, kinds=done, how=how, python=NEWER)


USES = tuple(uses())
