"""Compression and decompression of sub-entries.

    1 gzip member | 2 snappy, framed (or one raw block) | 3 LZ4 frame | 4 zstd frame

gzip is in the standard library; the extra `compression` installs cramjam for the others.
Decompression uses no more memory than the header of a sub-entry states, within the limits below.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn

from ..checks import check_type
from ..error import ArgumentError, ChunkError, CompressionError, counted

BATCH_MAX = 64 * 2**20
"""Maximum size of a sub-entry in bytes, uncompressed; a larger one raises ChunkError."""
CHUNK_MAX = 2**30
"""The same for all compressed sub-entries of a chunk together."""

GZIP_LEVEL = 6
GZIP_BITS = 15 | 16  # a window of 32 KiB, with gzip header and trailer
SNAPPY_FRAMES = b'\xff\x06\x00\x00sNaPpY'  # start of a framed stream


class Compression(StrEnum):
    """Compression of the messages in a sub-entry; the API also accepts names such as `'gzip'`."""

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
        """Code in the stream protocol (int)."""
        return CODES.index(self)


CODES = tuple(Compression)


def library(compression: Compression) -> Any:
    try:
        return importlib.import_module('cramjam')
    except ImportError:
        raise CompressionError(
            f'compression {compression.value!r} requires the library cramjam:'
            " install RbFly's extra `compression`"
        ) from None


def compressor(compression: Compression) -> Callable[[memoryview], bytes] | None:
    """Return a function that compresses bytes; None for no compression.

    :raises CompressionError: the library for it is not installed.
    """
    if compression is Compression.NONE:
        return None
    if compression is Compression.GZIP:
        from zlib import compress as deflate  # here, because few programs need it

        return lambda data: deflate(data, GZIP_LEVEL, wbits=GZIP_BITS)
    # snappy in its framing format, lz4 and zstd as frames
    compress = getattr(library(compression), compression.value).compress
    return lambda data: bytes(compress(data))


def decompress(code: int, data: memoryview, size: int) -> bytes:
    """Decompress the messages of a sub-entry.

    :param code: code of the compression.
    :param data: the compressed messages.
    :param size: size in bytes that the header states, at most `BATCH_MAX`.
    :raises ChunkError: the size is wrong, the data is damaged, or the compression is unknown.
    :raises CompressionError: the library for it is not installed.
    """
    if code >= len(CODES):
        raise ChunkError(f'sub-entry batch has unknown compression {code}')
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
        wanted = counted(size, 'byte')
        raise ChunkError(f'sub-entry batch is not {compression} of {wanted}: {ex}') from ex
    if found != size:
        wanted = counted(size, 'byte')
        raise ChunkError(f'sub-entry batch declares {wanted} of {compression} but has {found}')
    return bytes(target)


def gunzip(data: memoryview, size: int) -> bytes:
    import zlib

    stream = zlib.decompressobj(wbits=GZIP_BITS)
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as ex:
        raise ChunkError(f'sub-entry batch is not gzip: {ex}') from ex
    if len(found) != size or not stream.eof or stream.unused_data:
        raise ChunkError(f'sub-entry batch is not gzip of {counted(size, "byte")}')
    return found
