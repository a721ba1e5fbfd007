"""rstream: the Python client of the RabbitMQ organisation."""

import asyncio
from typing import Any

from rstream import (
    AMQPMessage,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
    amqp_decoder,
)

from brokers import wire
from brokers.probe import parse_uri

from ..lanes import Kind
from .base import Target, Work, bodies, numbered
from .open_loop import OpenLoop

CREDIT = 10  # chunks; rstream's default


def account(target: Target) -> dict[str, Any]:
    """The broker's address and credentials, as arguments for rstream."""
    address = parse_uri(target.address)
    return {
        'ssl_context': target.tls_context,
        'host': address.host,
        'port': address.port,
        'vhost': address.vhost,
        'username': address.user,
        'password': address.password,
    }


class Publish(Work):
    """Send batches, each as soon as the window has capacity for it."""

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.pending = 0  # messages
        self.limit = 0
        self.waiter: asyncio.Future[None] | None = None

    async def open(self) -> None:
        self.producer = Producer(**account(self.target))
        await self.producer.start()

    async def prepare(self, count: int) -> None:
        size = self.kind.size
        messages = [AMQPMessage(body=body) for body in bodies(count, self.kind.body)]
        self.messages = [messages[i : i + size] for i in range(0, count, size)]

    async def run(self) -> int:
        send_batch = self.producer.send_batch
        stream = self.target.stream
        limit = self.kind.window - self.kind.size
        count = 0
        for batch in self.messages:
            await self.settled(limit)
            self.pending += len(batch)
            await send_batch(stream, batch, on_publish_confirm=self.on_confirm)
            count += len(batch)
        await self.settled(0)
        return count

    async def settled(self, limit: int) -> None:
        """Wait until at most `limit` messages are unconfirmed."""
        if self.pending > limit:
            self.limit = limit
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter

    def on_confirm(self, status: ConfirmationStatus) -> None:
        self.pending -= 1
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        if not status.is_confirmed:
            waiter.set_exception(wire.WireError(f'not confirmed: {status}'))
        elif self.pending <= self.limit:
            waiter.set_result(None)

    async def close(self) -> None:
        await self.producer.close()


class Single(Publish):
    """Several tasks, each awaiting its own confirms."""

    async def prepare(self, count: int) -> None:
        self.messages = [AMQPMessage(body=body) for body in bodies(count, self.kind.body)]

    async def run(self) -> int:
        parts = [self.each(self.messages[i :: self.kind.tasks]) for i in range(self.kind.tasks)]
        if len(parts) == 1:
            return await parts[0]
        return sum(await asyncio.gather(*parts))

    async def each(self, messages: list[AMQPMessage]) -> int:
        send_wait = self.producer.send_wait
        stream = self.target.stream
        count = 0
        for message in messages:
            await send_wait(stream, message)
            count += 1
        return count


class Consume(Work):
    async def open(self) -> None:
        self.consumer = Consumer(**account(self.target))
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


class AtFixedRate(OpenLoop):
    """Each tick, a task sends all due messages with `send_batch`; the callback receives confirms.

    `send` is unsuitable for low latency: it sends what it has buffered every half second, and the
    delay passed to the constructor is ignored (1.1.1).  One task per message with `send_wait` has
    about the same median at 1,000 messages per second, but each confirm searches all waiting
    tasks, so delays grow: to seconds at p99 on a busy machine, and at 10,000 per second it does not
    finish within a minute.
    """

    async def open(self) -> None:
        options = account(self.target)
        self.consumer = Consumer(**options)
        self.producer = Producer(**options)
        await self.consumer.start()
        await self.consumer.subscribe(
            self.target.stream,
            self.on_message,
            decoder=amqp_decoder,
            offset_specification=ConsumerOffsetSpecification(OffsetType.NEXT, None),
        )
        await self.producer.start()

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        self.messages = [AMQPMessage(body=body) for body in self.bodies]
        for i, message in enumerate(self.messages):
            message.publishing_id = self.number + i  # identifies its confirm

    def send(self, first: int, end: int) -> None:
        self.spawn(self.send_all(self.messages[first:end]))

    async def send_all(self, messages: list[AMQPMessage]) -> None:
        await self.producer.send_batch(
            self.target.stream, messages, on_publish_confirm=self.on_confirm
        )

    def on_confirm(self, status: ConfirmationStatus) -> None:
        if status.is_confirmed:
            self.confirmed(status.message_id - self.number)
        else:
            self.fail(wire.WireError(f'not confirmed: {status}'))

    def on_message(self, message: AMQPMessage, context: MessageContext) -> None:
        self.consumed(message.body)

    async def close(self) -> None:
        await self.end_tasks()
        await self.producer.close()
        await self.consumer.close()


MAKE: dict[str, type[Work]] = {
    'single': Single,
    'tasks': Single,
    'batch': Publish,
    'window': Publish,
    'consume': Consume,
    'open-loop': AtFixedRate,
}


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](kind, target)
