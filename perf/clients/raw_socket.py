"""Floor: a socket that sends prepared frames and counts confirms.

It blocks until data arrives, or polls: it asks for data again and again.
"""

from time import perf_counter

from .. import wire
from ..lanes import Kind
from .base import Target, Work, bodies

SUB_ENTRY = 100


class PollingConnection(wire.Connection):
    def receive(self) -> bytes:
        receive = super().receive
        while True:
            try:
                return receive()
            except BlockingIOError:
                pass


class Connected(Work):
    """What these lanes share: one connection."""

    connect = wire.Connection

    async def open(self) -> None:
        self.connection = self.connect(self.target.address, timeout=None)

    async def round_trip(self) -> float:
        start = perf_counter()
        self.connection.stats(self.target.stream)
        return perf_counter() - start

    async def close(self) -> None:
        self.connection.close()


class Publish(Connected):
    """Send frames of `size` bodies of `body` bytes, with at most `window` messages in flight."""

    def __init__(self, target: Target, size: int, window: int, body: int = 10) -> None:
        super().__init__(target)
        self.size = size
        self.window = window
        self.body = body
        self.frames: list[bytes] = []

    async def open(self) -> None:
        await super().open()
        self.connection.declare_publisher(self.target.stream)

    async def prepare(self, count: int) -> None:
        self.frames = wire.publish_frames(bodies(count, self.body), self.size)

    async def run(self) -> int:
        return self.connection.publish(self.frames, self.size, self.window)

    async def finish(self) -> None:
        self.frames = []


class PollingPublish(Publish):
    connect = PollingConnection

    async def open(self) -> None:
        await super().open()
        self.connection.socket.setblocking(False)


class SubEntries(Publish):
    """Send messages in sub-entries, which are confirmed as a whole."""

    async def prepare(self, count: int) -> None:
        self.frames = wire.sub_entry_frames(bodies(count), SUB_ENTRY, self.size)

    async def run(self) -> int:
        return SUB_ENTRY * await super().run()


class Consume(Connected):
    def __init__(self, target: Target, readers: int) -> None:
        super().__init__(target)
        self.readers = readers

    async def prepare(self, count: int) -> None:
        self.count = count

    async def run(self) -> int:
        connection = self.connection
        count = self.count
        for number in range(self.readers):
            connection.start_subscription(self.target.stream, number)
        return connection.read_messages(count)

    async def finish(self) -> None:
        for number in range(self.readers):
            self.connection.unsubscribe(number)


def make(kind: Kind, target: Target, polls: bool = False) -> Work:
    if kind.stored:
        return Consume(target, kind.stored.readers)
    way = SubEntries if kind.work == 'sub-publish' else PollingPublish if polls else Publish
    return way(target, kind.frame, kind.window, kind.body)
