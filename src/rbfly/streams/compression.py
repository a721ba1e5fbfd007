"""Compression of sub-entries; a leaf of the streams API.

gzip is in the standard library; snappy, lz4 and zstd need the library cramjam, which comes with the
extra `compression`.
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from .error import ArgumentError, CompressionError

__all__ = ['Compression', 'compressor']

GZIP_LEVEL = 6


class Compression(StrEnum):
    """How the messages of a sub-entry are compressed; the name as a string does as well."""

    NONE = 'none'
    GZIP = 'gzip'
    SNAPPY = 'snappy'
    LZ4 = 'lz4'
    ZSTD = 'zstd'

    @property
    def code(self) -> int:
        """Its number in the stream protocol."""
        return list(Compression).index(self)


def compressor(compression: Compression | str) -> Callable[[memoryview], bytes] | None:
    """A function that compresses bytes; None for no compression.

    :raises ArgumentError: there is no such compression.
    :raises CompressionError: the library that it needs is not installed.
    """
    try:
        compression = Compression(compression)
    except ValueError:
        known = ', '.join(map(repr, map(str, Compression)))
        raise ArgumentError(f'compression must be one of {known}, not {compression!r}') from None
    if compression is Compression.NONE:
        return None
    if compression is Compression.GZIP:
        return lambda data: gzip.compress(data, GZIP_LEVEL, mtime=0)
    try:
        cramjam: Any = importlib.import_module('cramjam')
    except ImportError:
        raise CompressionError(
            f"compression {compression.value!r} needs the library cramjam: install RbFly's extra"
            ' `compression`, or cramjam itself'
        ) from None
    # snappy in its framing format, lz4 and zstd as frames
    compress = getattr(cramjam, compression.value).compress
    return lambda data: bytes(compress(data))
