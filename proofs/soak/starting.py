"""Subscriptions of a soak: where they start, and what they deliver after a stream is recreated."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..history import CONFIRM
from ..trouble import InMemory
from .activity import AGAIN, Activity

__all__ = ['Follower', 'Recreating', 'Starting']

AT_ONCE = 5  # subscriptions that start at the same time
UNSEEN = 0.1  # fraction that loses the connection before the first chunk
DAY = 86_400.0
EACH = 10**6  # maximum number of messages in one incarnation of a stream
GONE, DAMAGED = (-1, 0), (-2, 0)


class Starting(Activity):
    """Subscribes at LAST, NEXT and a timestamp while messages are written."""

    async def run(self) -> None:
        await asyncio.gather(*(super(Starting, self).run() for _ in range(AT_ONCE)))

    async def once(self) -> None:
        site, rnd = self.site, self.random
        assert isinstance(site, InMemory)
        stream = await self.stream()
        end = last = 0
        for _ in range(rnd.randrange(4)):
            last, end = end, end + rnd.randrange(1, 5)
            await site.write(stream, range(last, end))
        kind, offset, latest, earliest = rnd.choice(
            (
                ('LAST', rbs.Offset.LAST, last, 0),
                ('NEXT', rbs.Offset.NEXT, end, end),
                ('a timestamp', rbs.Offset.timestamp(time.time() - DAY), 0, 0),
            )
        )
        found: list[int] = []
        async with aclosing(self.scene.client.subscribe(stream, offset=offset)) as subscription:
            reading = asyncio.create_task(self.read(subscription, found))
            try:
                async with site.unseen() if rnd.random() < UNSEEN else nullcontext():
                    # The broker determines the start of a subscription when it creates it, so
                    # write nothing until then.
                    async with asyncio.timeout(CONFIRM):
                        while not reading.done():
                            if await site.readers(stream):
                                break
                            await asyncio.sleep(0.001)
                    for _ in range(rnd.randrange(1, 10)):
                        await asyncio.sleep(rnd.choice((0, rnd.uniform(0, 0.1))))
                        await site.write(stream, [end])
                        end += 1
                await self.until(lambda: found[-1:] == [end - 1] or reading.done())
            except TimeoutError:
                self.wrong(f'start at {kind}: no message arrived')
                return
            finally:
                reading.cancel()
                await asyncio.wait([reading])
        self.streams.remove(stream)
        await site.delete(stream)
        if not reading.cancelled():
            error = reading.exception()
            if isinstance(error, rbs.StreamDoesNotExist):
                self.wrong(f'start at {kind}: existing stream reported as missing')
            elif error is not None:
                self.scene.failures[type(error).__name__] += 1
            if found[-1:] != [end - 1]:
                return
        if found[0] > latest:
            self.wrong(f'start at {kind}: messages skipped', found[0] - latest)
        if found[0] < earliest:
            self.wrong(f'start at {kind}: older messages delivered', earliest - found[0])
        if found != [*range(found[0], end)]:
            self.wrong(f'start at {kind}: messages lost, duplicated or out of order')

    async def read(self, subscription: rbs.Subscription, found: list[int]) -> None:
        async for data in subscription:
            assert isinstance(data, bytes)
            found.append(int(data))


class Follower:
    """A subscription that reads all incarnations of a stream.

    :ivar found: incarnation and number of each message, GONE for each StreamDoesNotExist, and
        DAMAGED for each ChunkError.
    """

    def __init__(self, how: str, offset: rbs.Offset) -> None:
        self.how = how
        self.offset = offset
        self.found: list[tuple[int, int]] = []


class Recreating(Activity):
    """Deletes and recreates a stream while other tasks consume from it and publish to it."""

    async def begin(self) -> None:
        self.name = await self.stream()
        self.incarnation = 0
        self.number = 0  # of the next message
        self.deleted = 0  # deletions started so far
        self.followers = [
            Follower('bodies', rbs.Offset.FIRST),
            Follower('batches', rbs.Offset.FIRST),
        ]
        self.tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running():
            self.tasks = [asyncio.create_task(self.follow(item)) for item in self.followers]
            self.tasks.append(asyncio.create_task(self.publish()))
            try:
                yield
            finally:
                for task in self.tasks:
                    task.cancel()
                await asyncio.wait(self.tasks)

    async def once(self) -> None:
        for _ in range(self.random.randrange(1, 20)):
            await self.write()
            await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 0.05))))
        self.deleted += 1
        await self.site.delete(self.name)
        await asyncio.sleep(self.random.choice((0.01, self.random.uniform(0.01, 0.5))))
        await self.site.create(self.name)
        self.incarnation += 1
        self.number = 0

    async def write(self) -> None:
        first = self.incarnation * EACH + self.number
        count = self.random.choice((1, 1, 5, 20))
        self.number += count
        await self.site.write(self.name, range(first, first + count))

    async def publish(self) -> None:
        """Publish messages that followers ignore, with a new publisher after each deletion."""
        while True:
            try:
                async with self.scene.client.publisher(self.name) as publisher:
                    while True:
                        await publisher.send(b'', timeout=CONFIRM)
                        await asyncio.sleep(0.01)
            except RbFlyError as ex:
                self.scene.failures[type(ex).__name__] += 1
            await asyncio.sleep(AGAIN)

    async def follow(self, follower: Follower) -> None:
        async with aclosing(
            self.scene.client.subscribe(self.name, offset=follower.offset)
        ) as subscription:
            while True:
                try:
                    if follower.how == 'batches':
                        async for batch in subscription.batches():
                            self.receive(follower, batch)
                    else:
                        async for data in subscription:
                            self.receive(follower, [data])
                except rbs.StreamDoesNotExist:
                    if follower.found and follower.found[-1][0] == self.deleted:
                        self.wrong('existing stream reported as missing')
                    follower.found.append(GONE)
                    await asyncio.sleep(AGAIN)
                except rbs.ChunkError:
                    follower.found.append(DAMAGED)
                except RbFlyError as ex:
                    self.scene.failures[type(ex).__name__] += 1
                    await asyncio.sleep(AGAIN)

    def receive(self, follower: Follower, messages: Any) -> None:
        for data in messages:
            if data:
                follower.found.append(divmod(int(data), EACH))

    async def calm(self) -> None:
        """Check that every follower reads the last incarnation to its end."""
        await self.write()
        last = (self.incarnation, self.number - 1)
        with suppress(TimeoutError):
            await self.until(lambda: all(item.found[-1:] == [last] for item in self.followers))
        for follower in self.followers:
            if follower.found[-1:] != [last]:
                self.wrong(f'recreated stream, {follower.how}: not read to the end')

    async def check(self) -> None:
        for follower in self.followers:
            self.check_order(follower)

    def check_order(self, follower: Follower) -> None:
        label = f'recreated stream, {follower.how}'
        last: tuple[int, int] | None = None
        reported = True  # whether the next message may belong to another incarnation
        gap = False
        for item in follower.found:
            if item in (GONE, DAMAGED):
                reported |= item == GONE
                gap |= item == DAMAGED
                continue
            if last is None or item[0] != last[0]:
                if not reported:
                    self.wrong(f'{label}: recreation not reported')
                if last is not None and item[0] < last[0]:
                    self.wrong(f'{label}: messages of an earlier incarnation')
                if item[1] != 0 and not gap:
                    self.wrong(f'{label}: does not start at 0')
            elif item[1] <= last[1] or (item[1] != last[1] + 1 and not gap):
                self.wrong(f'{label}: lost, duplicated or out of order')
            last, reported, gap = item, False, False
