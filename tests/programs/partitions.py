"""Copies a super stream into SQLite, with the offsets to continue from."""

import asyncio
import sqlite3
import sys
from contextlib import closing

import rbfly.streams as rbs

CREATE = """
CREATE TABLE IF NOT EXISTS orders (stream, id INTEGER);
CREATE TABLE IF NOT EXISTS positions (stream PRIMARY KEY, next INTEGER);
"""


async def copy(orders: rbs.SuperStream, db: sqlite3.Connection) -> None:
    """Copy the orders that the super stream has now."""
    found = db.execute('SELECT stream, next FROM positions')
    positions = {stream: rbs.Offset.offset(position) for stream, position in found}
    async with orders.subscribe(offset=positions, until='now') as messages:
        async for batch in messages.batches(max_messages=100):
            with db:  # one transaction
                rows = [[batch.stream, order['id']] for order in batch]
                db.executemany('INSERT INTO orders VALUES (?, ?)', rows)
                position = [batch.stream, batch.next_offset]
                db.execute('REPLACE INTO positions VALUES (?, ?)', position)


async def main(uri: str, super_stream: str, path: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(CREATE)
        async with rbs.streams_client(uri) as client:
            await copy(client.super_stream(super_stream), db)


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
