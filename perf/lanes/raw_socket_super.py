"""Floor: a blocking socket that uses all partitions of a super stream on one connection."""

from .. import spread
from . import Kind
from .base import Target, Work, bodies
from .raw_socket import Connected

__all__ = ['make']


class Super(Connected):
    def __init__(self, target: Target, kind: Kind) -> None:
        super().__init__(target)
        self.kind = kind
        self.partitions = spread.partitions_of(target.stream, kind.partitions)


class Publish(Super):
    """Send frames to the partition of each message's key, with a window per partition."""

    async def open(self) -> None:
        await super().open()
        for number, partition in enumerate(self.partitions):
            self.connection.declare_publisher(partition, number=number)

    async def prepare(self, count: int) -> None:
        kind = self.kind
        # what all tasks send at the same time, one frame for each partition
        wave = kind.tasks if kind.tasks > 1 else 0
        self.frames = spread.spread(bodies(count), kind.partitions, kind.frame, wave)

    async def run(self) -> int:
        kind = self.kind
        return spread.publish(self.connection, self.frames, kind.partitions, kind.window)

    async def finish(self) -> None:
        self.frames = []


class Consume(Super):
    """A subscription for each partition."""

    async def prepare(self, count: int) -> None:
        self.count = count

    async def run(self) -> int:
        connection, count = self.connection, self.count
        for number, partition in enumerate(self.partitions):
            connection.start_subscription(partition, number)
        return connection.read_messages(count)

    async def finish(self) -> None:
        for number in range(len(self.partitions)):
            self.connection.unsubscribe(number)


def make(kind: Kind, target: Target) -> Work:
    return Consume(target, kind) if kind.stored else Publish(target, kind)
