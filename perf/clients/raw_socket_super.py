"""Floor: blocking sockets that use all partitions of a super stream.

All partitions share a connection; in a cluster, those that a node leads.
"""

from .. import super_stream_wire, wire
from ..lanes import Kind
from .base import Target, Work, bodies


class Super(Work):
    """What these lanes share.

    :ivar connections: the connection of each partition.
    """

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.partitions = super_stream_wire.partitions_of(target.stream, kind.partitions)

    async def open(self) -> None:
        address = self.target.address
        uris = [address] * len(self.partitions)
        if self.kind.nodes:
            uris = super_stream_wire.leaders(address, self.partitions)
        self.opened = {uri: wire.Connection(uri, timeout=None) for uri in dict.fromkeys(uris)}
        self.connections = [self.opened[uri] for uri in uris]

    async def close(self) -> None:
        for connection in self.opened.values():
            connection.close()


class Publish(Super):
    """Send frames to the partition of each message's key, with a window per partition."""

    async def open(self) -> None:
        await super().open()
        for number, partition in enumerate(self.partitions):
            self.connections[number].declare_publisher(partition, number=number)

    async def prepare(self, count: int) -> None:
        self.messages = super_stream_wire.publish_frames(
            bodies(count), self.kind.partitions, self.kind.frame
        )

    async def run(self) -> int:
        return super_stream_wire.publish(self.connections, self.messages, self.kind.window)


class Tasks(Publish):
    """As many slots as tasks: each sends its next message when its last one is confirmed."""

    async def prepare(self, count: int) -> None:
        self.messages = super_stream_wire.slots(
            bodies(count), self.kind.partitions, self.kind.tasks
        )

    async def run(self) -> int:
        return super_stream_wire.publish_slots(
            self.connections[0], self.messages, self.kind.partitions
        )


class Consume(Super):
    """A subscription for each partition."""

    async def run(self) -> int:
        for number, partition in enumerate(self.partitions):
            self.connections[number].start_subscription(partition, number)
        return super_stream_wire.read(self.connections, self.count)

    async def finish(self) -> None:
        for number, connection in enumerate(self.connections):
            connection.unsubscribe(number)


def make(kind: Kind, target: Target) -> Work:
    return (Consume if kind.stored else Tasks if kind.tasks > 1 else Publish)(kind, target)
