"""Reads, transforms and publishes messages; each output is stored exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias

from ..checks import check_integer, check_timeout, check_type
from ..error import (
    ArgumentError,
    ArgumentTypeError,
    OffsetNotStored,
    PipeError,
    PublisherNameInUse,
    RbFlyError,
    about,
)
from ..net.observer import facts
from ..streams import (
    AMQPBody,
    BaseSubscription,
    BloomFilterExtract,
    Compression,
    Group,
    Message,
    MessageBatch,
    Offset,
    OffsetTracking,
    OnDecodeError,
    SuperStream,
    by_key,
)
from ._ends import End, Stream, check_end, partition_stream, partitions_of, subscribe
from ._lane import FLUSHES, OFFSETS, POLL, Lane, Work

logger: logging.Logger = logging.getLogger('rbfly.processing')

NAMES_MAX = 255  # of publishers, whose last ids RabbitMQ remembers for a stream
NAME_BYTES = 255
GIVE_UP = 5.0  # seconds to wait for confirms after an error
FIRST_DELAY, LAST_DELAY = 0.1, 5.0  # seconds until the next try with a publisher name in use

Output: TypeAlias = 'AMQPBody | Message'
Outputs: TypeAlias = 'Output | list[Output]'
Transform: TypeAlias = Callable[[Any], Outputs] | Callable[[Any], Awaitable[Outputs]]


class PipeProgress:
    """What a pipe has done, while it runs and when it has ended.

    :ivar read: number of messages of the source whose outputs were published (int); when the pipe
        has ended, without those whose outputs may not be stored.
    :ivar published: number of outputs (int), also those that the target had already stored.
    :ivar restarts: how often the pipe has started again, because another process used the name of
        a publisher (int).
    :ivar position: offset after which the next run continues, by partition of the source
        (dict[str, int]): all outputs before it are stored.
    """

    def __init__(self) -> None:
        self.read: int = 0
        self.published: int = 0
        self.restarts: int = 0
        self.position: dict[str, int] = {}

    def __repr__(self) -> str:
        return (
            f'<{type(self).__name__} read={self.read} published={self.published}'
            f' position={self.position}>'
        )


async def pipe(
    source: Stream | SuperStream,
    target: Stream | SuperStream,
    transform: Transform,
    *,
    name: str,
    route: Any = None,
    context: bool = False,
    amqp: bool = True,
    on_decode_error: OnDecodeError = 'raise',
    filter_extract: BloomFilterExtract | None = None,
    sub_entry_size: int | None = None,
    compression: Compression | str | None = None,
    offset: Offset = Offset.FIRST,
    until: Literal['now'] | Offset | datetime | None = None,
    interval: float = 5.0,
    stranded_after: float | None = None,
    max_unconfirmed: int = 10_000,
    progress: PipeProgress | None = None,
) -> PipeProgress:
    """Read messages, transform them, and publish the results: each is stored exactly once::

        orders, bills = Stream(client, 'orders'), Stream(client, 'bills')
        await pipe(orders, bills, lambda order: {'order': order['id']}, name='billing')

    :param source: what to read: `Stream(client, name)`, or `client.super_stream(name)`.
    :param target: where to publish, perhaps through a client of another cluster.
    :param transform: a function, or an async function, of the body of a message.  It returns a
        body or a :class:`~rbfly.amqp.Message` to publish; or a list of them, which are stored
        all or none, in one partition; or None for nothing.  It must return the same for the same
        message, whenever it is called.
    :param name: name of the job: the same after a restart, and another one for each job.
        Positions are stored in the source under it, and the names of publishers begin with it.
    :param route: chooses the partition of a target that is a super stream, as in
        :meth:`.SuperStream.publisher`; its functions get a :class:`~rbfly.amqp.Message`.  None
        between two super streams of equally many partitions: a message keeps its partition.
    :param context: pass the :class:`~rbfly.amqp.Message` to `transform`, not only its body.
    :param amqp: decode and encode messages; if false, bodies are the bytes of messages.
    :param on_decode_error: what to do with a message that is not AMQP 1.0, as in
        :meth:`.StreamsClient.subscribe`.
    :param filter_extract: returns the filter value of an output, or None.
    :param sub_entry_size: outputs in a sub-entry, which have one publishing id and one confirm, 1
        to 65,535; None for no sub-entries.  Not together with `filter_extract` or `route`.
    :param compression: compression of sub-entries, as in :meth:`.StreamsClient.publisher`.
    :param offset: where the job starts when it runs for the first time.
    :param until: where to end, as in :meth:`.StreamsClient.subscribe`; None to run until the task
        is cancelled.  Without an end, the processes that run the job are a group of this name, of
        which one reads each partition.
    :param interval: seconds after which the position is stored, above 0.
    :param stranded_after: seconds without progress after which a process that reads no partition
        joins the group again, because of errors in RabbitMQ before 4.3.4, as in :class:`.Group`;
        above `interval`, and only without `until`.  None for never.
    :param max_unconfirmed: maximum number of outputs in flight, for each partition of the source.
    :param progress: updated while the pipe runs.
    :returns: what the pipe has done; `progress`, if that was passed.
    :raises PipeError: the source was created again, or ends before the position of the job; or the
        target has outputs of more than 255 partitions.
    :raises OffsetGapError: retention has removed messages that the job has not read.
    :raises TypeError: an argument has another type.
    :raises ValueError: an argument is out of range.

    Errors of `transform`, the subscription and the publisher also end the pipe; a note names the
    message.  The next run starts after the last message whose outputs are stored.
    """
    progress = PipeProgress() if progress is None else progress
    job = Pipe(
        source,
        target,
        transform,
        name,
        route,
        context,
        amqp,
        on_decode_error,
        filter_extract,
        sub_entry_size,
        compression,
        offset,
        until,
        interval,
        stranded_after,
        max_unconfirmed,
        progress,
    )
    await job.run()
    return progress


class Pipe:
    """One call of :func:`pipe`."""

    def __init__(
        self,
        source: End,
        target: End,
        transform: Transform,
        name: str,
        route: Any,
        context: bool,
        amqp: bool,
        on_decode_error: OnDecodeError,
        filter_extract: BloomFilterExtract | None,
        sub_entry_size: int | None,
        compression: Compression | str | None,
        offset: Offset,
        until: Literal['now'] | Offset | datetime | None,
        interval: float,
        stranded_after: float | None,
        max_unconfirmed: int,
        progress: PipeProgress,
    ) -> None:
        check_end('source', source)
        check_end('target', target)
        if source.name == target.name and source.client is target.client:
            raise ArgumentError(f'source and target are the same stream, {source.name!r}')
        if not callable(transform):
            raise ArgumentTypeError(
                f'transform must be a function of a message, not {type(transform).__name__}'
            )
        check_type('name', name, str)
        if not name:
            raise ArgumentError('name must not be empty')
        if not isinstance(target, SuperStream):
            if route is not None:
                raise ArgumentError(f'target {target.name!r} is a stream: omit route')
        elif route is None and not isinstance(source, SuperStream):
            raise ArgumentError(f'target {target.name!r} is a super stream: pass route')
        elif route is not None and sub_entry_size is not None:
            raise ArgumentError('sub-entries of messages with a route: omit sub_entry_size')
        check_type('context', context, bool)
        check_type('amqp', amqp, bool)
        check_type('offset', offset, Offset)
        check_type('interval', interval, int, float)
        check_timeout('interval', interval, positive=True)
        check_timeout('stranded_after', stranded_after, positive=True)
        if stranded_after is not None and stranded_after <= interval:
            raise ArgumentError(
                f'stranded_after must be above interval, {interval:g} seconds, not'
                f' {stranded_after}: the pipe stores no position for so long'
            )
        check_integer('max_unconfirmed', max_unconfirmed, 1, 2**31 - 1)
        check_type('progress', progress, PipeProgress)
        self._source = source
        self._target = target
        is_async = iscoroutinefunction(transform) or iscoroutinefunction(
            getattr(transform, '__call__', None)  # noqa: B004 - of an object
        )
        self._work = Work(
            transform, is_async, context, sub_entry_size, isinstance(route, type(by_key(str)))
        )
        self._name = name
        self._offset = offset
        self._interval = interval
        # Messages of a batch; sub-entries begin with the chunks of the source.
        self._limit = max(1, max_unconfirmed // (FLUSHES + 1)) if sub_entry_size is None else None
        self._progress = progress
        self._reading: dict[str, Any] = {
            'amqp': amqp,
            'on_decode_error': on_decode_error,
            'on_gap': 'raise',
        }
        if until is None:
            group = Group(name, stranded_after=stranded_after, on_revoke=self._on_revoke)
            self._reading |= {'group': group, 'commit': 'manual'}
        elif stranded_after is not None:
            raise ArgumentError('with until, the pipe joins no group: omit stranded_after')
        else:
            self._reading |= {'until': until, 'commit': OffsetTracking(name, manual=True)}
        self._publishing: dict[str, Any] = {
            'amqp': amqp,
            'filter_extract': filter_extract,
            'max_unconfirmed': max_unconfirmed,
            'sub_entry_size': sub_entry_size,
            'compression': compression,
        }
        if route is not None:
            self._publishing['route'] = route
        self._keeps_partitions = route is None and isinstance(target, SuperStream)
        self._targets: dict[str, Stream] = {}  # by partition of the source, if they are kept
        self._lanes: dict[str, Lane] = {}
        self._started: dict[str, Lane] = {}  # whose messages have not arrived
        self._first: dict[str, int] = {}  # offset of the job's first message, by partition
        self._names: set[str] = set()  # partitions of the source
        self._tasks = asyncio.TaskGroup()
        self._messages: BaseSubscription[Any] | None = None

    async def run(self) -> None:
        """Run until the source ends, or something fails."""
        partitions = await partitions_of(self._source)
        self._check_names(*partitions)
        if self._keeps_partitions:
            targets = await partitions_of(self._target)
            if len(partitions) != len(targets):
                raise ArgumentError(
                    f'{self._source.name!r} has {len(partitions)} partitions, and'
                    f' {self._target.name!r} has {len(targets)}: pass route'
                )
            self._targets = {
                name: partition_stream(self._target, to)
                for name, to in zip(partitions, targets, strict=True)
            }
        delay, before = FIRST_DELAY, -1
        while True:
            try:
                await self._run_once()
                return
            except PublisherNameInUse as ex:
                error = ex
            # An earlier run was killed, and the broker still reads what it had sent; or another
            # process runs the job.  Both send the same.
            stored = sum(self._progress.position.values())
            delay = min(2 * delay, LAST_DELAY) if stored == before else FIRST_DELAY
            before = stored
            self._progress.restarts += 1
            self._log(error, delay)
            await asyncio.sleep(delay)

    def _log(self, error: PublisherNameInUse, delay: float) -> None:
        name = '' if self._messages is None else self._messages.connection_name
        prefix = f'[{name}] ' if name else ''
        source, target = self._source.name, self._target.name
        text = '%spipe %r from stream %r to %r starts again in %.1f s: %s'
        extra = facts(prefix, 'pipe_restarts', stream=source, name=self._name, error=str(error))
        logger.warning(text, prefix, self._name, source, target, delay, error, extra=extra)

    async def _run_once(self) -> None:
        self._lanes, self._started = {}, {}
        failure: BaseException | None = None
        try:
            try:
                async with asyncio.TaskGroup() as self._tasks:
                    storing = self._tasks.create_task(self._store_regularly())
                    await self._read()
                    storing.cancel()
            except BaseExceptionGroup as ex:
                failure = first_of(ex)
            except BaseException as ex:
                failure = ex
            for lane in (*self._lanes.values(), *self._started.values()):
                try:
                    await lane.close(failure)
                except BaseException as ex:
                    failure = failure or ex
                self._progress.read -= lane.unconfirmed
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame

    async def _read(self) -> None:
        messages = subscribe(self._source, offset=self._start, **self._reading)
        self._messages = messages
        async with messages:
            try:
                async for batch in messages.batches(self._limit):
                    await self._take(batch)
            except Exception:
                await self._finish(ignore=True)
                raise
            await self._finish()

    async def _take(self, batch: MessageBatch[Any]) -> None:
        """Publish the outputs of a batch."""
        stream = str(batch.stream)
        lane = self._lanes.get(stream)
        started = self._started.pop(stream, None)
        if started is not None:
            if lane is not None:  # of an earlier activity of this member
                await lane.settle()  # without a limit: the target may be away
                await lane.close()
            lane = self._lanes[stream] = started
            await self._open(lane)
        if lane is None:  # the member has handed it over
            return
        if batch.offsets[0] < lane.taken:
            error = PipeError(
                f'stream {stream!r} was deleted and created again: its next message has offset'
                f' {batch.offsets[0]}, but job {self._name!r} has processed the messages before'
                f' offset {lane.taken}; choose another name for the job'
            )
            raise about(error, stream, self._name)
        if not await lane.mark():
            del self._lanes[stream]
            await lane.close()
            return
        published = lane.published
        try:
            await lane.take(batch)
            self._progress.read += len(batch)
        finally:
            self._progress.published += lane.published - published

    # -- positions

    async def _start(self, stream: str) -> Offset:
        """Return where a partition starts: this process is to read it from now on."""
        self._check_names(stream)
        client = self._source.client
        stored = await client.read_offset(stream, self._name)
        if stored is not None:
            start = (stored + 1) % OFFSETS
        elif stream in self._first:  # of an earlier activity, in which it could not be stored
            start = self._first[stream]
        else:
            start = self._first[stream] = await client.resolve_offset(stream, self._offset)
        lane = Lane(
            self._name, self._source, stream, start, stored is None, self._work, self._tasks
        )
        before = self._started.pop(stream, None)
        if before is not None:
            await before.close()
        self._started[stream] = lane
        if stored is None and stream not in self._lanes:
            await self._open(lane)
            self._tasks.create_task(self._mark(lane))
        return Offset.offset(start)

    async def _mark(self, lane: Lane) -> None:
        """Store where a job starts, as soon as this process is to read the partition."""
        while self._started.get(lane.stream) is lane:
            if await lane.mark():
                return
            await asyncio.sleep(POLL)  # the member is not active yet

    def _check_names(self, *streams: str) -> None:
        """Check that RabbitMQ remembers the publishing ids of all partitions.

        :raises PipeError: there are too many.
        :raises ValueError: the name of a publisher is too long.
        """
        for stream in streams:
            if len(f'{self._name}/{stream}'.encode()) > NAME_BYTES:
                raise ArgumentError(
                    f'name must be shorter: {self._name}/{stream} names a publisher, and has more'
                    f' than {NAME_BYTES} bytes'
                )
        self._names |= set(streams)
        if len(self._names) > NAMES_MAX:
            error = PipeError(
                f'source {self._source.name!r} has more than {NAMES_MAX} partitions: RabbitMQ'
                f' remembers the last publishing ids of {NAMES_MAX} publishers of a stream'
            )
            raise about(error, self._source.name, self._name)

    async def _open(self, lane: Lane) -> None:
        target = self._target
        if self._keeps_partitions:
            if lane.stream not in self._targets:
                error = PipeError(
                    f'{lane.stream!r} is a new partition of {self._source.name!r}: start the pipe'
                    f' again when {self._target.name!r} has as many, or pass route'
                )
                raise about(error, lane.stream, self._name)
            target = self._targets[lane.stream]
        await lane.open(target, self._publishing)

    async def _store_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for lane in [*self._lanes.values()]:
                await self._store(lane)

    async def _store(self, lane: Lane) -> None:
        """Store the position of a partition in the source."""
        confirmed = lane.confirmed
        if confirmed <= lane.stored:
            return
        assert self._messages is not None
        messages: Any = self._messages
        last = confirmed - 1
        try:
            if isinstance(self._source, SuperStream):
                await messages.commit({lane.stream: last})
            else:
                await messages.commit(last)
        except OffsetNotStored:  # another process reads the partition, and stores its own position
            return
        except ArgumentError:  # the partition was deleted
            return
        lane.stored = max(lane.stored, confirmed)
        self._progress.position[lane.stream] = confirmed

    async def _finish(self, *, ignore: bool = False) -> None:
        """Wait until all outputs are stored, and store the positions.

        :param ignore: another error is being raised.
        """
        for lane in [*self._lanes.values()]:
            try:
                await lane.settle(GIVE_UP if ignore else None)
                await self._store(lane)
            except RbFlyError:
                if not ignore:
                    raise

    async def _on_revoke(self, stream: str) -> None:
        """The broker takes a partition from this process."""
        started = self._started.get(stream)
        if started is not None:  # no message has arrived: the next process starts here, too
            await started.mark()
        lane = self._lanes.pop(stream, None)
        if lane is not None:
            try:
                await lane.settle()
                await self._store(lane)
            finally:
                await lane.close()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that stands for those of a group."""
    found: Any = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    error: BaseException = found
    return error
