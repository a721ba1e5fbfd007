"""`rbfly stream`: creates, deletes and inspects streams."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rbfly.streams import StreamDoesNotExist

from .connection import ConnectedCommand, Target, target
from .output import print_json, print_table
from .partitions import partitions_of
from .running import run, show
from .values import parse_age, parse_size, parsed

F = TypeVar('F', bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

COLUMNS = {
    'stream': 'STREAM',
    'first_chunk_id': 'FIRST CHUNK',
    'last_chunk_id': 'LAST CHUNK',
    'committed_chunk_id': 'COMMITTED CHUNK',
    'next_offset': 'NEXT OFFSET',
}

json_option: Decorator = click.option('--json', 'as_json', is_flag=True, help='Print JSON.')
yes_option: Decorator = click.option('-y', '--yes', is_flag=True, help='Do not ask.')


def stream_options(function: F) -> F:
    """Add the options of a new stream."""
    for option in reversed(
        [
            click.option(
                '--max-length-bytes',
                callback=parsed(parse_size),
                metavar='SIZE',
                help='Size above which the broker removes the oldest segments, such as 20GiB.',
            ),
            click.option(
                '--max-age',
                callback=parsed(parse_age),
                metavar='AGE',
                help='Age at which the broker removes segments, such as 7d.',
            ),
            click.option(
                '--segment-size',
                callback=parsed(parse_size),
                metavar='SIZE',
                help='Size of a segment, at most 3GB.',
            ),
            click.option(
                '--initial-cluster-size',
                type=click.IntRange(min=1),
                metavar='COUNT',
                help='Number of replicas.',
            ),
            click.option(
                '--leader-locator',
                type=click.Choice(['client-local', 'balanced']),
                help='How the broker chooses the node of the leader.',
            ),
            click.option(
                '--filter-size',
                type=click.IntRange(16, 255),
                metavar='BYTES',
                help="Size of a chunk's Bloom filter.",
            ),
            click.option(
                '--argument',
                'arguments',
                multiple=True,
                metavar='NAME=VALUE',
                callback=arguments_of,
                help='Another argument of the protocol.',
            ),
        ]
    ):
        function = option(function)
    return function


def arguments_of(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    pairs = [item.partition('=') for item in value]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f'{name!r} is not NAME=VALUE', ctx, param)
    return {name: text for name, _, text in pairs}


def confirm(what: str, yes: bool) -> None:
    """Ask before something is deleted, if somebody can answer.

    :raises click.ClickException: the answer is no.
    """
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    if not click.confirm(f'Delete {what} with all its messages?', err=True):
        raise click.ClickException('nothing was deleted')


@click.group('stream')
def command() -> None:
    """Create, delete and inspect streams."""


@command.command(cls=ConnectedCommand)
@click.argument('stream')
@stream_options
def create(stream: str, **options: Any) -> None:
    """Create a stream; do nothing if it exists with the same arguments."""

    async def main(where: Target) -> None:
        async with where.client() as client:
            await client.create_stream(stream, **options)

    run(main(target()))


@command.command(cls=ConnectedCommand)
@click.argument('stream')
@yes_option
def delete(stream: str, yes: bool) -> None:
    """Delete a stream with all its messages; do nothing if it does not exist."""

    async def main(where: Target) -> None:
        async with where.client() as client:
            await client.delete_stream(stream)

    where = target()
    confirm(f'stream {stream!r}', yes)
    run(main(where))


@command.command(cls=ConnectedCommand)
@click.argument('streams', nargs=-1, required=True, metavar='STREAM...')
@json_option
def stats(streams: tuple[str, ...], as_json: bool) -> int:
    """Show the first and last positions of streams.

    Exit code 3 if some of them do not exist, 1 if none does.
    """
    return run(show_stats(target(), streams, as_json))


@command.command(cls=ConnectedCommand)
@click.argument('stream')
@json_option
def references(stream: str, as_json: bool) -> None:
    """List the references under which offsets are stored, such as the names of groups.

    It reads the last segment of the stream, or of each partition of a super stream: up to 500 MB by
    default.
    """
    rows = run(query_references(target(), stream))
    if as_json:
        print_json(rows)
    else:
        print_table(rows, {'stream': 'STREAM', 'reference': 'REFERENCE', 'stored': 'STORED OFFSET'})


async def query_references(where: Target, stream: str) -> list[dict[str, Any]]:
    async with where.client() as client:
        return [
            {'stream': name, 'reference': reference, 'stored': offset}
            for name in await partitions_of(client, stream) or (stream,)
            for reference, offset in sorted((await client.references(name)).items())
        ]


async def show_stats(where: Target, streams: tuple[str, ...], as_json: bool) -> int:
    """Print the positions of streams; return the exit code."""
    from rbfly.streams import Offset

    rows: list[dict[str, Any]] = []
    async with where.client() as client:
        for name in streams:
            try:
                found = await client.stream_stats(name)
                end = await client.resolve_offset(name, Offset.NEXT)
            except StreamDoesNotExist as ex:
                show('rbfly stream stats', str(ex))
                continue
            rows.append(
                {
                    'stream': name,
                    'first_chunk_id': found.first_chunk_id,
                    'last_chunk_id': found.last_chunk_id,
                    'committed_chunk_id': found.committed_chunk_id,
                    'next_offset': end,
                }
            )
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows, COLUMNS)
    return 0 if len(rows) == len(streams) else 3 if rows else 1
