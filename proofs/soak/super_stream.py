"""A super stream in a soak: published by key, and read as one subscription."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..history import CONFIRM, CONFIRMED, MESSAGES, REFUSED, Log
from ..site import body
from ..super_streams import key_of, misplaced, unordered
from .activity import AGAIN, SHARE, Activity

__all__ = ['SuperStream']

PARTITIONS = 4


class SuperStream(Activity):
    """Publishes by key with a name, and reads all partitions with one subscription.

    :ivar found: numbers read from each partition.
    :ivar next: offset of the next message of each partition.
    """

    label = 'super stream'

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.site.super_stream(PARTITIONS) as (name, partitions):
            self.log_of_all = Log(self.label, name, True)
            self.partitions = partitions
            self.found = {partition: array('q') for partition in partitions}
            self.next = dict.fromkeys(partitions, 0)
            reading = asyncio.create_task(self.read())
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def once(self) -> None:
        await self.publish(self.random.randrange(1, 20), SHARE)

    async def publish(self, times: int, limit: int) -> None:
        """Send messages with a new publisher, until a call fails."""
        log = self.log_of_all
        async with self.scene.client.super_stream(log.stream).publisher(
            name='super', route=rbs.by_hash(key_of)
        ) as publisher:
            for _ in range(times):
                numbers = log.take(30, limit)
                if self.random.random() < 0.5:
                    await publisher.send_many(map(body, numbers), timeout=CONFIRM)
                    log.note(numbers, CONFIRMED)
                    continue
                sends = (publisher.send(body(number), timeout=CONFIRM) for number in numbers)
                errors = await asyncio.gather(*sends, return_exceptions=True)
                for number, error in zip(numbers, errors, strict=True):
                    if error is None:
                        log.note([number], CONFIRMED)
                    elif isinstance(error, rbs.PublishError) or (
                        isinstance(error, RbFlyError) and error.outcome == 'not_sent'
                    ):
                        log.note([number], REFUSED)
                if failed := [error for error in errors if error is not None]:
                    raise failed[0]

    async def read(self) -> None:
        while True:
            try:
                async with self.scene.client.super_stream(self.log_of_all.stream).subscribe(
                    offset={name: rbs.Offset.offset(offset) for name, offset in self.next.items()}
                ) as subscription:
                    async for message in subscription.messages():
                        self.receive(message)
            except rbs.StreamDoesNotExist:
                self.wrong('existing super stream reported as missing')
            except RbFlyError as ex:
                self.scene.failures[type(ex).__name__] += 1
            await asyncio.sleep(AGAIN)

    def receive(self, message: rbs.MessageCtx) -> None:
        assert message.stream is not None
        if message.stream_offset < self.next[message.stream]:
            self.wrong('super stream: offset out of turn')
        self.next[message.stream] = message.stream_offset + 1
        assert isinstance(message.body, bytes)
        self.found[message.stream].append(int(message.body))
        self.scene.progress()

    async def calm(self) -> None:
        """Check that publishing succeeds, and that the reader reads every partition to its end."""
        await self.publish(20, MESSAGES)
        self.stored = {name: (await self.site.stored(name))[0] for name in self.partitions}
        with suppress(TimeoutError):
            await self.until(lambda: self.found == self.stored)

    async def check(self) -> None:
        self.check_stored()
        if self.found != self.stored:
            self.wrong('super stream: messages read differ from stored messages')

    def check_stored(self) -> None:
        """Compare what is stored with the outcomes of the calls that have published it."""
        stored = [*self.stored.values()]
        found = self.log_of_all.wrong(sorted(number for part in stored for number in part))
        for what, count in found.items():
            self.wrong(f'{self.label}: {what}', count)
        for wrong in (misplaced(stored), unordered(stored)):
            if wrong:
                self.wrong(f'{self.label}: {wrong}')
        if CONFIRMED not in self.log_of_all.states:
            self.wrong(f'{self.label}: nothing confirmed')
