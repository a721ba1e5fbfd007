"""Frames and chunks written with `struct`, as a reference for the package.

This module and `tests.entry_reader` implement the protocol on their own, without the package.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.entry_reader import read_entries

SESSIONS = Path(__file__).resolve().parent / 'data' / 'sessions'


def session(name: str) -> bytes:
    """Return the bytes of a recorded session."""
    data = (SESSIONS / name).read_bytes()
    return gzip.decompress(data) if name.endswith('.gz') else data


def feed(engine: Any, data: bytes | memoryview) -> None:
    """Pass data to an engine as an event loop does."""
    left = memoryview(data)
    while left:
        target = engine.get_buffer(-1)
        n = min(len(target), len(left))
        target[:n] = left[:n]
        left = left[n:]
        engine.buffer_updated(n)


def frame(key: int, body: bytes = b'', version: int = 1) -> bytes:
    return struct.pack('>IHH', 4 + len(body), key, version) + body


def split_frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Key, version and body of each frame."""
    frames = []
    at = 0
    while at < len(data):
        size, key, version = struct.unpack_from('>IHH', data, at)
        frames.append((key, version, data[at + 8 : at + 4 + size]))
        at += 4 + size
    assert at == len(data)
    return frames


def confirm(publisher_id: int, ids: Sequence[int]) -> bytes:
    body = struct.pack('>BI', publisher_id, len(ids))
    return frame(0x0003, body + b''.join(struct.pack('>Q', i) for i in ids))


def refuse(publisher_id: int, errors: Sequence[tuple[int, int]]) -> bytes:
    body = struct.pack('>BI', publisher_id, len(errors))
    return frame(0x0004, body + b''.join(struct.pack('>QH', *error) for error in errors))


def deliver(subscription_id: int, chunk: bytes, committed_chunk_id: int | None = None) -> bytes:
    if committed_chunk_id is None:
        return frame(0x0008, struct.pack('>B', subscription_id) + chunk)
    return frame(0x0008, struct.pack('>BQ', subscription_id, committed_chunk_id) + chunk, 2)


def publish(
    publisher_id: int, entries: Iterable[tuple[int, bytes]], filters: Iterable[bytes] | None = None
) -> bytes:
    """A Publish frame; `filters` are the encoded filter fields of version 2."""
    entries = list(entries)
    middle = [b''] * len(entries) if filters is None else list(filters)
    body = struct.pack('>BI', publisher_id, len(entries)) + b''.join(
        struct.pack('>Q', publish_id) + value + struct.pack('>I', len(data)) + data
        for (publish_id, data), value in zip(entries, middle, strict=True)
    )
    return frame(0x0002, body, 1 if filters is None else 2)


def read_publish(data: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Read publisher id and entries of a Publish frame of version 1 without sub-entries."""
    return data[8], [(publish_id, message) for publish_id, _, (message,) in read_entries(data)]


def message(data: bytes) -> bytes:
    """An entry of a chunk with one message."""
    return struct.pack('>I', len(data)) + data


def sub_batch(
    messages: Sequence[bytes],
    *,
    records: int | None = None,
    plain: int | None = None,
    stored: int | None = None,
    compression: int = 0,
) -> bytes:
    """A sub-entry; the keywords replace correct values by wrong ones."""
    data = b''.join(map(message, messages))
    return data_batch(
        data,
        len(messages) if records is None else records,
        len(data) if plain is None else plain,
        len(data) if stored is None else stored,
        compression,
    )


def data_batch(data: bytes, records: int, plain: int, stored: int, compression: int = 0) -> bytes:
    return struct.pack('>BHII', 0x80 | compression << 4, records, plain, stored) + data


def chunk(
    entries: Sequence[bytes],
    records: int,
    *,
    offset: int = 0,
    timestamp: int = 0,
    epoch: int = 1,
    crc: int | None = None,
    length: int | None = None,
    trailer: int = 0,
    magic: int = 0x50,
    kind: int = 0,
    bloom: int = 0,
) -> bytes:
    """A chunk; the keywords replace correct values by wrong ones."""
    data = b''.join(entries)
    header = struct.pack(
        '>BBHIqQQIIIB3x',
        magic,
        kind,
        len(entries),
        records,
        timestamp,
        epoch,
        offset,
        zlib.crc32(data) if crc is None else crc,
        len(data) if length is None else length,
        trailer,
        bloom,
    )
    return header + data


def plain_chunk(messages: Sequence[bytes], offset: int = 0) -> bytes:
    return chunk([message(data) for data in messages], len(messages), offset=offset)
