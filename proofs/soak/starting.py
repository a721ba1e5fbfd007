"""Subscriptions of a soak: where they start, and what they deliver after a stream is recreated."""

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..consume import WAYS
from ..test_bed import MemoryBed
from .activity import AGAIN, CONFIRM, Activity

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
        bed, rnd = self.bed, self.random
        assert isinstance(bed, MemoryBed)
        stream = await self.stream()
        end = last = 0
        for _ in range(rnd.randrange(4)):
            last, end = end, end + rnd.randrange(1, 5)
            await bed.write(stream, range(last, end))
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
                async with bed.unseen() if rnd.random() < UNSEEN else nullcontext():
                    end = await self.write(bed, stream, end, reading)
                await self.until(lambda: found[-1:] == [end - 1] or reading.done())
            except TimeoutError:
                self.wrong(f'start at {kind}: no message arrived')
                return
            finally:
                reading.cancel()
                await asyncio.wait([reading])
        self.streams.remove(stream)
        await bed.delete(stream)
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

    async def write(
        self, bed: MemoryBed, stream: str, end: int, reading: 'asyncio.Task[None]'
    ) -> int:
        """Write messages while a subscription starts; return the number of the next one."""
        # the broker determines the start when it creates the subscription, so write nothing before
        async with asyncio.timeout(CONFIRM):
            while not reading.done() and not await bed.call('readers', stream):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for _ in range(self.random.randrange(1, 10)):
            await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 0.1))))
            await bed.write(stream, [end])
            end += 1
        return end

    async def read(self, subscription: rbs.Subscription, found: list[int]) -> None:
        async for data in subscription:
            assert isinstance(data, bytes)
            found.append(int(data))


@dataclass
class Follower:
    """A subscription that reads all incarnations of a stream.

    :ivar found: incarnation and number of each message, GONE for each StreamDoesNotExist, and
        DAMAGED for each ChunkError.
    """

    how: str
    found: list[tuple[int, int]] = field(default_factory=list)


class Recreating(Activity):
    """Deletes and recreates a stream while other tasks consume from it and publish to it."""

    async def begin(self, stack: AsyncExitStack) -> None:
        self.name = await self.stream()
        self.incarnation = 0
        self.number = 0  # of the next message
        self.deleted = 0  # deletions started so far
        self.followers = [Follower('body'), Follower('batch')]
        self.background = [partial(self.follow, item) for item in self.followers]
        self.background.append(partial(self.repeat, self.publish))

    async def once(self) -> None:
        for _ in range(self.random.randrange(1, 20)):
            await self.write()
            await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 0.05))))
        self.deleted += 1
        await self.bed.delete(self.name)
        await asyncio.sleep(self.random.choice((0.01, self.random.uniform(0.01, 0.5))))
        await self.bed.create(self.name)
        self.incarnation += 1
        self.number = 0

    async def write(self) -> None:
        first = self.incarnation * EACH + self.number
        count = self.random.choice((1, 1, 5, 20))
        self.number += count
        await self.bed.write(self.name, range(first, first + count))

    async def publish(self) -> None:
        """Publish messages that followers ignore, with a new publisher after each deletion."""
        async with self.scene.client.publisher(self.name) as publisher:
            while True:
                await publisher.send(b'', timeout=CONFIRM)
                await asyncio.sleep(0.01)

    async def follow(self, follower: Follower) -> None:
        found = follower.found
        async with aclosing(
            self.scene.client.subscribe(self.name, offset=rbs.Offset.FIRST)
        ) as subscription:
            while True:
                try:
                    async with aclosing(WAYS[follower.how](subscription)) as messages:
                        async for data, _ in messages:
                            if data:
                                found.append(divmod(int(data), EACH))
                except rbs.StreamDoesNotExist:
                    if found and found[-1][0] == self.deleted:
                        self.wrong('existing stream reported as missing')
                    found.append(GONE)
                    await asyncio.sleep(AGAIN)
                except rbs.ChunkError:
                    found.append(DAMAGED)
                except RbFlyError as ex:
                    self.scene.failures[type(ex).__name__] += 1
                    await asyncio.sleep(AGAIN)

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
