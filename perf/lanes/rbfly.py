"""This client."""

import asyncio
from contextlib import AsyncExitStack

import rbfly.streams as rbs

from .base import Target, Work, bodies

__all__ = ['MAKE', 'make']

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
    async def prepare(self, count: int) -> None:
        self.count = count

    async def run(self) -> int:
        left = self.count
        offset = rbs.Offset.FIRST
        self.subscription = self.client.subscribe(self.target.stream, offset=offset)
        async for _ in self.subscription:
            left -= 1
            if not left:
                break
        return self.count - left

    async def finish(self) -> None:
        await self.subscription.aclose()


MAKE: dict[str, type[Client]] = {
    'single': Single,
    'single-format': Single,
    'batch': Batch,
    'batch-format': Batch,
    'window': Window,
    'tasks-100': Tasks100,
    'tasks-1000': Tasks1000,
    'sub-publish': SubEntries,
    'consume': Consume,
}


def make(kind: str, target: Target) -> Work:
    return MAKE[kind](target)
