"""Reads entries of Publish frames and chunks with `struct`: single messages and sub-entries."""

import gzip
import struct

import cramjam


def read_entries(data: bytes) -> list[tuple[int, int | None, list[bytes]]]:
    """Read a Publish frame of version 1: id, compression (None for one message) and messages."""
    size, key, version, _, count = struct.unpack_from('>IHHBI', data)
    assert (size, key, version) == (len(data) - 4, 0x0002, 1)
    entries: list[tuple[int, int | None, list[bytes]]] = []
    at = 13
    for _ in range(count):
        (publish_id,) = struct.unpack_from('>Q', data, at)
        compression, messages, at = read_entry(data, at + 8)
        entries.append((publish_id, compression, messages))
    assert at == len(data)
    return entries


def read_entry(data: bytes, at: int) -> tuple[int | None, list[bytes], int]:
    """Read an entry after its id: compression, messages, and start of the next entry."""
    if not data[at] & 0x80:
        (size,) = struct.unpack_from('>I', data, at)
        end = at + 4 + size
        return None, split_messages(data[at:end]), end
    kind, records, plain, stored = struct.unpack_from('>BHII', data, at)
    assert kind & 0x0F == 0
    compression = kind >> 4 & 7
    end = at + 11 + stored
    content = decompress(compression, data[at + 11 : end])
    assert len(content) == plain
    messages = split_messages(content)
    assert len(messages) == records
    return compression, messages, end


def split_messages(data: bytes) -> list[bytes]:
    """Split messages, each of which follows its length."""
    messages = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from('>I', data, at)
        messages.append(data[at + 4 : at + 4 + size])
        assert len(messages[-1]) == size
        at += 4 + size
    return messages


def decompress(code: int, data: bytes) -> bytes:
    """Decompress the data of a sub-entry."""
    if code == 0:
        return data
    if code == 1:
        return gzip.decompress(data)
    return bytes({2: cramjam.snappy, 3: cramjam.lz4, 4: cramjam.zstd}[code].decompress(data))
