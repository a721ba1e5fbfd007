"""Runs one proof on a broker of its own and writes the result."""

import asyncio
import importlib
import logging
import selectors
from collections.abc import Callable
from pathlib import Path

from . import Proof
from .run import Run
from .site import Site

__all__ = ['prove', 'run']


async def prove(run: Run, site: Site) -> None:
    """Run the code of a proof."""
    module = importlib.import_module(f'.{run.proof.module}', __package__)
    await run.execute(site, getattr(module, run.proof.name.replace('-', '_')))


async def run_privately(run: Run, path: Path) -> None:
    place = Site.private
    if run.settings.get('on') == 'memory':
        place = importlib.import_module('.trouble', __package__).in_memory
    async with place(run.proof.nodes, run.seed) as site:
        about = await asyncio.to_thread(site.about)
        await prove(run, site)
    run.write(path, about)


def run(run: Run, path: Path) -> None:
    """Run a proof; its result is in the file when this returns."""
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are what is expected
    with asyncio.Runner(loop_factory=loop_factory(run.proof)) as runner:
        runner.run(run_privately(run, path))


def loop_factory(proof: Proof) -> Callable[[], asyncio.AbstractEventLoop]:
    """Event loop that a proof runs on."""
    if proof.loop == 'uvloop':
        factory: Callable[[], asyncio.AbstractEventLoop]
        factory = importlib.import_module('uvloop').new_event_loop
        return factory
    # select() waits for less than a millisecond, which delays need; epoll and libuv do not
    return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
