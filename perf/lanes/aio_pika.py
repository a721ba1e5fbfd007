"""aio-pika: AMQP 0.9.1 for asyncio; a broker takes messages for streams over that, too."""

from time import perf_counter

import aio_pika

from . import Kind
from .base import Target, Work, bodies

__all__ = ['make']


class Confirmed(Work):
    """Each message is confirmed before the next."""

    confirms = True
    messages: list[aio_pika.Message]

    async def open(self) -> None:
        # heartbeats are sent by the loop, also between the turns
        self.connection = await aio_pika.connect(self.target.address)
        self.channel = self.connection.channel(
            publisher_confirms=self.confirms,
            on_return_raises=self.confirms,  # a message that got nowhere is no success
        )
        await self.channel.initialize()

    async def prepare(self, count: int) -> None:
        self.messages = [aio_pika.Message(body) for body in bodies(count)]

    async def run(self) -> int:
        publish = self.channel.default_exchange.publish
        stream = self.target.stream
        count = 0
        for message in self.messages:
            await publish(message, stream)
            count += 1
        return count

    async def finish(self) -> None:
        self.messages = []

    async def close(self) -> None:
        await self.connection.close()

    async def round_trip(self) -> float:
        """Seconds to the broker and back."""
        start = perf_counter()
        await self.channel.declare_queue(self.target.stream, passive=True)
        return perf_counter() - start


class Unconfirmed(Confirmed):
    """Each message is drained to the socket, and that is all that is known of it."""

    confirms = False

    async def finish(self) -> None:
        await super().finish()
        # answered behind the messages; raises if the channel was closed over one of them
        await self.round_trip()


def make(kind: Kind, target: Target) -> Work:
    return (Unconfirmed if kind.work == 'unconfirmed' else Confirmed)(target)
