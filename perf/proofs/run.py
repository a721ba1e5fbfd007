"""One run of a proof: its settings, claims, measurements and result file."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import environment, lanes
from ..progress import Progress
from . import Proof, Value, command

if TYPE_CHECKING:
    from .site import Site

__all__ = ['ProofError', 'Run', 'default_path']

STUCK = 120.0  # seconds without progress after which a proof is stuck


class ProofError(Exception):
    """A proof could not be completed."""


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

    def check(self, what: str, holds: bool, detail: object = '') -> None:
        """Record whether a claim holds."""
        self.checks.append({'what': what, 'holds': bool(holds), 'detail': str(detail)})

    @property
    def holds(self) -> bool:
        """Whether there are claims and all of them hold."""
        return bool(self.checks) and not self.error and all(item['holds'] for item in self.checks)

    async def execute(self, site: 'Site', prove: Callable[..., Awaitable[None]]) -> None:
        """Run the code of the proof; an error becomes part of the result."""
        start = time.monotonic()
        try:
            async with self.watched():
                await prove(self, site)
        except Exception as ex:
            self.error = reason(ex)
        self.found['seconds'] = round(time.monotonic() - start, 3)
        self.found['proxies'] = [proxy.stats() for proxy in site.proxies]

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Show progress, and raise an error if there is none for too long."""
        total = self.settings.get('messages')
        with Progress(total, self.proof.name, 'messages' if total else 'steps') as progress:

            async def look(limit: asyncio.Timeout) -> None:
                loop = asyncio.get_running_loop()
                last = 0
                while True:
                    if self.done != last:
                        progress.step(self.done - last)
                        last = self.done
                        limit.reschedule(loop.time() + STUCK)
                    await asyncio.sleep(1)

            try:
                async with asyncio.timeout(STUCK) as limit, asyncio.TaskGroup() as group:
                    task = group.create_task(look(limit))
                    try:
                        yield
                    finally:
                        task.cancel()
            except TimeoutError:
                if limit.expired():
                    raise ProofError(
                        f'stuck: no progress for {STUCK:.0f} s after {self.done:,}'
                        f' {"messages" if total else "steps"}'
                    ) from None
                raise

    def report(self, broker: dict[str, str]) -> dict[str, Any]:
        """The contents of the result file."""
        names = [lanes.find('rbfly-single')]
        return {
            'type': 'proof',
            'format': 1,
            'proof': self.proof.name,
            'title': self.proof.title,
            'seed': self.seed,
            'settings': self.settings,
            'environment': environment.describe(lanes.versions(names), {'rabbitmq': broker}),
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
        for name, value in self.found.items():
            if name != 'proxies':
                lines.append(f'  {name}: {value}')
        return lines


def default_path(folder: Path, name: str) -> Path:
    """The path of a new result file."""
    return folder / f'proof-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json'


def reason(ex: BaseException) -> str:
    """The first error of a group, in one line."""
    while isinstance(ex, BaseExceptionGroup):
        ex = ex.exceptions[0]
    return f'{type(ex).__name__}: {ex}'
