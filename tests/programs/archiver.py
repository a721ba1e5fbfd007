"""A worker of a group that collects orders, and writes many of them to SQLite at once.

Each order has one row, however many workers run, and whatever ends them: a worker
writes a buffer and the offset after it in one transaction, if no other worker has
written orders since the buffer began.
"""

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field

import rbfly.streams as rbs

SIZE = 500  # orders to write at once
INTERVAL = 0.5  # seconds; a smaller buffer waits no longer than this
CREATE = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER);
CREATE TABLE IF NOT EXISTS positions (stream PRIMARY KEY, next);
"""


@dataclass
class Buffer:
    """Orders of a partition that are not written, by offset."""

    start: int  # what the database has as `next`
    next: int
    orders: dict[int, int] = field(default_factory=dict[int, int])


class Archive:
    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.buffers: dict[str, Buffer] = {}
        db.executescript(CREATE)

    def position(self, partition: str) -> int:
        with self.db:
            sql = 'INSERT OR IGNORE INTO positions VALUES (?, 0)'
            self.db.execute(sql, [partition])
        query = 'SELECT next FROM positions WHERE stream = ?'
        return int(self.db.execute(query, [partition]).fetchone()[0])

    async def start(self, partition: str) -> rbs.Offset:
        """Begin a partition; messages that were not written are delivered again."""
        position = self.position(partition)
        self.buffers[partition] = Buffer(position, position)
        return rbs.Offset.offset(position)

    def add(self, batch: rbs.MessageBatch) -> None:
        buffer = self.buffers[str(batch.stream)]
        orders = zip(batch.offsets, batch, strict=True)
        buffer.orders.update((offset, order['id']) for offset, order in orders)
        buffer.next = batch.next_offset
        if len(buffer.orders) >= SIZE:
            self.write(str(batch.stream))

    def write(self, partition: str) -> None:
        buffer = self.buffers[partition]
        while buffer.start < buffer.next:
            orders = buffer.orders.items()
            rows = [[order] for offset, order in orders if offset >= buffer.start]
            with self.db:  # one transaction
                sql = 'UPDATE positions SET next = ? WHERE stream = ? AND next = ?'
                values = [buffer.next, partition, buffer.start]
                if self.db.execute(sql, values).rowcount:
                    self.db.executemany('INSERT INTO orders VALUES (?)', rows)
                    break
            # Another worker has written orders since the buffer began.
            buffer.start = self.position(partition)
        self.buffers[partition] = Buffer(buffer.next, buffer.next)

    async def revoke(self, partition: str) -> None:
        self.write(partition)

    async def write_often(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            for partition in list(self.buffers):
                self.write(partition)


async def main(uri: str, super_stream: str, path: str) -> None:
    with closing(sqlite3.connect(path, timeout=60)) as db:
        archive = Archive(db)
        # with this heartbeat, another worker replaces a frozen one after 4 to 6 seconds
        async with rbs.streams_client(uri, heartbeat=2) as client:
            messages = client.super_stream(super_stream).subscribe(
                group=rbs.Group('archive', on_revoke=archive.revoke),
                offset=archive.start,
            )
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, messages.stop)
            async with asyncio.TaskGroup() as tasks, messages:
                writing = tasks.create_task(archive.write_often())
                async for batch in messages.batches():
                    archive.add(batch)
                writing.cancel()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
