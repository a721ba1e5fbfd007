"""Super streams over a blocking socket: partitions, routing by hash, and the floors' work.

Like :mod:`perf.wire`, this uses none of the measured libraries.
"""

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

from . import wire

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


def publish_frames(bodies: Sequence[bytes], count: int, size: int) -> list[tuple[int, int, bytes]]:
    """Encode Publish frames of up to `size` messages for partitions; each body is its own key.

    :return: number of the partition, which is its publisher, number of messages, and frame.
    """
    waiting: list[list[bytes]] = [[] for _ in range(count)]
    sent = [0] * count
    frames = []

    def flush(i: int) -> None:
        frames.append((i, len(waiting[i]), wire.publish_frame(i, sent[i], waiting[i])))
        sent[i] += len(waiting[i])
        waiting[i].clear()

    for body in bodies:
        i = partition_of(body, count)
        waiting[i].append(wire.data_section(body))
        if len(waiting[i]) == size:
            flush(i)
    for i in range(count):
        if waiting[i]:
            flush(i)
    return frames


def slots(bodies: Sequence[bytes], count: int, number: int) -> list[list[tuple[int, bytes]]]:
    """Divide messages among slots, each of which sends its own ones one after the other.

    The publishing id of a message is the number of its slot, which has no other in flight.

    :param count: number of partitions.
    :param number: number of slots.
    :return: partition and encoded entry of each message of each slot, from the last to the first;
        the end of a slot is an entry of partition `count`.
    """
    found = []
    part = len(bodies) // number
    for slot in range(number):
        entries = [(count, b'')]
        for body in reversed(bodies[slot * part : (slot + 1) * part]):
            message = wire.data_section(body)
            entry = wire.ENTRY_HEAD.pack(slot, len(message)) + message
            entries.append((partition_of(body, count), entry))
        found.append(entries)
    return found


def publish_slots(
    connection: wire.Connection, slots: Sequence[list[tuple[int, bytes]]], count: int
) -> int:
    """Send the messages of `slots`, which are emptied: each one when the one before is confirmed.

    All messages that one read of confirms releases leave in one write, with one frame for each
    partition.

    :return: number of confirmed messages, once all are confirmed.
    """
    head, size = wire.PUBLISH_HEAD.pack, wire.PUBLISH_HEAD.size - 4
    take = [entries.pop for entries in slots]
    ready: list[list[bytes]] = [[] for _ in range(count + 1)]
    add = [entries.append for entries in ready]
    total = 0
    pending = sum(map(len, slots)) - len(slots)
    free: Sequence[int] = range(len(slots))
    while True:
        for slot in free:
            i, entry = take[slot]()
            add[i](entry)
        frames: list[bytes] = []
        for i in range(count):
            if entries := ready[i]:
                body = b''.join(entries)
                frames += head(len(body) + size, wire.PUBLISH, 1, i, len(entries)), body
                entries.clear()
        if frames:
            connection.socket.sendall(b''.join(frames))
        if total == pending:
            return total
        free = read_ids(connection)
        total += len(free)


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


def publish(
    connections: Sequence[wire.Connection], frames: Sequence[tuple[int, int, bytes]], window: int
) -> int:
    """Send frames with at most `window` messages, or one frame, in flight per partition.

    :param connections: the connection of each partition; partitions may share one.
    :return: number of confirmed messages, once all are confirmed.
    """
    send = [connection.socket.sendall for connection in connections]
    pending = [0] * len(connections)
    total = 0
    for i, size, data in frames:
        while pending[i] and pending[i] > window - size:
            total += read_confirms(connections[i], pending)
        send[i](data)
        pending[i] += size
    for i, connection in enumerate(connections):
        while pending[i]:
            total += read_confirms(connection, pending)
    return total


def read(connections: Sequence[wire.Connection], count: int) -> int:
    """Read chunks until they hold `count` messages in all partitions, which hold equally many.

    :param connections: the connection of each partition; partitions may share one.
    :return: number of messages in those chunks.
    """
    shares = [
        (connection, count * connections.count(connection) // len(connections))
        for connection in dict.fromkeys(connections)
    ]
    if len(shares) == 1:
        return connections[0].read_messages(count)
    with ThreadPoolExecutor(len(shares)) as threads:
        return sum(threads.map(lambda share: share[0].read_messages(share[1]), shares))


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
