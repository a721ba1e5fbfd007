"""A super stream in a soak: published by key, and read as one subscription."""

from contextlib import AsyncExitStack, suppress

import rbfly.streams as rbs

from ..checker import key_of, keys_unordered, misplaced, undelivered
from ..history import CONFIRMED, Delivery, History
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
        async with self.scene.client.super_stream(sent.stream).publisher(
            name='super', route=rbs.by_hash(key_of)
        ) as publisher:
            for _ in range(times):
                numbers = sent.take(30, limit)
                if self.random.random() < 0.5:
                    await publisher.send_many(map(body, numbers), timeout=CONFIRM)
                    sent.note(numbers, CONFIRMED)
                    continue
                for error in filter(None, await self.send_each(publisher, sent, numbers)):
                    raise error

    async def read(self) -> None:
        async def read() -> None:
            try:
                async with self.scene.client.super_stream(self.sent.stream).subscribe(
                    offset={
                        name: rbs.Offset.offset(self.delivery.next(name))
                        for name in self.partitions
                    }
                ) as subscription:
                    async for message in subscription.messages():
                        self.receive(message)
            except rbs.StreamDoesNotExist:
                self.wrong('existing super stream reported as missing')
                raise

        await self.repeat(read)

    def receive(self, message: rbs.MessageCtx) -> None:
        stream, offset = message.stream, message.stream_offset
        assert stream is not None
        assert isinstance(message.body, bytes)
        if offset < self.delivery.next(stream):
            self.wrong('super stream: offset out of turn')
        self.delivery.receive(stream, offset, int(message.body))
        self.scene.progress()

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
        """Compare what is stored with the outcomes of the calls, and with what was read."""
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
