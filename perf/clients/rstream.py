"""rstream: the Python client of the RabbitMQ organisation."""

import asyncio
from typing import Any

from rstream import AMQPMessage, ConfirmationStatus, Producer

from .. import wire
from ..lanes import Kind
from .base import Target, Work, bodies


def account(uri: str) -> dict[str, Any]:
    """The broker's address and credentials, as arguments for rstream."""
    address = wire.parse_uri(uri)
    return {
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
        self.producer = Producer(**account(self.target.address))
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


def make(kind: Kind, target: Target) -> Work:
    return (Single if kind.work in ('single', 'tasks') else Publish)(kind, target)
