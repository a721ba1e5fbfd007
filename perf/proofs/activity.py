"""An activity of a soak: one way of using the client, and the checks of what came of it.

An activity works while faults happen.  After the last fault, `calm` makes calls that have to
succeed, and `check` compares the results of all calls with what the broker has stored.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from .ledger import MESSAGES, Log
from .trouble import Trouble

__all__ = ['AGAIN', 'SHARE', 'Activity', 'Scene']

AGAIN = 0.05  # seconds between two attempts
SHARE = MESSAGES // 2  # messages of a log that are sent under faults; the rest is for `calm`
GUARD = 60.0  # seconds after which a reader that still lacks messages has failed


class Scene(Protocol):
    """The round that an activity belongs to.

    :ivar refusing: whether the broker may refuse messages, perhaps those that no call reports.
    :ivar wrong: violations, and how often each was seen.
    :ivar failures: errors that calls raised, as they may under faults.
    """

    site: Trouble
    client: rbs.StreamsClient
    random: Random
    refusing: bool
    wrong: Counter[str]
    failures: Counter[str]

    def over(self) -> bool: ...
    def progress(self, count: int = 1) -> None: ...


class Activity:
    """One way of using the client.

    :ivar logs: of its publishers.
    :ivar streams: that exist, to be deleted at the end.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.site = scene.site
        self.random = scene.random
        self.logs: list[Log] = []
        self.streams: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep what it uses from before the first fault until after the checks."""
        try:
            await self.begin()
            yield
        finally:
            for stream in self.streams:
                await self.site.delete(stream)

    async def begin(self) -> None:
        """Create what it uses."""

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
        """Make calls that have to succeed, since no faults happen any more."""

    async def check(self) -> None:
        """Compare what is stored with what calls reported."""
        for log in self.logs:
            found = log.wrong((await self.site.stored(log.stream))[0])
            for what, count in found.items():
                self.wrong(f'{log.how}: {what}', count)

    @staticmethod
    async def until(reached: Callable[[], bool]) -> None:
        """Wait for what happens once the faults are over, at the latest."""
        async with asyncio.timeout(GUARD):
            while True:
                if reached():
                    return
                await asyncio.sleep(0.01)

    def wrong(self, what: str, count: int = 1) -> None:
        self.scene.wrong[what] += count
