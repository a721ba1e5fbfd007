"""rstream: the Python client of the RabbitMQ organisation."""

import asyncio

from rstream import AMQPMessage, ConfirmationStatus, Producer

from .. import wire
from .base import Target, Work, bodies

__all__ = ['make']

BATCH = 100


class Publish(Work):
    def __init__(self, target: Target, size: int) -> None:
        super().__init__(target)
        self.size = size
        self.pending = 0
        self.waiter: asyncio.Future[None] | None = None
        self.batches: list[list[AMQPMessage]] = []

    async def open(self) -> None:
        address = wire.parse_uri(self.target.address)
        self.producer = Producer(
            address.host,
            address.port,
            vhost=address.vhost,
            username=address.user,
            password=address.password,
        )
        await self.producer.start()

    async def prepare(self, count: int) -> None:
        messages = [AMQPMessage(body=body) for body in bodies(count)]
        self.batches = [messages[i : i + self.size] for i in range(0, count, self.size)]

    async def run(self) -> int:
        return await (self.run_single() if self.size == 1 else self.run_batch())

    async def run_single(self) -> int:
        send_wait = self.producer.send_wait
        stream = self.target.stream
        count = 0
        for (message,) in self.batches:
            await send_wait(stream, message)
            count += 1
        return count

    async def run_batch(self) -> int:
        create_future = asyncio.get_running_loop().create_future
        send_batch = self.producer.send_batch
        stream = self.target.stream
        count = 0
        for batch in self.batches:
            self.pending = len(batch)
            self.waiter = waiter = create_future()
            await send_batch(stream, batch, on_publish_confirm=self.on_confirm)
            await waiter
            count += len(batch)
        return count

    def on_confirm(self, status: ConfirmationStatus) -> None:
        assert self.waiter is not None
        if not status.is_confirmed:
            if not self.waiter.done():
                self.waiter.set_exception(wire.WireError(f'not confirmed: {status}'))
            return
        self.pending -= 1
        if not self.pending:
            self.waiter.set_result(None)

    async def finish(self) -> None:
        self.batches = []

    async def close(self) -> None:
        await self.producer.close()


def make(kind: str, target: Target) -> Work:
    return Publish(target, 1 if kind == 'single' else BATCH)
