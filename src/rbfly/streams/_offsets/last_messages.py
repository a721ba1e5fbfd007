"""Looks at the chunks of a stream: which it has, and how many messages are in the last ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ...error import StreamConnectionError
from ...net.cluster import Cluster
from ...net.connection import PING, Connection
from ...net.observer import Role
from ...protocol import commands
from ...protocol._chunk import Chunk, ChunkQueue
from ...protocol.offset import Offset

CREDIT = 10  # chunks in memory at once


async def chunk_ids(connection: Connection, stream: str) -> tuple[int | None, int | None]:
    """Return the ids of the first and the last committed chunk; -1: none, None: not reported."""
    if not connection.knows_optional:
        return None, None
    stats = await connection.request(commands.StreamStats(stream))
    return stats.get('first_chunk_id'), stats.get('committed_chunk_id')


async def chunks_from(
    cluster: Cluster, stream: str, offset: Offset, credit: int
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks that a subscription receives, until the broker has no more.

    :param credit: how many chunks the broker sends in advance.
    """
    connection, _ = await cluster.leader(stream)
    found, queue = connection.subscription_ids.pop(), ChunkQueue()
    connection.set_subscription(found, queue)
    try:
        await connection.request(commands.Subscribe(found, stream, offset, credit, {}))
        await connection.request(PING)  # the broker answers it after it has sent the chunks
        while queue.chunks:
            received = len(queue.chunks)
            while queue.chunks:
                yield queue.chunks.popleft()
            connection.write(commands.credit(found, received))
            await connection.request(PING)
    finally:
        connection.set_subscription(found, None)
        if connection.is_open:
            connection.undeclare(Role.CONSUME, found, commands.Unsubscribe(found))


async def chunk_at(cluster: Cluster, stream: str, offset: Offset) -> Chunk | None:
    """Return the chunk that a subscription receives first; None if the broker has none."""
    async with aclosing(chunks_from(cluster, stream, offset, 1)) as chunks:
        return await anext(chunks, None)


async def last_messages(cluster: Cluster, stream: str, wanted: int) -> Offset:
    """Return an offset after which the stream has that many messages now, or all if it has fewer.

    Stored offsets also take up offsets.  So each step goes back by the number of messages that are
    missing, times 1, 2, 4, ...

    :param wanted: number of messages.
    """
    last = await chunk_at(cluster, stream, Offset.LAST)
    if last is None:
        return Offset.FIRST
    connection, _ = await cluster.leader(stream)
    first = (await chunk_ids(connection, stream))[0] or 0
    start = last.offset + last.records
    factor = 1
    while wanted and start > first:
        stop, start = start, max(first, start - wanted * factor)
        found, _ = await count(cluster, stream, start, stop)
        if found > wanted:
            _, offset = await count(cluster, stream, start, stop, found - wanted)
            return Offset.offset(offset)
        wanted -= found
        factor *= 2
    return Offset.FIRST if wanted else Offset.offset(start)


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
            found = max(0, min(stop, end) - begin)
            if limit is not None and counted + found > limit:
                return limit, begin + limit - counted
            counted += found
            if end >= stop:
                return counted, stop
    raise StreamConnectionError(f'stream {stream!r} has no message from offset {stop - 1} on')
