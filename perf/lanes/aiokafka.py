"""aiokafka on Kafka, with MessagePack as its encoding."""

from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer

from .base import Target, Work, bodies

__all__ = ['make']

BATCH = 100


class Publish(Work):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.bodies: list[bytes] = []

    async def open(self) -> None:
        self.producer: Any = AIOKafkaProducer(
            bootstrap_servers=self.target.address,
            acks='all',
            linger_ms=0,
            value_serializer=msgpack.packb,
        )
        await self.producer.start()

    async def prepare(self, count: int) -> None:
        self.bodies = bodies(count)

    async def finish(self) -> None:
        self.bodies = []

    async def close(self) -> None:
        await self.producer.stop()


class Single(Publish):
    async def run(self) -> int:
        send_and_wait = self.producer.send_and_wait
        topic = self.target.stream
        count = 0
        for body in self.bodies:
            await send_and_wait(topic, body, partition=0)
            count += 1
        return count


class Batch(Publish):
    async def run(self) -> int:
        create_batch = self.producer.create_batch
        send_batch = self.producer.send_batch
        pack = msgpack.packb
        topic = self.target.stream
        data = self.bodies
        count = 0
        for i in range(0, len(data), BATCH):
            batch = create_batch()
            for body in data[i : i + BATCH]:
                if batch.append(key=None, value=pack(body), timestamp=None) is None:
                    raise ValueError('batch is larger than a Kafka batch may be')
            sent = await send_batch(batch, topic, partition=0)
            await sent
            count += batch.record_count()
        return count


def make(kind: str, target: Target) -> Work:
    return Single(target) if kind == 'single' else Batch(target)
