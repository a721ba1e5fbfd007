"""Floor: a blocking socket, frames that are ready, confirms that are counted, nothing else."""

from .. import wire
from . import KINDS
from .base import Target, Work, bodies

__all__ = ['make']

# entries in a frame, entries unconfirmed at most
SHAPE = {
    'single': (1, 1),
    'batch': (100, 100),
    'window': (1_000, 10_000),
    'tasks-100': (100, 100),
    'tasks-1000': (1_000, 1_000),
    'sub-publish': (100, 1_000),  # sub-entries
}
SUB_ENTRY = 100


class Publish(Work):
    def __init__(self, target: Target, size: int, window: int) -> None:
        super().__init__(target)
        self.size = size
        self.window = window
        self.frames: list[bytes] = []

    async def open(self) -> None:
        self.connection = wire.Connection(self.target.address, timeout=None)
        self.connection.declare_publisher(self.target.stream)

    async def prepare(self, count: int) -> None:
        self.frames = wire.publish_frames(bodies(count), self.size)

    async def run(self) -> int:
        return self.connection.publish(self.frames, self.size, self.window)

    async def finish(self) -> None:
        self.frames = []

    async def close(self) -> None:
        self.connection.close()


class SubEntries(Publish):
    """Messages in sub-entries, which are confirmed as one."""

    async def prepare(self, count: int) -> None:
        self.frames = wire.sub_entry_frames(bodies(count), SUB_ENTRY, self.size)

    async def run(self) -> int:
        return SUB_ENTRY * await super().run()


class Consume(Work):
    def __init__(self, target: Target, readers: int) -> None:
        super().__init__(target)
        self.readers = readers

    async def open(self) -> None:
        self.connection = wire.Connection(self.target.address, timeout=None)

    async def prepare(self, count: int) -> None:
        self.count = count

    async def run(self) -> int:
        connection = self.connection
        count = self.count
        connection.subscribe_all(self.target.stream, self.readers)
        total = 0
        for _, records in connection.chunks():
            total += records
            if total >= count:
                break
        return total

    async def finish(self) -> None:
        for number in range(self.readers):
            self.connection.unsubscribe(number)

    async def close(self) -> None:
        self.connection.close()


def make(kind: str, target: Target) -> Work:
    if stored := KINDS[kind].stored:
        return Consume(target, stored.readers)
    if kind == 'sub-publish':
        return SubEntries(target, *SHAPE[kind])
    return Publish(target, *SHAPE[kind])
