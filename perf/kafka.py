"""Kafka's protocol over a blocking socket: create a topic, count its records, delete it.

Like :mod:`perf.wire`, this code is independent of the measured libraries.  A request is
`u32 size, i16 key, i16 version, i32 correlation id, string client id`, followed by its body.
"""

import socket
import struct
import time
from typing import Self

LIST_OFFSETS = 2
CREATE_TOPICS = 19
DELETE_TOPICS = 20

LATEST = -1
EARLIEST = -2
NOT_READY = (3, 5, 6)  # unknown topic, leader not available, not the leader


class KafkaError(Exception):
    """Kafka refused a request or closed the connection."""


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack('>h', len(data)) + data


class Connection:
    """A connection to a Kafka cluster of one node."""

    def __init__(self, address: str, timeout: float = 30) -> None:
        host, _, port = address.split(',')[0].rpartition(':')
        try:
            self.socket = socket.create_connection((host.strip('[]'), int(port)), timeout)
        except (OSError, ValueError) as ex:
            raise KafkaError(f'cannot connect to Kafka at {address!r} ({ex})') from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(self, key: int, version: int, body: bytes) -> bytes:
        data = struct.pack('>hhi', key, version, 1) + string('perf') + body
        self.socket.sendall(struct.pack('>I', len(data)) + data)
        size = struct.unpack('>I', self.read(4))[0]
        return self.read(size)[4:]

    def read(self, size: int) -> bytes:
        data = b''
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise KafkaError('Kafka closed the connection')
            data += part
        return data

    def create_topic(self, topic: str) -> None:
        """Create a topic with one partition and one replica."""
        body = struct.pack('>i', 1) + string(topic) + struct.pack('>ihii', 1, 1, 0, 0)
        answer = self.request(CREATE_TOPICS, 1, body + struct.pack('>i?', 30_000, False))
        size = struct.unpack_from('>h', answer, 4)[0]
        code = struct.unpack_from('>h', answer, 6 + size)[0]
        if code:
            raise KafkaError(f'Kafka refused to create topic {topic}, code {code}')

    def delete_topic(self, topic: str) -> None:
        body = struct.pack('>i', 1) + string(topic) + struct.pack('>i', 30_000)
        self.request(DELETE_TOPICS, 1, body)

    def offset(self, topic: str, which: int) -> int:
        partition = struct.pack('>iiq', 1, 0, which)
        body = struct.pack('>ii', -1, 1) + string(topic) + partition
        deadline = time.monotonic() + 30
        while True:
            answer = self.request(LIST_OFFSETS, 1, body)
            size = struct.unpack_from('>h', answer, 4)[0]
            _, code, _, offset = struct.unpack_from('>ihqq', answer, 10 + size)
            if not code:
                return int(offset)
            if code not in NOT_READY or time.monotonic() > deadline:
                raise KafkaError(f'Kafka refused to list the offsets of {topic}, code {code}')
            time.sleep(0.2)

    def count(self, topic: str) -> int:
        """Count the records in the topic."""
        return self.offset(topic, LATEST) - self.offset(topic, EARLIEST)
