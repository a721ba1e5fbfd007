"""RbFly: work on each message, in a loop and with `process`."""

import asyncio
from typing import Any

import rbfly.streams as rbs
from rbfly.processing import process

from ..lanes import Kind
from .base import Target, Work
from .rbfly import Consume


class Loop(Consume):
    """Awaits the work on one message after the other."""

    def __init__(self, kind: Kind, target: Target, **options: Any) -> None:
        super().__init__(kind, target, **options)
        self.waits = kind.at / 1e6
        self.worked = 0

    async def prepare(self, count: int) -> None:
        self.count, self.worked = count, 0
        options: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'until': rbs.Offset.offset(count)}
        self.subscriptions = [self.client.subscribe(self.target.stream, **options)]

    async def work(self, body: bytes) -> None:
        """Count a message; wait for `at` microseconds."""
        if self.waits:
            await asyncio.sleep(self.waits)
        self.worked += 1

    async def run(self) -> int:
        work = self.work
        async for body in self.subscriptions[0]:
            await work(body)
        return self.worked

    async def finish(self) -> None:
        if self.worked != self.count:
            raise ValueError(f'{self.worked} messages instead of {self.count}')


class Workers(Loop):
    """Awaits the work in several tasks."""

    def __init__(self, kind: Kind, target: Target, workers: int) -> None:
        super().__init__(kind, target)
        self.workers = workers

    async def run(self) -> int:
        found = await process(self.subscriptions[0], self.work, workers=self.workers)
        return found.finished


def make(kind: Kind, target: Target, workers: int = 0) -> Work:
    return Workers(kind, target, workers) if workers else Loop(kind, target)
