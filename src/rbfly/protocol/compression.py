"""Compression of sub-entries, in both directions; a leaf of the streams API.

    1 gzip member | 2 snappy, framed (or one raw block) | 3 LZ4 frame | 4 zstd frame

gzip is in the standard library, the others are in the library cramjam, which comes with the extra
`compression`.  Whatever a sub-entry batch says of itself, no more memory is used than it says, and
no more than the limits here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn

from ..checks import check_type
from ..error import ArgumentError, ChunkError, CompressionError

__all__ = ['BATCH_MAX', 'CHUNK_MAX', 'Compression', 'compressor', 'decompress']

BATCH_MAX = 64 * 2**20
"""Most bytes that a compressed sub-entry batch may have, uncompressed; more is a ChunkError."""
CHUNK_MAX = 2**30
"""The same for all compressed batches of a chunk."""

GZIP_LEVEL = 6
GZIP_BITS = zlib.MAX_WBITS | 16  # a gzip member, not a zlib stream
SNAPPY_FRAMES = b'\xff\x06\x00\x00sNaPpY'  # how a framed stream begins


class Compression(StrEnum):
    """How the messages of a sub-entry are compressed; the name as a string does as well."""

    NONE = 'none'
    GZIP = 'gzip'
    SNAPPY = 'snappy'
    LZ4 = 'lz4'
    ZSTD = 'zstd'

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        check_type('compression', value, str)
        known = ', '.join(map(repr, map(str, cls)))
        raise ArgumentError(f'compression must be one of {known}, not {value!r}')

    @property
    def code(self) -> int:
        """Its number in the stream protocol."""
        return CODES.index(self)


CODES = tuple(Compression)


def library(compression: Compression) -> Any:
    try:
        return importlib.import_module('cramjam')
    except ImportError:
        raise CompressionError(
            f"compression {compression.value!r} needs the library cramjam: install RbFly's extra"
            ' `compression`, or cramjam itself'
        ) from None


def compressor(compression: Compression) -> Callable[[memoryview], bytes] | None:
    """A function that compresses bytes; None for no compression.

    :raises CompressionError: the library that it needs is not installed.
    """
    if compression is Compression.NONE:
        return None
    if compression is Compression.GZIP:
        return lambda data: zlib.compress(data, GZIP_LEVEL, wbits=GZIP_BITS)
    # snappy in its framing format, lz4 and zstd as frames
    compress = getattr(library(compression), compression.value).compress
    return lambda data: bytes(compress(data))


def decompress(code: int, data: memoryview, size: int) -> bytes:
    """The messages of a compressed batch.

    :param code: number of the compression.
    :param data: the batch as it is stored.
    :param size: how many bytes it has uncompressed, as it says; at most `BATCH_MAX`.
    :raises ChunkError: it has not, it is damaged, or nobody knows the compression.
    :raises CompressionError: the library that it needs is not installed.
    """
    if code >= len(CODES):
        raise ChunkError(f'sub-entry batch with unknown compression {code}')
    compression = CODES[code]
    if compression is Compression.GZIP:
        return gunzip(data, size)
    cramjam = library(compression)
    into: Callable[[memoryview, bytearray], int] = getattr(cramjam, compression).decompress_into
    if compression is Compression.SNAPPY and data[: len(SNAPPY_FRAMES)] != SNAPPY_FRAMES:
        into = cramjam.snappy.decompress_raw_into
    target = bytearray(size)
    try:
        found = into(data, target)
    except cramjam.DecompressionError as ex:
        raise ChunkError(f'sub-entry batch is no {compression} of {size} bytes: {ex}') from ex
    if found != size:
        raise ChunkError(f'sub-entry batch says {size} bytes of {compression} and holds {found}')
    return bytes(target)


def gunzip(data: memoryview, size: int) -> bytes:
    stream = zlib.decompressobj(wbits=GZIP_BITS)
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as ex:
        raise ChunkError(f'sub-entry batch is no gzip: {ex}') from ex
    if len(found) != size or not stream.eof or stream.unused_data:
        raise ChunkError(f'sub-entry batch is no gzip of {size} bytes')
    return found
