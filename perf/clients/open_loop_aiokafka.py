"""aiokafka publishing to Kafka at a fixed rate."""

import asyncio
import functools
from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ..lanes import Kind
from .base import Target, Work
from .open_loop import OpenLoop


class Client(OpenLoop):
    """Each tick, a task sends all due messages with `send`; `async for` consumes records.

    `send` may wait and be overtaken by a later call, so the tasks take turns.
    """

    async def open(self) -> None:
        topic = self.target.stream
        self.turn = asyncio.Lock()
        self.consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=self.target.address,
            auto_offset_reset='latest',
            value_deserializer=msgpack.unpackb,
        )
        self.producer: Any = AIOKafkaProducer(
            bootstrap_servers=self.target.address,
            acks='all',
            linger_ms=0,
            value_serializer=msgpack.packb,
        )
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


def make(kind: Kind, target: Target) -> Work:
    return Client(kind, target)
