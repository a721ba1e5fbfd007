"""aiokafka consuming from Kafka, with values encoded as MessagePack."""

from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ..lanes import Kind, Stored
from .base import Target, Work, numbered


class Consume(Work):
    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.partition = TopicPartition(target.stream, 0)

    async def open(self) -> None:
        self.consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=self.target.address, value_deserializer=msgpack.unpackb
        )
        await self.consumer.start()

    async def run(self) -> int:
        consumer = self.consumer
        count = 0
        consumer.assign([self.partition])
        await consumer.seek_to_beginning(self.partition)
        while count < self.count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    self.last = record.value
                count += len(records)
        self.received = count
        return self.count

    async def finish(self) -> None:
        self.consumer.unsubscribe()
        if self.last != numbered(self.received - 1, self.kind.body):
            raise ValueError(f'message {self.received - 1} has the body {self.last[:50]!r}')

    async def close(self) -> None:
        await self.consumer.stop()


async def fill(address: str, topic: str, count: int, stored: Stored) -> None:
    """Publish the messages for the lanes that consume."""
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=address, acks='all', value_serializer=msgpack.packb
    )
    await producer.start()
    try:
        for first in range(0, count, stored.frame):
            numbers = range(first, first + stored.frame)
            sent = [
                await producer.send(topic, numbered(i, stored.size), partition=0) for i in numbers
            ]
            for future in sent:
                await future
    finally:
        await producer.stop()


def make(kind: Kind, target: Target) -> Work:
    return Consume(kind, target)
