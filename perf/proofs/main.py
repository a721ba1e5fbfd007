"""Run a proof on a broker of its own and write the result file."""

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
    broker = Site.private
    if run.settings.get('on') == 'memory':
        broker = importlib.import_module('.trouble', __package__).in_memory
    async with broker(run.proof.nodes, run.seed) as site:
        about = await asyncio.to_thread(site.about)
        await prove(run, site)
    run.write(path, about)


def run(run: Run, path: Path) -> None:
    """Run a proof and write its result file."""
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    with asyncio.Runner(loop_factory=loop_factory(run.proof)) as runner:
        runner.run(run_privately(run, path))


def loop_factory(proof: Proof) -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of a proof's event loop."""
    if proof.loop == 'uvloop':
        factory: Callable[[], asyncio.AbstractEventLoop]
        factory = importlib.import_module('uvloop').new_event_loop
        return factory
    # delays need timeouts below a millisecond: select() supports them, epoll and libuv do not
    return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
