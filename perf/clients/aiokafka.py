"""aiokafka publishing to Kafka, with values encoded as MessagePack."""

import asyncio
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer

from ..lanes import Kind
from .base import Target, Work

# an upper bound for the bytes of a record besides its value
RECORD = 32


class Publish(Work):
    async def open(self) -> None:
        self.producer: Any = AIOKafkaProducer(
            bootstrap_servers=self.target.address,
            acks='all',
            linger_ms=0,
            # the default, unless a batch needs more
            max_batch_size=max(16_384, self.kind.size * RECORD if self.kind.work == 'batch' else 0),
            value_serializer=msgpack.packb,
        )
        await self.producer.start()

    async def close(self) -> None:
        await self.producer.stop()


class Single(Publish):
    async def run(self) -> int:
        parts = [self.each(self.messages[i :: self.kind.tasks]) for i in range(self.kind.tasks)]
        if len(parts) == 1:
            return await parts[0]
        return sum(await asyncio.gather(*parts))

    async def each(self, data: list[bytes]) -> int:
        send_and_wait = self.producer.send_and_wait
        topic = self.target.stream
        count = 0
        for body in data:
            await send_and_wait(topic, body, partition=0)
            count += 1
        return count


class Batch(Publish):
    async def run(self) -> int:
        create_batch = self.producer.create_batch
        send_batch = self.producer.send_batch
        pack = msgpack.packb
        topic = self.target.stream
        data = self.messages
        size = self.kind.size
        count = 0
        for i in range(0, len(data), size):
            batch = create_batch()
            for body in data[i : i + size]:
                if batch.append(key=None, value=pack(body), timestamp=None) is None:
                    raise ValueError('the batch is larger than Kafka allows; use a smaller one')
            sent = await send_batch(batch, topic, partition=0)
            await sent
            count += batch.record_count()
        return count


class Window(Publish):
    """As many messages in flight as the producer allows."""

    async def run(self) -> int:
        send = self.producer.send
        topic = self.target.stream
        sent = [await send(topic, body, partition=0) for body in self.messages]
        for future in sent:
            await future
        return len(sent)


MAKE: dict[str, type[Publish]] = {
    'single': Single,
    'tasks': Single,
    'batch': Batch,
    'window': Window,
}


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](kind, target)
