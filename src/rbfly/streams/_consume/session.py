"""Declares a subscription, resumes it after a reconnect, and closes it.

The state of a subscription changes only in these ways (:data:`TRANSITIONS`)::

    READING -> STOPPING, RELEASED, CLOSING, CLOSED
    STOPPING -> RELEASED, CLOSING, CLOSED
    RELEASED -> CLOSED
    CLOSING -> CLOSED
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableSet, Sequence
from enum import Enum
from inspect import isawaitable
from typing import Any

from ...checks import check_type
from ...error import (
    ArgumentTypeError,
    CallbackError,
    OffsetGapError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionClosed,
    about,
    copy_error,
)
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...net.observer import Role, check_transition
from ...net.registration import Owner, Registration
from ...net.retry import can_retry
from ...protocol import commands
from ...protocol._chunk import Chunk
from ...protocol._cursor import MessageCursor
from ...protocol._decoder import Decoder
from ...protocol._identity import LastChunk
from ...protocol.end import End
from ...protocol.offset import Offset, OffsetSource, OffsetType
from ...protocol.start import Start
from .._arguments import check_member_start, check_until
from .._group.handover import RevokeError, first_of
from .._group.member import Member
from .._offsets.gaps import GapCheck
from .._offsets.last_messages import chunk_ids, start_before
from .._offsets.queries import (
    check_identity,
    counted,
    end_before,
    leader_ends_before,
    stored_offset,
)
from .._offsets.store import OffsetStore
from .._waiting import WaitingTasks, is_foreign, of_async_callback
from .options import ReadSettings
from .until import Until
from .waiter import Source, Waiter
from .watchdog import DeliveryWatchdog

NO_PROPERTIES: dict[str, str] = {}  # shared by sessions without a filter; never changed


class SessionState(Enum):
    """What a subscription does."""

    READING = 'reading'
    STOPPING = 'stopping'  # the program finishes its last messages
    RELEASED = 'released'  # the program has dropped its last reference
    CLOSING = 'closing'
    CLOSED = 'closed'


S = SessionState
TRANSITIONS: Mapping[S, Sequence[S]] = {
    S.READING: [S.STOPPING, S.RELEASED, S.CLOSING, S.CLOSED],
    S.STOPPING: [S.RELEASED, S.CLOSING, S.CLOSED],
    S.RELEASED: [S.CLOSED],
    S.CLOSING: [S.CLOSED],
    S.CLOSED: [],
}


class SubscriptionSession(Owner):
    """Owns the registration of a subscription; does not refer to the object that the user holds.

    It opens the registration when a task waits and every message has been delivered.  A task that
    stops waiting neither stops the opening nor changes where the subscription resumes.

    :param members: offset stores of the client's members of groups; refers to them weakly.
    :param waiter: wakes the task that waits for a message.
    :param offset: where the subscription starts, or an async function that returns it.
    :ivar cursor: returns the messages that have arrived.
    :ivar offsets: stores offsets of the stream.
    """

    role = Role.CONSUME
    turns = None  # one stream has no turns; a super stream has, see `MergedSession`
    open_until_closed = False

    def __init__(
        self,
        cluster: Cluster,
        members: MutableSet[OffsetStore],
        waiter: Waiter,
        stream: str,
        offset: Offset | OffsetSource,
        settings: ReadSettings,
    ) -> None:
        credit, until = settings.initial_credit, settings.until
        tracking, group = settings.tracking, settings.group
        decoder = Decoder(settings.amqp, settings.on_decode_error, settings.plan, settings.copy)
        self.stream = stream
        self.state: SessionState = SessionState.READING
        end = None if until is None else End(until)
        self.cursor: MessageCursor = MessageCursor(
            self,
            decoder,
            settings.filter,
            waiter.wake if end is None and group is None else self._on_arrival,
            waiter.turn,
            credit // 2 + 1,  # the broker continues with more than half of it
            stream,
            settings.super_stream,
            end,
            2 * credit,  # RabbitMQ never exceeds the credit itself
        )
        self.registration: Registration = Registration(cluster, self)
        self._cluster = cluster
        self._waiter = waiter
        chosen = settings.filter
        self._properties = NO_PROPERTIES if chosen is None else chosen.properties()
        self._start = Start(offset)
        self._former: LastChunk | None = None  # of the stream that a former session has read
        self._gaps = GapCheck(cluster, stream, settings.on_gap, settings.filter is not None)
        self._credit = credit
        self._unreturned = 0  # credit of consumed chunks
        self._error: Exception | None = None  # for the next task that waits
        self._revoke_errors: list[RevokeError] = []  # for the next ones, or `close`
        self._opening = WaitingTasks()  # in `open`
        self._finishing = WaitingTasks()  # in `wait_for_reader`
        self._position: int | None = None  # of the cursor at the last declaration
        self._watchdog = DeliveryWatchdog(
            stream, self.cursor, self.registration, waiter, in_group=group is not None
        )
        self._end_at = until
        self._until: Until | None = None
        if end is not None:
            self._until = Until(end, self.registration, self.cursor, waiter.end)
        self.offsets: OffsetStore = OffsetStore(
            self.registration, self.cursor, stream, tracking, None if group is None else group.name
        )
        self._member: Member | None = None
        if group is not None:
            members.add(self.offsets)
            self._member = Member(
                group,
                settings.super_stream,
                self,
                offset,
                self._gaps,
                self.offsets,
                settings.hooks,
            )
        cluster.totals.add_cursor(stream, self.cursor)

    def __repr__(self) -> str:
        return f'subscription of stream {self.stream!r}'

    def _enter(self, state: SessionState) -> None:
        self.state = check_transition(self, self.state, state, TRANSITIONS)

    @property
    def closed(self) -> bool:
        """True if the program receives no more messages."""
        return self.state not in (SessionState.READING, SessionState.STOPPING)

    @property
    def ended(self) -> bool:
        """Like `closed`, but already true after `stop`."""
        return self.state is not SessionState.READING

    @property
    def failed(self) -> bool:
        """True if an error is pending."""
        return self._error is not None or bool(self._revoke_errors)

    @property
    def active(self) -> bool:
        """True if the broker delivers messages."""
        return self.registration.is_open and (self._member is None or self._member.is_active)

    @property
    def status(self) -> str:
        """What the subscription does, for people."""
        if self.ended:
            return self.state.value
        if self._waiter.ended:
            return 'ended'
        if self._error is not None:
            return 'failed'
        text = self.registration.status
        if self._member is not None and self.registration.is_open:
            text += f', {self._member.activity.value}'
        return f'{text}, stalled' if self.stalled_since is not None else text

    @property
    def reconnects(self) -> int:
        """How often the subscription was declared again."""
        return max(0, self.registration.opened - 1)

    @property
    def stalled_since(self) -> float | None:
        """Time of the event loop since which the broker delivers nothing that it has, about."""
        return self._watchdog.stall.since

    @property
    def failure(self) -> Exception | None:
        """The error that the next task that waits gets, if there is one."""
        return self._error or (self._revoke_errors[0] if self._revoke_errors else None)

    @property
    def group(self) -> str:
        """Name of its consumer group; '' for none."""
        return '' if self._member is None else self._member.group.name

    @property
    def initial_credit(self) -> int:
        """Number of chunks that the broker may send ahead."""
        return self._credit

    # -- the group

    @property
    def is_revoking(self) -> bool:
        """True in `on_revoke` of this stream, and in the tasks that it has created."""
        return self._member is not None and self._member.is_revoking

    # -- the registration

    async def prepare(self, connection: Connection, id: int) -> commands.Command[Any]:
        start, cursor = self._start, self.cursor
        if self._member is not None:
            await self._member.prepare(connection, id)
            connection.set_subscription(id, cursor.queue)
            joining = self._properties | self._member.properties
            return commands.Subscribe(id, self.stream, Offset.FIRST, self._credit, joining)
        if cursor.position is None:
            if self._former is not None and self._former.id >= 0:
                await check_identity(self._cluster, self.stream, self._former)
            if start.source is not None:
                start.choose(await self.ask(start.source))
            if start.reference is not None:
                start.resolve(await stored_offset(connection, self.stream, start.reference))
            start.choose(await counted(self._cluster, self.stream, start.offset))
        first = committed = end = None
        until, properties = self._until, self._properties
        if until is not None:
            await until.prepare(connection, self.stream)
            if not until.is_complete:
                properties = NO_PROPERTIES  # the filter may skip the chunk that reaches the end
        expected = self._gaps.expected(start, cursor)
        if until or start.needs_chunks(cursor) or expected is not None:
            first, committed = await chunk_ids(connection, self.stream)
            missing = start.missing_end(cursor, committed)
            if missing is None and until is not None:
                missing = until.missing(committed)
            if missing is not None:
                if await leader_ends_before(self._cluster, self.stream, missing):
                    raise StreamDoesNotExist(self.stream, 'was deleted and created again')
                raise StreamConnectionError(
                    f'the replica of stream {self.stream!r} on this node lags behind'
                )
            moved_end = start.moved_end(cursor)
            if moved_end is not None:
                start.resolve_at(
                    await start_before(self._cluster, self.stream, start.offset, moved_end)
                )
        if expected is not None and cursor.position is None:
            end = await end_before(self._cluster, self.stream, expected, committed)
        # Nothing is awaited from here on: the program may have read on until now.
        self._gaps.check(self._gaps.expected(start, cursor), first, end)
        self._position = cursor.position
        offset = start.subscribe_at(cursor, first, committed)
        connection.set_subscription(id, cursor.queue)
        return commands.Subscribe(id, self.stream, offset, self._credit, properties)

    async def ask(self, source: OffsetSource) -> Offset:
        """Return the offset that the program keeps."""
        try:
            result = source(self.stream)
            if isawaitable(result):
                offset = await result
        except BaseException as ex:
            if is_foreign(ex):
                raise
            where = f'the function given as offset=, for stream {self.stream!r}'
            raise CallbackError(of_async_callback(ex, where)) from None
        if not isawaitable(result):
            raise ArgumentTypeError(
                f'offset must be an Offset or an async function; {source!r} is not async'
            )
        check_type('the result of the offset function', offset, Offset)
        check_until(self._end_at, offset)
        if self._member is not None:
            check_member_start(offset)
        return offset

    def detach(self, connection: Connection, id: int) -> commands.Command[Any]:
        connection.set_subscription(id, None)
        self._watchdog.stop()
        if self._until is not None:
            self._until.on_detach()
        if self._member is not None:
            self._member.detach(connection, id)
        return commands.Unsubscribe(id)

    def on_open(self, connection: Connection, id: int) -> None:
        if self._member is None:
            self._watch(is_time=self._start.offset.type == OffsetType.TIMESTAMP)
        else:
            self._member.on_open()
        self._opening.wake()
        if self._until is not None:
            self._waiter.wake()  # `on_wait` asks whether anything is left

    def _watch(self, *, is_time: bool) -> None:
        connection = self.registration.connection
        # The broker may have nothing to deliver to a filter.
        if not self._properties and connection is not None and connection.knows_optional:
            self._watchdog.start(is_time=is_time)

    def on_activity(self, *, active: bool) -> None:
        """The subscription has become the active member of its group, or is no longer."""
        if active:
            self._watch(is_time=False)
        else:
            self._watchdog.stop()

    def on_lost(self, error: RbFlyError) -> None:
        self.offsets.on_lost()
        if not self.closed:
            if not can_retry(error, declared=True):
                self._error = copy_error(error)
            self._waiter.wake()

    def on_failed(self, error: Exception) -> None:
        self._error = error
        self._waiter.wake()
        self._opening.wake()

    def on_revoke_failed(self, error: RevokeError) -> None:
        """Raise an error in the next task that waits for a message, or in `close`."""
        self._revoke_errors.append(error)
        self._waiter.wake()
        self._opening.wake()

    def on_disconnect(self) -> None:
        self.offsets.store(last=True)

    # -- the cursor

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        """Return the credit of a chunk: at once if no other has arrived, else in the next turn."""
        connection = self.registration.connection
        if connection is None or not connection.is_open:
            return
        if not self.cursor.queue.chunks:  # the broker should send more
            self._return_credit(1)
            return
        if self._unreturned == 0:
            asyncio.get_running_loop().call_soon(self._return_credit)
        self._unreturned += 1

    def _return_credit(self, chunks: int = 0) -> None:
        """Return the credit of consumed chunks, and that of `chunks` others, in few frames."""
        chunks += self._unreturned
        self._unreturned = 0
        connection = self.registration.connection
        while chunks and connection is not None and connection.is_open:
            most = min(chunks, commands.CREDIT_MAX)
            connection.write(commands.credit(self.registration.id, most))
            chunks -= most

    def drop_queue(self) -> None:
        """Drop the messages that the program has not received, and return their credit.

        The position stays unchanged; messages that still arrive are also dropped, until the
        subscription is declared again.
        """
        self._return_credit(self.cursor.drop())

    def on_progress(self) -> None:
        """Store the offset: the program has finished enough messages."""
        self.offsets.on_progress()

    def on_replaced(self) -> None:
        """Start over, and raise the error: the stream was deleted and created again."""
        self._start_over()
        raise StreamDoesNotExist(self.stream, 'was deleted and created again')

    def on_end(self) -> None:
        """End the iteration: the broker delivers messages after `until`."""
        self._waiter.end()

    def _on_arrival(self) -> None:
        if self._member is not None:
            self._member.on_arrival()
            return
        if self._until is not None:
            self._until.on_arrival()
        self._waiter.wake()

    def wake(self) -> None:
        """Wake the task that waits for a message."""
        self._waiter.wake()

    def _start_over(self) -> None:
        """The stream was deleted: start over at the beginning of a new one with its name."""
        opened = self.registration.declared or self._former is not None
        self._former = None
        self._start.start_over(opened)
        self.registration.reset()
        self.cursor.start_over()
        self._watchdog.start_over()
        self._gaps.start_over()
        if self._until is not None:
            self._until.start_over()
        if self._member is not None and opened:
            self._member.start_over()
        self.offsets.on_lost()  # the stored offset was deleted with the stream
        self.offsets.start_over()

    @property
    def identity(self) -> LastChunk:
        """The chunk that identifies the stream."""
        if self._member is not None:
            return self._member.identity
        chunk, last_chunk = self.cursor.chunk, self.cursor.last_chunk
        if chunk is not None:  # the program has not received all of its messages
            last_chunk = LastChunk()
            last_chunk.note(chunk)
        return last_chunk if last_chunk.id >= 0 or self._former is None else self._former

    @property
    def position(self) -> int | None:
        """Offset after the last message received; None before the first."""
        return self.offsets.position

    def take_over(self, position: int | None, identity: LastChunk | None) -> None:
        """Read the stream of a former session.

        :param position: of that session.
        :param identity: of that session; None if the stream was deleted.
        """
        self.offsets.keep_position(position)
        self._former = LastChunk() if identity is None else identity
        if identity is None:
            self._start_over()
        elif self._member is not None:
            self._member.resume(identity)
        elif position is not None and self._start.source is None:
            self._start = Start(Offset.offset(position))

    # -- the waiting task

    async def open(self) -> None:
        """Wait until the broker has accepted the subscription, or nothing is left to read.

        :raises SubscriptionClosed: the subscription is closed.
        """
        self._cluster.check_loop()
        while not self._is_ready and not self.closed:
            self.on_wait(finished=False)
            if not self._waiter.ended:
                # until the registration is open, has failed, or is not needed
                await self._opening.wait()
        if self.closed:
            raise about(SubscriptionClosed(f'the {self!r} is closed'), self.stream)

    @property
    def _is_ready(self) -> bool:
        """True if the iteration need not open the subscription to miss no message."""
        return (
            self.registration.is_open
            or self.cursor.has_messages
            or self._waiter.ended
            or isinstance(self._error, OffsetGapError)  # raised by the iteration, which continues
        )

    def on_wait(self, *, finished: bool = True) -> None:
        """A task is about to wait: raise the pending error, or open the registration.

        :param finished: the program has finished all messages that it has received.
        """
        if finished:
            self.cursor.mark_consumed()
        if self._unreturned:
            self._return_credit()
        if self._member is not None:
            self._member.on_wait()
        if self._until is not None and self._until.check():
            self._waiter.end()
            return
        if self._revoke_errors:
            raise self._revoke_errors.pop(0)
        if self._error is not None:
            if isinstance(self._error, StreamDoesNotExist):
                self._start_over()
            if isinstance(self._error, RbFlyError):
                about(self._error, self.stream)
            try:
                raise self._error
            finally:
                self._error = None
        self.offsets.start()
        if self.cursor.position != self._position:
            self.registration.end_outage()
        self.registration.ensure_open()

    def on_yield(self) -> None:
        """Do nothing: the subscription opens when a task waits."""

    def parts(self) -> Sequence[Source]:
        """Return this source alone."""
        return (self,)

    # -- ending

    def stop(self) -> None:
        """Deliver no more messages; `finish` closes the subscription."""
        self._cluster.check_loop()
        if self.closed:
            return
        if self.state is SessionState.READING:
            self._enter(SessionState.STOPPING)
        self.cursor.drop()
        # A declaration in progress, or another activity of a member, would deliver messages.
        if not (self.offsets.may_store and self.registration.is_open):
            self.registration.reset()
        self._waiter.end()
        self._opening.wake()

    async def finish(self) -> None:
        """Close the subscription: the program asks for a message after the last one."""
        self.cursor.mark_consumed()
        await self.close(wait=True)

    async def wait_for_reader(self, reader: asyncio.Task[Any] | None) -> None:
        """After `stop`, wait for the task that has received the last message.

        The wait ends when the task asks for the next message or ends, when another task closes the
        subscription, or after the client's `close_timeout`.
        """
        cursor = self.cursor
        if self.state is not SessionState.STOPPING or cursor.unfinished == cursor.position:
            return
        if reader is None or reader is asyncio.current_task():
            return

        def on_done(_: object) -> None:
            self._finishing.wake()

        reader.add_done_callback(on_done)
        try:
            async with self._cluster.closing.limit():
                await self._finishing.wait()
        except TimeoutError:
            pass
        finally:
            reader.remove_done_callback(on_done)

    async def close(self, *, wait: bool, reader: asyncio.Task[Any] | None = None) -> None:
        """Close the subscription, and end the iteration of a waiting task.

        :param wait: wait for the broker's answers; after `stop`, first for the program.
        :param reader: the task that has received the last message.
        :raises OffsetNotStored: the offset of the last finished message could not be stored, or
            `on_revoke` has not ended.
        :raises RevokeError: `on_revoke` has raised an error.
        """
        registration = self.registration
        if self.state is SessionState.CLOSED:
            return
        self._cluster.check_loop()
        if not wait:
            self.abort()
            return
        try:
            await self.wait_for_reader(reader)
        except BaseException:  # cancelled
            self.abort()
            raise
        if self.closed:
            if not self.is_revoking:  # `on_revoke` calls `close`, which waits for it
                await registration.wait_closed()
            return
        errors: list[Exception] = []
        try:
            self._enter(SessionState.CLOSING)
            registration.begin_close()
            try:
                await self._unsubscribe()
            except Exception as ex:
                errors.append(ex)
            pending, self._revoke_errors = self._revoke_errors, []
        finally:
            self._end()
        # A handover in progress has the error that `close` raises.
        errors[:0] = [error for error in pending if error not in errors]
        if errors:
            try:
                raise first_of(errors)
            finally:
                del errors, pending  # their tracebacks refer to this frame

    async def _unsubscribe(self) -> None:
        registration, cluster = self.registration, self._cluster
        verify = self._waiter.ended or self._member is not None
        self._end_waiting()
        self.cursor.drop()
        try:
            if self._member is not None:
                await self._member.revoke()
            await self.offsets.close(registration.connection, verify=verify)
        finally:
            connection = registration.connection
            answer = registration.reset()
        is_idle = connection is None or connection.is_idle
        await (cluster.idle_closing if is_idle else cluster.closing).wait(answer)

    def _end_waiting(self) -> None:
        self._waiter.close()
        self._opening.wake()
        self._finishing.wake()

    def _end(self) -> None:
        self._enter(SessionState.CLOSED)
        self._waiter.close()
        for error in self._revoke_errors:  # the subscription was dropped, or `close` cancelled
            error.log(self._cluster.settings.log_prefix)
        self._revoke_errors.clear()
        self.registration.close()
        self.cursor.close()
        self._cluster.totals.remove_cursor(self.stream, self.cursor)
        if self._member is not None:
            self._member.close()
        self.offsets.stop()
        self._member = None

    def release(self) -> None:
        """Close the subscription without waiting: the program has dropped its last reference.

        Stores the offset of the last finished message.  May be called from any thread, with or
        without a running event loop.
        """
        if self.closed:
            return
        self._enter(SessionState.RELEASED)
        loop = self._cluster.loop
        if loop is None or loop.is_closed():
            self.abort()
        else:  # never directly: the garbage collector may run within any method of the registration
            loop.call_soon_threadsafe(self.abort)

    def abort(self) -> None:
        """Close the subscription without waiting, unless another task closes it.

        Stores the offset of the last finished message if there is a connection.
        """
        if self.state in (SessionState.CLOSING, SessionState.CLOSED) or self._cluster.is_forked:
            return
        loop = self._cluster.loop
        try:
            if loop is not None and not loop.is_closed():
                self._end_waiting()
                self.offsets.abort()
        finally:
            self._end()
