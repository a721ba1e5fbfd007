"""Publishes an invoice for each order, without `pipe`.

A database says which ones exist.  It publishes an invoice twice if it is killed
before the database has stored the order.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

import rbfly.streams as rbs


def invoice(order: dict[str, int]) -> dict[str, int]:
    return {'order': order['id'], 'total': order['price'] * 119 // 100}


class Seen:
    """The orders that have their invoice."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        db.execute('CREATE TABLE IF NOT EXISTS seen (id INTEGER PRIMARY KEY)')

    def __contains__(self, number: int) -> bool:
        found = self.db.execute('SELECT 1 FROM seen WHERE id = ?', (number,))
        return found.fetchone() is not None

    def add(self, numbers: list[int]) -> None:
        with self.db:
            self.db.executemany('INSERT INTO seen VALUES (?)', [(n,) for n in numbers])


async def main(uri: str, orders: str, invoices: str, database: str) -> None:
    with closing(sqlite3.connect(database)) as db:
        seen = Seen(db)
        async with (
            rbs.streams_client(uri) as client,
            client.publisher(invoices) as publisher,
            client.subscribe(
                orders,
                offset=rbs.Offset.reference('billing', default=rbs.Offset.FIRST),
                commit='manual',
                until='now',
            ) as messages,
        ):
            async for batch in messages.batches():
                new = [order for order in batch if order['id'] not in seen]
                await publisher.send_many(map(invoice, new))
                seen.add([order['id'] for order in new])
                await messages.commit()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
