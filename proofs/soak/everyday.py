"""The everyday activity of a soak: all ways of publishing and consuming, without mistakes."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rbfly.streams as rbs

from ..checker import undelivered
from ..consume import WAYS as CONSUME
from ..history import CONFIRMED, Delivery, History, Messages
from ..test_bed import body
from .activity import CONFIRM, MESSAGES, Activity

IMPATIENT = 0.02  # timeout of some sends in seconds
POLL = 0.5  # timeout of subscriptions in seconds
TRACKED = 5_000  # messages after which a subscription that tracks its offset is replaced
SLOW = f'call of more than {2 * CONFIRM:.0f} s'


async def by_send(publisher: rbs.Publisher, history: History) -> bool:
    """Send from many tasks, some of which soon give up; return whether the publisher is usable."""
    numbers = history.take(30)
    errors = await Activity.send_each(
        publisher, history, numbers, lambda number: CONFIRM if number % 5 else IMPATIENT
    )
    return all(
        error is None
        or isinstance(error, rbs.PublishError)
        or (not number % 5 and isinstance(error, rbs.ConfirmTimeout))
        for number, error in zip(numbers, errors, strict=True)
    )


async def by_flush(publisher: rbs.Publisher, history: History) -> bool:
    numbers = Activity.batch(publisher, history, 100)
    await publisher.flush(timeout=CONFIRM)
    history.note(numbers, CONFIRMED)
    return True


async def by_send_many(publisher: rbs.Publisher, history: History) -> bool:
    numbers = history.take(500)
    await publisher.send_many(map(body, numbers), timeout=CONFIRM)
    history.note(numbers, CONFIRMED)
    return True


def kind(ctx: rbs.MessageCtx) -> str:
    """The filter value of a message: whether its number is even or odd."""
    assert isinstance(ctx.body, bytes)
    return 'odd' if int(ctx.body) % 2 else 'even'


PUBLISH: dict[str, tuple[Callable[[Any, History], Awaitable[bool]], dict[str, Any]]] = {
    'send': (by_send, {'name': 'send'}),
    'flush': (by_flush, {'name': 'flush'}),
    'send-many': (by_send_many, {'name': 'send-many'}),
    'sub-entries': (by_send_many, {'sub_entry_size': 50, 'compression': 'gzip'}),
    'filtered': (by_send_many, {'name': 'filtered', 'filter_extract': kind}),
}
# How the messages of each publisher are consumed; `tracking` and `filter` by body.
READERS = (
    ('body', 'send'), ('context', 'flush'), ('batch', 'send-many'), ('body', 'sub-entries'),
    ('body', 'filtered'), ('tracking', 'sub-entries'), ('filter', 'filtered'), ('batch', 'send'),
)  # fmt: skip


@dataclass
class Reader:
    """Reads a whole stream, with a new subscription after each failure.

    :ivar repeating: messages after the last stored offset may arrive again.
    """

    how: str
    stream: str
    delivery: Delivery = field(default_factory=Delivery)
    repeating: bool = False
    ended: bool = False

    def next(self) -> int:
        """The offset of the next message."""
        return self.delivery.next(self.stream)

    def options(self) -> dict[str, Any]:
        if self.how == 'tracking':
            self.repeating = True
            tracking = rbs.OffsetTracking('soak', every=500)
            return {'offset': rbs.Offset.reference('soak'), 'commit': tracking}
        offset = {'offset': rbs.Offset.offset(self.next())}
        if self.how == 'filter':
            return {**offset, 'filter': rbs.MessageFilter(kind, {'even'})}
        return offset


class Everyday(Activity):
    """Publishes in all ways at a steady pace, and reads each stream in several ways.

    :ivar stored: the messages in each stream at the end.
    """

    async def begin(self, stack: AsyncExitStack) -> None:
        for how, (_, options) in PUBLISH.items():
            await self.history(how, 'name' in options)
        self.movable = [history.stream for history in self.histories]
        by_way = {history.label: history.stream for history in self.histories}
        self.readers = [Reader(how, by_way[way]) for how, way in READERS]
        self.background = [partial(self.consume, reader) for reader in self.readers]
        self.stored: dict[str, Messages] = {}

    async def run(self) -> None:
        over = self.scene.over
        publish = (partial(self.publish, history) for history in self.histories)
        await asyncio.gather(*(self.repeat(work, over) for work in publish))

    async def publish(self, history: History) -> None:
        """Publish at a steady pace until a call fails, or the round is over."""
        loop = asyncio.get_running_loop()
        send, options = PUBLISH[history.label]
        scene = self.scene
        async with scene.client.publisher(history.stream, **options) as publisher:
            usable = True
            while usable and not scene.over():
                if history.next >= MESSAGES * scene.past():
                    await asyncio.sleep(0.005)
                    continue
                began = loop.time()
                try:
                    usable = await send(publisher, history)
                finally:
                    scene.longest = max(scene.longest, loop.time() - began)
                    scene.run.found['calls'] = scene.run.found.get('calls', 0) + 1

    def wanted(self, reader: Reader) -> Messages | None:
        """The messages that a reader must receive, or None while they are unknown."""
        stored = self.stored.get(reader.stream)
        if stored is None or reader.how != 'filter':
            return stored
        even = [(number, offset) for number, offset in zip(*stored, strict=True) if not number % 2]
        return array('q', (number for number, _ in even)), array('q', (at for _, at in even))

    async def consume(self, reader: Reader) -> None:
        """Read until all stored messages have arrived."""

        def ended() -> bool:
            wanted = self.wanted(reader)
            return wanted is not None and reader.delivery.count >= len(wanted[0])

        async def read() -> None:
            try:
                async with self.scene.client.subscribe(
                    reader.stream, timeout=POLL, **reader.options()
                ) as subscription:
                    await self.read(reader, subscription, ended)
            except rbs.StreamDoesNotExist:
                if not self.scene.corrupting:
                    self.wrong('existing stream reported as missing')
                raise

        await self.repeat(read, ended)
        reader.ended = True

    async def read(
        self, reader: Reader, subscription: rbs.Subscription, ended: Callable[[], bool]
    ) -> None:
        left = TRACKED
        way = CONSUME.get(reader.how, CONSUME['body'])
        while not ended():
            try:
                async with aclosing(way(subscription)) as messages:
                    async for data, offset in messages:
                        self.receive(reader, offset, data)
                        left -= 1
                        if reader.how == 'tracking' and left <= 0:
                            return
            except rbs.MessageTimeout:
                pass

    def receive(self, reader: Reader, offset: int, data: Any) -> None:
        """Record a message."""
        self.scene.progress()
        if offset < reader.next():
            if reader.repeating:
                return
            self.wrong('offset out of turn')
        reader.repeating = False
        reader.delivery.receive(reader.stream, offset, int(data))

    async def calm(self) -> None:
        """Wait until the readers have read everything."""
        for history in self.histories:
            self.stored[history.stream] = await self.bed.stored(history.stream)
        while not all(reader.ended for reader in self.readers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def check(self) -> None:
        scene, found = self.scene, self.scene.run.found
        for history in self.histories:
            self.compare(history, self.stored[history.stream][0])
            if CONFIRMED not in history.outcomes:
                self.wrong(f'{history.label} confirmed nothing')
        for reader in self.readers:
            wanted = self.wanted(reader)
            assert wanted is not None
            if wrong := undelivered(reader.delivery, {reader.stream: wanted}):
                self.wrong(f'read by {reader.how}: {wrong}')
        if scene.longest > 2 * CONFIRM:
            self.wrong(SLOW)
        longest = max(found.get('longest call, seconds', 0.0), round(scene.longest, 3))
        found['longest call, seconds'] = longest
        stored = sum(len(numbers) for numbers, _ in self.stored.values())
        found['stored'] = found.get('stored', 0) + stored
        read = sum(reader.delivery.count for reader in self.readers)
        found['read'] = found.get('read', 0) + read
