"""Encode chunks, and the entries of chunks and Publish frames.

An entry has the same bytes in both: a length and a message, or a sub-entry, which the broker stores
unchanged.  :mod:`rbfly.protocol._chunk`, which decodes chunks, describes the layouts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from ..error import ArgumentError, FrameError
from .fields import NULL, SHORT, Codec, Reader

HEADER = struct.Struct('>BBHIqQQIIIB3x')
MAGIC = 0x50
ENTRIES_MAX = 0xFFFF
SUB_ENTRY = 0x80  # bit in the first byte
NO_FILTER = b'\xff\xff'


class PublishEntry(NamedTuple):
    """An entry of a Publish frame; `filter` is None in version 1."""

    publishing_id: int
    filter: bytes | None
    data: bytes


def message(data: bytes) -> bytes:
    """Encode a message as an entry."""
    return struct.pack('>I', len(data)) + data


def records(entry: bytes) -> int:
    """Count the messages of an entry."""
    return int.from_bytes(entry[1:3], 'big') if entry[0] & SUB_ENTRY else 1


def read_entry(reader: Reader) -> bytes:
    start = reader.at
    size = reader.u32()
    if size >> 31:
        reader.take(3)
        size = reader.u32()
    reader.take(size)
    return reader.data[start : reader.at]


def write_chunk(
    entries: Sequence[bytes],
    *,
    offset: int,
    timestamp: int,
    epoch: int = 1,
    type: int = 0,
    filter: bytes = b'',
    trailer: bytes = b'',
    stored: bool = False,
) -> bytes:
    """Encode a chunk.

    :param offset: offset of the first message, which is also the chunk id.
    :param timestamp: milliseconds since the epoch.
    :param epoch: term of the stream's leader.
    :param type: 0 for messages, 1 for stored offsets, 2 for publisher ids.
    :param filter: Bloom filter of the filter values.
    :param stored: include filter and trailer, as on disk; delivered chunks contain only their
        sizes.
    """
    if len(entries) > ENTRIES_MAX:
        raise ArgumentError(f'a chunk can have at most {ENTRIES_MAX} entries, not {len(entries)}')
    data = b''.join(entries)
    count = sum(map(records, entries))
    sizes = len(data), len(trailer), len(filter)
    head = HEADER.pack(
        MAGIC, type, len(entries), count, timestamp, epoch, offset, zlib.crc32(data), *sizes
    )
    return b''.join((head, filter, data, trailer) if stored else (head, data))


def publish_entries(filtered: bool) -> Codec[tuple[PublishEntry, ...]]:
    """Codec for the entries of a Publish frame; in version 2 each has a filter value."""

    def encode(entries: tuple[PublishEntry, ...]) -> bytes:
        parts = [struct.pack('>I', len(entries))]
        for publishing_id, value, data in entries:
            parts.append(struct.pack('>Q', publishing_id))
            if filtered:
                parts.append(NO_FILTER if value is None else SHORT.encode(value))
            parts.append(data)
        return b''.join(parts)

    def decode(reader: Reader) -> PublishEntry:
        publishing_id = int.from_bytes(reader.take(8), 'big')
        value = None
        if filtered:
            size = reader.u16()
            value = None if size == NULL else reader.take(size)
        data = read_entry(reader)
        if filtered and data[0] & SUB_ENTRY:
            raise FrameError('a Publish frame with filter values cannot have sub-entries')
        return PublishEntry(publishing_id, value, data)

    return Codec(encode, lambda reader: reader.items(decode, 14 if filtered else 12), 4, ())


Entries = Annotated[tuple[PublishEntry, ...], publish_entries(False)]
FilteredEntries = Annotated[tuple[PublishEntry, ...], publish_entries(True)]
