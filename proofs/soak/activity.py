"""An activity of a soak: one way of using the client, and checks of the results.

An activity works while faults happen.  After the last fault, `calm` makes calls that must succeed,
and `check` compares the results of all calls with what the broker has stored.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..active_periods import Fault
from ..history import MESSAGES, Log
from ..run import Run
from ..trouble import Trouble

__all__ = ['AGAIN', 'SHARE', 'Activity', 'Scene']

AGAIN = 0.05  # seconds between two attempts
SHARE = MESSAGES // 2  # messages of a log to send during faults, leaving the rest for `calm`
GUARD = 60.0  # seconds after which a reader that lacks messages has failed


class Scene:
    """The part of a round that its activities use.

    :ivar refusing: whether the broker may refuse messages, including some that no call reports.
    :ivar wrong: violations and their counts.
    :ivar failures: errors that calls may raise during faults, and their counts.
    :ivar faults: the faults so far.
    """

    def __init__(self, run: Run, site: Trouble, client: rbs.StreamsClient, seconds: float) -> None:
        self.run = run
        self.site = site
        self.client = client
        self.random = run.random
        self.refusing = run.random.random() < 0.5
        self.begin = asyncio.get_running_loop().time()
        self.seconds = seconds
        self.wrong: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def over(self) -> bool:
        return asyncio.get_running_loop().time() > self.begin + self.seconds

    def progress(self, count: int = 1) -> None:
        self.run.done += count


class Activity:
    """One way of using the client.

    :ivar logs: logs of its publishers.
    :ivar streams: streams to delete at the end.
    :ivar partitions: partitions of a super stream, whose leaders may be moved.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.site = scene.site
        self.random = scene.random
        self.logs: list[Log] = []
        self.streams: list[str] = []
        self.partitions: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create streams before the first fault, and delete them after the checks."""
        try:
            await self.begin()
            yield
        finally:
            for stream in self.streams:
                await self.site.delete(stream)

    async def begin(self) -> None:
        """Create the streams that the activity uses."""

    async def stream(self) -> str:
        """Create a stream."""
        name = f'soak-{secrets.token_hex(4)}'
        await self.site.create(name)
        self.streams.append(name)
        return name

    async def log(self, how: str, named: bool) -> Log:
        """Create a stream for one publisher, and the log of its messages."""
        log = Log(how, await self.stream(), named)
        self.logs.append(log)
        return log

    async def run(self) -> None:
        """Work until the round is over."""
        while not self.scene.over():
            try:
                await self.once()
                self.scene.progress()
            except RbFlyError as ex:
                self.scene.failures[type(ex).__name__] += 1
            await asyncio.sleep(AGAIN)

    async def once(self) -> None:
        """Use the client once."""

    async def calm(self) -> None:
        """Make calls that must succeed, since faults have ended."""

    async def check(self) -> None:
        """Compare what is stored with what calls reported."""
        for log in self.logs:
            found = log.wrong((await self.site.stored(log.stream))[0])
            for what, count in found.items():
                self.wrong(f'{log.how}: {what}', count)

    @staticmethod
    async def until(reached: Callable[[], bool]) -> None:
        """Wait for something that must happen once faults have ended."""
        async with asyncio.timeout(GUARD):
            while True:
                if reached():
                    return
                await asyncio.sleep(0.01)

    def wrong(self, what: str, count: int = 1) -> None:
        self.scene.wrong[what] += count
