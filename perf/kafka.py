"""Requests to a Kafka cluster of one node: create a topic, count its records, delete it.

Like :mod:`brokers.wire`, this code is independent of the measured libraries.  A request is
`i16 key, i16 version, i32 correlation id, string client id`, followed by its body.
"""

import socket
import struct
import time

from brokers.probe import exchange, parse_kafka

LIST_OFFSETS = 2
CREATE_TOPICS = 19
DELETE_TOPICS = 20

LATEST = -1
EARLIEST = -2
NOT_READY = (3, 5, 6)  # unknown topic, leader not available, not the leader
TIMEOUT = 30.0  # seconds


class KafkaError(Exception):
    """Kafka cannot be reached, or refused a request."""


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack('>h', len(data)) + data


def connect(address: str) -> socket.socket:
    try:
        return socket.create_connection(parse_kafka(address), TIMEOUT)
    except OSError as ex:
        raise KafkaError(f'cannot connect to Kafka at {address!r} ({ex})') from None


def request(address: str, key: int, body: bytes) -> bytes:
    """Send a request, version 1; return the answer after its correlation id."""
    with connect(address) as connection:
        return exchange(connection, struct.pack('>hhi', key, 1, 1) + string('perf') + body)[4:]


def create_topic(address: str, topic: str) -> None:
    """Create a topic with one partition and one replica."""
    body = struct.pack('>i', 1) + string(topic) + struct.pack('>ihii', 1, 1, 0, 0)
    answer = request(address, CREATE_TOPICS, body + struct.pack('>i?', 30_000, False))
    size = struct.unpack_from('>h', answer, 4)[0]
    code = struct.unpack_from('>h', answer, 6 + size)[0]
    if code:
        raise KafkaError(f'Kafka refused to create topic {topic}, code {code}')


def delete_topic(address: str, topic: str) -> None:
    body = struct.pack('>i', 1) + string(topic) + struct.pack('>i', 30_000)
    request(address, DELETE_TOPICS, body)


def offset(address: str, topic: str, which: int) -> int:
    partition = struct.pack('>iiq', 1, 0, which)
    body = struct.pack('>ii', -1, 1) + string(topic) + partition
    deadline = time.monotonic() + TIMEOUT
    while True:
        answer = request(address, LIST_OFFSETS, body)
        size = struct.unpack_from('>h', answer, 4)[0]
        _, code, _, offset = struct.unpack_from('>ihqq', answer, 10 + size)
        if not code:
            return int(offset)
        if code not in NOT_READY or time.monotonic() > deadline:
            raise KafkaError(f'Kafka refused to list the offsets of {topic}, code {code}')
        time.sleep(0.2)


def count(address: str, topic: str) -> int:
    """Count the records in the topic."""
    return offset(address, topic, LATEST) - offset(address, topic, EARLIEST)
