"""Looks at the chunks of a stream: which it has, and how many messages are in the last ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from ...error import StreamConnectionError
from ...net.cluster import Cluster
from ...net.connection import PING, Connection
from ...net.observer import Role
from ...protocol import commands
from ...protocol._chunk import Chunk, ChunkQueue
from ...protocol.offset import Offset

CREDIT = 10  # chunks in memory at once
NO_PROPERTIES: Mapping[str, str] = {}
ALL_CHUNKS: Mapping[str, str] = {'chunk_selector': 'all'}  # also those of stored offsets


async def chunk_ids(connection: Connection, stream: str) -> tuple[int | None, int | None]:
    """Return the ids of the first and the last committed chunk; -1: none, None: not reported."""
    if not connection.knows_optional:
        return None, None
    stats = await connection.request(commands.StreamStats(stream))
    return stats.get('first_chunk_id'), stats.get('committed_chunk_id')


async def chunks_from(
    cluster: Cluster,
    stream: str,
    offset: Offset,
    credit: int,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks that a subscription receives, until the broker has no more.

    :param credit: how many chunks the broker sends in advance.
    :param properties: of the subscription.
    """
    connection, _ = await cluster.leader(stream)
    used_id, queue = connection.subscription_ids.pop(), ChunkQueue()
    connection.set_subscription(used_id, queue)
    try:
        await connection.request(
            commands.Subscribe(used_id, stream, offset, credit, {**properties})
        )
        await connection.request(PING)  # the broker answers it after it has sent the chunks
        while queue.chunks:
            received = len(queue.chunks)
            while queue.chunks:
                yield queue.chunks.popleft()
            connection.write(commands.credit(used_id, received))
            await connection.request(PING)
    finally:
        connection.set_subscription(used_id, None)
        if connection.is_open:
            connection.undeclare(Role.CONSUME, used_id, commands.Unsubscribe(used_id))


async def chunk_at(
    cluster: Cluster,
    stream: str,
    offset: Offset,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> Chunk | None:
    """Return the chunk that a subscription receives first; None if the broker has none.

    :param properties: of the subscription.
    """
    async with aclosing(chunks_from(cluster, stream, offset, 1, properties)) as chunks:
        return await anext(chunks, None)


async def start_before(cluster: Cluster, stream: str, offset: Offset, end: int) -> Offset | None:
    """Return where `LAST` or a time was when a stream had fewer chunks; None for after the end.

    :param end: id of the last chunk at that time; it may contain stored offsets.
    :raises StreamConnectionError: the node does not have that chunk yet.
    """
    connection, _ = await cluster.leader(stream)
    first, committed = await chunk_ids(connection, stream)
    if committed is not None and committed < end:
        raise StreamConnectionError(f'the leader of stream {stream!r} is not ready')
    chunk = await chunk_at(cluster, stream, Offset.LAST)
    if isinstance(offset.value, int | float):
        if chunk is None:  # no messages, or the broker delivers nothing at the moment
            return offset
        if chunk.timestamp < round(offset.value * 1000):
            return None
        chunk = await chunk_at(cluster, stream, offset)
        return None if chunk is not None and chunk.offset > end else offset
    back = 0
    while chunk is not None and chunk.offset > end:  # look ever farther before the end
        if end - back <= (first or 0):
            return Offset.offset(0)
        chunk = await chunk_at(cluster, stream, Offset.offset(end - back))
        back = 2 * back + 1
    return Offset.offset(0 if chunk is None else chunk.offset)


async def last_messages(cluster: Cluster, stream: str, missing: int) -> Offset:
    """Return an offset after which the stream has that many messages now, or all if it has fewer.

    Stored offsets also take up offsets.  So each step goes back by the number of messages that are
    missing, times 1, 2, 4, ...

    :param missing: number of messages.
    """
    last = await chunk_at(cluster, stream, Offset.LAST)
    if last is None:
        return Offset.FIRST
    connection, _ = await cluster.leader(stream)
    first = (await chunk_ids(connection, stream))[0] or 0
    start = last.offset + last.records
    factor = 1
    while missing and start > first:
        stop, start = start, max(first, start - missing * factor)
        number, _ = await count(cluster, stream, start, stop)
        if number > missing:
            _, offset = await count(cluster, stream, start, stop, number - missing)
            return Offset.offset(offset)
        missing -= number
        factor *= 2
    return Offset.FIRST if missing else Offset.offset(start)


async def count(
    cluster: Cluster, stream: str, start: int, stop: int, limit: int | None = None
) -> tuple[int, int]:
    """Count the messages from one offset to another that some message follows, or up to a limit.

    :returns: their number, and the offset at which the count has ended.
    :raises StreamConnectionError: the node no longer has the messages.
    """
    counted = 0
    async with aclosing(chunks_from(cluster, stream, Offset.offset(start), CREDIT)) as chunks:
        async for chunk in chunks:
            end = chunk.offset + chunk.records
            begin = max(start, chunk.offset)
            number = max(0, min(stop, end) - begin)
            if limit is not None and counted + number > limit:
                return limit, begin + limit - counted
            counted += number
            if end >= stop:
                return counted, stop
    raise StreamConnectionError(f'stream {stream!r} has no message from offset {stop - 1} on')
