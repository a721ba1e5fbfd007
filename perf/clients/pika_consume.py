"""pika: reads a stream queue with AMQP 0.9.1."""

from ..lanes import Kind
from .base import Target, Work, numbered
from .pika import Blocking

PREFETCH = 1_000  # messages that are not acknowledged
ACK = 100  # messages per acknowledgement


class Consume(Blocking):
    """Read the queue from its first message; `ACK` divides the number of messages."""

    async def open(self) -> None:
        await super().open()
        self.channel.basic_qos(prefetch_count=PREFETCH)

    async def run(self) -> int:
        ack = self.channel.basic_ack
        count = 0
        for method, _, body in self.channel.consume(
            self.target.stream, arguments={'x-stream-offset': 'first'}
        ):
            count += 1
            if not count % ACK:
                ack(method.delivery_tag, multiple=True)
                if count >= self.count:
                    self.last = body
                    break
        return count

    async def finish(self) -> None:
        self.channel.cancel()
        if self.last != numbered(self.count - 1, self.kind.body):
            raise ValueError(f'message {self.count - 1} has the body {self.last[:50]!r}')


def make(kind: Kind, target: Target) -> Work:
    return Consume(kind, target)
