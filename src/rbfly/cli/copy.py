"""`rbfly copy`: copies the messages of a stream to another one, each exactly once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from rbfly.amqp import decode_amqp
from rbfly.error import AMQPDecoderError
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.streams import Compression, Message, StreamsClient, SuperStream

from .connection import ConnectedCommand, Target, other_target, target
from .partitions import partitions_of
from .places import Place, place_of
from .running import run
from .tail import field_of
from .values import parsed

RECONNECT_TIMEOUT = 60.0  # seconds
INTERVAL = 0.2  # seconds between two lines of progress


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
    help='Where to start at the first time, as in `rbfly tail`.',
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
@click.option(
    '--sub-entries',
    type=click.IntRange(1, 65535),
    metavar='COUNT',
    help='Group up to this many messages in a sub-entry.',
)
@click.option(
    '--compression',
    type=click.Choice([item.name.lower() for item in Compression]),
    help='Compression of sub-entries.',
)
@click.option('-q', '--quiet', is_flag=True, help='Show neither progress nor the result.')
def command(to_uris: tuple[str, ...], to_profile: str | None, **options: Any) -> None:
    """Copy the messages of a stream or a super stream to another one.

    The bytes of each message are kept. Without --follow, it ends at the end that FROM has now. The
    next run goes on where the last one was: each message is stored exactly once, however often the
    command was interrupted or killed. If both are super streams, they have equally many partitions,
    and messages keep theirs.
    """
    job = Copy(**options)
    if job.compression and not job.sub_entries:
        raise click.UsageError('--compression needs --sub-entries')
    if job.filter_field and job.sub_entries:
        text = 'sub-entries have no filter values: use either --filter or --sub-entries'
        raise click.UsageError(text)
    first = target()
    second = other_target(first, to_uris, to_profile)
    if first == second and job.source == job.target:
        raise click.UsageError(f'{job.source!r} cannot be copied to itself')
    run(copy(first, second, job))


async def copy(first: Target, second: Target, job: Copy) -> None:
    """Copy all messages, and print their number."""
    progress = PipeProgress()
    options = {'reconnect_timeout': RECONNECT_TIMEOUT}
    async with first.client(**options) as reader, second.client(**options) as writer:
        source = await end_of(reader, job.source)
        to = await end_of(writer, job.target)
        start = await job.offset.offset(reader, await first_stream(source))
        try:
            with shown(progress, job.quiet):
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


async def first_stream(end: Stream | SuperStream) -> str:
    """Return the stream in which an offset such as `+2` is looked up."""
    return (await end.partitions())[0] if isinstance(end, SuperStream) else end.name


def extract(field: str) -> Any:
    """Return the function that finds the filter value in the bytes of a message."""

    def value_of(message: Message[bytes]) -> str | None:
        try:
            return field_of(decode_amqp(message.body), field)
        except AMQPDecoderError:
            return None

    return value_of


@contextmanager
def shown(progress: PipeProgress, quiet: bool) -> Iterator[None]:
    """Show the progress on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(show_progress(progress))
    try:
        yield
    finally:
        task.cancel()
        sys.stderr.write('\r\x1b[K')
        sys.stderr.flush()


async def show_progress(progress: PipeProgress) -> None:
    loop = asyncio.get_running_loop()
    before, then = 0, loop.time()
    while True:
        await asyncio.sleep(INTERVAL)
        now = loop.time()
        rate = (progress.read - before) / (now - then)
        before, then = progress.read, now
        sys.stderr.write(f'\r{progress.read:,} copied, {rate:,.0f}/s\x1b[K')
        sys.stderr.flush()


def report(progress: PipeProgress, quiet: bool, more: str = '') -> None:
    """Print the result."""
    if not quiet:
        messages = 'message' if progress.read == 1 else 'messages'
        print(f'{progress.read:,} {messages} copied{more}', flush=True)
