"""`rbfly copy`: copies the messages of a stream to another one, each exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from rbfly.amqp import decode_amqp
from rbfly.error import AMQPDecoderError
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.streams import Message, StreamsClient, SuperStream

from .connection import ConnectedCommand, Target, other_target, target
from .partitions import partitions_of
from .places import Place, place_of
from .progress import Progress
from .running import run
from .sub_entries import check_sub_entries, sub_entry_options
from .tail import field_of
from .values import parsed

# Seconds.  RabbitMQ before 4.3.4 may choose no other process when one of several is killed.
STRANDED_AFTER = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What to copy, and how: the options of the command."""

    source: str
    target: str
    offset: Place
    follow: bool
    name: str | None
    filter_field: str | None
    sub_entries: int | None
    compression: str | None
    quiet: bool


@click.command('copy', cls=ConnectedCommand)
@click.argument('source', metavar='FROM')
@click.argument('target', metavar='TO')
@click.option(
    '--to-uri',
    'to_uris',
    multiple=True,
    envvar='RBFLY_TO_URI',
    show_envvar=True,
    metavar='URI',
    help='Address of the broker of TO, if that is another one; repeat it to name several nodes.',
)
@click.option('--to-profile', 'to_profile', metavar='NAME', help='Profile of the broker of TO.')
@click.option(
    '-o',
    '--offset',
    callback=parsed(place_of),
    default='start',
    show_default=True,
    metavar='WHERE',
    help='Where to start at the first time, as in `rbfly tail`; in a super stream not +N.',
)
@click.option('-f', '--follow', is_flag=True, help='Wait for more messages at the end.')
@click.option(
    '--name',
    metavar='NAME',
    help='Name of the job, under which it stores its position in FROM.  [default: copy/TO]',
)
@click.option(
    '--filter',
    'filter_field',
    metavar='FIELD',
    help='Application property, or field of the body, that is the filter value.',
)
@sub_entry_options
@click.option('-q', '--quiet', is_flag=True, help='Show neither progress nor the result.')
def command(to_uris: tuple[str, ...], to_profile: str | None, **options: Any) -> None:
    """Copy the messages of a stream or a super stream to another one.

    The bytes of each message are kept. Without --follow, it ends at the end that FROM has now. The
    next run goes on where the last one was: each message is stored exactly once, however often the
    command was interrupted or killed. If both are super streams, they have equally many partitions,
    and messages keep theirs.
    """
    job = Copy(**options)
    check_sub_entries(job.sub_entries, job.compression)
    if job.filter_field and job.sub_entries:
        text = 'sub-entries have no filter values: use either --filter or --sub-entries'
        raise click.UsageError(text)
    first = target()
    source = click.get_current_context().get_parameter_source('to_uris')
    if to_profile and source is ParameterSource.ENVIRONMENT:  # counts less than the command line
        to_uris = ()
    second = other_target(first, to_uris, to_profile)
    if first == second and job.source == job.target:
        raise click.UsageError(f'{job.source!r} cannot be copied to itself')
    run(copy(first, second, job))


async def copy(first: Target, second: Target, job: Copy) -> None:
    """Copy all messages, and print their number."""
    progress = PipeProgress()
    line = Progress(
        job.quiet,
        lambda: progress.read,
        lambda rate: f'{progress.read:,} copied, {rate:,.0f}/s',
    )
    async with first.client() as reader, second.client() as writer:
        source = await end_of(reader, job.source)
        to = await end_of(writer, job.target)
        if isinstance(source, SuperStream) and job.offset.kind == 'after':
            text = f'{job.source!r} is a super stream: +{job.offset.value} differs by partition'
            raise click.UsageError(text)
        start = await job.offset.offset(reader, job.source)
        try:
            with line.shown():
                await pipe(
                    source,
                    to,
                    lambda message: message,
                    name=job.name or f'copy/{job.target}',
                    amqp=False,
                    filter_extract=None if job.filter_field is None else extract(job.filter_field),
                    sub_entry_size=job.sub_entries,
                    compression=job.compression,
                    offset=start,
                    until=None if job.follow else 'now',
                    stranded_after=STRANDED_AFTER if job.follow else None,
                    progress=progress,
                )
        except asyncio.CancelledError:
            report(progress, job.quiet, '; interrupted')
            raise
    report(progress, job.quiet)


async def end_of(client: StreamsClient, name: str) -> Stream | SuperStream:
    """Return a stream or super stream of a client."""
    if await partitions_of(client, name) is None:
        return Stream(client, name)
    return client.super_stream(name)


def extract(field: str) -> Any:
    """Return the function that finds the filter value in the bytes of a message."""

    def value_of(message: Message[bytes]) -> str | None:
        try:
            return field_of(decode_amqp(message.body), field)
        except AMQPDecoderError:
            return None

    return value_of


def report(progress: PipeProgress, quiet: bool, more: str = '') -> None:
    """Print the result."""
    if not quiet:
        messages = 'message' if progress.read == 1 else 'messages'
        print(f'{progress.read:,} {messages} copied{more}', flush=True)
