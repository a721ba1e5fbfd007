"""Floor: blocking sockets that use all partitions of a super stream.

All partitions share a connection; in a cluster, those that a node leads.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from brokers import wire

from ..lanes import Kind
from ..super_stream_wire import leaders, partition_of, partitions_of, read_confirms, read_ids
from .base import Target, Work, bodies


class Super(Work):
    """What these lanes share.

    :ivar connections: the connection of each partition.
    """

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.partitions = partitions_of(target.stream, kind.partitions)

    async def open(self) -> None:
        address = self.target.address
        uris = [address] * len(self.partitions)
        if self.kind.nodes:
            uris = leaders(address, self.partitions)
        self.opened = {uri: wire.Connection(uri, timeout=None) for uri in dict.fromkeys(uris)}
        self.connections = [self.opened[uri] for uri in uris]

    async def close(self) -> None:
        for connection in self.opened.values():
            connection.close()


class Publish(Super):
    """Send frames to partitions with at most `window` messages, or one frame, in flight in each.

    :ivar messages: number of the partition, which is its publisher, number of messages, and frame.
    """

    async def open(self) -> None:
        await super().open()
        for number, partition in enumerate(self.partitions):
            self.connections[number].declare_publisher(partition, number=number)

    async def prepare(self, count: int) -> None:
        """Encode frames for the partition of each message, which is its own key."""
        partitions, size = self.kind.partitions, self.kind.frame
        waiting: list[list[bytes]] = [[] for _ in range(partitions)]
        sent = [0] * partitions
        self.messages = []

        def flush(i: int) -> None:
            frame = wire.publish_frame(i, sent[i], waiting[i])
            self.messages.append((i, len(waiting[i]), frame))
            sent[i] += len(waiting[i])
            waiting[i].clear()

        for body in bodies(count):
            i = partition_of(body, partitions)
            waiting[i].append(wire.data_section(body))
            if len(waiting[i]) == size:
                flush(i)
        for i in range(partitions):
            if waiting[i]:
                flush(i)

    async def run(self) -> int:
        send = [connection.socket.sendall for connection in self.connections]
        pending = [0] * len(self.connections)
        window = self.kind.window
        total = 0
        for i, size, data in self.messages:
            while pending[i] and pending[i] > window - size:
                total += read_confirms(self.connections[i], pending)
            send[i](data)
            pending[i] += size
        for i, connection in enumerate(self.connections):
            while pending[i]:
                total += read_confirms(connection, pending)
        return total


class Tasks(Publish):
    """As many slots as tasks: each sends its next message when its last one is confirmed.

    The publishing id of a message is the number of its slot, which has no other in flight.

    :ivar messages: partition and encoded entry of each message of each slot, from the last to the
        first; the end of a slot is an entry of a partition that does not exist.
    """

    async def prepare(self, count: int) -> None:
        partitions, slots = self.kind.partitions, self.kind.tasks
        data, part = bodies(count), count // slots
        self.messages = []
        for slot in range(slots):
            entries = [(partitions, b'')]
            for body in reversed(data[slot * part : (slot + 1) * part]):
                message = wire.data_section(body)
                entry = wire.ENTRY_HEAD.pack(slot, len(message)) + message
                entries.append((partition_of(body, partitions), entry))
            self.messages.append(entries)

    async def run(self) -> int:
        """Send what one read of confirms releases in one write, a frame for each partition."""
        connection, count, slots = self.connections[0], self.kind.partitions, self.messages
        head, size = wire.PUBLISH_HEAD.pack, wire.PUBLISH_HEAD.size - 4
        take = [entries.pop for entries in slots]
        ready: list[list[bytes]] = [[] for _ in range(count + 1)]
        add = [entries.append for entries in ready]
        total = 0
        pending = sum(map(len, slots)) - len(slots)
        free: Sequence[int] = range(len(slots))
        while True:
            for slot in free:
                i, entry = take[slot]()
                add[i](entry)
            frames: list[bytes] = []
            for i in range(count):
                if entries := ready[i]:
                    body = b''.join(entries)
                    frames += head(len(body) + size, wire.PUBLISH, 1, i, len(entries)), body
                    entries.clear()
            if frames:
                connection.socket.sendall(b''.join(frames))
            if total == pending:
                return total
            free = read_ids(connection)
            total += len(free)


class Consume(Super):
    """A subscription for each partition; partitions hold equally many messages."""

    async def run(self) -> int:
        for number, partition in enumerate(self.partitions):
            self.connections[number].start_subscription(partition, number)
        shares = [
            (connection, self.count * self.connections.count(connection) // len(self.connections))
            for connection in self.opened.values()
        ]
        if len(shares) == 1:
            return self.connections[0].read_messages(self.count)
        with ThreadPoolExecutor(len(shares)) as threads:
            return sum(threads.map(lambda share: share[0].read_messages(share[1]), shares))

    async def finish(self) -> None:
        for number, connection in enumerate(self.connections):
            connection.unsubscribe(number)


def make(kind: Kind, target: Target) -> Work:
    return (Consume if kind.stored else Tasks if kind.tasks > 1 else Publish)(kind, target)
