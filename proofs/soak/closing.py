"""Publishers of a soak that are closed or cancelled while they send."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..history import CONFIRMED, REFUSED
from ..test_bed import body
from .activity import CONFIRM, SHARE, Activity, client_of

CLOSE = 1.0  # seconds without progress after which a close gives up


class Closing(Activity):
    """Closes publishers while they send or have unflushed batches."""

    async def begin(self, stack: AsyncExitStack) -> None:
        self.sent = await self.history('closing', True)
        self.batched = await self.history('closing batches', False)

    async def once(self) -> None:
        async with client_of(self.bed, close_timeout=CLOSE) as client:
            for _ in range(self.random.randrange(1, 20)):
                await self.random.choice((self.send, self.send_batch))(client)

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
                    self.wrong('send still pending after its publisher closed', len(late))
            for number, task in zip(numbers, sends, strict=True):
                if not task.cancelled() and task.done():
                    self.sent.note([number], self.outcome(task.exception()))

    async def send_batch(self, client: rbs.StreamsClient) -> None:
        options: list[dict[str, Any]] = [{}, {'sub_entry_size': 20, 'compression': 'gzip'}]
        async with client.publisher(
            self.batched.stream, **self.random.choice(options)
        ) as publisher:
            numbers = self.batch(publisher, self.batched, 200, SHARE)
        if not self.scene.refusing:  # closing does not report refused messages
            self.batched.note(numbers, CONFIRMED)

    async def calm(self) -> None:
        """Check that a close does not give up while it makes progress, even after a failed one."""
        async with client_of(self.bed, close_timeout=CLOSE) as client:
            await self.close_without_stream(client)
            async with client.publisher(
                self.batched.stream, cls=rbs.PublisherBatchFast, max_unconfirmed=1
            ) as publisher:
                loop = asyncio.get_running_loop()
                began = loop.time()
                self.batch(publisher, self.batched, 100)
                await publisher.flush()
                rate = 100 / (loop.time() - began)
            try:
                async with client.publisher(
                    self.batched.stream, cls=rbs.PublisherBatchFast, max_unconfirmed=1
                ) as publisher:
                    numbers = self.batch(publisher, self.batched, round(2.5 * CLOSE * rate))
                self.batched.note(numbers, CONFIRMED)
            except RbFlyError as ex:
                self.wrong(f'close gave up while messages were confirmed ({ex})')
            self.scene.progress()

    async def close_without_stream(self, client: rbs.StreamsClient) -> None:
        """Close a subscription that cannot store its offset because its stream was deleted."""
        stream = await self.stream()
        await self.bed.write(stream, [1, 2])
        subscription = client.subscribe(
            stream, offset=rbs.Offset.FIRST, commit=rbs.OffsetTracking('closing')
        )
        for _ in range(2):
            await anext(subscription)
        self.streams.remove(stream)
        await self.bed.delete(stream)
        await asyncio.sleep(0.1)
        with suppress(RbFlyError):
            await subscription.aclose()
        await asyncio.sleep(1.2 * CLOSE)


class Cancelling(Activity):
    """Cancels calls of `send_many` with asynchronous iterators, and lets some time out."""

    async def begin(self, stack: AsyncExitStack) -> None:
        self.sent = await self.history('cancelled send_many', True)

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
        """Call `send_many` once; false if the publisher may be unusable afterwards."""
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
            self.wrong('send_many lost messages from its source', len(taken) - progress.taken)
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
                self.wrong('send_many returned a wrong count')
        elif isinstance(error, rbs.ConfirmTimeout):
            return timeout < CONFIRM
        elif not isinstance(error, RbFlyError):
            raise error
        return error is None
