"""`rbfly perf`: puts load on a broker, and measures rates and latencies."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import click

from ..error import RbFlyError
from ..time_limits import time_limit
from .connection import ConnectedCommand, Target, target
from .output import is_terminal, print_json
from .running import describe, run
from .values import Number, parse_size, parsed

if TYPE_CHECKING:
    from rbfly.streams import Offset, StreamsClient

    from .load import Load, LoadSettings
    from .report import Lines, Table

INTERVAL = 1.0  # seconds between lines
SWITCH = 0.0005  # seconds that one thread may delay another
CLEAN_UP = 10.0  # seconds to delete the streams
CLOSE_TIMEOUT = 2.0  # seconds; the load has waited for confirms before
COUNT = click.IntRange(min=1)
NUMBER = click.IntRange(min=0)
N: dict[str, Any] = {'metavar': 'N', 'show_default': True}


@click.command(cls=ConnectedCommand, short_help='Put load on a broker, and measure it.')
@click.option('-x', '--producers', type=NUMBER, **N, default=1, help='Number of publishers.')
@click.option('-y', '--consumers', type=NUMBER, **N, default=1, help='Number of subscriptions.')
@click.option(
    '-s', '--size', type=click.IntRange(8, 2**20), **N, default=10, help='Size of a body in bytes.'
)
@click.option(
    '-r',
    '--rate',
    type=COUNT,
    **N,
    help='Messages per second of each publisher. Default: no limit.',
)
@click.option(
    '-c',
    '--confirms',
    type=COUNT,
    **N,
    default=10_000,
    help='Messages in flight of each publisher.',
)
@click.option(
    '-bs',
    '--batch-size',
    type=COUNT,
    **N,
    default=100,
    help='Messages to send in one turn, at most.',
)
@click.option(
    '-ses',
    '--sub-entry-size',
    type=click.IntRange(1, 65535),
    **N,
    default=1,
    help='Messages in a sub-entry; 1 for no sub-entries.',
)
@click.option(
    '-co',
    '--compression',
    type=click.Choice(['none', 'gzip', 'snappy', 'lz4', 'zstd']),
    default='none',
    help='Compression of sub-entries.',
)
@click.option(
    '-z',
    '--time',
    type=Number(min=0, min_open=True),
    metavar='SECONDS',
    help='Seconds to run. Default: until Ctrl-C.',
)
@click.option('-C', '--pmessages', type=COUNT, **N, help='Messages of each publisher, then end.')
@click.option('-D', '--cmessages', type=COUNT, **N, help='Messages of each subscription, then end.')
@click.option(
    '-st',
    '--streams',
    metavar='NAME,...',
    help='Streams to use, which exist and remain. Default: new ones, deleted at the end.',
)
@click.option('-sc', '--stream-count', type=COUNT, **N, default=1, help='Number of new streams.')
@click.option('-sst', '--super-streams', is_flag=True, help='Use super streams.')
@click.option(
    '-ssp',
    '--super-stream-partitions',
    type=COUNT,
    **N,
    default=3,
    help='Partitions of each new super stream.',
)
@click.option(
    '-mlb',
    '--max-length-bytes',
    callback=parsed(parse_size),
    default='20GB',
    show_default=True,
    metavar='SIZE',
    help='Size of new streams above which the oldest messages are removed; 0 for no limit.',
)
@click.option('-imc', '--initial-member-count', type=COUNT, **N, help='Replicas of new streams.')
@click.option(
    '-ll',
    '--leader-locator',
    type=click.Choice(['client-local', 'balanced']),
    default='balanced',
    help='Where the leaders of new streams are.',
)
@click.option(
    '-o',
    '--offset',
    default='next',
    show_default=True,
    metavar='OFFSET',
    help='Where subscriptions start: first, last, next, or an offset.',
)
@click.option(
    '-ic',
    '--initial-credits',
    type=click.IntRange(1, 65535),
    **N,
    default=10,
    help='Chunks that the broker sends ahead.',
)
@click.option(
    '-sf',
    '--summary-file',
    type=click.File('w', 'utf-8', lazy=False),
    metavar='FILE',
    help='Write the summary to this file, as JSON.',
)
@click.option(
    '--json', 'as_json', is_flag=True, help='Write nothing but the summary, as JSON, to stdout.'
)
def command(**options: Any) -> int:
    """Publish and consume as fast as possible, or at a rate, and measure it.

    Shows the messages per second, and two latencies: until the broker has confirmed a message, and
    until a subscription has received it. The options have the names of stream-perf-test.

    With a rate, both latencies count from the time when a message was due, not from the time when
    it was sent: if the broker stalls, all messages that had to wait show it.
    """
    broker = target()
    return run(Perf(broker, options).run(), loop_factory())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed: it delays messages less."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Perf:
    """One run of the command."""

    def __init__(self, broker: Target, options: dict[str, Any]) -> None:
        self._broker = broker
        self._as_json: bool = options.pop('as_json')
        self._file: IO[str] | None = options.pop('summary_file')
        named: str | None = options.pop('streams')
        count: int = options.pop('stream_count')
        self._create = {
            'partitions': options.pop('super_stream_partitions'),
            'max_length_bytes': options.pop('max_length_bytes'),
            'initial_cluster_size': options.pop('initial_member_count'),
            'leader_locator': options.pop('leader_locator'),
        }
        self._own = named is None
        run_id = uuid.uuid4().hex[:8]
        streams = (
            [f'rbfly-perf-{run_id}-{number}' for number in range(1, count + 1)]
            if named is None
            else [name for item in named.split(',') if (name := item.strip())]
        )
        if not streams:
            raise click.BadParameter('no name of a stream', param_hint='--streams')
        self._settings = settings_of(options | {'streams': streams}, own=self._own)
        self._created: list[str] = []
        self._started = False

    async def run(self) -> int:
        """Create streams, run the load, delete the streams; return the exit code."""
        from .load import Load

        sys.setswitchinterval(SWITCH)
        async with self._broker.client(
            reconnect_timeout=None, close_timeout=CLOSE_TIMEOUT
        ) as client:
            try:
                settings = await self._prepare(client)
                load = Load(settings)
                interrupted = await self._load(client, load)
            finally:
                await self._clean_up(client)
        if load.failed and load.last_error is not None:
            raise load.last_error
        if load.totals.refused:
            raise click.ClickException(
                f'{load.totals.refused:,} messages were refused: {load.last_error}'
            )
        if load.left:
            raise click.ClickException(f'the broker has not confirmed {load.left:,} messages')
        is_limited = any((settings.time, settings.pmessages, settings.cmessages))
        if interrupted and is_limited:
            raise asyncio.CancelledError
        return 0

    async def _prepare(self, client: StreamsClient) -> LoadSettings:
        """Create the streams, or find out whether those that exist are super streams."""
        settings = self._settings
        if not self._own:
            found = [await client.super_stream(name).exists() for name in settings.streams]
            if any(found) and not all(found):
                raise click.UsageError('--streams names both streams and super streams')
            return replace(settings, super_streams=True) if any(found) else settings
        arguments = {key: value for key, value in self._create.items() if value}
        partitions = arguments.pop('partitions')
        for name in settings.streams:
            self._created.append(name)
            if settings.super_streams:
                await client.super_stream(name).create(partitions=partitions, **arguments)
            else:
                await client.create_stream(name, **arguments)
        return settings

    async def _clean_up(self, client: StreamsClient) -> None:
        """Delete the streams that this run has created."""
        if not client.connected and not self._started:
            return  # it has created nothing
        try:
            async with time_limit(CLEAN_UP):
                for name in self._created:
                    if self._settings.super_streams:
                        await client.super_stream(name).delete()
                    else:
                        await client.delete_stream(name)
        except (RbFlyError, TimeoutError) as ex:
            reason = describe(ex) if str(ex) else f'no answer within {CLEAN_UP:g} s'
            text = f'{", ".join(self._created)} may remain: {reason}'
            click.echo(f'rbfly perf: {text}', err=True)

    async def _load(self, client: StreamsClient, load: Load) -> bool:
        """Run the load and show it; return whether Ctrl-C has ended it."""
        display = self._display(load)
        task = asyncio.current_task()
        assert task is not None
        showing: list[asyncio.Task[None]] = []
        interrupted = False

        def on_start() -> None:
            self._started = True
            showing.append(asyncio.create_task(show(load, display)))

        try:
            await load.run(client, on_start)
        except asyncio.CancelledError:
            if not self._started:
                raise
            interrupted = True
            task.uncancel()  # streams are deleted, and the client closed, as at any other end
        finally:
            await asyncio.gather(*showing)
            if display is not None and self._started:
                with suppress(BrokenPipeError):
                    display.end()
        self._write_summary(load)
        return interrupted

    def _display(self, load: Load) -> Lines | Table | None:
        if self._as_json:
            return None
        from .report import Lines, Table

        if not is_terminal() or os.environ.get('TERM') == 'dumb':
            return Lines(load, sys.stdout)
        from rich.console import Console

        what = ', '.join(load.settings.streams[:3])
        return Table(load, Console(), f'rbfly perf on {what}')

    def _write_summary(self, load: Load) -> None:
        from .report import summary

        found = summary(load)
        if self._file is not None:
            print(json.dumps(found, indent=2, ensure_ascii=False), file=self._file)
        if self._as_json:
            print_json(found)


def settings_of(options: dict[str, Any], *, own: bool) -> LoadSettings:
    """Return the settings of the load.

    :param own: the streams are new.
    :raises click.UsageError: options contradict each other.
    """
    from .load import LoadSettings

    options['offset'] = start_of(options['offset'])
    if options['compression'] != 'none' and options['sub_entry_size'] == 1:
        raise click.UsageError('--compression needs --sub-entry-size')
    if options['confirms'] < options['sub_entry_size']:
        raise click.UsageError('--confirms must be at least --sub-entry-size')
    if not options['producers'] and not options['consumers']:
        raise click.UsageError('there are no producers and no consumers')
    if own and not options['producers']:
        raise click.UsageError('--producers 0 needs --streams: new streams have no messages')
    return LoadSettings(**options)


async def show(load: Load, display: Lines | Table | None) -> None:
    """Show each interval until the load stops; an error ends the load."""
    stopping = asyncio.ensure_future(load.stopping.wait())
    number = 1
    try:
        while True:
            left = max(0.0, number * INTERVAL - load.elapsed)
            await asyncio.wait([stopping], timeout=left)
            if load.stopping.is_set():
                return
            number = max(number, int(load.elapsed / INTERVAL)) + 1
            interval = load.take()
            if display is not None:  # in a thread: to draw takes as long as many messages
                await asyncio.to_thread(display.show, interval)
    except OSError as ex:  # nobody reads it
        load.fail(ex)
    finally:
        stopping.cancel()


def start_of(text: str) -> Offset:
    """Return where subscriptions start.

    :raises click.BadParameter: the text does not say that.
    """
    from rbfly.streams import Offset

    names = {'first': Offset.FIRST, 'last': Offset.LAST, 'next': Offset.NEXT}
    if text in names:
        return names[text]
    if text.isdecimal():
        return Offset.offset(int(text))
    raise click.BadParameter(
        f'{text!r} is not first, last, next or a number', param_hint='--offset'
    )
