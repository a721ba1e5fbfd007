"""Super streams over a blocking socket: partitions, routing by hash, and confirms.

Like :mod:`brokers.wire`, this uses none of the measured libraries.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from urllib.parse import urlsplit

from brokers import wire

CREATE_SUPER_STREAM = 0x1D
DELETE_SUPER_STREAM = 0x1E

SEED = 104_729  # of the hash in all official clients
MASK = 0xFFFF_FFFF


def hashed(key: bytes) -> int:
    """MurmurHash3 of a key, the x86 variant with 32 bits, as a number without sign."""
    value = SEED
    end = len(key) & ~3
    for i in range(0, end, 4):
        value ^= scrambled(int.from_bytes(key[i : i + 4], 'little'))
        value = (value << 13 | value >> 19) & MASK
        value = (value * 5 + 0xE654_6B64) & MASK
    value ^= scrambled(int.from_bytes(key[end:], 'little'))
    value ^= len(key)
    value = (value ^ value >> 16) * 0x85EB_CA6B & MASK
    value = (value ^ value >> 13) * 0xC2B2_AE35 & MASK
    return value ^ value >> 16


def scrambled(block: int) -> int:
    block = block * 0xCC9E_2D51 & MASK
    block = (block << 15 | block >> 17) & MASK
    return block * 0x1B87_3593 & MASK


def partition_of(key: bytes, count: int) -> int:
    """The number of the partition that a key belongs to."""
    return hashed(key) % count


def partitions_of(stream: str, count: int) -> list[str]:
    """The names of a super stream's partitions."""
    return [f'{stream}-{i}' for i in range(count)]


def create(
    connection: wire.Connection,
    stream: str,
    partitions: Sequence[str],
    arguments: dict[str, str] | None = None,
) -> None:
    """Create a super stream whose partitions are bound to their numbers."""
    connection.request(
        CREATE_SUPER_STREAM,
        wire.string(stream)
        + strings(partitions)
        + strings([str(i) for i in range(len(partitions))])
        + wire.mapping(arguments or {}),
    )


def delete(connection: wire.Connection, stream: str) -> None:
    """Delete a super stream if it exists."""
    connection.request(DELETE_SUPER_STREAM, wire.string(stream), wire.NO_STREAM)


def leaders(uri: str, partitions: Sequence[str]) -> list[str]:
    """URI of the node that leads each partition; the argument leads to any node."""
    with closing(wire.Connection(uri)) as connection:
        found = [connection.leader(name)[0] for name in partitions]
    parts = urlsplit(uri)
    login = ''.join(parts.netloc.rpartition('@')[:2])
    uris = []
    for name, leader in zip(partitions, found, strict=True):
        if leader is None:
            raise wire.WireError(f'partition {name} has no leader')
        host, port = leader
        uris.append(parts._replace(netloc=f'{login}{host}:{port}').geturl())
    return uris


def strings(texts: Sequence[str]) -> bytes:
    return wire.U32.pack(len(texts)) + b''.join(map(wire.string, texts))


def read_ids(connection: wire.Connection) -> list[int]:
    """Receive data once; return the publishing ids that it confirms."""
    data = connection.rest + connection.receive()
    found: list[int] = []
    pos = 0
    for _, count, end in confirmed(data):
        if count:
            found += struct.unpack_from(f'>{count}Q', data, pos + wire.CONFIRM.size)
        pos = end
    connection.rest = data[pos:]
    return found


def read_confirms(connection: wire.Connection, pending: list[int]) -> int:
    """Receive data once; subtract the messages that it confirms, and return their number."""
    data = connection.rest + connection.receive()
    total = 0
    pos = 0
    for i, count, pos in confirmed(data):  # noqa: B007 - the last position is used
        pending[i] -= count
        total += count
    connection.rest = data[pos:]
    return total


def confirmed(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield publisher, number of messages confirmed, and end of every complete frame."""
    pos, end = 0, len(data)
    while end - pos >= wire.CONFIRM.size:
        size, key, _, publisher, count = wire.CONFIRM.unpack_from(data, pos)
        if pos + 4 + size > end:
            return
        if key != wire.PUBLISH_CONFIRM:
            wire.refuse(key, data[pos + 8 : pos + 4 + size])
            publisher = count = 0
        pos += 4 + size
        yield publisher, count, pos
