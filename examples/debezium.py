"""Keeps a table equal to one of another database, by Debezium's change events."""

import asyncio
import json
import signal
import sqlite3
import sys
from contextlib import closing
from typing import Any

import rbfly.streams as rbs

CREATE = """
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT);
CREATE TABLE IF NOT EXISTS positions (stream TEXT PRIMARY KEY, next INTEGER);
"""


def change(body: bytes) -> dict[str, Any] | None:
    """Return the change; None for a message that is no change event."""
    try:
        event = json.loads(body)
    except ValueError:
        return None  # Debezium writes the text `default` for a tombstone
    event = event.get('payload', event)  # where it is with `schemas.enable`
    return event if 'op' in event else None


def apply(db: sqlite3.Connection, event: dict[str, Any]) -> None:
    """Apply a change; to apply it again changes nothing."""
    if event['op'] == 'd':
        db.execute('DELETE FROM customers WHERE id = ?', [event['before']['id']])
    elif event['op'] in 'cur':  # created, updated, or read by a snapshot
        row = event['after']
        sql = 'INSERT OR REPLACE INTO customers VALUES (?, ?, ?)'
        db.execute(sql, [row['id'], row['name'], row['email']])


async def follow(
    client: rbs.StreamsClient, stream: str, db: sqlite3.Connection
) -> None:
    async def start(stream: str) -> rbs.Offset:
        sql = 'SELECT next FROM positions WHERE stream = ?'
        found = db.execute(sql, [stream]).fetchone()
        return rbs.Offset.FIRST if found is None else rbs.Offset.offset(found[0])

    async with client.subscribe(stream, offset=start) as changes:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, changes.stop)
        async for batch in changes.batches(max_messages=1000, max_wait=0.2):
            with db:  # one transaction
                for body in batch:
                    if (event := change(body)) is not None:
                        apply(db, event)
                sql = 'INSERT OR REPLACE INTO positions VALUES (?, ?)'
                db.execute(sql, [batch.stream, batch.next_offset])


async def main(uri: str, stream: str, path: str) -> None:
    async with rbs.streams_client(uri) as client:
        with closing(sqlite3.connect(path)) as db:
            db.executescript(CREATE)
            await follow(client, stream, db)


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
