"""One run of a proof: its settings, claims, measurements and result file."""

import asyncio
import json
import logging
import random
import selectors
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from perf import environment
from perf.progress import Progress

from .catalogue import Proof, Value, command

if TYPE_CHECKING:
    from .test_bed import Bed

TICK = 0.05
STUCK = 240.0  # seconds without progress after which a proof is stuck; faults take a minute


class ProofError(Exception):
    """A proof could not be completed, or a command cannot run."""


class Run:
    """One run of a proof.

    :ivar done: number of messages or steps completed, which must keep growing.
    :ivar found: measurements.
    :ivar checks: claims, whether they hold, and the observed values.
    """

    def __init__(self, proof: Proof, seed: int, **settings: Value) -> None:
        if unknown := settings.keys() - proof.settings.keys():
            raise ValueError(f'{proof.name} has no setting {", ".join(sorted(unknown))}')
        self.proof = proof
        self.seed = seed
        self.settings: dict[str, Any] = {**proof.settings, **settings}
        self.random = random.Random(seed)
        self.done = 0
        self.found: dict[str, Any] = {}
        self.checks: list[dict[str, Any]] = []
        self.error = ''

    @property
    def command(self) -> str:
        """The command that repeats the run with the same faults, though not at the same times."""
        return command(self.proof.name, self.seed, self.settings)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def note(self, name: str, what: str) -> None:
        """Record one of several things that happen, such as faults."""
        self.found.setdefault(name, []).append(what)

    def check(self, what: str, holds: bool, detail: object = '') -> None:
        """Record whether a claim holds."""
        self.checks.append({'what': what, 'holds': bool(holds), 'detail': str(detail)})

    def check_none(self, what: str, wrong: object) -> None:
        """Record a claim that holds if nothing is wrong."""
        self.check(what, not wrong, wrong or '')

    async def reach(self, wanted: int, count: Callable[[], int], seconds: float) -> bool:
        """Wait until a count reaches a number, or stays the same for some seconds."""
        last = -1
        limit = time.monotonic() + seconds
        while last < wanted and time.monotonic() < limit:
            if (now := count()) > last:
                last, limit = now, time.monotonic() + seconds
                self.done += 1
            await asyncio.sleep(TICK)
        return last >= wanted

    def check_returned(self) -> None:
        total = self['messages']
        self.check('every send returned', self.done == total, f'{self.done:,} of {total:,}')

    @property
    def holds(self) -> bool:
        """Whether there are claims and all of them hold."""
        return bool(self.checks) and not self.error and all(item['holds'] for item in self.checks)

    def code(self) -> Callable[['Run', Any], Awaitable[None]]:
        """Import the function of the proof."""
        found: Callable[[Run, Any], Awaitable[None]]
        found = resolve_name(f'{__package__}.{self.proof.code}')
        return found

    async def execute(self, bed: 'Bed') -> None:
        """Run the code of the proof; an error becomes part of the result."""
        prove = self.code()
        start = time.monotonic()
        try:
            async with self.watched():
                await prove(self, bed)
        except Exception as ex:
            self.error = reason(ex)
        self.found['seconds'] = round(time.monotonic() - start, 3)
        self.found['proxies'] = [proxy.stats() for proxy in bed.proxies]

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Show progress, and raise an error if there is none for too long."""
        total = self.settings.get('messages')
        unit = 'messages' if total else 'steps'

        async def look(progress: Progress, limit: asyncio.Timeout) -> None:
            loop = asyncio.get_running_loop()
            last = 0
            while True:
                if self.done != last:
                    progress.step(self.done - last)
                    last = self.done
                    limit.reschedule(loop.time() + STUCK)
                await asyncio.sleep(1)

        with Progress(total, self.proof.name, unit) as progress:
            try:
                async with asyncio.timeout(STUCK) as limit, asyncio.TaskGroup() as group:
                    task = group.create_task(look(progress, limit))
                    try:
                        yield
                    finally:
                        task.cancel()
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ProofError(
                    f'stuck: no progress for {STUCK:.0f} s after {self.done:,} {unit}'
                ) from None

    def report(self, broker: dict[str, str]) -> dict[str, Any]:
        """The contents of the result file."""
        from rbfly import __version__

        libraries = {'rbfly': __version__, 'uvloop': version('uvloop')}
        return {
            'type': 'proof',
            'format': 1,
            'proof': self.proof.name,
            'title': self.proof.title,
            'seed': self.seed,
            'settings': self.settings,
            'environment': environment.describe(libraries, {'rabbitmq': broker}),
            'checks': self.checks,
            'found': self.found,
            'error': self.error,
            'verdict': 'holds' if self.holds else 'fails',
        }

    def write(self, path: Path, broker: dict[str, str]) -> None:
        """Write the result file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.report(broker), indent=1) + '\n')

    def summary(self) -> list[str]:
        """The result as lines of text."""
        lines = [f'{self.proof.name}, seed {self.seed}: {"holds" if self.holds else "FAILS"}']
        for item in self.checks:
            detail = f' ({item["detail"]})' if item['detail'] else ''
            lines.append(f'  {"yes" if item["holds"] else "NO "} {item["what"]}{detail}')
        if self.error:
            lines.append(f'  NO  {self.error}')
        return lines + [f'  {k}: {value}' for k, value in self.found.items() if k != 'proxies']


def default_path(folder: Path, run: Run) -> Path:
    """The path of a new result file."""
    return folder / f'proof-{run.proof.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json'


def reason(ex: BaseException) -> str:
    """The first error of a group, in one line."""
    while isinstance(ex, BaseExceptionGroup):
        ex = ex.exceptions[0]
    return f'{type(ex).__name__}: {ex}'


async def run_privately(run: Run, path: Path) -> None:
    from .test_bed import BEDS

    async with BEDS[run.settings.get('on', 'rabbitmq')](run.proof.nodes, run.seed) as bed:
        about = await asyncio.to_thread(bed.about)
        await run.execute(bed)
    run.write(path, about)


def run(run: Run, path: Path) -> None:
    """Run a proof on a broker of its own, and write its result file."""
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    with asyncio.Runner(loop_factory=loop_factory(run.proof)) as runner:
        runner.run(run_privately(run, path))


def loop_factory(proof: Proof) -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of a proof's event loop."""
    if proof.name == 'rtt':
        # delays need timeouts below a millisecond: select() supports them, epoll and libuv do not
        return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    import uvloop

    return uvloop.new_event_loop
