"""Finds the references under which a stream has stored offsets: the protocol cannot list them.

The broker writes each stored offset to the stream: in a chunk of its own, or after messages. At the
start of each segment, it writes all of them again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import aclosing

from ...error import ChunkError
from ...net.cluster import Cluster
from ...protocol._chunk import Chunk
from ...protocol.offset import Offset
from .last_messages import ALL_CHUNKS, CREDIT, chunk_ids, chunks_from

SNAPSHOT = 2  # type of a chunk that has everything that was stored before it
SEQUENCE, OFFSET, TIMESTAMP = 0, 1, 2  # what is stored under a name
STEP = 4096  # offsets to go back at first


async def reference_names(cluster: Cluster, stream: str) -> list[str]:
    """Return the names in the order of the stream; some may have no stored offset any more.

    Reads back to the last snapshot, in steps that double.
    """
    connection, _ = await cluster.leader(stream)
    first, last = await chunk_ids(connection, stream)
    names: dict[str, None] = {}
    read_from: int | None = None  # offset from which all chunks were read
    step = STEP
    while first is None or first >= 0:  # else the stream is empty
        start = 0 if first is None or last is None else max(first, last - step)
        is_complete = start == (first or 0)
        found: dict[str, None] = {}
        chunks = chunks_from(cluster, stream, Offset.offset(start), CREDIT, ALL_CHUNKS)
        async with aclosing(chunks):
            async for chunk in chunks:
                if read_from is not None and chunk.offset >= read_from:
                    break
                is_complete |= chunk.type == SNAPSHOT
                found.update(dict.fromkeys(names_in(chunk)))
        names = found | names
        if is_complete:
            break
        read_from, step = start, step * 2
    return [*names]


def names_in(chunk: Chunk) -> Iterator[str]:
    """Yield the names of the offsets that are stored in a chunk.

    :raises ChunkError: the chunk is damaged.
    """
    if chunk.type:
        chunk.verify()
    parts = chunk.messages() if chunk.type else [chunk.trailer]
    for data in parts:
        position = 0
        while position < len(data):
            try:
                kind, size = struct.unpack_from('BB', data, position)
            except struct.error:
                raise ChunkError(f'stored offsets at offset {chunk.offset} are cut') from None
            if kind > TIMESTAMP:
                raise ChunkError(f'chunk at offset {chunk.offset} stores values of kind {kind}')
            name = data[position + 2 : position + 2 + size]
            # A snapshot also has the time of a publishing id.
            position += 2 + size + (16 if kind == SEQUENCE and chunk.type == SNAPSHOT else 8)
            if position > len(data):
                raise ChunkError(f'stored offsets at offset {chunk.offset} are cut')
            if kind == OFFSET:
                yield name.decode(errors='replace')
