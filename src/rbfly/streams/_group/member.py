"""Membership of a consumer group: RabbitMQ's single active consumer.

Of the members of a group that read a stream, the broker makes one active.  It sends each change in
a ConsumerUpdate, and waits for the answer: the offset at which the active member starts; or the
sign that a member that is no longer active has stored its offset, so that the next one may start.

The activity of a member changes only in these ways (:data:`TRANSITIONS`)::

    STANDBY -> STARTING
    STARTING -> ACTIVE, STANDBY
    ACTIVE -> LEAVING, LATE, STANDBY
    LEAVING -> LATE, STANDBY
    LATE -> STANDBY
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from ...error import (
    OffsetNotStored,
    RbFlyError,
    StreamConnectionError,
    SubscriptionError,
    about,
)
from ...net.connection import Connection
from ...net.observer import Observer, check_transition, facts
from ...net.registration import Registration
from ...net.retry import backoff
from ...protocol import commands
from ...protocol._cursor import MessageCursor
from ...protocol._identity import LastChunk
from ...protocol.offset import OFFSET_MAX, Offset, OffsetSource, OffsetType
from ...protocol.start import BY_END
from ...time_limits import time_limit, time_limit_at
from .._offsets.gaps import GapCheck
from .._offsets.last_messages import chunk_ids
from .._offsets.queries import (
    check_identity,
    end_before,
    look_up,
    next_offset,
    resolve,
    stored_offset,
)
from .._offsets.store import OffsetStore
from .._waiting import WaitingTasks, cancel
from .handover import Group, Revocation, RevokeError
from .hooks import Hooks
from .stranded import StrandedCheck

logger: logging.Logger = logging.getLogger('rbfly.streams')

STORE_TIMEOUT = 4.0  # seconds to store an offset after a handover; as many to start again


class Activity(Enum):
    """What a member does."""

    STANDBY = 'standby'  # receives no messages
    STARTING = 'starting'  # determines the offset at which it starts
    ACTIVE = 'active'
    LEAVING = 'leaving'  # finishes the messages that the program has received
    LATE = 'late'  # has not finished them in time


TRANSITIONS: Mapping[Activity, Sequence[Activity]] = {
    Activity.STANDBY: [Activity.STARTING],
    Activity.STARTING: [Activity.ACTIVE, Activity.STANDBY],
    Activity.ACTIVE: [Activity.LEAVING, Activity.LATE, Activity.STANDBY],
    Activity.LEAVING: [Activity.LATE, Activity.STANDBY],
    Activity.LATE: [Activity.STANDBY],
}


class Session(Protocol):
    """The parts of a subscription that its membership uses."""

    stream: str
    cursor: MessageCursor
    registration: Registration

    @property
    def ended(self) -> bool:
        """True if the program receives no more messages, because it has closed or stopped it."""

    def ask(self, source: OffsetSource) -> Coroutine[Any, Any, Offset]:
        """Return the offset that the program keeps."""

    def drop_queue(self) -> None:
        """Drop the messages that the program has not received, and return their credit."""

    def on_activity(self, *, active: bool) -> None:
        """The member has become active, or is no longer."""

    def wake(self) -> None:
        """Wake the task that waits for a message."""

    def on_revoke_failed(self, error: RevokeError) -> None:
        """Raise an error in the next task that waits for a message, or in `close`."""


class Member:
    """The membership of one subscription in a group.

    :param super_stream: name of the super stream whose partitions the group reads; None for none.
    :param offset: where to start if no offset is stored under the group's name; or an async
        function that returns where to start each time the member becomes active.
    :param offsets: stores offsets while the member is active.
    :param hooks: functions that the subscription calls.
    """

    def __init__(
        self,
        group: Group,
        super_stream: str | None,
        session: Session,
        offset: Offset | OffsetSource,
        gaps: GapCheck,
        offsets: OffsetStore,
        hooks: Hooks,
    ) -> None:
        self.group = group
        self.activity: Activity = Activity.STANDBY
        self.properties: dict[str, str] = {'single-active-consumer': 'true', 'name': group.name}
        if super_stream is not None:
            self.properties['super-stream'] = super_stream
        self._cluster = session.registration.cluster
        self._session: Session = session
        self._stream = session.stream
        self._gaps = gaps
        self._offsets = offsets
        self._source = None if isinstance(offset, Offset) else offset
        self._offset = offset if isinstance(offset, Offset) else Offset.FIRST
        if self._offset.type == OffsetType.REFERENCE:  # the group's own
            self._offset = self._offset.default or Offset.FIRST
        self._start: int | None = None  # the offset as a number, once it was determined
        self._is_stored = False  # an offset was stored under the group's name
        self._known = LastChunk()  # identifies the stream while this member receives nothing
        self._is_new = False  # the stream: the program has received no message of it
        self._connection: Connection | None = None  # on which it is subscribed
        self._unanswered: list[int] = []  # correlation ids of updates, in order
        self._task: asyncio.Task[None] | None = None  # prepares the answer
        self._leave_by = 0.0  # time of the event loop until which it finishes its messages
        self._has_dropped = False  # messages have arrived since the last update
        self._finishing = WaitingTasks()
        prefix = self._cluster.settings.log_prefix
        self._hooks = hooks
        # In this order, and the first before the program has finished its messages.
        self._first = Revocation(hooks, group.name, self._stream, prefix)
        self._revocation = Revocation(group, group.name, self._stream, prefix)
        self._has_handed_over = False
        self._stranded: StrandedCheck | None = None

    def __repr__(self) -> str:
        return f'member of group {self.group.name!r} on stream {self._stream!r}'

    @property
    def is_active(self) -> bool:
        """True if the broker delivers messages to this member."""
        return self.activity is Activity.ACTIVE

    def _enter(self, activity: Activity) -> None:
        self.activity = check_transition(self, self.activity, activity, TRANSITIONS)

    # -- what the subscription calls

    @property
    def identity(self) -> LastChunk:
        """The chunk that identifies the stream."""
        last_chunk = self._session.cursor.last_chunk
        return last_chunk if last_chunk.id >= 0 else self._known

    async def prepare(self, connection: Connection, id: int) -> None:
        """Prepare to receive updates for a subscription id.

        :raises SubscriptionError: the broker is too old.
        """
        if not connection.knows_optional:
            error = SubscriptionError(f'the {self!r} needs RabbitMQ 3.11 or newer')
            raise about(error, self._stream, self.group.name)
        if self._stranded is not None:
            await self._stranded.wait_before_rejoining()
        await check_identity(self._cluster, self._stream, self._known)
        # What is published from now on is read, whenever the member becomes active.
        if (
            self._source is None
            and self._start is None
            and self._offset.type in BY_END
            and await stored_offset(connection, self._stream, self.group.name) is None
        ):
            self._start = await resolve(self._cluster, self._stream, self._offset)
        self._forget()
        connection.members[id] = self._on_update
        self._connection = connection

    def on_open(self) -> None:
        """The broker has accepted the subscription."""
        if self.group.stranded_after and self._stranded is None:
            self._stranded = StrandedCheck(
                self._session.registration,
                self._stream,
                self.group.name,
                self.group.stranded_after,
                lambda: self.activity is Activity.STANDBY,
            )
        if self._stranded is not None:
            self._stranded.start()

    def detach(self, connection: Connection, id: int) -> None:
        """Leave a connection."""
        connection.members.pop(id, None)
        if self._stranded is not None:
            self._stranded.stop()
        self._cancel()
        # Without an answer, the broker would close the connection later.
        self._answer()
        self._connection = None
        self._stand_by()

    @property
    def is_revoking(self) -> bool:
        """True in `on_revoke`, and in the tasks that it has created."""
        return self._first.is_here or self._revocation.is_here

    async def revoke(self) -> None:
        """Call `on_revoke`: the subscription is being closed.

        :raises RevokeError: it has raised an error.
        :raises OffsetNotStored: it has not ended within `handover_timeout`, or was cancelled.
        """
        if not self._offsets.may_store:
            return
        timeout = self.group.handover_timeout
        try:
            async with time_limit(timeout):
                await self._first.wait()
                await self._revocation.wait()
        except TimeoutError:
            self._on_late()
            error = OffsetNotStored(f'the {self!r}: on_revoke has not ended within {timeout:g} s')
            raise about(error, self._stream, self.group.name) from None
        self._has_handed_over = True

    def close(self) -> None:
        """Drop the references that form cycles: the subscription is closed."""
        self._stranded = None
        del self._session

    def on_arrival(self) -> None:
        """A chunk has arrived in the empty queue."""
        if self.is_active:
            self._session.wake()
        else:
            self._has_dropped = True
            self._session.drop_queue()

    def on_wait(self) -> None:
        """The program may have finished the messages that it has received."""
        self._finishing.wake()

    def resume(self, identity: LastChunk) -> None:
        """Check that the stream is still the one with that chunk before messages arrive."""
        self._known = identity

    def start_over(self) -> None:
        """The stream was deleted: start at the first message of the next one."""
        self._offset, self._start, self._is_stored = Offset.FIRST, None, False
        self._known, self._is_new = LastChunk(), True

    # -- what the broker says

    def _on_update(self, correlation_id: int, active: bool) -> None:
        self._cancel()
        if not self._unanswered:  # RabbitMQ 4.3 may repeat the request
            self._leave_by = asyncio.get_running_loop().time() + self.group.handover_timeout
        self._unanswered.append(correlation_id)
        if active and self._session.ended:
            self._session.registration.reset()
            return
        if self.activity is Activity.ACTIVE:
            self._session.drop_queue()
            self._enter(Activity.LEAVING)
        self._has_dropped = False
        if active:
            self._begin(self._activate())
        elif self.activity in (Activity.LEAVING, Activity.LATE):
            self._begin(self._hand_over())
        else:
            self._stand_by()
            self._answer()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.Task(work, loop=loop)  # never an eager one
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        error: BaseException | None = None if task.cancelled() else task.exception()
        if not isinstance(error, Exception):  # the program has cancelled every task of the loop
            error = StreamConnectionError(f'the {self!r}: its task was cancelled')
        self._session.registration.fail(error)

    def _cancel(self) -> None:
        task, self._task = self._task, None
        cancel(task)

    def _answer(self, start: int | None = None) -> None:
        """Answer all updates; the start counts only for a member that becomes active."""
        unanswered, self._unanswered = self._unanswered, []
        connection = self._connection
        if connection is not None and connection.is_open:
            offset = None if start is None else Offset.offset(start)
            for correlation_id in unanswered:
                connection.write(commands.ConsumerUpdate.respond(correlation_id, offset))

    # -- becoming active

    async def _activate(self) -> None:
        session, cluster = self._session, self._cluster
        try:
            if self.activity in (Activity.LEAVING, Activity.LATE):
                await self._leave()
            if self.activity is not Activity.STARTING:  # after an update that was repeated
                self._enter(Activity.STARTING)
            remaining = self._leave_by + 2 * STORE_TIMEOUT - asyncio.get_running_loop().time()
            limit = min(max(remaining, 0.1), self.group.handover_timeout)
            async with cluster.deadline(limit) as deadline:
                deadline.progress.on_step(f'determining where the {self!r} starts')
                start = await cluster.retry(deadline, self._find_start, OffsetNotStored)
        except Exception as ex:
            self._task = None
            session.registration.fail(ex)
            return
        self._task = None
        if self._has_dropped:
            # RabbitMQ 4.3 took the answer to an earlier update for the answer to this one.
            session.registration.reset()
            session.registration.ensure_open()
            return
        session.cursor.resume(start)
        self._enter(Activity.ACTIVE)
        self._offsets.begin_term()
        self._has_handed_over = False
        self._answer(start)
        session.on_activity(active=True)
        prefix = cluster.settings.log_prefix
        extra = self._facts('activated', offset=start)
        logger.info('%sthe %r is active, from offset %d on', prefix, self, start, extra=extra)
        self._notify(Observer.on_activated)

    async def _find_start(self) -> int:
        connection, stream = self._connection, self._stream
        assert connection is not None  # else the task was cancelled
        await check_identity(self._cluster, stream, self._known)
        if self._source is not None:
            # An offset that the program keeps may be one of the stream before.
            offset = Offset.FIRST if self._is_new else await self._session.ask(self._source)
            start = await self._resolve(offset)
        else:
            stored = await stored_offset(connection, stream, self.group.name)
            if stored is None:
                stored = await self._store_start(connection)
            self._is_stored = stored is not None
            start = next_offset(stored)
        first, committed = await chunk_ids(connection, stream)
        end = await end_before(self._cluster, stream, start, committed)
        self._gaps.check(start, first, end)
        return start

    async def _resolve(self, offset: Offset) -> int:
        """Return the offset of the first message to read, even if retention has removed it."""
        offset = await look_up(self._cluster, self._stream, offset)
        if offset.type == OffsetType.OFFSET:
            assert isinstance(offset.value, int)
            return offset.value
        return await resolve(self._cluster, self._stream, offset)

    async def _store_start(self, connection: Connection) -> int | None:
        """Store the offset before the start: the next member must not start after this one did.

        :returns: the stored offset; None if there is none, because the start is the first message.
        """
        stream, name = self._stream, self.group.name
        if self._is_stored:  # then retention has removed the offset
            self._offset, self._start = Offset.FIRST, None
        start = self._start
        if start is None:
            start = await self._resolve(self._offset)
        self._start = start
        if start == 0 and self._offset.type not in BY_END:
            return None
        offset = start - 1 if start else OFFSET_MAX  # the offset before, modulo 2**64
        connection.write(commands.store_offset(name, stream, offset))
        stored = await stored_offset(connection, stream, name)
        if stored is None:
            error = OffsetNotStored(
                f'the {self!r} cannot store offset {offset}: the broker has not stored it'
            )
            raise about(error, stream, name)
        return stored

    # -- handing over

    async def _hand_over(self) -> None:
        await self._leave()
        self._task = None
        self._answer()

    async def _leave(self) -> None:
        """Finish the messages that the program has received, store the offset, and stand by."""
        # With a function, only if that succeeds.
        can_store = self.group.on_revoke is None and self._hooks.on_revoke is None
        try:
            async with time_limit_at(self._leave_by):
                await self._first.wait()
                await self._finish()
                await self._revocation.wait()
                can_store = True
        except TimeoutError:
            self._on_late()
        except RevokeError as ex:
            self._session.on_revoke_failed(ex)
        except OffsetNotStored as ex:
            self._warn(f'stores no offset: {ex}', 'offset_not_stored', str(ex))
        if can_store:
            try:
                async with time_limit_at(self._leave_by + STORE_TIMEOUT):
                    await self._store()
            except (RbFlyError, TimeoutError) as ex:
                reason = str(ex) or type(ex).__name__
                self._warn(f'cannot store its offset: {reason}', 'offset_not_stored', reason)
        self._has_handed_over = True
        self._stand_by()

    def _on_late(self) -> None:
        """The program has not finished its messages, or `on_revoke` has not ended, in time."""
        self._first.cancel()
        self._revocation.cancel()
        if self.activity in (Activity.ACTIVE, Activity.LEAVING):
            self._enter(Activity.LATE)
            text = 'has not finished its messages: another member may repeat them'
            self._warn(text, 'handover_late')
            self._notify(Observer.on_handover_late)

    async def _finish(self) -> None:
        """Wait until the program has finished the messages that it has received."""
        cursor = self._session.cursor
        while True:
            unfinished, delivered = cursor.unfinished, cursor.delivered
            if unfinished is None or delivered is None or unfinished >= delivered:
                return
            await self._finishing.wait()

    async def _store(self) -> None:
        """Store the offset of the last finished message, and wait until the broker has it."""
        offsets, connection = self._offsets, self._connection
        if connection is None:
            return
        for delay in backoff(*self._cluster.settings.backoff):
            offsets.store(last=True)
            try:
                await offsets.verify(connection)
            except OffsetNotStored:  # the stream has another leader
                offsets.on_lost()
                await asyncio.sleep(delay)
            else:
                return

    def _warn(self, text: str, event: str, error: str | None = None) -> None:
        prefix, extra = self._cluster.settings.log_prefix, self._facts(event, error=error)
        logger.warning('%sthe %r %s', prefix, self, text, extra=extra)

    def _facts(self, event: str, **values: object) -> dict[str, object]:
        prefix, group = self._cluster.settings.log_prefix, self.group.name
        return facts(prefix, event, kind='subscription', stream=self._stream, group=group, **values)

    def _notify(self, event: Callable[..., None], *details: object) -> None:
        self._cluster.observers.notify(event, self._stream, self.group.name, *details)

    def _stand_by(self) -> None:
        """Deliver nothing, and store no offset."""
        was_active = self._offsets.may_store
        if was_active:
            self._offsets.end_term()
        if self.activity is not Activity.STANDBY:
            self._enter(Activity.STANDBY)
        self._first.reset()
        self._revocation.reset()
        self._forget()
        if was_active:
            self._session.on_activity(active=False)
            prefix = self._cluster.settings.log_prefix
            extra = self._facts('deactivated')
            logger.info('%sthe %r is no longer active', prefix, self, extra=extra)
            self._notify(Observer.on_deactivated, not self._has_handed_over)
            if not self._has_handed_over:
                self._hooks.lost(self._stream)

    def _forget(self) -> None:
        """Forget the messages; remember the stream that they are of."""
        cursor = self._session.cursor
        self._known = self.identity
        if cursor.delivered is not None:
            self._is_new = False
            self._offsets.keep_position(cursor.delivered)
        cursor.start_over()
        cursor.drop()
        self._offsets.on_lost()  # counts again
