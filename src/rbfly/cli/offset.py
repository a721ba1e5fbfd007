"""`rbfly offset`: shows, stores and resets stored offsets."""

from __future__ import annotations

from typing import Any

import click

from .connection import ConnectedCommand, Target, target
from .output import print_json, print_table
from .partitions import partitions_of
from .places import OFFSET_MAX, Place, place_of
from .running import FAILED, run
from .stream import json_option
from .values import parsed

COLUMNS = {'stream': 'STREAM', 'stored': 'STORED OFFSET'}


@click.group('offset')
def command() -> None:
    """Show, store and reset the offsets that are stored under a name.

    REFERENCE is that name: for a consumer group, the name of the group.
    """


def show_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COLUMNS)


@command.command(cls=ConnectedCommand)
@click.argument('stream')
@click.argument('reference')
@json_option
def get(stream: str, reference: str, as_json: bool) -> int:
    """Show the stored offset, of a super stream by partition.

    Exit code 1 if none is stored.
    """

    async def main(where: Target) -> list[dict[str, Any]]:
        async with where.client() as client:
            names = await partitions_of(client, stream) or (stream,)
            return [
                {'stream': name, 'stored': await client.read_offset(name, reference)}
                for name in names
            ]

    rows = run(main(target()))
    show_rows(rows, as_json)
    return 0 if any(row['stored'] is not None for row in rows) else FAILED


@command.command('set', cls=ConnectedCommand)
@click.argument('stream')
@click.argument('reference')
@click.argument('offset', type=click.IntRange(0, OFFSET_MAX))
def set_(stream: str, reference: str, offset: int) -> None:
    """Store the offset of the last processed message in a stream, or in one partition.

    Stop the members of the group first: the active one stores its own offset.
    """

    async def main(where: Target) -> None:
        async with where.client() as client:
            if await partitions_of(client, stream) is not None:
                raise click.ClickException(
                    f'{stream!r} is a super stream: name one of its partitions, or see'
                    ' `rbfly offset reset`'
                )
            await client.write_offset(stream, reference, offset, wait=True)

    run(main(target()))


@command.command(cls=ConnectedCommand)
@click.argument('stream')
@click.argument('reference')
@click.option(
    '--to',
    'place',
    required=True,
    callback=parsed(place_of),
    metavar='WHERE',
    help='Where to read next: start, end, 47, +2, -3, @-1h, @2026-01-01.',
)
@json_option
def reset(stream: str, reference: str, place: Place, as_json: bool) -> None:
    """Store the offset before a place, in a stream or in all partitions of a super stream.

    Stop the members of the group first: the active one stores its own offset. At the beginning of a
    stream, the offset before it is 2**64 - 1.
    """

    async def main(where: Target) -> list[dict[str, Any]]:
        rows = []
        async with where.client() as client:
            for name in await partitions_of(client, stream) or (stream,):
                start = await place.offset(client, name)
                position = await client.resolve_offset(name, start)
                stored = position - 1 if position else OFFSET_MAX
                await client.write_offset(name, reference, stored, wait=True)
                rows.append({'stream': name, 'stored': stored})
        return rows

    show_rows(run(main(target())), as_json)
