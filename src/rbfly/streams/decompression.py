"""CHUNK room, below the sans-IO line: sub-entry batches that are compressed.

    1 gzip member | 2 snappy, framed (or one raw block) | 3 LZ4 frame | 4 zstd frame

gzip is in Python's library, the others are in the extra `compression` (cramjam).  Whatever a batch
says of itself, no more memory is used than it says, and no more than the limits here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from .error import ChunkError, CompressionError

__all__ = ['BATCH_MAX', 'CHUNK_MAX', 'decompress']

BATCH_MAX = 64 * 2**20
"""Most bytes that a compressed sub-entry batch may have, uncompressed; more is a ChunkError."""
CHUNK_MAX = 2**30
"""The same for all compressed batches of a chunk."""

NAMES = {1: 'gzip', 2: 'snappy', 3: 'lz4', 4: 'zstd'}
SNAPPY_FRAMES = b'\xff\x06\x00\x00sNaPpY'  # how a framed stream begins


def decompress(compression: int, data: memoryview, size: int) -> bytes:
    """The messages of a batch.

    :param compression: code of the compression.
    :param data: the batch as it is stored.
    :param size: how many bytes it has uncompressed, as it says; at most `BATCH_MAX`.
    :raises ChunkError: it has not, it is damaged, or nobody knows the compression.
    :raises CompressionError: the library that it needs is not installed.
    """
    name = NAMES.get(compression)
    if name is None:
        raise ChunkError(f'sub-entry batch with unknown compression {compression}')
    if name == 'gzip':
        return gunzip(data, size)
    try:
        cramjam: Any = importlib.import_module('cramjam')
    except ImportError:
        raise CompressionError(
            f"compression {name!r} needs the library cramjam: install RbFly's extra"
            ' `compression`, or cramjam itself'
        ) from None
    into: Callable[[memoryview, bytearray], int] = getattr(cramjam, name).decompress_into
    if name == 'snappy' and data[: len(SNAPPY_FRAMES)] != SNAPPY_FRAMES:
        into = cramjam.snappy.decompress_raw_into
    target = bytearray(size)
    try:
        found = into(data, target)
    except cramjam.DecompressionError as ex:
        raise ChunkError(f'sub-entry batch is no {name} of {size} bytes: {ex}') from ex
    if found != size:
        raise ChunkError(f'sub-entry batch says {size} bytes of {name} and holds {found}')
    return bytes(target)


def gunzip(data: memoryview, size: int) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as ex:
        raise ChunkError(f'sub-entry batch is no gzip: {ex}') from ex
    if len(found) != size or not stream.eof or stream.unused_data:
        raise ChunkError(f'sub-entry batch is no gzip of {size} bytes')
    return found
