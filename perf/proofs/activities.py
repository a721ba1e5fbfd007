"""What a soak does beside plain publishing and consuming; each activity checks what it did.

An activity works while faults happen.  Once they are over, `calm` does what has to succeed then,
and `check` compares what its calls reported with what is stored.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from random import Random
from typing import Any, Protocol

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from .ledger import CONFIRM, CONFIRMED, MESSAGES, REFUSED, Log
from .site import body
from .trouble import InMemory, Trouble

__all__ = ['Activity', 'Cancelling', 'Closing', 'Recreating', 'Scene', 'Starting']

AGAIN = 0.05  # seconds until what has failed begins again
CLOSE = 1.0  # seconds without progress after which a close gives up
SHARE = MESSAGES // 2  # messages of an activity under faults; `calm` needs some, too
GUARD = 60.0  # seconds within which readers have everything, once the faults are over
EACH = 10**6  # numbers of an incarnation of a stream
GONE, DAMAGED = (-1, 0), (-2, 0)
DAY = 86_400.0
AT_ONCE = 5  # subscriptions that start beside each other
UNSEEN = 0.1  # of them lose the connection before the first chunk


class Scene(Protocol):
    """The round that an activity is part of.

    :ivar refusing: the broker may refuse messages; what no call reports may be missing then.
    """

    site: Trouble
    client: rbs.StreamsClient
    random: Random
    refusing: bool
    wrong: Counter[str]
    failures: Counter[str]

    def over(self) -> bool: ...
    def progress(self, count: int = 1) -> None: ...


class Activity:
    """One way of use.

    :ivar logs: of what it publishes.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.site = scene.site
        self.random = scene.random
        self.logs: list[Log] = []
        self.streams: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What it uses, from before the faults to behind the checks."""
        try:
            await self.begin()
            yield
        finally:
            for stream in self.streams:
                await self.site.delete(stream)

    async def begin(self) -> None:
        """Make what it uses."""

    async def stream(self) -> str:
        """A new stream."""
        name = f'soak-{secrets.token_hex(4)}'
        await self.site.create(name)
        self.streams.append(name)
        return name

    async def log(self, how: str, named: bool) -> Log:
        """The log of a publisher that has a new stream to itself."""
        log = Log(how, await self.stream(), named)
        self.logs.append(log)
        return log

    async def run(self) -> None:
        """Work until the round is over."""
        while not self.scene.over():
            try:
                await self.once()
                self.scene.progress()
            except RbFlyError as ex:
                self.scene.failures[type(ex).__name__] += 1
            await asyncio.sleep(AGAIN)

    async def once(self) -> None:
        """Do it once."""

    async def calm(self) -> None:
        """Do what has to succeed where nothing goes wrong."""

    async def check(self) -> None:
        """Compare what is stored with what calls said."""
        for log in self.logs:
            found = log.wrong((await self.site.stored(log.stream))[0])
            for what, count in found.items():
                self.wrong(f'{log.how}: {what}', count)

    @staticmethod
    async def until(reached: Callable[[], bool]) -> None:
        """Wait for something that comes when the faults are over, at the latest."""
        async with asyncio.timeout(GUARD):
            while True:
                if reached():
                    return
                await asyncio.sleep(0.01)

    def wrong(self, what: str, count: int = 1) -> None:
        self.scene.wrong[what] += count


class Closing(Activity):
    """Closes publishers while they send, and batches that were not flushed."""

    async def begin(self) -> None:
        self.sent = await self.log('closing', True)
        self.batched = await self.log('closing batches', False)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[rbs.StreamsClient]:
        async with rbs.streams_client(
            self.site.uris,
            connection_name='soak-closing',
            connect_timeout=CONFIRM,
            reconnect_timeout=CONFIRM,
            close_timeout=CLOSE,
        ) as client:
            yield client

    async def once(self) -> None:
        async with self.client() as client:
            for _ in range(self.random.randrange(1, 20)):
                await self.random.choice((self.send, self.batch))(client)

    async def send(self, client: rbs.StreamsClient) -> None:
        numbers: Sequence[int] = ()
        sends: list[asyncio.Task[None]] = []
        try:
            async with client.publisher(
                self.sent.stream,
                name='closing',
                max_unconfirmed=self.random.choice((1, 10, 10_000)),
            ) as publisher:
                numbers = self.sent.take(50, SHARE)
                sends = [asyncio.create_task(publisher.send(body(i))) for i in numbers]
                await asyncio.sleep(self.random.uniform(0, 0.005))
        finally:
            if sends:
                _, late = await asyncio.wait(sends, timeout=CLOSE)
                for task in late:
                    task.cancel()
                if late:
                    self.wrong('send that outlives its publisher', len(late))
            for number, task in zip(numbers, sends, strict=True):
                if not task.cancelled() and task.done():
                    error = task.exception()
                    if error is None:
                        self.sent.note([number], CONFIRMED)
                    elif isinstance(error, rbs.PublishError):
                        self.sent.note([number], REFUSED)

    async def batch(self, client: rbs.StreamsClient) -> None:
        options: list[dict[str, Any]] = [{}, {'sub_entry_size': 20, 'compression': 'gzip'}]
        async with client.publisher(
            self.batched.stream, cls=rbs.PublisherBatchFast, **self.random.choice(options)
        ) as publisher:
            numbers = self.batched.take(200, SHARE)
            for number in numbers:
                publisher.batch(body(number))
        if not self.scene.refusing:  # a refused message is nobody's here
            self.batched.note(numbers, CONFIRMED)

    async def calm(self) -> None:
        """A close that makes progress never gives up, whatever failed to close before."""
        async with self.client() as client:
            await self.close_what_is_deleted(client)
            async with client.publisher(
                self.batched.stream, cls=rbs.PublisherBatchFast, max_unconfirmed=1
            ) as publisher:
                loop = asyncio.get_running_loop()
                began = loop.time()
                self.fill(publisher, 100)
                await publisher.flush()
                rate = 100 / (loop.time() - began)
            try:
                async with client.publisher(
                    self.batched.stream, cls=rbs.PublisherBatchFast, max_unconfirmed=1
                ) as publisher:
                    numbers = self.fill(publisher, round(2.5 * CLOSE * rate))
                self.batched.note(numbers, CONFIRMED)
            except RbFlyError as ex:
                self.wrong(f'close that gave up while messages were confirmed ({ex})')
            self.scene.progress()

    def fill(self, publisher: rbs.PublisherBatchFast, count: int) -> range:
        numbers = self.batched.take(count)
        for number in numbers:
            publisher.batch(body(number))
        return numbers

    async def close_what_is_deleted(self, client: rbs.StreamsClient) -> None:
        """Close a subscription that cannot store its offset any more."""
        stream = await self.stream()
        await self.site.write(stream, [1, 2])
        subscription = client.subscribe(
            stream, offset=rbs.Offset.FIRST, auto_offset=rbs.OffsetTracking('closing')
        )
        for _ in range(2):
            await anext(subscription)
        self.streams.remove(stream)
        await self.site.delete(stream)
        await asyncio.sleep(0.1)
        with suppress(RbFlyError):
            await subscription.aclose()
        await asyncio.sleep(1.2 * CLOSE)


class Cancelling(Activity):
    """Cancels `send_many` of asynchronous iterators, or lets it end in time."""

    async def begin(self) -> None:
        self.sent = await self.log('cancelled send_many', True)

    async def source(self, taken: list[int]) -> AsyncIterator[bytes]:
        for _ in range(self.random.randrange(1, 300)):
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.choice((0, 0, 0.001)))
            for number in self.sent.take(1):
                taken.append(number)
                yield body(number)

    async def once(self) -> None:
        async with self.scene.client.publisher(
            self.sent.stream,
            name='cancelling',
            max_unconfirmed=self.random.choice((1, 5, 100, 10_000)),
        ) as publisher:
            for _ in range(self.random.randrange(1, 10)):
                if not await self.call(publisher):
                    break

    async def call(self, publisher: rbs.Publisher) -> bool:
        """One call; false if the broker, or the connection, ended it."""
        taken: list[int] = []
        progress = rbs.SendProgress()
        async with aclosing(self.source(taken)) as source:  # type: ignore[type-var]
            timeout = self.random.choice((CONFIRM, CONFIRM, 0.01))
            call = asyncio.create_task(publisher.send_many(source, timeout, progress=progress))
            if self.random.random() < 0.7:
                await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 0.03))))
                call.cancel()
            await asyncio.wait([call])
        if progress.taken != len(taken):
            self.wrong('send_many that takes what it does not send', len(taken) - progress.taken)
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM):
                await progress.wait()
        missing = {*progress.unknown, *progress.refused}
        self.sent.note([n for i, n in enumerate(taken) if i not in missing], CONFIRMED)
        self.sent.note([taken[i] for i in progress.refused], REFUSED)
        if call.cancelled():
            return True
        error = call.exception()
        if error is None:
            if missing or call.result() != len(taken):
                self.wrong('send_many that counts wrong')
        elif isinstance(error, rbs.ConfirmTimeout):
            return timeout < CONFIRM
        elif not isinstance(error, RbFlyError):
            raise error
        return error is None


class Starting(Activity):
    """Starts at LAST, at NEXT and at a time; writes on before the first message has come."""

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
                ('a time', rbs.Offset.timestamp(time.time() - DAY), 0, 0),
            )
        )
        found: list[int] = []
        async with self.scene.client.subscribe(stream, offset=offset) as subscription:
            reading = asyncio.create_task(self.read(subscription, found))
            try:
                async with site.unseen() if rnd.random() < UNSEEN else nullcontext():
                    # From here on, the broker has been asked where the subscription starts.
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
                self.wrong(f'start at {kind}: no message comes')
                return
            finally:
                reading.cancel()
                await asyncio.wait([reading])
        self.streams.remove(stream)
        await site.delete(stream)
        if not reading.cancelled():
            error = reading.exception()
            if isinstance(error, rbs.StreamDoesNotExist):
                self.wrong(f'start at {kind}: stream that exists was reported as gone')
            elif error is not None:
                self.scene.failures[type(error).__name__] += 1
            if found[-1:] != [end - 1]:
                return
        if found[0] > latest:
            self.wrong(f'start at {kind}: messages skipped', found[0] - latest)
        if found[0] < earliest:
            self.wrong(f'start at {kind}: messages from before', earliest - found[0])
        if found != [*range(found[0], end)]:
            self.wrong(f'start at {kind}: messages lost, doubled or out of order')

    async def read(self, subscription: rbs.Subscription, found: list[int]) -> None:
        async for data in subscription:
            assert isinstance(data, bytes)
            found.append(int(data))


class Follower:
    """A subscription that goes on through streams of one name.

    :ivar found: incarnation and number of each message; GONE for each report that the stream is,
        DAMAGED for each chunk that was left out.
    """

    def __init__(self, how: str, offset: rbs.Offset) -> None:
        self.how = how
        self.offset = offset
        self.found: list[tuple[int, int]] = []


class Recreating(Activity):
    """Deletes a stream and creates it again under those who read it, and publish to it."""

    async def begin(self) -> None:
        self.name = await self.stream()
        self.incarnation = 0
        self.number = 0  # of the message that is written next
        self.deleted = 0  # deletions that were begun
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
        """Publish what the followers leave out; it fails whenever the stream goes."""
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
        async with self.scene.client.subscribe(self.name, offset=follower.offset) as subscription:
            while True:
                try:
                    if follower.how == 'batches':
                        async for batch in subscription.batches():
                            self.come(follower, batch)
                    else:
                        async for data in subscription:
                            self.come(follower, [data])
                except rbs.StreamDoesNotExist:
                    if follower.found and follower.found[-1][0] == self.deleted:
                        self.wrong('stream reported as gone that is there')
                    follower.found.append(GONE)
                    await asyncio.sleep(AGAIN)
                except rbs.ChunkError:
                    follower.found.append(DAMAGED)
                except RbFlyError as ex:
                    self.scene.failures[type(ex).__name__] += 1
                    await asyncio.sleep(AGAIN)

    def come(self, follower: Follower, messages: Any) -> None:
        for data in messages:
            if data:
                follower.found.append(divmod(int(data), EACH))

    async def calm(self) -> None:
        """Every follower comes to the last message of the last stream."""
        await self.write()
        last = (self.incarnation, self.number - 1)
        with suppress(TimeoutError):
            await self.until(lambda: all(item.found[-1:] == [last] for item in self.followers))
        for follower in self.followers:
            if follower.found[-1:] != [last]:
                self.wrong(f'recreated stream, {follower.how}: not read to its end')

    async def check(self) -> None:
        for follower in self.followers:
            self.check_order(follower)

    def check_order(self, follower: Follower) -> None:
        label = f'recreated stream, {follower.how}'
        last: tuple[int, int] | None = None
        told = True  # that what comes may be of another stream
        gap = False
        for item in follower.found:
            if item in (GONE, DAMAGED):
                told |= item == GONE
                gap |= item == DAMAGED
                continue
            if last is None or item[0] != last[0]:
                if not told:
                    self.wrong(f'{label}: nobody was told')
                if last is not None and item[0] < last[0]:
                    self.wrong(f'{label}: messages of the one before')
                if item[1] != 0 and not gap:
                    self.wrong(f'{label}: does not begin at 0')
            elif item[1] <= last[1] or (item[1] != last[1] + 1 and not gap):
                self.wrong(f'{label}: lost, doubled or out of order')
            last, told, gap = item, False, False
