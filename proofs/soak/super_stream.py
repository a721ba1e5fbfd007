"""A super stream in a soak: published by key, and read as one subscription."""

from contextlib import AsyncExitStack, suppress

import rbfly.streams as rbs

from ..checker import keys_unordered, misplaced, undelivered
from ..history import CONFIRMED, Delivery, History
from ..publish import keyed
from ..super_streams import read
from ..test_bed import body
from .activity import CONFIRM, MESSAGES, SHARE, Activity

PARTITIONS = 4


class SuperStream(Activity):
    """Publishes by key with a name, and reads all partitions with one subscription.

    :ivar delivery: what the subscription has received.
    :ivar stored: the messages in each partition at the end.
    """

    label = 'super stream'

    async def begin(self, stack: AsyncExitStack) -> None:
        name, self.partitions = await stack.enter_async_context(self.bed.super_stream(PARTITIONS))
        self.sent = History(self.label, name, True, MESSAGES)
        self.delivery = Delivery()
        self.background = [self.read]

    async def once(self) -> None:
        await self.publish(self.random.randrange(1, 20), SHARE)

    async def publish(self, times: int, limit: int) -> None:
        """Send messages with a new publisher, until a call fails."""
        sent = self.sent
        async with keyed(self.scene.client, sent.stream, 'super') as publisher:
            for _ in range(times):
                numbers = sent.take(30, limit)
                if self.random.random() < 0.5:
                    await publisher.send_many(map(body, numbers), timeout=CONFIRM)
                    sent.note(numbers, CONFIRMED)
                    continue
                for error in filter(None, await self.send_each(publisher, sent, numbers)):
                    raise error

    async def read(self) -> None:
        async def resume() -> None:
            try:
                await read(self.scene.client, self.sent.stream, self.partitions, self.delivery)
            except rbs.StreamDoesNotExist:
                self.wrong('existing super stream reported as missing')
                raise

        await self.repeat(resume)

    async def calm(self) -> None:
        """Check that publishing succeeds, and that every partition is read to its end."""
        await self.publish(20, MESSAGES)
        self.stored = {name: await self.bed.stored(name) for name in self.partitions}
        with suppress(TimeoutError):
            await self.until(self.all_read)

    def all_read(self) -> bool:
        """Whether everything that is stored has been received."""
        wanted = {name: messages for name, messages in self.stored.items() if messages[0]}
        return self.delivery.messages == wanted

    async def check(self) -> None:
        """Compare the stored messages with the outcomes of the calls and the messages read."""
        stored = [numbers for numbers, _ in self.stored.values()]
        self.compare(self.sent, sorted(number for part in stored for number in part))
        for wrong in filter(None, (misplaced(stored), keys_unordered(stored))):
            self.wrong(f'{self.label}: {wrong}')
        if CONFIRMED not in self.sent.outcomes:
            self.wrong(f'{self.label}: nothing confirmed')
        self.check_read()

    def check_read(self) -> None:
        if wrong := undelivered(self.delivery, self.stored):
            self.wrong(f'{self.label}: {wrong}')
