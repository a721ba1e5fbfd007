"""rstream consuming."""

import asyncio

from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    amqp_decoder,
)

from ..lanes import Kind
from .base import Target, Work, numbered
from .rstream import account

CREDIT = 10  # chunks; rstream's default


class Consume(Work):
    async def open(self) -> None:
        self.consumer = Consumer(**account(self.target.address))
        await self.consumer.start()

    async def prepare(self, count: int) -> None:
        self.count = count
        self.received = 0
        self.done = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        self.subscription = await self.consumer.subscribe(
            self.target.stream,
            self.on_message,
            decoder=amqp_decoder,
            offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST),
            initial_credit=CREDIT,
        )
        await self.done
        return self.count

    def on_message(self, message: AMQPMessage, context: MessageContext) -> None:
        self.received += 1
        if self.received == self.count:
            self.done.set_result(message.body)

    async def finish(self) -> None:
        await self.consumer.unsubscribe(self.subscription)
        if self.done.result() != numbered(self.count - 1, self.kind.body):
            raise ValueError(f'message {self.count - 1} has the body {self.done.result()[:50]!r}')

    async def close(self) -> None:
        await self.consumer.close()


def make(kind: Kind, target: Target) -> Work:
    return Consume(kind, target)
