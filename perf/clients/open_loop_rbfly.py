"""RbFly at a fixed rate."""

import asyncio
from contextlib import AsyncExitStack

import rbfly.streams as rbs

from ..lanes import Kind
from .base import Target, Work
from .open_loop import OpenLoop


class Client(OpenLoop):
    """One task per message awaits `Publisher.send`; `async for` consumes bodies."""

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        address = self.target.address
        enter = self.stack.enter_async_context
        consumer = await enter(rbs.streams_client(address))
        publisher = await enter(rbs.streams_client(address))
        subscription = await enter(consumer.subscribe(self.target.stream, offset=rbs.Offset.NEXT))
        self.spawn(self.read(subscription))
        self.publisher: rbs.Publisher = await enter(publisher.publisher(self.target.stream))
        async with asyncio.timeout(self.patience):
            # there is no public way to wait for this
            while not subscription._session.registration.is_open:
                if self.error is not None:
                    raise self.error
                await asyncio.sleep(0.01)

    async def read(self, subscription: rbs.Subscription) -> None:
        consumed = self.consumed
        async for body in subscription:
            consumed(body)

    def send(self, first: int, end: int) -> None:
        for index in range(first, end):
            self.spawn(self.one(index))

    async def one(self, index: int) -> None:
        await self.publisher.send(self.bodies[index])
        self.confirmed(index)

    async def close(self) -> None:
        await self.end_tasks()
        await self.stack.aclose()


def make(kind: Kind, target: Target) -> Work:
    return Client(kind, target)
