"""Offsets of a stream: those stored under references, and those of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableSet
from typing import TYPE_CHECKING, Any, overload

from ...amqp._message import last_offset
from ...checks import check_integer, check_stream, check_type
from ...error import (
    ArgumentError,
    OffsetNotStored,
    ProtocolError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    about,
)
from ...later import Later
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...net.locator import missing
from ...protocol import commands
from ...protocol.const import Key, ResponseCode
from ...protocol.offset import OFFSET_MAX, Offset, OffsetType
from .._repeating import repeated

if TYPE_CHECKING:
    from ...protocol._identity import LastChunk
    from . import last_messages as counting
    from . import references as finding
else:
    counting = Later('rbfly.streams._offsets.last_messages')
    finding = Later('rbfly.streams._offsets.references')


class OffsetMethods:
    """The methods of a client that concern offsets."""

    _cluster: Cluster
    _members: MutableSet[Any]  # offset stores of members of groups

    @repeated
    async def write_offset(
        self, stream: str, reference: str, value: int | None = None, *, wait: bool = False
    ) -> None:
        """Store an offset under a reference, for :meth:`Offset.reference`.

        Reconnects if the connection is lost.  A stored offset replaces the one before it, even if
        that is higher.

        If this client has members of the group `reference` on the stream, the active one stores the
        offset, and only on its connection: another process may have become active.

        :param stream: name of the stream.
        :param reference: name of the stored offset, at most 255 bytes of UTF-8.
        :param value: offset of the last processed message; None for the message that this task
            received last, which must be from that stream.
        :param wait: query the offset on the same connection, and return when the broker has stored
            it.  If false, return once the request is written: the broker does not answer it, and
            ignores it if the stream does not exist, or if the user may not read it.
        :raises MessageContextError: `value` is None, and this task has not received a message, or
            received its last one from another stream; also a LookupError and a ValueError.
        :raises ValueError: `value` is negative, or has more than 64 bits.
        :raises StreamConnectionError: the client cannot connect, or was closed in the meantime.
        :raises StreamDoesNotExist: `wait` is true, and there is no such stream.
        :raises ProtocolError: `wait` is true, and the broker refused the query.
        :raises OffsetNotStored: `wait` is true, and the broker has another offset, or none; or this
            client has members of the group `reference` on the stream, and none of them is active.
        """
        check_stream(stream)
        check_type('reference', reference, str)
        if value is not None:
            check_integer('value', value, 0, OFFSET_MAX)
        check_type('wait', wait, bool)
        if value is None:
            value = last_offset(stream)
        connect: Callable[[], Awaitable[Connection]] = self._cluster.locator
        members = [store for store in self._members if store.is_of_member(reference, stream)]
        if members:  # another member may be active, and have stored a later offset
            connect = max(members, key=lambda store: store.may_store).connect_later(value)
        if wait:
            await store_offset(self._cluster, connect, stream, reference, value)
            return
        frame = commands.store_offset(reference, stream, value)
        connection = await connect()
        while connection.paused or not connection.is_open:
            await connection.wait_writable()
            connection = await connect()
        connection.write(frame)
        connection.require_answer()

    @repeated
    async def read_offset(self, stream: str, reference: str) -> int | None:
        """Return the offset stored under a reference; None if there is none.

        :param stream: name of the stream.
        :param reference: name of the stored offset, or of a group, at most 255 bytes of UTF-8.
        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises ProtocolError: the broker refused the request.
        """
        check_names(stream, reference)
        return await stored_offset(await self._cluster.locator(), stream, reference)

    @repeated
    async def references(self, stream: str) -> dict[str, int]:
        """Return all references under which the stream has stored offsets, with these offsets.

        The protocol cannot list them.  RbFly reads them from the stream, where the broker writes
        all of them at the start of each segment: it receives the messages of the last segment,
        and may receive up to three times as many, but decodes none of them.

        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises StreamConnectionError: the client cannot connect.
        :raises ProtocolError: the broker refused a request.
        :raises ChunkError: a chunk is damaged.
        """
        check_stream(stream)
        names = await finding.reference_names(self._cluster, stream)
        connection = await self._cluster.locator()
        stored = {name: await stored_offset(connection, stream, name) for name in names}
        return {name: offset for name, offset in stored.items() if offset is not None}

    @repeated
    async def resolve_offset(self, stream: str, offset: Offset) -> int:
        """Return the offset at which a subscription would start now.

        The first message of the subscription has that offset, or a higher one: stored offsets and
        removed messages leave gaps.  The leader of the stream
        answers, or another node if the client cannot reach the leader.  Before RabbitMQ 4.3, which
        has a request for this, RbFly subscribes twice for a moment, and receives at most two
        chunks.

        :param stream: name of the stream.
        :param offset: where to start, such as `Offset.timestamp(...)`; `Offset.NEXT` for the offset
            of the message that will be stored next.
        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises StreamConnectionError: the client cannot connect.
        :raises ProtocolError: the broker refused the request.
        """
        check_stream(stream)
        check_type('offset', offset, Offset)
        return await resolve(self._cluster, stream, offset)

    @overload
    async def lag(self, stream: str, reference: str) -> int | None: ...

    @overload
    async def lag(self, stream: str, *, position: int | None) -> int | None: ...

    @repeated
    async def lag(
        self, stream: str, reference: str | None = None, *, position: Any = ...
    ) -> int | None:
        """Return how many offsets are left to read, up to the last message; None if the start is
        unknown.

        0 means that every message is processed.  Any other number is at least the number of
        messages left, because stored offsets also take up offsets of the stream, unless the broker
        writes them together with messages.  Messages that retention has removed do not count.

        The leader of the stream sends its last chunk of messages for this, so ask every few
        seconds, not all the time.  If the client cannot reach the leader, it asks another node,
        which may not have the last messages.

        :param stream: name of the stream.
        :param reference: name of a stored offset, at most 255 bytes of UTF-8: the messages after
            that offset are left.  A group that begins with the first message may have stored
            2**64 - 1, which counts as the offset before the first one.
        :param position: or the offset of the next message to read, for a program that keeps it
            itself: `next_offset` of its last message or batch; None if it has read no message.
        :type position: int | None
        :raises ValueError: not exactly one of `reference` and `position` is given, or one of them
            is out of range.
        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises StreamConnectionError: the client cannot connect.
        :raises ProtocolError: the broker refused the request.
        """
        check_either(reference, position)
        check_stream(stream)
        if reference is not None:
            check_names(stream, reference)
            stored = await self.read_offset(stream, reference)
            position = None if stored is None else next_offset(stored)
        if position is None:
            return None
        check_integer('position', position, 0, OFFSET_MAX)
        connection, _ = await self._cluster.leader(stream)
        first, _ = await counting.chunk_ids(connection, stream)
        start: int = max(position, first or 0)
        return max(0, await end_of_messages(self._cluster, stream) - start)


def check_either(reference: object, position: object) -> None:
    """Check that there is either a reference or a position."""
    if (reference is None) == (position is ...):
        raise ArgumentError('pass either reference or position')


def check_names(stream: str, reference: str) -> None:
    """Check the names of a stream and of an offset stored in it."""
    check_stream(stream)
    check_type('reference', reference, str)
    commands.reference(reference, 'offset reference')


async def look_up(cluster: Cluster, stream: str, offset: Offset) -> Offset:
    """Return an offset without a reference, and without a number of messages to count."""
    if offset.type == OffsetType.REFERENCE:
        stored = await stored_offset(await cluster.locator(), stream, str(offset.value))
        if stored is not None:
            return Offset.offset(next_offset(stored))
        offset = offset.default or Offset.FIRST
    return await counted(cluster, stream, offset)


async def counted(cluster: Cluster, stream: str, offset: Offset) -> Offset:
    """Return an offset without a number of messages to count."""
    if offset.type == OffsetType.LAST_MESSAGES:
        assert isinstance(offset.value, int)
        return await counting.last_messages(cluster, stream, offset.value)
    return offset


async def resolve(cluster: Cluster, stream: str, offset: Offset) -> int:
    """Return the offset at which a subscription would start now, see `resolve_offset`."""
    offset = await look_up(cluster, stream, offset)
    connection, _ = await cluster.leader(stream)
    if Key.RESOLVE_OFFSET_SPEC in connection.commands:
        command = commands.ResolveOffsetSpec(stream, offset, {})
        resolved = (await connection.request(command)).value
    else:
        # The end comes first: a message that is published meanwhile is not skipped.
        first, last = await counting.chunk_ids(connection, stream)
        end = await end_of_messages(cluster, stream)
        if last is not None:
            end = max(end, last + 1)  # a chunk of stored offsets takes up one
        chunk = await counting.chunk_at(cluster, stream, offset)
        resolved = end if chunk is None else chunk.offset
        if chunk is None and offset.type == OffsetType.FIRST and first is not None:
            resolved = max(0, first)  # the broker may withhold messages
    assert isinstance(resolved, int)
    if offset.type == OffsetType.OFFSET:  # within a chunk, perhaps
        assert isinstance(offset.value, int)
        return max(resolved, offset.value)
    return resolved


async def leader_ends_before(cluster: Cluster, stream: str, chunk_id: int) -> bool:
    """Return true if the stream ends before a chunk on its leader.

    :raises StreamConnectionError: the leader cannot be reached.
    """
    stats = await leader_stats(cluster, stream)
    return stats.get('last_chunk_id', chunk_id) < chunk_id


async def leader_stats(cluster: Cluster, stream: str) -> dict[str, int]:
    """Return the positions of a stream on its leader, which has every committed chunk.

    :raises StreamConnectionError: the leader cannot be reached.
    """
    connection, is_leader = await cluster.leader(stream)
    if not is_leader:
        raise StreamConnectionError(f'the leader of stream {stream!r} cannot be reached')
    return await connection.request(commands.StreamStats(stream))


def request_stats(
    connection: Connection,
    stream: str,
    callback: Callable[[asyncio.Future[bytes], dict[str, int]], None],
) -> asyncio.Future[bytes]:
    """Request the positions of a stream; call back with the answer and what it says.

    If the request fails, do not call back: the waiting task gets the error of the connection, or of
    the stream.
    """
    command = commands.StreamStats(stream)

    def on_answer(answer: asyncio.Future[bytes]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        try:
            stats = connection.read(command, answer.result())
        except RbFlyError:
            return
        callback(answer, stats)

    answer = connection.send_request(command)
    answer.add_done_callback(on_answer)
    return answer


async def check_chunk(cluster: Cluster, connection: Connection, stream: str, chunk_id: int) -> None:
    """Check that a stream has a chunk that was read.

    :raises StreamDoesNotExist: it has not: it was deleted and created again.
    """
    _, committed = await counting.chunk_ids(connection, stream)
    if (
        committed is not None
        and committed < chunk_id
        and await leader_ends_before(cluster, stream, chunk_id)
    ):
        raise StreamDoesNotExist(stream, 'was deleted and created again')


async def check_identity(cluster: Cluster, stream: str, known: LastChunk) -> None:
    """Check that a stream is the one that a chunk was read from, by reading that chunk again.

    :param known: the chunk; if there is none, or retention has removed it, the last one is noted.
    :raises StreamDoesNotExist: the stream was deleted and created again.
    """
    if known.id >= 0:
        connection, is_leader = await cluster.leader(stream)
        first, _ = await counting.chunk_ids(connection, stream)
        if first is None or first <= known.id:
            chunk = await counting.chunk_at(cluster, stream, Offset.offset(known.id))
            if chunk is None and not is_leader:
                raise StreamConnectionError(f'the leader of stream {stream!r} cannot be reached')
            known.seek(first, None)
            if known.is_replaced(chunk):
                if chunk is None and not await leader_ends_before(cluster, stream, known.id):
                    # A new leader has the chunk before it commits it.
                    raise StreamConnectionError(f'the leader of stream {stream!r} is not ready')
                raise StreamDoesNotExist(stream, 'was deleted and created again')
            return
    chunk = await counting.chunk_at(cluster, stream, Offset.LAST)
    if chunk is not None:
        known.note(chunk)


async def end_before(
    cluster: Cluster, stream: str, offset: int, committed: int | None
) -> int | None:
    """Return the end of a stream that ends before an offset; else, or if it is unknown, None.

    :param committed: id of the last committed chunk, -1 for none, None if it is unknown.
    """
    if committed is None or offset <= committed + 1:
        return None
    _, is_leader = await cluster.leader(stream)
    if not is_leader:  # another node may lag behind
        return None
    end = await resolve(cluster, stream, Offset.NEXT)
    return end if end < offset else None


async def end_of_messages(cluster: Cluster, stream: str) -> int:
    """Return the offset after the last message; 0 if there is none.

    The statistics of the stream do not help, because they also count stored offsets.
    """
    chunk = await counting.chunk_at(cluster, stream, Offset.LAST)
    return 0 if chunk is None else chunk.offset + chunk.records


async def delivers_chunks(cluster: Cluster, stream: str) -> bool:
    """Return whether the broker delivers any chunk of a stream, also one of stored offsets."""
    return await counting.chunk_at(cluster, stream, Offset.FIRST, counting.ALL_CHUNKS) is not None


def next_offset(stored: int | None) -> int:
    """Return the offset after a stored one; 0 for none, or for 2**64 - 1, which a group stores."""
    return 0 if stored is None else (stored + 1) % (OFFSET_MAX + 1)


async def stored_offset(connection: Connection, stream: str, reference: str) -> int | None:
    """Return the offset stored under a reference; None if there is none."""
    try:
        return await connection.request(commands.QueryOffset(reference, stream))
    except StreamDoesNotExist:
        raise await missing(connection, stream) from None
    except ProtocolError as ex:
        if ex.code != ResponseCode.NO_OFFSET:
            raise
        return None


async def store_offset(
    cluster: Cluster,
    connect: Callable[[], Awaitable[Connection]],
    stream: str,
    reference: str,
    offset: int,
) -> None:
    """Store an offset, and wait until the broker has stored it.

    :param connect: returns an open connection; called again if that is lost.
    :raises OffsetNotStored: the broker has another offset, or none.
    """
    frame = commands.store_offset(reference, stream, offset)

    async def store() -> None:
        connection = await connect()
        connection.write(frame)
        await check_stored(connection, stream, reference, offset)

    try:
        await cluster.repeat(store)
    except RbFlyError as ex:
        about(ex, stream, reference)
        raise


async def check_stored(connection: Connection, stream: str, reference: str, offset: int) -> None:
    """Check that the broker has stored an offset.

    :raises OffsetNotStored: the broker has another offset, or none.
    """
    stored = await stored_offset(connection, stream, reference)
    if stored != offset:
        has = (
            'none' if stored is None else f'{stored}: does another program use the same reference?'
        )
        error = OffsetNotStored(
            f'offset {offset} of stream {stream!r} is not stored under {reference!r};'
            f' the broker has {has}'
        )
        raise about(error, stream, reference)
