"""One partition of the source of a pipe: publishes its outputs, and knows which are stored."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ..error import (
    ConfirmTimeout,
    OffsetNotStored,
    PipeError,
    PublisherError,
    PublisherNameInUse,
    about,
    of_callback,
)
from ..record import Record
from ..streams import BasePublisher, Message, MessageBatch, Offset
from ._ends import End, last_publish_id, open_publisher

FLUSHES = 3  # concurrent waits for confirms: the target works on the last while the next one fills
POLL = 0.02  # seconds between two looks at a target that takes no messages
OFFSETS = 2**64  # a stored offset is modulo this: -1 is the offset before the first message

GROUP_BYTES = 256 * 1024  # of raw messages, after which a sub-entry ends


class Work(Record):
    """What a pipe does with each message.

    :param transform: returns the outputs of a message, or an awaitable of them.
    :param is_async: `transform` is an async function.
    :param context: pass the context of the message, not only its body.
    :param group_size: outputs in a sub-entry; None for no sub-entries.
    :param asks: the publisher asks the broker for routes: an atomic batch could overtake messages.
    """

    transform: Callable[[Any], Any]
    is_async: bool
    context: bool
    group_size: int | None
    asks: bool


def as_list(output: Any) -> list[Any]:
    """Return the outputs of a message."""
    if output is None:
        return []
    outputs: list[Any] = output if type(output) is list else [output]
    return outputs


def as_message(output: Any) -> Message[Any]:
    return output if type(output) is Message else Message(output)


class Lane:
    """Publishes the outputs of one partition of the source, from an offset on.

    The outputs of the message at offset `n` have the publishing id `n + 1`, under a name that only
    this partition uses: the broker of the target stores them once, however often they are sent.

    :param stream: the partition.
    :param start: offset of the first message.
    :param is_first: no position of the job is stored in the partition.
    :param work: what to publish.
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
        work: Work,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.stream: str = stream
        self.start: int = start
        self.taken: int = start
        self.confirmed: int = start
        self.stored: int = start
        self.published: int = 0
        # End and length of each batch that is not confirmed, and of some that are.
        self._batches = deque[tuple[int, int]]()
        self._job = job
        self._client = source.client
        self._is_first = is_first
        self._marking = asyncio.Lock()
        self._transform = work.transform
        self._is_async = work.is_async
        self._context = work.context
        self._group_size = work.group_size
        self._asks = work.asks
        self._atomic: set[asyncio.Task[None]] = set()  # batches in flight
        self._tasks = tasks
        self._opening: Any = None
        self._publisher: BasePublisher | None = None
        self._flushes = 0
        self._flushed = start  # offset after the last message that a wait concerns
        self._has_failed = False
        self._room = asyncio.Event()
        self._output: Message[Any] = Message(None)  # the publisher encodes it at once

    async def open(self, target: End, options: dict[str, Any]) -> None:
        """Open the publisher; check that its publishing ids are those of this partition.

        :raises PipeError: they are not.
        """
        if self._publisher is not None:
            return
        self._opening = open_publisher(target, name=f'{self._job}/{self.stream}', **options)
        publisher: BasePublisher = await self._opening.__aenter__()
        self._publisher = publisher
        while True:
            try:
                last = last_publish_id(publisher)
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

    @property
    def _open_publisher(self) -> BasePublisher:
        assert self._publisher is not None  # `open` was called
        return self._publisher

    async def mark(self) -> bool:
        """Store where the job starts, unless a position is stored.

        :returns: whether one is stored; if not, this process is not to read the partition.
        """
        async with self._marking:
            if self._is_first:
                before = (self.start - 1) % OFFSETS
                try:
                    await self._client.write_offset(self.stream, self._job, before, wait=True)
                except OffsetNotStored:  # another member is active; or a position is stored by now
                    if await self._client.read_offset(self.stream, self._job) is None:
                        return False
                self._is_first = False
            return True

    # -- publishing

    async def take(self, batch: MessageBatch[Any]) -> None:
        """Publish the outputs of the messages of a batch, without waiting for confirms."""
        messages = zip(batch.offsets, batch.contexts() if self._context else batch, strict=True)
        if self._group_size is not None:
            await self._put_groups(messages, self._group_size)
        elif self._is_async:
            await self._put_later(messages)
        else:
            left = len(batch)
            while left:
                part = islice(messages, min(left, await self._capacity()))
                count, several = self._put(part)
                left -= count
                if several:
                    await self._put_several(self.taken, several)
                self._flush_soon()
        self.taken = batch.next_offset
        self._batches.append((self.taken, len(batch)))
        self._flush_soon()

    async def _capacity(self, wanted: int = 1) -> int:
        """Wait until the window has capacity; return the number of messages.

        That is less than `wanted` if nothing is in flight.
        """
        publisher = self._open_publisher
        while (free := publisher.capacity) < wanted:
            if self._flushes:
                self._room.clear()
                await self._room.wait()
            elif free > 0:
                break
            else:  # the target takes no messages
                await publisher.flush()
                if publisher.capacity <= 0:
                    await asyncio.sleep(POLL)
        return free

    def _put(self, messages: Iterator[tuple[int, Any]]) -> tuple[int, list[Any]]:
        """Publish the outputs of a function that does not wait: this runs for each message.

        Stops after a message with several outputs.

        :returns: number of messages, and the several outputs of the last one, which is not taken.
        """
        transform, own, asks = self._transform, self._output, self._asks
        batch = self._open_publisher.batch
        offset, taken, published = self.taken, 0, 0
        try:
            for offset, message in messages:
                output = transform(message)
                taken += 1
                if output is None:
                    continue
                if type(output) is list:
                    several: list[Any] = output
                    if len(several) > 1:
                        self.taken = offset
                        return taken, several
                    if not several:
                        continue
                    output = several[0]
                if type(output) is Message:
                    output.publish_id = offset + 1
                    batch(output)
                else:
                    if asks:  # the publisher keeps the message until it knows the route
                        own = Message(None)
                    own.body, own.publish_id = output, offset + 1
                    batch(own)
                published += 1
            self.taken = offset + 1
        except BaseException as ex:
            self.taken = offset
            raise self._failed(ex, offset)  # noqa: B904 - the same error
        finally:
            self.published += published
        return taken, []

    async def _put_later(self, messages: Iterator[tuple[int, Any]]) -> None:
        """Publish the outputs of an async function, each at once."""
        for offset, message in messages:
            outputs = as_list(await self._call(offset, message))
            if len(outputs) == 1:
                await self._capacity()
                self._put_one(offset, outputs[0])
            elif outputs:
                await self._put_several(offset, outputs)
            self.taken = offset + 1
            self._flush_soon()

    async def _call(self, offset: int, message: Any) -> Any:
        """Return what the function of the program returns for a message."""
        try:
            output = self._transform(message)
            return await output if self._is_async else output
        except asyncio.CancelledError:
            raise
        except BaseException as ex:
            raise self._failed(ex, offset)  # noqa: B904 - the same error

    def _put_one(self, offset: int, output: Any) -> None:
        message = as_message(output)
        message.publish_id = offset + 1
        try:
            self._open_publisher.batch(message)
        except BaseException as ex:
            raise self._failed(ex, offset)  # noqa: B904
        self.published += 1

    async def _put_groups(self, messages: Iterator[tuple[int, Any]], limit: int) -> None:
        """Publish sub-entries of outputs of several messages; all have the last one's id.

        Groups begin with a chunk of the source, or where another one ends, and are always the same.
        """
        group: list[Any] = []
        size = 0
        offset = self.taken
        for offset, message in messages:
            outputs = as_list(await self._call(offset, message))
            group += outputs
            size += sum(len(item) for item in outputs if type(item) is bytes)
            if len(group) >= limit or size >= GROUP_BYTES:
                await self._put_several(offset, group)
                group, size = [], 0
        if group:
            await self._put_several(offset, group)

    async def _put_several(self, offset: int, outputs: list[Any]) -> None:
        """Publish outputs that have one publishing id, in one sub-entry."""
        free = await self._capacity(len(outputs))
        if self._asks:
            await self._wait_confirmed(None)
        # The pipe cancels its TaskGroup before `close` sends the queued messages.  A task of that
        # group would withdraw its batch, but not the outputs after it, and the batch would be lost.
        sending = asyncio.create_task(self._send_atomic(offset, [*map(as_message, outputs)]))
        self._atomic.add(sending)
        sending.add_done_callback(self._on_sent)
        # It enters the window in its first step; if that is full by then, `_capacity` waits for it.
        await asyncio.sleep(0)
        if self._asks or free < len(outputs) or sending.done():
            await sending
        self.published += len(outputs)
        self.taken = offset + 1
        self._flush_soon()

    async def _send_atomic(self, offset: int, outputs: list[Message[Any]]) -> None:
        try:
            await self._open_publisher.send_atomic(outputs, publish_id=offset + 1)
        except asyncio.CancelledError:
            raise
        except BaseException as ex:
            raise self._failed(ex, offset)  # noqa: B904

    def _on_sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and sending.exception() is None:
            self._atomic.discard(sending)

    def _failed(self, error: BaseException, offset: int) -> BaseException:
        """Return the error of a message, which says where it is."""
        where = f'pipe {self._job!r} for the message at offset {offset} of stream {self.stream!r}'
        return of_callback(error, where)

    # -- confirms

    def _flush_soon(self) -> None:
        """Send the queued outputs, and wait for their confirms in a task."""
        if self._flushes < FLUSHES and self.taken > self._flushed:
            self._flushes += 1
            self._flushed = self.taken
            self._tasks.create_task(self._flush(self.taken))

    async def _flush(self, taken: int) -> None:
        if self._publisher is None:  # `close` has waited for the confirms
            return
        await self._wait_confirmed(None)
        self._confirm(taken)
        self._flushes -= 1
        self._room.set()
        self._flush_soon()  # outputs that were queued while all waits were in use

    def _confirm(self, taken: int) -> None:
        """Note that all outputs of the messages before an offset are stored."""
        if not self._has_failed:  # another wait may know of an output that is not
            self.confirmed = max(self.confirmed, taken)
            while self._batches and self._batches[0][0] <= self.confirmed:
                self._batches.popleft()

    @property
    def unconfirmed(self) -> int:
        """Number of messages taken whose outputs may not be stored; all of a batch if one is."""
        return sum(count for end, count in self._batches if end > self.confirmed)

    async def settle(self, timeout: float | None = None) -> None:
        """Wait until all outputs are stored, for at most that many seconds."""
        taken = self.taken
        if self._publisher is not None and taken > self.confirmed and not self._has_failed:
            await self._wait_confirmed(timeout)
            self._confirm(taken)

    async def _wait_confirmed(self, timeout: float | None) -> None:
        """Wait until everything published so far is confirmed.

        After an error, no later output counts as stored: the publisher reports the error once.
        """
        several = [*self._atomic]
        try:
            await self._open_publisher.flush(timeout)
            if several:
                done, left = await asyncio.wait(several, timeout=timeout)
                for task in done:
                    task.result()
                if left:
                    raise ConfirmTimeout(f'an atomic batch was not confirmed within {timeout} s')
        except BaseException:
            self._has_failed = True
            raise

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
        finally:
            for sending in self._atomic:
                sending.cancel()
