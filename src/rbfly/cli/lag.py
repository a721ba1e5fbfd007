"""`rbfly lag`: shows what a group has left to read."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .connection import ConnectedCommand, Target, target
from .output import has_colors, is_terminal, print_json, print_table, table_lines
from .partitions import partitions_of
from .running import run
from .values import Number

if TYPE_CHECKING:
    from rbfly.streams import StreamsClient

COLUMNS = {'stream': 'STREAM', 'stored': 'STORED OFFSET', 'end': 'NEXT OFFSET', 'lag': 'LAG'}
INTERVAL = 2.0  # seconds
AT_ONCE = 32  # partitions to ask for at once

Rows = list[dict[str, Any]]


@click.command('lag', cls=ConnectedCommand)
@click.argument('stream')
@click.argument('group')
@click.option('--json', 'as_json', is_flag=True, help='Print JSON; with --watch, one line each.')
@click.option('-w', '--watch', is_flag=True, help='Show it again and again, until Ctrl-C.')
@click.option(
    '--interval',
    type=Number(min=0.1),
    default=INTERVAL,
    show_default=True,
    metavar='SECONDS',
    help='Time between two looks, with --watch.',
)
def command(stream: str, group: str, as_json: bool, watch: bool, interval: float) -> None:
    """Show how many offsets a group has left to read, by partition.

    GROUP is a consumer group, or the name of a stored offset. A lag of 0 means that every message
    is processed; other numbers may include stored offsets, which also take up offsets. `-` means
    that no offset is stored.
    """
    run(show_lag(target(), stream, group, as_json, interval if watch else None))


async def show_lag(
    where: Target, stream: str, group: str, as_json: bool, interval: float | None
) -> None:
    """Print the lag of a group once, or at intervals."""
    options = {} if interval is None else {'reconnect_timeout': None}
    async with where.client(**options) as client:
        partitions = await partitions_of(client, stream) or (stream,)

        async def look() -> Rows:
            return await lag_of(client, partitions, group)

        rows = await look()
        if interval is None:
            if as_json:
                print_json(rows)
            else:
                print_table(with_total(rows), COLUMNS)
            return
        height = 0  # lines to draw over
        while True:
            if as_json:
                print(json.dumps({'at': datetime.now().astimezone().isoformat(), 'lag': rows}))
            else:
                height = draw(with_total(rows), height)
            sys.stdout.flush()
            await asyncio.sleep(interval)
            rows = await look()


async def lag_of(client: StreamsClient, partitions: Sequence[str], group: str) -> Rows:
    """Return the stored offset and the lag of each partition."""
    from rbfly.streams import Offset

    async def row(name: str) -> dict[str, Any]:
        return {
            'stream': name,
            'stored': await client.read_offset(name, group),
            'end': await client.resolve_offset(name, Offset.NEXT),
            'lag': await client.lag(name, group),
        }

    rows: Rows = []
    for start in range(0, len(partitions), AT_ONCE):
        rows += await asyncio.gather(*map(row, partitions[start : start + AT_ONCE]))
    return rows


def with_total(rows: Rows) -> Rows:
    """Add the sum of several partitions, None if it is unknown."""
    if len(rows) == 1:
        return rows
    lags = [row['lag'] for row in rows]
    return [*rows, {'stream': 'total', 'lag': None if None in lags else sum(lags)}]


def draw(rows: Rows, height: int) -> int:
    """Print a table: in a terminal, over the last one; return its height."""
    lines = [f'{datetime.now().astimezone():%H:%M:%S}', *table_lines(rows, COLUMNS)]
    if not is_terminal():
        print('\n'.join(lines), end='\n\n')
        return 0
    up = f'\x1b[{height}A' if height else ''
    bold = '\x1b[1m' if has_colors() else ''
    lines[1] = f'{bold}{lines[1]}\x1b[0m' if bold else lines[1]
    print(up + ''.join(f'{line}\x1b[K\n' for line in lines), end='')
    return len(lines)
