"""One partition of the source of a pipe: publishes its outputs, and knows which are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from ..error import OffsetNotStored, PipeError, PublisherError, PublisherNameInUse, about, of_callback
from ..streams import BasePublisher, Message, MessageBatch, Offset
from ._ends import End, last_publish_id, open_publisher

FLUSHES = 3  # concurrent waits for confirms: the target works on the last while the next one fills
POLL = 0.02  # seconds between two looks at a target that takes no messages
OFFSETS = 2**64  # a stored offset is modulo this: -1 is the offset before the first message

Transform = Callable[[Any], Any]


class Lane:
    """Publishes the outputs of one partition of the source, from an offset on.

    The outputs of the message at offset `n` have the publishing id `n + 1`, under a name that only
    this partition uses: the broker of the target stores them once, however often they are sent.

    :param stream: the partition.
    :param start: offset of the first message.
    :param is_first: no position of the job is stored in the partition.
    :param tasks: runs the waits for confirms; a failed one ends the pipe.
    :ivar taken: offset after the last message whose outputs were published.
    :ivar confirmed: offset after the last message whose outputs are stored, with all before it.
    :ivar stored: offset after the last message whose position is stored.
    :ivar published: number of outputs.
    """

    def __init__(
        self,
        job: str,
        source: End,
        stream: str,
        start: int,
        is_first: bool,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.stream: str = stream
        self.start: int = start
        self.taken: int = start
        self.confirmed: int = start
        self.stored: int = start
        self.published: int = 0
        self._job = job
        self._client = source.client
        self._is_first = is_first
        self._tasks = tasks
        self._opening: Any = None
        self._publisher: BasePublisher | None = None
        self._flushes = 0
        self._flushed = start  # offset after the last message that a wait concerns
        self._room = asyncio.Event()
        self._output: Message[Any] = Message(None)  # the publisher encodes it at once

    async def open(self, target: End, options: dict[str, Any]) -> None:
        """Open the publisher; check that its publishing ids are those of this partition.

        :raises PipeError: they are not.
        """
        if self._publisher is not None:
            return
        self._opening = open_publisher(target, name=f'{self._job}/{self.stream}', **options)
        self._publisher = await self._opening.__aenter__()
        while True:
            try:
                last = last_publish_id(self._publisher)
                break
            except PublisherError:  # a partition of the target has no leader
                await asyncio.sleep(POLL)
        if last <= self.start and not self._is_first:
            return
        # The order counts: another process stores its position before it publishes.
        stored = await self._client.read_offset(self.stream, self._job)
        if last and stored is None:
            error = PipeError(
                f'stream {self.stream!r} has no stored offset of job {self._job!r}, but stream'
                f' {target.name!r} has outputs of it, up to publishing id {last}: the source was'
                ' deleted and created again, or retention has removed the offset; choose another'
                ' name for the job, or store the offset to continue after'
            )
            raise about(error, self.stream, self._job)
        end = await self._client.resolve_offset(self.stream, Offset.NEXT)
        if last > end:
            error = PipeError(
                f'stream {self.stream!r} ends before offset {end}, but stream {target.name!r} has'
                f' outputs of job {self._job!r} up to publishing id {last}, of offset {last - 1}:'
                ' the source was deleted and created again; choose another name for the job'
            )
            raise about(error, self.stream, self._job)
        self._is_first = stored is None

    async def mark(self) -> bool:
        """Store where the job starts, unless a position is stored.

        :returns: whether one is stored; if not, this process is not to read the partition.
        """
        if self._is_first:
            before = (self.start - 1) % OFFSETS
            try:
                await self._client.write_offset(self.stream, self._job, before, wait=True)
            except OffsetNotStored:  # another member is active; or its position is stored by now
                if await self._client.read_offset(self.stream, self._job) is None:
                    return False
            self._is_first = False
        return True

    # -- publishing

    async def take(
        self, batch: MessageBatch[Any], transform: Transform, is_async: bool, context: bool
    ) -> None:
        """Publish the outputs of the messages of a batch, without waiting for confirms."""
        messages = zip(batch.offsets, batch.contexts() if context else batch, strict=True)
        left = len(batch)
        while left:
            room = min(left, await self._capacity())
            part = islice(messages, room)
            if is_async:
                await self._put_later(part, transform)
            else:
                self._put(part, transform)
            left -= room
            if not left:
                self.taken = batch.next_offset
            self._flush_soon()

    async def _capacity(self) -> int:
        """Wait until the window has capacity; return the number of messages."""
        publisher = self._publisher
        assert publisher is not None
        while (free := publisher.capacity) <= 0:
            if self._flushes:
                self._room.clear()
                await self._room.wait()
            else:
                await publisher.flush()
                if publisher.capacity <= 0:
                    await asyncio.sleep(POLL)
        return free

    def _put(self, messages: Iterator[tuple[int, Any]], transform: Transform) -> None:
        """Publish the outputs of a function that does not wait: this runs for each message."""
        assert self._publisher is not None
        own, batch = self._output, self._publisher.batch
        offset, count = self.taken, 0
        try:
            for offset, message in messages:
                output = transform(message)
                if output is None:
                    continue
                if type(output) is Message:
                    output.publish_id = offset + 1
                    batch(output)
                else:
                    own.body, own.publish_id = output, offset + 1
                    batch(own)
                count += 1
            self.taken = offset + 1
        except BaseException as ex:
            raise self._failed(ex, offset)  # noqa: B904 - the same error
        finally:
            self.published += count

    async def _put_later(
        self, messages: Iterator[tuple[int, Any]], transform: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Publish the outputs of an async function, each at once."""
        for offset, message in messages:
            try:
                output = await transform(message)
            except asyncio.CancelledError:
                raise
            except BaseException as ex:
                raise self._failed(ex, offset)  # noqa: B904
            self._put(iter([(offset, output)]), lambda output: output)
            self._flush_soon()

    def _failed(self, error: BaseException, offset: int) -> BaseException:
        """Return the error of a message, which says where it is; the pipe stops before it."""
        self.taken = offset
        where = f'pipe {self._job!r} for the message at offset {offset} of stream {self.stream!r}'
        return of_callback(error, where)

    # -- confirms

    def _flush_soon(self) -> None:
        """Send what is queued, and wait for its confirms in a task."""
        if self._flushes < FLUSHES and self.taken > self._flushed:
            self._flushes += 1
            self._flushed = self.taken
            self._tasks.create_task(self._flush(self.taken))

    async def _flush(self, taken: int) -> None:
        assert self._publisher is not None
        await self._publisher.flush()
        self.confirmed = max(self.confirmed, taken)
        self._flushes -= 1
        self._room.set()
        self._flush_soon()  # what was queued while all waits were in use

    async def settle(self, timeout: float | None = None) -> None:
        """Wait until all outputs are stored, for at most that many seconds."""
        taken = self.taken
        if self._publisher is not None and taken > self.confirmed:
            await self._publisher.flush(timeout)
            self.confirmed = max(self.confirmed, taken)

    async def close(self, error: BaseException | None = None) -> None:
        """Close the publisher; after an error, as `async with` does."""
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        try:
            kind = None if error is None else type(error)
            await self._opening.__aexit__(kind, error, None)
        except PublisherNameInUse:
            pass  # another process has published the same outputs
