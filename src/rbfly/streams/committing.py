"""Stores the offsets that a program commits."""

from __future__ import annotations

import asyncio
from functools import partial

from ..checks import check_integer
from ..error import ArgumentError, SubscriptionError
from ..net.cluster import Cluster
from ..net.connection import Connection
from ..net.registration import Registration
from ..protocol._cursor import MessageCursor
from .group import Member
from .offsets import check_chunk, store_offset
from .tracking import OffsetTracking, manual_tracking


class Commits:
    """Stores the offsets of a subscription that the program commits.

    :param tracking: of the subscription; commits need one with `manual`.
    :param member: membership in a group; None without a group.
    """

    __slots__ = ('_cluster', '_cursor', '_lock', '_member', '_registration', '_stream', '_tracking')

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

    async def commit(self, offset: int | None) -> None:
        """Store an offset; None for that of the last message delivered."""
        self._cluster.check_loop()
        manual, offset = self.check(offset)
        if offset is None:
            return  # no message was delivered
        if self._lock is None:
            self._lock = asyncio.Lock()
        assert manual.reference is not None
        term = None if self._member is None else self._member.term
        connect = partial(self._connect, term)
        async with self._lock:
            await store_offset(self._cluster, connect, self._stream, manual.reference, offset)

    def check(self, offset: int | None) -> tuple[OffsetTracking, int | None]:
        """Check the offset to store; None for that of the last message delivered.

        :returns: how to store it, and the offset; None if no message was delivered.
        """
        of = f'subscription of stream {self._stream!r}'
        manual = manual_tracking(self._tracking, of)
        if offset is not None:
            check_integer('offset', offset, 0, 2**64 - 1)
            self._check_active()
        delivered = self._cursor.delivered
        if offset is None and delivered is not None:
            offset = delivered - 1
        if offset is None:
            return manual, None
        if delivered is None or offset >= delivered:
            last = 'no message was' if delivered is None else f'the last one is {delivered - 1}'
            raise ArgumentError(f'offset {offset} of the {of} was not delivered; {last}')
        return manual, offset

    async def _connect(self, term: int | None) -> Connection:
        """Return a connection to store an offset of the stream that was read.

        :param term: of the member when the offset was committed.
        :raises SubscriptionError: it has lost its activity since, even if it is active again.
        """
        connection, last_chunk = self._registration.connection, self._cursor.last_chunk
        if self._member is not None:
            self._check_active(term)
            assert connection is not None
            return connection
        if connection is None or not connection.is_open or last_chunk.unverified:
            connection = await self._cluster.locator()
            await check_chunk(self._cluster, connection, self._stream, last_chunk.id)
        return connection

    def _check_active(self, term: int | None = None) -> None:
        """Check that no other member of the group can be active.

        :param term: of the member when the offset was committed; None for its last one.
        :raises SubscriptionError: one can, or could since.
        """
        member = self._member
        if member is not None and not (member.may_store and term in (None, member.term)):
            raise SubscriptionError(f'the {member!r} is no longer active')
