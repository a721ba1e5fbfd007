"""aiokafka with Kafka, and values encoded as MessagePack."""

import asyncio
import functools
from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ..lanes import Kind, Stored
from .base import Target, Work, numbered
from .open_loop import OpenLoop

# an upper bound for the bytes of a record besides its value
RECORD = 32


def secure(target: Target) -> dict[str, Any]:
    """The arguments that a listener with TLS needs."""
    context = target.tls_context
    return {'security_protocol': 'SSL', 'ssl_context': context} if context else {}


def producer(address: str, **options: Any) -> Any:
    return AIOKafkaProducer(
        bootstrap_servers=address, acks='all', value_serializer=msgpack.packb, **options
    )


def consumer(address: str, **options: Any) -> Any:
    return AIOKafkaConsumer(
        bootstrap_servers=address, value_deserializer=msgpack.unpackb, **options
    )


class Publish(Work):
    async def open(self) -> None:
        # the default size, unless a batch needs more
        size = max(16_384, self.kind.size * RECORD if self.kind.work.endswith('batch') else 0)
        options = secure(self.target)
        self.producer = producer(self.target.address, linger_ms=0, max_batch_size=size, **options)
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


class Consume(Work):
    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.partition = TopicPartition(target.stream, 0)

    async def open(self) -> None:
        self.consumer = consumer(self.target.address, **secure(self.target))
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
    filling = producer(address)
    await filling.start()
    try:
        for first in range(0, count, stored.frame):
            numbers = range(first, first + stored.frame)
            sent = [
                await filling.send(topic, numbered(i, stored.size), partition=0) for i in numbers
            ]
            for future in sent:
                await future
    finally:
        await filling.stop()


class AtFixedRate(OpenLoop):
    """Each tick, a task sends all due messages with `send`; `async for` consumes records.

    `send` may wait and be overtaken by a later call, so the tasks take turns.
    """

    async def open(self) -> None:
        topic = self.target.stream
        self.turn = asyncio.Lock()
        self.consumer = consumer(self.target.address, auto_offset_reset='latest')
        self.producer = producer(self.target.address, linger_ms=0)
        await self.consumer.start()
        await self.producer.start()
        await self.producer.partitions_for(topic)  # otherwise the first message would do it
        partition = TopicPartition(topic, 0)
        self.consumer.assign([partition])
        await self.consumer.seek_to_end(partition)
        self.spawn(self.read())

    async def read(self) -> None:
        consumed = self.consumed
        async for record in self.consumer:
            consumed(record.value)

    def send(self, first: int, end: int) -> None:
        self.spawn(self.send_all(range(first, end)))

    async def send_all(self, indices: range) -> None:
        send, topic = self.producer.send, self.target.stream
        async with self.turn:
            for index in indices:
                future = await send(topic, self.bodies[index], partition=0)
                future.add_done_callback(functools.partial(self.acknowledged, index))

    def acknowledged(self, index: int, future: 'asyncio.Future[Any]') -> None:
        if future.cancelled():
            self.fail(ValueError(f'message {index} was not confirmed'))
        elif (error := future.exception()) is not None:
            assert isinstance(error, Exception)
            self.fail(error)
        else:
            self.confirmed(index)

    async def close(self) -> None:
        await self.end_tasks()
        await self.producer.stop()
        await self.consumer.stop()


MAKE: dict[str, type[Work]] = {
    'single': Single,
    'tasks': Single,
    'batch': Batch,
    'sub-batch': Batch,  # a batch is a record batch in any case
    'window': Window,
    'consume': Consume,
    'open-loop': AtFixedRate,
}


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](kind, target)
