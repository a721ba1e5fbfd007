"""Copies orders into SQLite: one row each, however often the program is killed.

The position in the stream is a row of the same database, and changes in the same
transaction.
"""

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing

import rbfly.streams as rbs

CREATE = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER, amount REAL);
CREATE TABLE IF NOT EXISTS positions (stream TEXT PRIMARY KEY, next INTEGER);
"""


class Database:
    """The rows, and for each stream or partition the offset to go on with."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        db.executescript(CREATE)

    def position(self, stream: str) -> int:
        with self.db:
            sql = 'INSERT OR IGNORE INTO positions VALUES (?, 0)'
            self.db.execute(sql, [stream])
        sql = 'SELECT next FROM positions WHERE stream = ?'
        return int(self.db.execute(sql, [stream]).fetchone()[0])

    def write(self, batch: rbs.MessageBatch, position: int) -> int:
        """Write the orders of a batch from a position on; return the next position."""
        stream, end = str(batch.stream), batch.next_offset
        while position < end:
            rows = [
                (order['id'], order['amount'])
                for offset, order in zip(batch.offsets, batch, strict=True)
                if offset >= position
            ]
            with self.db:  # one transaction
                sql = 'UPDATE positions SET next = ? WHERE stream = ? AND next = ?'
                if self.db.execute(sql, [end, stream, position]).rowcount:
                    self.db.executemany('INSERT INTO orders VALUES (?, ?)', rows)
                    return end
            position = self.position(stream)  # another process has written since
        return position


async def copy(client: rbs.StreamsClient, stream: str, database: Database) -> None:
    positions: dict[str, int] = {}  # as this process has read or written them last

    async def start(stream: str) -> rbs.Offset:
        positions[stream] = database.position(stream)
        return rbs.Offset.offset(positions[stream])

    async with client.subscribe(stream, group='copy', offset=start) as orders:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, orders.stop)
        async for batch in orders.batches(max_messages=1000, max_wait=0.2):
            name = str(batch.stream)
            positions[name] = database.write(batch, positions[name])


async def main(uri: str, stream: str, path: str) -> None:
    async with rbs.streams_client(uri) as client:
        with closing(sqlite3.connect(path, timeout=60)) as db:
            await copy(client, stream, Database(db))


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
