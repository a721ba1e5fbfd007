"""Requests about a super stream: its partitions, and the routes of keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...error import StreamDoesNotExist, explained
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...protocol import commands
from ...protocol.const import ResponseCode

# How many partitions open at once, and seconds until the next ones do: opening a thousand at once
# would use twice the memory that they need afterwards, and keep it.  (A publisher that opens in the
# background opens all of them at once.)
AT_ONCE = 32
PACE = 0.05


T = TypeVar('T')


async def retried(
    cluster: Cluster, stream: str, query: Callable[[], Awaitable[T]], limit: float | None = None
) -> T:
    """Return the result of a query about a super stream; repeat it if the connection is lost.

    :param limit: seconds, infinity for no limit; None for the client's own.
    """
    async with cluster.deadline(limit) as deadline:
        deadline.progress.on_step(f'asking for the partitions of {stream!r}')
        return await cluster.retry(deadline, query)


async def query_partitions(cluster: Cluster, stream: str) -> tuple[str, ...]:
    """Return the partitions of a super stream in order; one that is bound twice counts twice.

    :raises StreamDoesNotExist: there is no super stream of that name, or it has no partitions.
    """
    partitions = await _query(cluster, stream, commands.Partitions(stream))
    if not partitions:
        text = f'super stream {stream!r} has no partitions'
        raise explained(StreamDoesNotExist(stream), text)
    return partitions


async def query_route(cluster: Cluster, stream: str, key: str) -> tuple[str, ...]:
    """Return the partitions that a key is bound to; empty for none.

    :raises StreamDoesNotExist: there is no super stream of that name.
    """
    return await _query(cluster, stream, commands.Route(key, stream))


async def _query(
    cluster: Cluster, stream: str, command: commands.Command[tuple[str, ...]]
) -> tuple[str, ...]:
    connection = await cluster.locator()
    try:
        return await connection.request(command)
    except StreamDoesNotExist as ex:
        explained(ex, await _reason(connection, stream))
        raise


async def _reason(connection: Connection, stream: str) -> str:
    """Return the text of the error for a super stream that does not exist."""
    metadata = (await connection.request(commands.Metadata((stream,)))).get(stream)
    code = ResponseCode.STREAM_DOES_NOT_EXIST
    if metadata is not None and metadata.code != code:
        text = 'is a stream, not a super stream: use client.publisher and client.subscribe'
        return f'{stream!r} {text}'
    return f'super stream {stream!r} does not exist (code 0x{code:02x})'
