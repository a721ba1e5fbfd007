"""`rbfly super-stream`: creates, deletes and inspects super streams."""

from __future__ import annotations

from typing import Any

import click

from .connection import ConnectedCommand, Target, target
from .output import print_json
from .running import run
from .stream import confirm, json_option, show_stats, stream_options, yes_option


@click.group('super-stream')
def command() -> None:
    """Create, delete and inspect super streams."""


@command.command(cls=ConnectedCommand)
@click.argument('name')
@click.option(
    '--partitions', type=click.IntRange(1, 10_000), metavar='COUNT', help='Number of partitions.'
)
@click.option(
    '--binding-keys', metavar='KEY,KEY...', help='Or a key for each partition, with commas.'
)
@stream_options
def create(
    name: str,
    partitions: int | None,
    binding_keys: str | None,
    leader_locator: Any,
    **options: Any,
) -> None:
    """Create a super stream; do nothing if it exists with the same partitions.

    The options of a stream apply to each partition; leaders are balanced by default.
    """
    if (partitions is None) == (binding_keys is None):
        raise click.UsageError('pass either --partitions or --binding-keys')
    keys = None if binding_keys is None else [key.strip() for key in binding_keys.split(',')]
    if keys is not None and not all(keys):
        raise click.UsageError('--binding-keys has an empty key')

    async def main(where: Target) -> None:
        async with where.client() as client:
            await client.super_stream(name).create(
                partitions=partitions,
                binding_keys=keys,
                leader_locator=leader_locator or 'balanced',
                **options,
            )

    run(main(target()))


@command.command(cls=ConnectedCommand)
@click.argument('name')
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a super stream and its partitions; do nothing if it does not exist."""

    async def main(where: Target) -> None:
        async with where.client() as client:
            await client.super_stream(name).delete()

    where = target()
    confirm(f'super stream {name!r}', yes)
    run(main(where))


async def query_partitions(where: Target, name: str) -> tuple[str, ...]:
    async with where.client() as client:
        return await client.super_stream(name).partitions()


@command.command(cls=ConnectedCommand)
@click.argument('name')
@json_option
def partitions(name: str, as_json: bool) -> None:
    """List the partitions, in order."""
    found = run(query_partitions(target(), name))
    if as_json:
        print_json(found)
    else:
        print('\n'.join(found), flush=True)


@command.command(cls=ConnectedCommand)
@click.argument('name')
@json_option
def stats(name: str, as_json: bool) -> int:
    """Show the first and last positions of the partitions."""

    async def main(where: Target) -> int:
        return await show_stats(where, await query_partitions(where, name), as_json)

    return run(main(target()))
