"""Stores the offsets that a program commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from ...checks import check_integer
from ...error import ArgumentError, OffsetNotStored, about
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...net.registration import Registration
from ...protocol._cursor import MessageCursor
from .._group.member import Member
from .._offsets.queries import check_chunk, store_offset
from .._offsets.tracking import OffsetTracking, manual_tracking


class Commits:
    """Stores the offsets of a subscription that the program commits.

    :param tracking: of the subscription; commits need one with `manual`.
    :param member: membership in a group; None without a group.
    """

    __slots__ = (
        '_cluster',
        '_committed',
        '_cursor',
        '_lock',
        '_lost',
        '_member',
        '_registration',
        '_stream',
        '_tracking',
    )

    def __init__(
        self,
        cluster: Cluster,
        registration: Registration,
        cursor: MessageCursor,
        stream: str,
        tracking: OffsetTracking | None,
        member: Member | None,
    ) -> None:
        self._cluster = cluster
        self._registration = registration
        self._cursor = cursor
        self._stream = stream
        self._tracking = tracking
        self._member = member
        self._lock: asyncio.Lock | None = None  # an earlier offset must not replace a later one
        self._committed = 0  # offset after the last commit of a member that is active
        self._lost: int | None = None  # last message of earlier activities that was not committed

    async def commit(self, offset: int | None) -> None:
        """Store an offset; None for that of the last message delivered.

        :raises OffsetNotStored: the member of a group is no longer active; without an offset, only
            if it had delivered messages that are not committed, and once for them.
        """
        self._cluster.check_loop()
        manual, found = self.check(offset)
        if found is not None:
            if self._lock is None:
                self._lock = asyncio.Lock()
            assert manual.reference is not None
            term = None if self._is_late(found) else self._term
            connect = partial(self._connect, term, found)
            async with self._lock:
                try:
                    await store_offset(
                        self._cluster, connect, self._stream, manual.reference, found
                    )
                except OffsetNotStored:
                    self._lost = None
                    raise
            if term == self._term:  # else the member has forgotten what it had delivered
                self._committed = found + 1
            if self._lost is not None and self._lost <= found:
                self._lost = None
        if offset is None and self._lost is not None:
            lost, self._lost = self._lost, None
            raise self._not_stored(lost)

    def connect(self, offset: int) -> Callable[[], Awaitable[Connection]]:
        """Return a function that returns the connection on which to store an offset.

        For a member of a group, that function raises :class:`.OffsetNotStored` unless the member
        has been active since this call.
        """
        return partial(self._connect, self._term, offset)

    def _is_late(self, offset: int | None) -> bool:
        """True if the member has not been active since it received the message with an offset."""
        member = self._member
        if member is None:
            return False
        return not member.may_store or (offset is not None and offset < self._cursor.skip_before)

    @property
    def _term(self) -> int | None:
        """The term of the member; None without a group."""
        return None if self._member is None else self._member.term

    def on_leave(self) -> None:
        """The member is no longer active: note the messages that the program has not committed."""
        delivered = self._cursor.delivered
        if delivered is not None and delivered > self._committed:
            self._lost = max(self._lost or 0, delivered - 1)
        self._committed = 0

    def start_over(self) -> None:
        """The stream was deleted, and its offsets with it."""
        self._committed, self._lost = 0, None

    def check(self, offset: int | None) -> tuple[OffsetTracking, int | None]:
        """Check the offset to store; None for that of the last message delivered.

        :returns: how to store it, and the offset; None if no message was delivered, or the member
            of a group is not active.
        """
        of = f'subscription of stream {self._stream!r}'
        manual = manual_tracking(self._tracking, of)
        if offset is not None:
            check_integer('offset', offset, 0, 2**64 - 1)
        if self._is_late(offset):
            return manual, offset  # which `commit` cannot store
        delivered = self._cursor.delivered
        if offset is None and delivered is not None:
            offset = delivered - 1
        if offset is None:
            return manual, None
        if delivered is None or offset >= delivered:
            last = 'no message was' if delivered is None else f'the last one is {delivered - 1}'
            raise ArgumentError(f'offset {offset} of the {of} was not delivered; {last}')
        return manual, offset

    async def _connect(self, term: int | None, offset: int) -> Connection:
        """Return a connection to store an offset of the stream that was read.

        :param term: of the member when the offset was committed.
        :raises OffsetNotStored: it has lost its activity since, even if it is active again.
        """
        connection, last_chunk = self._registration.connection, self._cursor.last_chunk
        member = self._member
        if member is not None:
            is_same = member.may_store and member.term == term
            if connection is None or not connection.is_open or not is_same:
                raise self._not_stored(offset)
            return connection
        if connection is None or not connection.is_open or last_chunk.unverified:
            connection = await self._cluster.locator()
            await check_chunk(self._cluster, connection, self._stream, last_chunk.id)
        return connection

    def _not_stored(self, offset: int) -> OffsetNotStored:
        """Return the error of an offset that the member must not store."""
        member, why = self._member, 'is no longer active'
        if member is not None and member.may_store and self._is_late(offset):
            why = 'was not active in between'
        error = OffsetNotStored(
            f'the {member!r} {why}: offset {offset} is not stored; the messages after the stored'
            ' offset are delivered again'
        )
        reference = None if self._tracking is None else self._tracking.reference
        return about(error, self._stream, reference)
