"""Stores the offsets of a subscription: where that is possible, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ...checks import check_integer
from ...error import ArgumentError, OffsetNotStored, about
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...net.observer import Life
from ...net.registration import Registration
from ...protocol import commands
from ...protocol._cursor import MessageCursor
from .queries import check_chunk, check_stored, store_offset
from .tracking import OffsetTracking, manual_tracking


class OffsetStore:
    """Stores offsets of the stream that a subscription reads.

    A member of a group stores them only in its terms, the times of its activity, and only on its
    connection: another process may have become active.  Other subscriptions also store them on
    another connection, if the stream there is the one that was read.

    :param tracking: of the subscription; None if it stores no offset by itself and allows no
        commit.
    :param group: name of the group; None for none.
    :ivar may_store: no other member of the group can be active.
    :ivar term: how many times the member has become active.
    """

    __slots__ = (
        '__weakref__',
        '_cluster',
        '_committed',
        '_cursor',
        '_group',
        '_kept',
        '_lock',
        '_lost',
        '_registration',
        '_stream',
        '_tracking',
        'may_store',
        'term',
    )

    def __init__(
        self,
        cluster: Cluster,
        registration: Registration,
        cursor: MessageCursor,
        stream: str,
        tracking: OffsetTracking | None,
        group: str | None,
    ) -> None:
        self.may_store: bool = group is None
        self.term: int = 0
        self._cluster = cluster
        self._registration = registration
        self._cursor = cursor
        self._stream = stream
        self._tracking = tracking
        self._group = group
        self._kept: int | None = None  # the position, if the cursor forgets it
        self._lock: asyncio.Lock | None = None  # an earlier offset must not replace a later one
        self._committed = 0  # offset after the last commit of the term
        self._lost: int | None = None  # last message of earlier terms that was not committed

    def is_of_member(self, group: str, stream: str) -> bool:
        """True if a member has joined this group on this stream, and is not closed."""
        registration = self._registration
        if registration.life is not Life.ACTIVE or not registration.declared:
            return False
        return (self._group, self._stream) == (group, stream)

    @property
    def in_group(self) -> bool:
        """True if the subscription is a member of a group."""
        return self._group is not None

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

    async def connect_elsewhere(self, on_connected: Callable[[], None] | None = None) -> Connection:
        """Return another connection, on which the stream is the one that was read.

        :raises StreamDoesNotExist: the stream was deleted and created again.
        """
        connection = await self._cluster.locator()
        if on_connected is not None:
            on_connected()
        last_chunk = self._cursor.last_chunk
        await check_chunk(self._cluster, connection, self._stream, last_chunk.id)
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
                return connection or await self.connect_elsewhere()
            if connection is None or is_late or term != self.term:
                raise self._not_stored(offset)
            return connection

        return connect

    def write(self, reference: str, offset: int, *, last: bool) -> bool:
        """Store an offset without waiting; return false if that is not possible now.

        :param last: write it even if the connection is paused.
        """
        connection = self.connection
        if connection is None or (connection.paused and not last):
            return False
        connection.write(commands.store_offset(reference, self._stream, offset))
        connection.require_answer()
        return True

    async def store_elsewhere(
        self, reference: str, offset: int, *, verify: bool, on_connected: Callable[[], None]
    ) -> None:
        """Store an offset on another connection."""
        connection = await self.connect_elsewhere(on_connected)
        connection.write(commands.store_offset(reference, self._stream, offset))
        connection.require_answer()
        if verify:
            await check_stored(connection, self._stream, reference, offset)

    # -- commits of the program

    async def commit(self, offset: int | None) -> None:
        """Store an offset; None for that of the last message delivered.

        :raises OffsetNotStored: the member of a group is no longer active; without an offset, only
            if it had delivered messages that are not committed, and once for them.
        """
        self._cluster.check_loop()
        reference, checked = self.check(offset)
        if checked is not None:
            if self._lock is None:
                self._lock = asyncio.Lock()
            term, is_late = self.term, self._is_late(checked)
            connect = self.connect_later(checked, is_late=is_late)
            async with self._lock:
                try:
                    await store_offset(self._cluster, connect, self._stream, reference, checked)
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

    def check(self, offset: int | None) -> tuple[str, int | None]:
        """Check the offset to store; None for that of the last message delivered.

        :returns: its reference, and the offset; None if no message was delivered, or the member of
            a group is not active.
        """
        of = f'subscription of stream {self._stream!r}'
        reference = manual_tracking(self._tracking, of).reference
        assert reference is not None
        if offset is not None:
            check_integer('offset', offset, 0, 2**64 - 1)
        if self._is_late(offset):
            return reference, offset  # which `commit` cannot store
        delivered = self._cursor.delivered
        if offset is None and delivered is not None:
            offset = delivered - 1
        if offset is None:
            return reference, None
        if delivered is None or offset >= delivered:
            last = 'no message was' if delivered is None else f'the last one is {delivered - 1}'
            raise ArgumentError(f'offset {offset} of the {of} was not delivered; {last}')
        return reference, offset

    def _is_late(self, offset: int | None) -> bool:
        """True if the member has not been active since it received the message with an offset."""
        if self._group is None:
            return False
        return not self.may_store or (offset is not None and offset < self._cursor.skip_before)

    def _not_stored(self, offset: int) -> OffsetNotStored:
        """Return the error of an offset that the member must not store."""
        is_active = self.may_store and self._is_late(offset)
        why = 'was not active in between' if is_active else 'is no longer active'
        error = OffsetNotStored(
            f'the member of group {self._group!r} on stream {self._stream!r} {why}: offset'
            f' {offset} is not stored; the messages after the stored offset are delivered again'
        )
        reference = None if self._tracking is None else self._tracking.reference
        return about(error, self._stream, reference)
