"""Floor: a socket that sends prepared frames and counts confirms.

It blocks until data arrives, or polls: it asks for data again and again.
"""

from concurrent.futures import ThreadPoolExecutor
from socket import socket
from time import perf_counter
from typing import cast

from brokers import wire

from ..lanes import Kind
from .base import Target, Work, bodies
from .polling_socket import PollingSocket

SUB_ENTRY = 100
SUBSCRIPTIONS = 256  # on one connection


class PollingConnection(wire.Connection):
    """A connection that polls once it is open."""

    def __init__(self, uri: str, timeout: float | None, ca_file: str) -> None:
        super().__init__(uri, timeout=timeout, ca_file=ca_file)
        self.socket = cast(socket, PollingSocket(self.socket))


class Connected(Work):
    """What these lanes share: one connection."""

    def __init__(self, kind: Kind, target: Target, polls: bool = False) -> None:
        super().__init__(kind, target)
        self.connect = PollingConnection if polls else wire.Connection

    async def open(self) -> None:
        self.connection = self.connected()

    def connected(self) -> wire.Connection:
        return self.connect(self.target.address, timeout=None, ca_file=self.target.ca_file)

    async def round_trip(self) -> float:
        start = perf_counter()
        self.connection.stats(self.target.stream)
        return perf_counter() - start

    async def close(self) -> None:
        self.connection.close()


class Publish(Connected):
    """Send frames with at most `window` messages in flight."""

    async def open(self) -> None:
        await super().open()
        self.connection.declare_publisher(self.target.stream)

    async def prepare(self, count: int) -> None:
        self.messages = wire.publish_frames(bodies(count, self.kind.body), self.kind.frame)

    async def run(self) -> int:
        return self.connection.publish(self.messages, self.kind.frame, self.kind.window)


class SubEntries(Publish):
    """Send messages in sub-entries, which are confirmed as a whole."""

    async def prepare(self, count: int) -> None:
        self.messages = wire.sub_entry_frames(bodies(count), SUB_ENTRY, self.kind.frame)

    async def run(self) -> int:
        return SUB_ENTRY * await super().run()


class Consume(Connected):
    """Subscriptions on as many connections as they need; a thread for each connection."""

    async def open(self) -> None:
        await super().open()
        assert self.kind.stored
        readers = self.kind.stored.readers
        self.shares = [(self.connection, min(readers, SUBSCRIPTIONS))]
        for first in range(SUBSCRIPTIONS, readers, SUBSCRIPTIONS):
            self.shares.append((self.connected(), min(readers - first, SUBSCRIPTIONS)))
        self.each = 1 / readers

    async def run(self) -> int:
        if len(self.shares) == 1:
            return self.read(*self.shares[0])
        with ThreadPoolExecutor(len(self.shares)) as threads:
            return sum(threads.map(self.read, *zip(*self.shares, strict=True)))

    def read(self, connection: wire.Connection, readers: int) -> int:
        for number in range(readers):
            connection.start_subscription(self.target.stream, number)
        return connection.read_messages(round(self.count * readers * self.each))

    async def finish(self) -> None:
        for connection, readers in self.shares:
            for number in range(readers):
                connection.unsubscribe(number)

    async def close(self) -> None:
        await super().close()
        for connection, _ in self.shares[1:]:
            connection.close()


def make(kind: Kind, target: Target, polls: bool = False) -> Work:
    way = Consume if kind.stored else SubEntries if kind.work.startswith('sub-') else Publish
    return way(kind, target, polls)
