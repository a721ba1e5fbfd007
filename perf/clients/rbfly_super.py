"""RbFly with super streams."""

import asyncio
from collections import Counter
from typing import Any

import rbfly.streams as rbs

from ..lanes import Kind
from .base import Target, Work
from .rbfly import Client, Consume, ConsumeBatches, Single, Tasks, Window


class Routed(Single):
    def opener(self, **arguments: Any) -> Any:
        orders = self.client.super_stream(self.target.stream)
        return orders.publisher(route=rbs.by_hash(bytes.decode), **arguments)


class SuperWindow(Routed, Window):
    pass


class SuperTasks(Routed, Tasks):
    pass


class Merged(Consume):
    """One subscription to all partitions, each of which contains the same messages."""

    async def open(self) -> None:
        await Client.open(self)
        self.subscriptions = self.subscribe(1)
        found: Counter[str | None] = Counter()
        async for message in self.subscriptions[0].messages():
            number = found[message.stream]
            if message.body != self.body(number) or message.stream_offset != number:
                raise ValueError(f'{message.body!r} is message {number} of {message.stream}')
            found[message.stream] += 1
            if found.total() == self.kind.size:
                break
        await self.subscriptions[0].aclose()

    def subscribe(self, count: int) -> list[Any]:
        first = rbs.Offset.FIRST
        return [
            self.client.super_stream(self.target.stream).subscribe(offset=first)
            for _ in range(count)
        ]

    async def finish(self) -> None:
        await asyncio.gather(*(subscription.aclose() for subscription in self.subscriptions))
        self.subscriptions = []


class MergedBatches(Merged):
    read = ConsumeBatches.read


def make(kind: Kind, target: Target, read: str = 'bodies') -> Work:
    if kind.stored:
        return (MergedBatches if read == 'batches' else Merged)(kind, target)
    return (SuperTasks if kind.work == 'tasks' else SuperWindow)(kind, target)
