"""Stores the offsets of a subscription: by itself, or when the program commits them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ...checks import check_integer
from ...error import (
    ArgumentError,
    OffsetNotStored,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    about,
    copy_error,
)
from ...net.connection import Connection
from ...net.observer import Life, facts
from ...net.registration import Registration
from ...protocol import commands
from ...protocol._cursor import MessageCursor
from .queries import check_chunk, check_stored, store_offset
from .tracking import OffsetTracking, check_manual

logger: logging.Logger = logging.getLogger('rbfly.streams')


class OffsetStore:
    """Stores offsets of the stream that a subscription reads.

    A member of a group stores them only in its terms, the times of its activity, and only on its
    connection: another process may have become active.  Other subscriptions also store them on
    another connection, if the stream there is the one that was read.

    :param cursor: has finished the messages whose offsets are stored.
    :param tracking: of the subscription; None to store only what `write_offset` passes.
    :param group: name of the group; None for none.
    :ivar may_store: no other member of the group can be active.
    :ivar term: how many times the member has become active.
    """

    def __init__(
        self,
        registration: Registration,
        cursor: MessageCursor,
        stream: str,
        tracking: OffsetTracking | None,
        group: str | None,
    ) -> None:
        self.may_store: bool = group is None
        self.term: int = 0
        self._cluster = registration.cluster
        self._registration = registration
        self._cursor = cursor
        self._stream = stream
        self._tracking = tracking
        self._auto = None if tracking is None or tracking.manual else tracking
        self._reference = '' if tracking is None else tracking.reference or ''
        self._group = group
        self._kept: int | None = None  # the position, if the cursor forgets it
        self._lock: asyncio.Lock  # of `commit`: an earlier offset must not replace a later one
        self._committed = 0  # offset after the last commit of the term
        self._lost: int | None = None  # last message of earlier terms that was not committed
        self._stored: int | None = None  # last offset stored on this connection
        self._due = 0  # number of finished messages at which to store the next offset
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the lock, or of the timer
        self._count_again()

    def is_of_member(self, group: str, stream: str) -> bool:
        """True if a member has joined this group on this stream, and is not closed."""
        registration = self._registration
        if registration.life is not Life.ACTIVE or not registration.declared:
            return False
        return (self._group, self._stream) == (group, stream)

    # -- what the program has received

    @property
    def position(self) -> int | None:
        """Offset after the last message received; None before the first."""
        delivered = self._cursor.delivered
        return self._kept if delivered is None else delivered

    def keep_position(self, position: int | None) -> None:
        """Keep a position for the time in which the cursor has none."""
        self._kept = position

    def start_over(self) -> None:
        """The stream was deleted, and its offsets with it."""
        self._kept, self._committed, self._lost = None, 0, None

    def begin_term(self) -> None:
        """The member has become active."""
        self.term += 1
        self.may_store = True

    def end_term(self) -> None:
        """The member is no longer active: note the messages that the program has not committed."""
        delivered = self._cursor.delivered
        if delivered is not None and delivered > self._committed:
            self._lost = max(self._lost or 0, delivered - 1)
        self._committed = 0
        self.may_store = False

    # -- on which connection

    @property
    def connection(self) -> Connection | None:
        """The subscription's connection, if an offset can be stored on it.

        It cannot while the stream may be a new one with the same name, or while another member of
        the group is active.
        """
        connection = self._registration.connection
        if connection is None or not connection.is_open or self._cursor.last_chunk.unverified:
            return None
        return connection if self.may_store else None

    async def _check(self, connection: Connection) -> Connection:
        """Check that the stream on a connection is the one that was read.

        :raises StreamDoesNotExist: the stream was deleted and created again.
        """
        await check_chunk(self._cluster, connection, self._stream, self._cursor.last_chunk.id)
        return connection

    def connect_later(
        self, offset: int, *, is_late: bool = False
    ) -> Callable[[], Awaitable[Connection]]:
        """Return a function that returns a connection on which to store an offset.

        In a group, the function raises :class:`.OffsetNotStored` after the end of the term.

        :param is_late: the offset is of an earlier term.
        """
        term = self.term

        async def connect() -> Connection:
            connection = self.connection
            if self._group is None:
                return connection or await self._check(await self._cluster.locator())
            if connection is None or is_late or term != self.term:
                raise self._not_stored(offset)
            return connection

        return connect

    def _write(self, connection: Connection, offset: int) -> None:
        connection.write(commands.store_offset(self._reference, self._stream, offset))
        connection.require_answer()

    # -- commits of the program

    async def commit(self, offset: int | None) -> None:
        """Store an offset; None for that of the last message delivered.

        :raises OffsetNotStored: the member of a group is no longer active; without an offset, only
            if it had delivered messages that are not committed, and once for them.
        """
        self._cluster.check_loop()
        checked = self.check(offset)
        if checked is not None:
            loop = asyncio.get_running_loop()
            if self._loop is not loop:
                self._loop, self._lock = loop, asyncio.Lock()
            term, is_late = self.term, self._is_late(checked)
            connect = self.connect_later(checked, is_late=is_late)
            async with self._lock:
                try:
                    await store_offset(
                        self._cluster, connect, self._stream, self._reference, checked
                    )
                except OffsetNotStored:
                    self._lost = None
                    raise
            if term == self.term:  # else the member has forgotten what it had delivered
                self._committed = checked + 1
            if self._lost is not None and self._lost <= checked:
                self._lost = None
        if offset is None and self._lost is not None:
            lost, self._lost = self._lost, None
            raise self._not_stored(lost)

    def check(self, offset: int | None) -> int | None:
        """Check the offset to store; None for that of the last message delivered.

        :returns: the offset; None if no message was delivered, or the member of a group is not
            active.
        """
        of = f'subscription of stream {self._stream!r}'
        check_manual(self._tracking, of)
        if offset is not None:
            check_integer('offset', offset, 0, 2**64 - 1)
        if self._is_late(offset):
            return offset  # which `commit` cannot store
        delivered = self._cursor.delivered
        if offset is None and delivered is not None:
            offset = delivered - 1
        if offset is None:
            return None
        if delivered is None or offset >= delivered:
            last = 'no message was' if delivered is None else f'the last one is {delivered - 1}'
            raise ArgumentError(f'offset {offset} of the {of} was not delivered; {last}')
        return offset

    def _is_late(self, offset: int | None) -> bool:
        """True if the member has not been active since it received the message with an offset."""
        if self._group is None:
            return False
        if not self.may_store:
            return True
        if offset is None:
            return False
        if offset < self._cursor.skip_before:
            return True
        delivered, kept = self._cursor.delivered, self._kept
        is_delivered = delivered is not None and offset < delivered
        return not is_delivered and kept is not None and offset < kept

    def _not_stored(self, offset: int) -> OffsetNotStored:
        """Return the error of an offset that the member must not store."""
        is_active = self.may_store and self._is_late(offset)
        why = 'was not active in between' if is_active else 'is no longer active'
        error = OffsetNotStored(
            f'the member of group {self._group!r} on stream {self._stream!r} {why}: offset'
            f' {offset} is not stored; the messages after the stored offset are delivered again'
        )
        return about(error, self._stream, self._reference or None)

    # -- by itself

    def start(self) -> None:
        """Start the timer in the running event loop."""
        loop = asyncio.get_running_loop()
        if self._auto is not None and self._auto.interval and self._loop is not loop:
            self._loop = loop
            self._arm(loop, self._auto.interval)

    def _arm(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self._timer = loop.call_later(interval, self._tick, loop, interval)

    def _tick(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self.store()
        self._arm(loop, interval)

    def store(self, *, last: bool = False) -> None:
        """Store the offset of the last finished message, if the connection can take the frame.

        :param last: write it even if the connection is paused, because the subscription ends.
        """
        if self._auto is None:
            return
        cursor, connection = self._cursor, self.connection
        if self.pending is None:
            self._stored, steps = cursor.finished, self._auto.every
        elif connection is None or (connection.paused and not last):
            steps = 1
        else:
            self._write(connection, self.pending)
            self._stored, steps = cursor.finished, self._auto.every
        unfinished = cursor.unfinished
        if self._auto.every and unfinished is not None:
            self._due = steps + (cursor.finished_count or 0)
            cursor.notify_at(unfinished - 1 + steps)

    def on_progress(self) -> None:
        """Store the offset if enough of the messages that a filter selects are finished."""
        cursor = self._cursor
        count, unfinished = cursor.finished_count, cursor.unfinished
        if count is None or unfinished is None or count >= self._due:
            self.store()
        else:
            cursor.notify_at(unfinished - 1 + self._due - count)

    def on_lost(self) -> None:
        """The member, its connection or the stream was lost: the last offset may not be stored."""
        self._stored = None
        self._count_again()

    def _count_again(self) -> None:
        self._due = 0
        if self._auto is not None and self._auto.every:
            self._cursor.notify_at(-1)  # the count starts at the first message

    @property
    def pending(self) -> int | None:
        """Offset of the last finished message; None if there is none, or it is stored."""
        finished = self._cursor.finished
        return None if self._auto is None or finished == self._stored else finished

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Store the offset of the last finished message, if there is a connection."""
        self.stop()
        self.store(last=True)
        if self.pending is not None:
            self._log('no connection')

    async def close(self, connection: Connection | None, *, verify: bool) -> None:
        """Store the offset of the last finished message, and wait for that if necessary.

        Without a connection, connects within the client's `close_timeout`, unless the subscription
        is in a group.

        :param connection: the cursor's.
        :param verify: read the stored offset back.
        :raises OffsetNotStored: this has failed, and the stream exists.
        """
        self.stop()
        if self._auto is None:
            return
        cluster, finished = self._cluster, self._cursor.finished
        self.store(last=True)
        failure: RbFlyError
        try:
            if verify and connection is not None and self.pending is None:
                with suppress(StreamConnectionError):  # then it is stored again
                    async with cluster.closing.limit():
                        await self.verify(connection)
                        return
            if self._group is not None and finished is not None:
                raise StreamConnectionError('the member has lost its connection')
            if (pending := self.pending) is None:
                return
            async with cluster.closing.limit() as on_progress:
                connection = await cluster.locator()
                on_progress()
                self._write(await self._check(connection), pending)
                if verify:
                    await self.verify(connection)
                return
        except StreamDoesNotExist as ex:  # no subscription misses the offset
            self._log(ex)
            return
        except OffsetNotStored:
            raise
        except RbFlyError as ex:
            failure = copy_error(ex)
        except TimeoutError:
            text = f'no answer within {cluster.closing.timeout:g} s'
            failure = StreamConnectionError(text)
        # not in the handlers: the errors refer to the task
        error = OffsetNotStored(
            f'offset {finished} of stream {self._stream!r} may not be stored under'
            f' {self._reference!r}: {failure}'
        )
        raise about(error, self._stream, self._reference) from failure

    def _log(self, reason: object) -> None:
        prefix = self._cluster.settings.log_prefix
        text = '%scannot store offset %r of stream %r: %s'
        extra = facts(
            prefix,
            'offset_not_stored',
            kind='subscription',
            stream=self._stream,
            reference=self._reference,
            error=str(reason),
        )
        logger.warning(text, prefix, self._reference, self._stream, reason, extra=extra)

    async def verify(self, connection: Connection) -> None:
        """Check that the broker has stored the offset of the last finished message.

        :raises OffsetNotStored: it has not.
        """
        finished = self._cursor.finished
        if finished is not None and self._auto is not None:
            await check_stored(connection, self._stream, self._reference, finished)
