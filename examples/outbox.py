"""Publishes the rows of the table `outbox` to a stream, each once, until SIGTERM.

The name of the publisher is that of the table, and the publishing id of a message is
the primary key of its row: the broker drops what this program sends a second time.
"""

import asyncio
import json
import signal
import sqlite3
import sys
from contextlib import closing

import rbfly.streams as rbs

CREATE = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount REAL);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT);
"""
TABLE = 'outbox'
POLL = 0.2  # seconds


def place_order(db: sqlite3.Connection, amount: float) -> None:
    """What the application does: it stores an order and its event, or neither."""
    with db:  # one transaction
        order = db.execute('INSERT INTO orders (amount) VALUES (?)', [amount]).lastrowid
        event = {'event': 'placed', 'order': order, 'amount': amount}
        db.execute(f'INSERT INTO {TABLE} (body) VALUES (?)', [json.dumps(event)])


def delete(db: sqlite3.Connection, last: int) -> None:
    with db:
        db.execute(f'DELETE FROM {TABLE} WHERE id <= ?', [last])


async def relay(db: sqlite3.Connection, publisher: rbs.Publisher) -> int:
    """Publish up to 1,000 rows, and delete them; return their number."""
    delete(db, publisher.next_publish_id - 1)
    sql = f'SELECT id, body FROM {TABLE} ORDER BY id LIMIT 1000'
    rows: list[tuple[int, str]] = db.execute(sql).fetchall()
    if rows:
        await publisher.send_many(
            rbs.Message(json.loads(body), publish_id=number) for number, body in rows
        )
        delete(db, rows[-1][0])
    return len(rows)


async def main(uri: str, stream: str, path: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with rbs.streams_client(uri) as client:
        with closing(sqlite3.connect(path, timeout=60)) as db:
            db.executescript(CREATE)
            while not stopped.is_set():
                try:
                    async with client.publisher(stream, name=TABLE) as publisher:
                        while not stopped.is_set():
                            if not await relay(db, publisher):
                                await asyncio.sleep(POLL)
                except (rbs.PublisherNameInUse, rbs.StreamConnectionError) as ex:
                    # The broker may still read what a run that was killed has sent.
                    print('trying again:', ex)


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
