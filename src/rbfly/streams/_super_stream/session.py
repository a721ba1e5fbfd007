"""Reads the partitions of a super stream as one subscription.

Its state changes only in these ways (:data:`TRANSITIONS`)::

    NEW -> READING, CLOSING, CLOSED
    READING -> DELETED, CLOSING, CLOSED
    DELETED -> READING, CLOSING, CLOSED
    CLOSING -> CLOSED
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableSet, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from ...checks import check_type
from ...error import (
    ArgumentError,
    OffsetNotStored,
    ProtocolError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionClosed,
    about,
    copy_error,
)
from ...net.cluster import Cluster
from ...net.observer import Observer, call_each, check_transition, facts
from ...protocol._cursor import MessageCursor
from ...protocol._decoder import Decoder
from ...protocol._identity import LastChunk
from ...protocol.offset import Offset, OffsetSource, OffsetType
from .._admin.partitions import AT_ONCE, PACE, query_partitions, retried
from .._consume._iteration import RoundRobin
from .._consume.options import Offsets, ReadSettings
from .._consume.session import SubscriptionSession
from .._consume.waiter import MessageWaiter, Source, Waiter, WaiterState
from .._group.handover import RevokeError, first_of
from .._offsets.store import OffsetStore
from .._offsets.tracking import check_manual
from .._waiting import WaitingTasks, cancel, counted_states

logger: logging.Logger = logging.getLogger('rbfly.streams')


class MergedState(Enum):
    """What the subscription of a super stream does."""

    NEW = 'new'  # its partitions are not known
    READING = 'reading'
    DELETED = 'deleted'  # the super stream: those of the next one are not known
    CLOSING = 'closing'
    CLOSED = 'closed'


ENDS = (MergedState.CLOSING, MergedState.CLOSED)
TRANSITIONS: Mapping[MergedState, Sequence[MergedState]] = {
    MergedState.NEW: [MergedState.READING, *ENDS],
    MergedState.READING: [MergedState.DELETED, *ENDS],
    MergedState.DELETED: [MergedState.READING, *ENDS],
    MergedState.CLOSING: [MergedState.CLOSED],
    MergedState.CLOSED: [],
}


class PartitionReader(Waiter):
    """One partition.  Its session uses it as its waiter.

    :param merged: the session of the super stream.
    :ivar missing: the error that the partition does not exist, until the cause is known.
    :ivar position: the position of its session before that error.
    """

    def __init__(self, merged: MergedSession, name: str) -> None:
        super().__init__(merged.waiter.turn)
        self.name = name
        self.missing: StreamDoesNotExist | None = None
        self.position: int | None = None
        self._merged: MergedSession | None = merged  # None once this is closed

    def end(self) -> None:
        """End the partition; the last one ends the subscription."""
        super().end()
        if self._merged is not None:
            self._merged.on_partition_end()

    def wake(self) -> None:
        """Look at the partition in its turn."""
        if self._merged is not None:
            self._merged.on_arrival(self.name)

    def is_waiting(self) -> bool:
        return self._merged is not None and self._merged.waiter.is_waiting()

    def on_missing(self, error: StreamDoesNotExist, position: int | None) -> None:
        """The partition does not exist."""
        self._enter(WaiterState.MISSING)
        self.missing, self.position = error, position

    def on_created(self) -> None:
        """It was created again."""
        self._enter(WaiterState.READING)
        self.missing = None

    def close(self) -> None:
        """The session of the partition is closed, or about to be."""
        super().close()
        self._merged = None


class Former(NamedTuple):
    """What is known of a partition that is gone, for the time when it comes back."""

    position: int | None
    identity: LastChunk | None  # None if it was deleted
    error: StreamDoesNotExist | None  # if so, perhaps: to raise then


class MergedSession:
    """Owns the sessions of all partitions, one :class:`SubscriptionSession` each.

    :param members: offset stores of the client's members of groups; refers to them weakly.
    :param settings: how to read the partitions.  One that is added later starts at its first
        message, as one that the mapping of offsets lacks, unless an offset of it is stored; with an
        end, none is added.
    :param refresh_interval: seconds between two requests for the partitions.
    :ivar turns: the order in which the partitions are read.
    """

    failed = False  # each partition's session holds its own errors

    def __init__(
        self,
        cluster: Cluster,
        members: MutableSet[OffsetStore],
        waiter: MessageWaiter,
        stream: str,
        settings: ReadSettings,
        refresh_interval: float,
    ) -> None:
        self.stream = stream
        self.waiter: MessageWaiter = waiter
        self.turns: RoundRobin = RoundRobin(MessageCursor(None, Decoder(), turn=self.waiter.turn))
        self.state: MergedState = MergedState.NEW
        self.partitions: dict[str, PartitionReader] = {}
        self.sessions: dict[str, SubscriptionSession] = {}
        self._by_cursor: dict[MessageCursor, PartitionReader] = {}
        self._gone: dict[str, Former] = {}
        self._cluster = cluster
        self._members = members
        self._settings = settings
        self._interval = refresh_interval
        self._errors: list[Exception] = []  # for the next tasks that wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listing: asyncio.Task[tuple[str, ...]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unopened: deque[MessageCursor] = deque()
        self._pace: asyncio.TimerHandle | None = None  # until the next ones open
        self._opening = WaitingTasks()  # in `open`
        self._closed = asyncio.Event()
        self.waiter.attach(self)

    def __repr__(self) -> str:
        return f'subscription of super stream {self.stream!r}'

    def _enter(self, state: MergedState) -> None:
        self.state = check_transition(self, self.state, state, TRANSITIONS)

    @property
    def closed(self) -> bool:
        """True if the program receives no more messages."""
        return self.state in ENDS

    @property
    def status(self) -> str:
        """What the subscriptions of the partitions do, for people."""
        if self.state is MergedState.READING:
            return counted_states([item.status for item in self.sessions.values()])
        return 'not open' if self.state is MergedState.NEW else self.state.value

    @property
    def reconnects(self) -> int:
        """How often the partitions were declared again."""
        return sum(item.reconnects for item in self.sessions.values())

    @property
    def _has_ended(self) -> bool:
        return self.closed or self.waiter.ended

    @property
    def _is_listed(self) -> bool:
        """True if the partitions are known."""
        return self.state is MergedState.READING

    @property
    def cursor(self) -> MessageCursor:
        """The cursor of the partition whose turn it is."""
        return self.turns.current

    # -- the partitions

    def _list(self) -> None:
        """Ask for the partitions, unless a request is in progress."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not loop:  # the client has moved to another event loop
            self._loop, self._listing, self._pace = loop, None, None
            # Open them again.
            self.turns.drained.update(self._by_cursor.keys() - set(self._unopened))
        if self._listing is None:
            query = partial(query_partitions, self._cluster, self.stream)
            listing = retried(self._cluster, self.stream, query)
            self._listing = asyncio.Task(listing, loop=loop)  # never an eager one
            self._listing.add_done_callback(self._on_answer)

    def _on_answer(self, listing: asyncio.Task[tuple[str, ...]]) -> None:
        if listing is not self._listing:
            return
        self._listing = None
        error: Exception | None = None
        if listing.cancelled():  # the program has cancelled every task of the loop
            error = StreamConnectionError(f'{self!r}: its task was cancelled')
        elif isinstance(failure := listing.exception(), Exception):
            error = failure
        if error is None:
            self._on_listed(listing.result())
        elif isinstance(error, StreamDoesNotExist):
            self._start_over(error)
        elif not self._is_listed or not isinstance(error, StreamConnectionError):
            self._keep(error)
        if self._is_listed and (self._settings.until is None or error is not None):
            self._list_later()
        self.waiter.wake()
        self._opening.wake()

    def _list_later(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self._interval, self._on_timer)

    def _on_timer(self) -> None:
        readers = (item for item in self.partitions.values() if not (item.ended or item.missing))
        if self._cluster.connected or (self.waiter.is_waiting() and not any(readers)):
            self._list()
        else:  # the readers of the partitions reconnect; after a disconnect, nothing does
            self._list_later()

    def _on_listed(self, names: Sequence[str]) -> None:
        if self._has_ended:
            return
        listed = dict.fromkeys(names)  # a partition that is bound twice is read once
        for name, partition in list(self.partitions.items()):
            if name not in listed:
                self._drop(partition)
            elif partition.missing is not None:  # deleted, and created again
                self._errors.append(partition.missing)
                partition.on_created()
                self.turns.drained.add(self.sessions[name].cursor)
        if self._settings.until is None or not self._is_listed:
            for name in listed:
                if name not in self.partitions:
                    self._add(name)
        if not self._is_listed:
            self._enter(MergedState.READING)

    def _add(self, name: str) -> None:
        partition = PartitionReader(self, name)
        session = self.sessions[name] = SubscriptionSession(
            self._cluster, self._members, partition, name, self._start_of(name), self._settings
        )
        if name in self._gone:
            former = self._gone.pop(name)
            session.take_over(former.position, former.identity)
            if former.error is not None:
                self._errors.append(StreamDoesNotExist(name, 'was deleted and created again'))
        self.partitions[name] = self._by_cursor[session.cursor] = partition
        self._unopened.append(session.cursor)
        if self.state is not MergedState.NEW:
            self._note(Observer.on_partition_added, name, 'was added: reading it')

    def _begin(self) -> None:
        """Open the next few partitions, at most AT_ONCE in each PACE.

        While the client is disconnected, wait: the partitions before them reconnect it, and report
        why they cannot.
        """
        unopened = self._unopened
        if not unopened or self._pace is not None or self._has_ended:
            return
        if self._cluster.connected or len(unopened) >= len(self.partitions):
            for _ in range(min(AT_ONCE, len(unopened))):
                self.turns.drained.add(unopened.popleft())
        if unopened:
            assert self._loop is not None
            self._pace = self._loop.call_later(PACE, self._on_pace)

    def _on_pace(self) -> None:
        self._pace = None
        self.waiter.wake()

    def _start_of(self, name: str) -> Offset | OffsetSource:
        offset: Offsets = self._settings.offset
        if isinstance(offset, Mapping):
            return offset.get(name, Offset.FIRST)
        if self.state is MergedState.NEW or not isinstance(offset, Offset):
            return offset
        if offset.type == OffsetType.REFERENCE:
            return Offset.reference(str(offset.value), default=Offset.FIRST)
        return Offset.FIRST

    def _drop(self, partition: PartitionReader) -> None:
        self._forget(partition)
        self._note(Observer.on_partition_gone, partition.name, 'is gone: reading the others')
        self.on_partition_end()

    def _forget(self, partition: PartitionReader) -> None:
        partition.close()
        del self.partitions[partition.name]
        session = self.sessions.pop(partition.name)
        del self._by_cursor[session.cursor]
        self.turns.remove(session.cursor)
        identity = None if partition.missing else session.identity
        position = partition.position if partition.missing else session.position
        self._gone[partition.name] = Former(position, identity, partition.missing)
        session.release()

    def _note(self, event: Callable[[Any, str, str], None], name: str, text: str) -> None:
        self._cluster.observers.notify(event, self.stream, name)
        prefix = self._cluster.settings.log_prefix
        happened = event.__name__.removeprefix('on_')
        extra = facts(prefix, happened, kind='subscription', stream=name, super_stream=self.stream)
        logger.info(
            '%ssuper stream %r: partition %r %s', prefix, self.stream, name, text, extra=extra
        )

    def _start_over(self, error: StreamDoesNotExist) -> None:
        """The super stream was deleted: read the next one with its name from the beginning."""
        for partition in list(self.partitions.values()):
            self._forget(partition)
        # its partitions were deleted with it
        self._gone = {
            name: Former(former.position, None, None) for name, former in self._gone.items()
        }
        self._unopened.clear()
        if self._is_listed:
            self._enter(MergedState.DELETED)
        self._errors = [*self._revoke_errors, error]

    @property
    def _revoke_errors(self) -> list[RevokeError]:
        return [error for error in self._errors if isinstance(error, RevokeError)]

    def _keep(self, error: Exception) -> None:
        """Keep an error for the next task that waits: one for each outage or refusal."""
        match error:
            case StreamConnectionError():
                is_known = bool(self._errors)
            case ProtocolError(code=code):
                is_known = any(getattr(known, 'code', None) == code for known in self._errors)
            case _:
                is_known = False
        if not is_known:
            if isinstance(error, RbFlyError):
                about(error, self.stream)
            self._errors.append(error)

    def on_arrival(self, name: str) -> None:
        """A message or an error of a partition has arrived."""
        self.turns.add(self.sessions[name].cursor)
        self.waiter.wake()

    def on_partition_end(self) -> None:
        """A partition has ended; the subscription ends with the last one, if it has an end."""
        has_end = self._settings.until is not None
        if (has_end or self.partitions) and all(item.ended for item in self.partitions.values()):
            self.waiter.end()

    # -- the waiting task

    def on_wait(self, *, finished: bool = True) -> None:
        """A task is about to wait: raise a pending error, or open the partitions.

        :param finished: the program asks for the next message.
        """
        if self._errors:
            raise copy_error(self._errors.pop(0))
        if not self._is_listed or self._loop is not asyncio.get_running_loop():
            self._list()
        if finished:
            self.turns.sort()
            for source in self._ready():  # their batches wait for more
                source.on_wait(finished=False)
        self.on_yield()

    def on_yield(self) -> None:
        """Other tasks have run: open the partitions that have no messages, or raise their error."""
        drained, errors = self.turns.drained, self._errors
        self._begin()
        while drained and not self._has_ended:
            partition = self._by_cursor.get(cursor := drained.pop())
            if partition is None or partition.ended or partition.missing or cursor.has_messages:
                continue
            session = self.sessions[partition.name]
            position = session.position  # which an error of `on_wait` forgets
            try:
                # `turns` has marked them as finished
                session.on_wait(finished=False)
            except StreamDoesNotExist as ex:
                partition.on_missing(ex, position)
                self._list()
            except Exception as ex:
                self.turns.add(cursor)
                self._keep(ex)
        if errors:
            raise copy_error(errors.pop(0))

    def parts(self) -> Sequence[Source]:
        """Return the sessions of the partitions that have messages, in turn."""
        self.turns.sort()
        return self._ready()

    def _ready(self) -> list[SubscriptionSession]:
        partitions = map(self._by_cursor.get, self.turns.ready)
        return [self.sessions[partition.name] for partition in partitions if partition is not None]

    async def open(self) -> None:
        """Wait until the broker has accepted the subscriptions of all partitions.

        :raises SubscriptionClosed: the subscription is closed.
        """
        self._cluster.check_loop()
        pending = True
        while pending and not self._has_ended:
            self.on_wait(finished=False)
            pending = not self._is_listed
            for name, partition in list(self.partitions.items()):
                if partition.state is WaiterState.MISSING:
                    pending = True
                elif partition.state is WaiterState.READING:
                    self.on_yield()  # those after it
                    session = self.sessions[name]
                    try:
                        await session.open()
                    except (StreamDoesNotExist, SubscriptionClosed):
                        self.turns.drained.add(session.cursor)
                        pending = True
            if pending and not self._has_ended:
                self._list()
                await self._opening.wait()
        if self.closed:
            raise about(SubscriptionClosed(f'the {self!r} is closed'), self.stream)

    # -- offsets

    @property
    def active(self) -> tuple[str, ...]:
        """The partitions whose messages the broker delivers."""
        return tuple(name for name, session in self.sessions.items() if session.active)

    @property
    def position(self) -> dict[str, int | None]:
        """Offset after the last message delivered, by partition."""
        gone = {
            name: former.position
            for name, former in self._gone.items()
            if former.position is not None
        }
        return gone | {name: session.position for name, session in self.sessions.items()}

    async def commit(self, offsets: Mapping[str, int] | None) -> None:
        """Store offsets, by partition; None for those of the last messages delivered."""
        self._cluster.check_loop()
        check_manual(self._settings.tracking, self)  # also before the partitions are known
        sessions = self.sessions
        if offsets is None:
            await self._all(
                {name: session.offsets.commit(None) for name, session in sessions.items()}
            )
            return
        check_type('offsets', offsets, Mapping, None)
        for name, offset in offsets.items():
            if name in sessions:
                sessions[name].offsets.check(offset)
            elif name not in self._gone:
                raise ArgumentError(f'{self!r} does not read a partition {name!r}')
        await self._all(
            {
                name: session.offsets.commit(offsets[name])
                for name, session in sessions.items()
                if name in offsets
            }
        )

    # -- ending

    def stop(self) -> None:
        """Deliver no more messages; `finish` closes the subscription."""
        self._cluster.check_loop()
        if self.closed:
            return
        for session in self.sessions.values():
            session.stop()
        self.waiter.end()
        self._opening.wake()

    async def finish(self) -> None:
        """Close the subscription: the program asks for a message after the last one."""
        await self._close({name: session.finish for name, session in self.sessions.items()})

    async def close(self, *, wait: bool, reader: asyncio.Task[Any] | None = None) -> None:
        """Close the subscription, and end the iteration of a waiting task.

        :param wait: wait for the broker's answers; after `stop`, first for the program.
        :param reader: the task that has received the last message.
        """
        self._cluster.check_loop()
        if not wait:
            self._abort()
            return
        last = self._by_cursor.get(self.cursor)
        try:
            if last is not None:  # the messages of all other partitions are finished
                await self.sessions[last.name].wait_for_reader(reader)
        except BaseException:  # cancelled
            self._abort()
            raise
        await self._close(
            {name: partial(session.close, wait=True) for name, session in self.sessions.items()}
        )

    async def _close(self, calls: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        if self.closed:
            if not any(session.is_revoking for session in self.sessions.values()):
                await self._closed.wait()
            return
        self._enter(MergedState.CLOSING)
        try:
            self._end_waiting()
            await self._all({name: call() for name, call in calls.items()}, self._revoke_errors)
        except Exception:
            self._errors.clear()
            raise
        finally:
            self._end()

    async def _all(
        self, calls: Mapping[str, Awaitable[None]], pending: Sequence[RevokeError] = ()
    ) -> None:
        """Wait for calls of all partitions at once, then raise one error.

        :param pending: errors of earlier handovers.
        """
        tasks = [asyncio.ensure_future(call) for call in calls.values()]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:  # each of them has ended
                if not task.cancelled() and isinstance(error := task.exception(), RevokeError):
                    error.log(self._cluster.settings.log_prefix)
            raise
        errors = {
            name: error for name, error in zip(calls, results, strict=True) if error is not None
        }
        if errors or pending:
            try:
                raise self._one_of(errors, pending)
            finally:
                del tasks, results, errors, pending  # their tracebacks refer to this frame

    def _one_of(
        self, errors: Mapping[str, BaseException], pending: Sequence[RevokeError]
    ) -> BaseException:
        """Return the error that stands for those of partitions.

        :class:`.OffsetNotStored` names all of them; errors of other libraries go first, and their
        notes show the others.
        """
        ordered = [*pending, *errors.values()]
        ordered.sort(key=lambda error: isinstance(error, RbFlyError))
        if not isinstance(ordered[0], RbFlyError) or len(ordered) == 1:
            return first_of(ordered)
        ordered.sort(key=lambda error: isinstance(error, OffsetNotStored))
        if not isinstance(ordered[-1], OffsetNotStored):
            return ordered[0]
        names = ', '.join(map(repr, errors))
        error = OffsetNotStored(
            f'{self!r}: no offset is stored for partitions {names}: {ordered[0]}'
        )
        error.__cause__ = ordered[0]
        return about(error, self.stream, ordered[0].reference)

    def _end_waiting(self) -> None:
        self.waiter.close()
        self._opening.wake()

    def _abort(self) -> None:
        """Close the subscription without waiting, unless another task closes it."""
        if not self.closed:
            self._end_waiting()
            self._end()

    def _end(self) -> None:
        self._enter(MergedState.CLOSED)
        self.waiter.close()
        listing, self._listing = self._listing, None
        cancel(listing)
        for timer in (self._timer, self._pace):
            if timer is not None:
                timer.cancel()
        self._timer = self._pace = None
        for error in self._revoke_errors:  # the subscription was dropped, or `close` cancelled
            error.log(self._cluster.settings.log_prefix)
        self._errors.clear()
        for partition in self.partitions.values():
            partition.close()
        call_each([session.abort for session in self.sessions.values()])
        self._by_cursor.clear()
        self._closed.set()

    def release(self) -> None:
        """Close the subscription without waiting: the program has dropped its last reference.

        May be called from any thread, with or without a running event loop.
        """
        if self.closed:
            return
        loop = self._cluster.loop
        if loop is None or loop.is_closed():
            self._end()
        else:  # never directly, see SubscriptionSession.release
            loop.call_soon_threadsafe(self._abort)
