"""What a broker knows of a stream's offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..error import ProtocolError
from ..protocol import commands
from ..protocol.const import ResponseCode

if TYPE_CHECKING:
    from ..net.connection import Connection

__all__ = ['chunk_ids', 'stored_offset']


async def chunk_ids(connection: Connection, stream: str) -> tuple[int | None, int | None]:
    """Ids of a stream's first and last committed chunk, -1 for none; None if it is not told."""
    if not connection.knows_optional:
        return None, None
    stats = await connection.request(commands.StreamStats(stream))
    return stats.get('first_chunk_id'), stats.get('committed_chunk_id')


async def stored_offset(connection: Connection, stream: str, reference: str) -> int | None:
    """The offset stored under a reference; None if there is none."""
    try:
        return await connection.request(commands.QueryOffset(reference, stream))
    except ProtocolError as ex:
        if ex.code != ResponseCode.NO_OFFSET:
            raise
        return None
