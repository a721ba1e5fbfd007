"""aio-pika: AMQP 0.9.1 for asyncio, which can also publish to streams."""

from time import perf_counter

import aio_pika

from ..lanes import Kind
from .base import Target, Work


class Confirmed(Work):
    """Await the confirm of each message before sending the next."""

    confirms = True

    async def open(self) -> None:
        # the event loop sends heartbeats, even when it is another lane's turn
        self.connection = await aio_pika.connect(self.target.address)
        self.channel = self.connection.channel(
            publisher_confirms=self.confirms,
            on_return_raises=self.confirms,  # a returned message was not stored
        )
        await self.channel.initialize()

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        self.messages = [aio_pika.Message(body) for body in self.messages]

    async def run(self) -> int:
        publish = self.channel.default_exchange.publish
        stream = self.target.stream
        count = 0
        for message in self.messages:
            await publish(message, stream)
            count += 1
        return count

    async def close(self) -> None:
        await self.connection.close()

    async def round_trip(self) -> float:
        """Seconds for a round trip to the broker."""
        start = perf_counter()
        await self.channel.declare_queue(self.target.stream, passive=True)
        return perf_counter() - start


class Unconfirmed(Confirmed):
    """Drain each message to the socket, without confirms."""

    confirms = False

    async def finish(self) -> None:
        await super().finish()
        # the broker answers after processing the messages; raises if one of them closed the channel
        await self.round_trip()


def make(kind: Kind, target: Target) -> Work:
    return (Unconfirmed if kind.work == 'unconfirmed' else Confirmed)(kind, target)
