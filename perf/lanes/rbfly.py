"""This client."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import rbfly.streams as rbs

from . import KINDS, Stored
from .base import Target, Work, bodies, numbered
from .codec import APP_PROPERTIES, PROPERTIES

__all__ = ['MAKE', 'Consume', 'ConsumeBatches', 'ConsumeMessages', 'make']

BATCH = 100


class Client(Work):
    """What the lanes have in common: the client, and its end.

    :ivar amqp: publish as AMQP 1.0, not as raw bytes.
    """

    def __init__(self, target: Target, amqp: bool = True) -> None:
        super().__init__(target)
        self.amqp = amqp
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        self.client = await self.stack.enter_async_context(rbs.streams_client(self.target.address))

    async def close(self) -> None:
        await self.stack.aclose()


class Single(Client):
    async def open(self) -> None:
        await super().open()
        self.publisher: rbs.Publisher = await self.stack.enter_async_context(
            self.client.publisher(self.target.stream, amqp=self.amqp)
        )

    async def prepare(self, count: int) -> None:
        self.bodies = bodies(count)

    async def run(self) -> int:
        send = self.publisher.send
        count = 0
        for body in self.bodies:
            await send(body)
            count += 1
        return count

    async def finish(self) -> None:
        self.bodies = []


class Window(Single):
    async def run(self) -> int:
        return await self.publisher.send_many(self.bodies)


class SubEntries(Window):
    async def open(self) -> None:
        await Client.open(self)
        self.publisher = await self.stack.enter_async_context(
            self.client.publisher(
                self.target.stream, sub_entry_size=BATCH, max_unconfirmed=1_000 * BATCH
            )
        )


class Tasks(Single):
    """As many tasks as the kind says, which share the messages."""

    tasks: int

    async def run(self) -> int:
        part = len(self.bodies) // self.tasks
        async with asyncio.TaskGroup() as group:
            for i in range(self.tasks):
                group.create_task(self.each(self.bodies[i * part : (i + 1) * part]))
        return part * self.tasks

    async def each(self, data: list[bytes]) -> None:
        send = self.publisher.send
        for body in data:
            await send(body)


class Tasks100(Tasks):
    tasks = 100


class Tasks1000(Tasks):
    tasks = 1_000


class Batch(Client):
    async def open(self) -> None:
        await super().open()
        self.publisher = await self.stack.enter_async_context(
            self.client.publisher(self.target.stream, cls=rbs.PublisherBatchFast, amqp=self.amqp)
        )

    async def prepare(self, count: int) -> None:
        data = bodies(count)
        self.batches = [data[i : i + BATCH] for i in range(0, count, BATCH)]

    async def run(self) -> int:
        batch = self.publisher.batch
        flush = self.publisher.flush
        count = 0
        for data in self.batches:
            for body in data:
                batch(body)
            await flush()
            count += len(data)
        return count

    async def finish(self) -> None:
        self.batches = []


class Consume(Client):
    """As many subscriptions at once as the kind says, each of which reads all that is stored."""

    def __init__(self, target: Target, stored: Stored) -> None:
        super().__init__(target)
        self.stored = stored
        self.subscriptions: list[rbs.Subscription] = []

    async def open(self) -> None:
        await super().open()
        (subscription,) = self.subscribe(1)
        found = await self.collect(subscription, self.stored.frame)
        await subscription.aclose()
        if found != [numbered(i, self.stored.size) for i in range(self.stored.frame)]:
            raise ValueError('other bodies than those that were published')

    def subscribe(self, count: int) -> list[rbs.Subscription]:
        subscribe = self.client.subscribe
        return [subscribe(self.target.stream, offset=rbs.Offset.FIRST) for _ in range(count)]

    async def prepare(self, count: int) -> None:
        self.count = count // self.stored.readers
        self.subscriptions = self.subscribe(self.stored.readers)

    async def run(self) -> int:
        self.last = await asyncio.gather(*(self.read(s, self.count) for s in self.subscriptions))
        return sum(count for count, _ in self.last)

    async def finish(self) -> None:
        for subscription in self.subscriptions:
            await subscription.aclose()
        self.subscriptions = []
        for count, data in self.last:
            if data != numbered(count - 1, self.stored.size):
                raise ValueError(f'message {count - 1} has the body {data[:50]!r}')

    async def collect(self, subscription: rbs.Subscription, count: int) -> list[Any]:
        """So many bodies."""
        found = []
        async for data in subscription:
            found.append(data)
            if len(found) == count:
                break
        return found

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        """At least so many messages; how many there were, and the body of the last."""
        left = count
        data = None
        async for data in subscription:  # noqa: B007 - the last one is compared
            left -= 1
            if not left:
                break
        return count - left, data


class ConsumeBatches(Consume):
    async def collect(self, subscription: rbs.Subscription, count: int) -> list[Any]:
        found: list[Any] = []
        async for batch in subscription.batches():
            found.extend(batch)
            if len(found) >= count:
                break
        return found[:count]

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        left = count
        data = None
        async for batch in subscription.batches():
            for data in batch:  # noqa: B007 - each is taken out, the last one is compared
                pass
            left -= len(batch)
            if left <= 0:
                break
        return count - left, data


class ConsumeMessages(Consume):
    async def collect(self, subscription: rbs.Subscription, count: int) -> list[Any]:
        found: list[Any] = []
        async for message in subscription.messages():
            if self.stored.properties:
                given = message.properties
                properties = {name: str(getattr(given, name)) for name in PROPERTIES}
                if (properties, message.app_properties) != (PROPERTIES, APP_PROPERTIES):
                    raise ValueError(f'other properties than those that were published: {given}')
            if message.stream_offset != len(found):
                raise ValueError(f'offset {message.stream_offset} for message {len(found)}')
            found.append(message.body)
            if len(found) == count:
                break
        return found

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        left = count
        data = None
        properties = self.stored.properties
        async for message in subscription.messages():
            _ = message.stream_offset, message.stream_timestamp
            if properties:
                _ = message.properties, message.app_properties
            data = message.body
            left -= 1
            if not left:
                break
        return count - left, data


MAKE: dict[str, type[Client]] = {
    'single': Single,
    'single-format': Single,
    'batch': Batch,
    'batch-format': Batch,
    'window': Window,
    'tasks-100': Tasks100,
    'tasks-1000': Tasks1000,
    'sub-publish': SubEntries,
}


def make(kind: str, target: Target) -> Work:
    if stored := KINDS[kind].stored:
        return Consume(target, stored)
    return MAKE[kind](target)
