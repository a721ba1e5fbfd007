"""One call of `process`: takes messages, stores offsets, and returns messages not begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from ..error import (
    STOPS,
    AMQPDecoderError,
    ArgumentError,
    ArgumentTypeError,
    OffsetNotStored,
    StreamDoesNotExist,
    add_note,
    of_callback,
)
from ..net.observer import facts
from ..record import Record
from ..streams import MessageBatch, SuperStreamSubscription
from ..time_limits import time_limit
from ._error_log import ErrorLog
from ._failures import DeadLetter, OnError, letter_for, policy_of
from ._partition import Item, Partition
from ._workers import Workers, is_misuse

logger: logging.Logger = logging.getLogger('rbfly.processing')

BLOCK = 1000  # messages that are taken at once
HANDOVER_SHARE = 0.8  # of `handover_timeout`, for messages in work; then the offset is stored
CANCEL_TIMEOUT = 2.0  # seconds to store offsets after a cancellation


class ProcessSummary(Record):
    """What :func:`process` has done.

    :param finished: number of messages that are finished, also of those below.
    :param ignored: number of messages whose work has failed, with `on_error='ignore'`.
    :param dead_letters: number of messages published with `dead_letter`.
    :param retries: number of tries after the first ones.
    """

    finished: int = 0
    ignored: int = 0
    dead_letters: int = 0
    retries: int = 0


class Processing:
    """One call of :func:`process`."""

    def __init__(
        self,
        messages: Any,
        context: bool,
        on_error: OnError,
        max_pending: int,
        every: int,
        interval: float,
        finish_timeout: float,
    ) -> None:
        self._messages = messages
        self._is_super = isinstance(messages, SuperStreamSubscription)
        self._context = context
        self._policy = policy_of(on_error)
        self._max_pending = max_pending
        name = messages.connection_name
        self._log_prefix = f'[{name}] ' if name else ''
        self._log = ErrorLog(self._log_prefix)
        self._can_store = messages.offset_tracking is not None
        self._every = every
        self._interval = interval
        self._timeout = finish_timeout
        self._handover_timeout = finish_timeout
        if messages.group is not None:
            limit = HANDOVER_SHARE * messages.group.handover_timeout
            self._handover_timeout = min(finish_timeout, limit)
        self._workers: Workers
        self._partitions: dict[str, Partition] = {}
        self._ending: dict[str, set[asyncio.Task[None]]] = {}  # cancelled work, by partition
        self._changed = asyncio.Event()
        self._is_due = asyncio.Event()  # an offset
        self._stopping = False
        self._error: BaseException | None = None
        self._finished = 0  # messages of partitions that were handed over or lost
        self._ignored = self._dead_letters = self._retries = 0

    def attach(self, workers: Workers) -> None:
        """Use these workers."""
        self._workers = workers

    async def run(self) -> ProcessSummary:
        """Read the subscription to its end."""
        messages = self._messages
        storing: asyncio.Task[None] | None = None
        with messages.hooks(
            on_revoke=self._on_revoke, on_lost=self._on_lost, on_stop=self._on_stop
        ):
            try:
                self._workers.start()
                if self._can_store and (self._every or self._interval):
                    loop = asyncio.get_running_loop()
                    storing = asyncio.Task(self._keep_storing(), loop=loop)
                try:
                    await self._read()
                except Exception as ex:
                    self._fail(ex)
                await self._finish()
            except BaseException as ex:  # cancelled
                self._on_stop()
                messages.stop()
                try:
                    await self._close_workers(storing)
                    partitions = self._partitions.values()
                    await asyncio.gather(*[self._store_when_cancelled(item) for item in partitions])
                finally:  # without waiting; else it would stay an active member of its group
                    await messages.__aexit__(type(ex), ex, None)
                raise
            await self._close_workers(storing)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        finished = self._finished + sum(item.finished for item in self._partitions.values())
        return ProcessSummary(finished, self._ignored, self._dead_letters, self._retries)

    async def _close_workers(self, storing: asyncio.Task[None] | None) -> None:
        tasks = self._workers.close().union(*self._ending.values())
        if storing is not None:
            storing.cancel()
            tasks.add(storing)
        if tasks:
            await asyncio.wait(tasks)

    # -- taking messages

    async def _read(self) -> None:
        batches = self._messages.batches(min(BLOCK, max(1, self._max_pending // 4)))
        while True:
            try:
                async for batch in batches:
                    await self._add(batch)
                return
            except AMQPDecoderError as ex:
                if ex.offset is None or ex.data is None:
                    raise
                await self._add_undecodable(ex)

    async def _add(self, batch: MessageBatch[Any]) -> None:
        stream, size = str(batch.stream), len(batch)
        partition = self._partitions.get(stream)
        if partition is None or partition.pending + size > self._max_pending or self._stopping:
            partition = await self._room(stream, size)
            if partition is None:
                return
        messages = list(batch.contexts()) if self._context else batch[:]
        self._workers.add(partition.add(messages, batch.offsets, batch))

    async def _add_undecodable(self, error: AMQPDecoderError) -> None:
        stream = str(error.stream)
        partition = await self._room(stream, 1)
        if partition is not None:
            assert error.offset is not None
            assert error.data is not None
            block = partition.add([error.data], [error.offset], error.data)
            block.drop()
            item = Item(block, 0, error.data)
            item.error = error
            self._workers.add_item(item)

    async def _room(self, stream: str, size: int) -> Partition | None:
        """Wait until messages can be taken; return None if they are given back."""
        if self._stopping:
            return None
        partition = self._partitions.setdefault(stream, Partition(stream))
        while not partition.given_back:
            if partition.pending + size <= self._max_pending and not self._ending.get(stream):
                return partition
            await self._wait()
        return None

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- what workers report

    def on_progress(self, partition: Partition) -> None:
        """Messages of a partition may be finished, or a worker has left it."""
        count = partition.advance()
        if self._every and count - partition.counted >= self._every:
            partition.counted = count
            self._is_due.set()
        self._changed.set()

    def on_broken(self, error: BaseException) -> None:
        """A worker has ended."""
        self._fail(error)

    async def on_error(self, item: Item, error: BaseException) -> bool:
        """The work on a message has failed; return whether the message is finished."""
        partition = item.block.partition
        is_final = item.error is not None  # not of the work
        if not is_final and is_misuse(error):
            text = f'work must be an async function of one argument: {error}'
            misuse = ArgumentTypeError(text)
            misuse.__cause__ = error
            self._fail(misuse)
            return False
        where = f'the work on the message at offset {item.offset} of stream {partition.stream!r}'
        error = of_callback(error, where, (*STOPS, asyncio.CancelledError))
        if not is_final:
            item.tries += 1
        if not is_final and item.tries <= len(self._policy.delays):
            if partition.given_back:  # the message is delivered again
                return False
            self._log.note(item, error, logging.INFO)
            self._retries += 1
            delay = self._policy.delays[item.tries - 1]
            partition.call_later(delay, self._workers.add_item, item)
            return False
        if self._policy.last == 'fail':
            self._fail(error)
            return False
        self._log.note(item, error, logging.WARNING)
        if isinstance(self._policy.last, DeadLetter):
            return await self._publish(self._policy.last, item, error)
        self._ignored += 1
        return True

    async def _publish(self, policy: DeadLetter, item: Item, error: BaseException) -> bool:
        try:
            await policy.publisher.send(letter_for(item, error))
        except Exception as ex:
            add_note(ex, f'raised by the publisher for dead letters, after {error!r}')
            self._fail(ex)
            return False
        self._dead_letters += 1
        return True

    # -- ending

    def _fail(self, error: BaseException) -> None:
        """Stop, and raise the error at the end."""
        if self._error is None:
            self._error = error
        elif error is not self._error:
            add_note(self._error, f'also failed: {error!r}')
        self._messages.stop()

    def _on_stop(self) -> None:
        self._stopping = True
        for partition in self._partitions.values():
            partition.give_back()
        self._changed.set()

    async def _finish(self) -> None:
        """The subscription delivers no more messages: finish those that are in work, and store."""
        if self._error is not None:
            try:
                await self._messages.close()  # in a group, hands over
            except Exception as ex:
                self._fail(ex)
        while not self._stopping and any(item.pending for item in self._partitions.values()):
            await self._wait()
        await self._drain([*self._partitions.values()], self._timeout)
        try:
            async with time_limit(self._timeout if self._stopping else None):
                await self._store_all()
        except TimeoutError:
            self._fail(OffsetNotStored(f'no offset was stored within {self._timeout:g} s'))
        except Exception as ex:
            self._fail(ex)

    async def _drain(self, partitions: Collection[Partition], timeout: float) -> None:
        """Wait for the messages of partitions that are in work; cancel them after a while."""
        try:
            async with time_limit(timeout):
                while self._workers.are_in(partitions):
                    await self._wait()
        except TimeoutError:
            self._cancel(partitions)
        except asyncio.CancelledError:
            self._cancel(partitions)
            raise

    def _cancel(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if count := self._cancel_work(partition):
                prefix, stream = self._log_prefix, partition.stream
                extra = facts(prefix, 'work_cancelled', stream=stream, messages=count)
                text = '%scancelled the work on %d messages of stream %r: it has not ended in time'
                logger.warning(text, prefix, count, stream, extra=extra)

    def _cancel_work(self, partition: Partition) -> int:
        tasks = self._workers.cancel([partition])
        ending = self._ending.setdefault(partition.stream, set())
        ending |= tasks

        def on_end(task: asyncio.Task[None]) -> None:
            ending.discard(task)
            self._changed.set()

        for task in tasks:
            task.add_done_callback(on_end)
        return len(tasks)

    # -- the group

    async def _on_revoke(self, stream: str) -> None:
        partition = self._partitions.get(stream)
        if partition is None:
            return
        partition.give_back()
        self._changed.set()
        try:
            await self._drain([partition], self._handover_timeout)
            await self._store(partition)
        finally:  # also if the handover is late, and cancels this
            self._forget(partition)

    def _on_lost(self, stream: str) -> None:
        partition = self._partitions.get(stream)
        if partition is None:
            return
        partition.give_back()
        self._forget(partition)
        self._cancel_work(partition)
        self._changed.set()

    def _forget(self, partition: Partition) -> None:
        if self._partitions.get(partition.stream) is partition:
            del self._partitions[partition.stream]
            self._finished += partition.finished

    # -- offsets

    async def _keep_storing(self) -> None:
        while self._error is None:
            with suppress(TimeoutError):
                async with time_limit(self._interval or None):
                    await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._store_all()
            except Exception as ex:
                self._fail(ex)

    async def _store_all(self) -> None:
        await asyncio.gather(*[self._store(item) for item in self._partitions.values()])

    async def _store(self, partition: Partition) -> None:
        """Store the offset below which all messages are finished, if it has changed."""
        offset, stream = partition.watermark, partition.stream
        if not self._can_store or offset is None or offset == partition.stored:
            return
        try:
            await self._messages.commit({stream: offset} if self._is_super else offset)
        except (OffsetNotStored, StreamDoesNotExist, ArgumentError) as ex:
            # Otherwise, the partition is lost, or was deleted.
            if isinstance(ex, OffsetNotStored) and self._messages.group is None:
                raise
            self._log_not_stored(offset, stream, str(ex), logging.INFO)
        else:
            partition.stored = offset

    async def _store_when_cancelled(self, partition: Partition) -> None:
        offset = partition.watermark
        try:
            async with time_limit(CANCEL_TIMEOUT):
                await self._store(partition)
        except Exception as ex:
            if isinstance(ex, TimeoutError):
                ex = OffsetNotStored(f'no answer within {CANCEL_TIMEOUT:g} s of the cancellation')
            self._log_not_stored(offset, partition.stream, str(ex), logging.WARNING)

    def _log_not_stored(self, offset: int | None, stream: str, error: str, level: int) -> None:
        prefix = self._log_prefix
        extra = facts(prefix, 'offset_not_stored', stream=stream, error=error)
        text = '%soffset %d of stream %r is not stored: %s'
        logger.log(level, text, prefix, offset, stream, error, extra=extra)
