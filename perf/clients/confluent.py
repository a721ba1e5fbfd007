"""confluent-kafka: librdkafka, whose threads send and receive, and values as MessagePack."""

from typing import Any

import msgpack
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from ..lanes import Kind
from .base import Target, Work, numbered

PIECE = 1_000  # messages between two calls that serve callbacks, or per call that consumes
PATIENCE = 60.0  # seconds


def options(target: Target) -> dict[str, Any]:
    """How to connect."""
    found: dict[str, Any] = {'bootstrap.servers': target.address}
    if target.ca_file:
        found |= {'security.protocol': 'SSL', 'ssl.ca.location': target.ca_file}
    return found


class Publish(Work):
    """Produce a batch, or a single message, and flush."""

    async def open(self) -> None:
        self.error: Any = None
        self.confirmed = 0
        self.producer = Producer({**options(self.target), 'acks': 'all'})
        self.producer.list_topics(self.target.stream, timeout=PATIENCE)  # connects

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self.confirmed += 1
        else:
            self.error = error

    async def run(self) -> int:
        before = self.confirmed
        for first in range(0, len(self.messages), self.kind.size):
            self.produce(self.messages[first : first + self.kind.size])
            self.flush()
        return self.confirmed - before

    def produce(self, bodies: list[bytes]) -> None:
        produce, pack = self.producer.produce, msgpack.packb
        topic, on_delivery = self.target.stream, self.on_delivery
        for body in bodies:
            produce(topic, pack(body), partition=0, on_delivery=on_delivery)

    def flush(self) -> None:
        """Wait until all messages are confirmed."""
        left = self.producer.flush(PATIENCE)
        if self.error is not None:
            raise KafkaException(self.error)
        if left:
            raise TimeoutError(f'{left:,} messages are not confirmed after {PATIENCE:.0f} s')

    async def close(self) -> None:
        self.producer.flush(PATIENCE)


class Window(Publish):
    """Produce while there are not too many messages in flight."""

    async def run(self) -> int:
        before, sent = self.confirmed, 0
        poll, limit = self.producer.poll, self.kind.window - PIECE
        for first in range(0, len(self.messages), PIECE):
            while sent - (self.confirmed - before) > limit:
                poll(1)
                if self.error is not None:
                    raise KafkaException(self.error)
            piece = self.messages[first : first + PIECE]
            self.produce(piece)
            sent += len(piece)
            poll(0)
        self.flush()
        return self.confirmed - before


class Consume(Work):
    async def open(self) -> None:
        self.last = b''
        about = {'group.id': 'perf', 'enable.auto.commit': False}
        self.consumer = Consumer({**options(self.target), **about})
        self.consumer.list_topics(self.target.stream, timeout=PATIENCE)  # connects

    async def run(self) -> int:
        self.consumer.assign([TopicPartition(self.target.stream, 0, OFFSET_BEGINNING)])
        consume, unpack = self.consumer.consume, msgpack.unpackb
        count = 0
        while count < self.count:
            # it waits until there are as many messages
            messages = consume(min(PIECE, self.count - count), PATIENCE)
            if not messages:
                raise TimeoutError(f'no message for {PATIENCE:.0f} s')
            for message in messages:
                if error := message.error():
                    raise KafkaException(error)
                self.last = unpack(message.value())
            count += len(messages)
        return count

    async def finish(self) -> None:
        self.consumer.unassign()
        if self.last != numbered(self.count - 1, self.kind.body):
            raise ValueError(f'message {self.count - 1} has the body {self.last[:50]!r}')

    async def close(self) -> None:
        self.consumer.close()


MAKE: dict[str, type[Work]] = {
    'single': Publish,
    'batch': Publish,
    'window': Window,
    'consume': Consume,
}


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](kind, target)
