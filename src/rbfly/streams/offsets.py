"""Requests for the offsets of a stream."""

from __future__ import annotations

from ..error import ProtocolError, StreamConnectionError
from ..net.cluster import Cluster, existing
from ..net.connection import Connection
from ..protocol import commands
from ..protocol.const import ResponseCode

__all__ = ['chunk_ids', 'leader_ends_before', 'stored_offset']


async def chunk_ids(connection: Connection, stream: str) -> tuple[int | None, int | None]:
    """Return the ids of the first and the last committed chunk; -1: none, None: not reported."""
    if not connection.knows_optional:
        return None, None
    stats = await connection.request(commands.StreamStats(stream))
    return stats.get('first_chunk_id'), stats.get('committed_chunk_id')


async def leader_ends_before(
    cluster: Cluster, connection: Connection, stream: str, chunk_id: int
) -> bool:
    """Return true if the stream ends before a chunk on its leader, which has every committed chunk.

    :param connection: asks for the leader.
    :raises StreamConnectionError: the leader cannot be reached.
    """
    found = await connection.request(commands.Metadata((stream,)))
    leader = existing(found.get(stream), stream).leader
    if leader is None or not connection.leads_to(leader):
        connection = await cluster.leader(stream)
        if leader is None or not connection.leads_to(leader):
            raise StreamConnectionError(f'the leader of stream {stream!r} cannot be reached')
    stats = await connection.request(commands.StreamStats(stream))
    return stats.get('last_chunk_id', chunk_id) < chunk_id


async def stored_offset(connection: Connection, stream: str, reference: str) -> int | None:
    """Return the offset stored under a reference; None if there is none."""
    try:
        return await connection.request(commands.QueryOffset(reference, stream))
    except ProtocolError as ex:
        if ex.code != ResponseCode.NO_OFFSET:
            raise
        return None
