"""`rbfly publish`: publishes lines of files or of standard input."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from rbfly.streams import (
    AMQPEncoderError,
    ArgumentError,
    BasePublisher,
    MessageTooLarge,
    NoRouteError,
    PublishError,
    RbFlyError,
    StreamsClient,
    by_hash,
    by_key,
)

from .connection import ConnectedCommand, Target, target
from .formats import text_of
from .lines import Lines
from .partitions import partitions_of
from .progress import Progress
from .running import FAILED, PARTIAL, describe, run, show
from .sub_entries import check_sub_entries, sub_entry_options
from .values import Number

IN_FLIGHT_MAX = 64 * 1024 * 1024  # bytes of lines that are not confirmed
SHOWN = 10  # failures that are described; the others are counted
LATE = 0.1  # seconds that lines make up for, with a rate: timers are late
CLOSE_TIMEOUT = 5.0  # seconds to wait for confirms after Ctrl-C
# Errors of one message, after which the next one can be published.
OF_MESSAGE = (AMQPEncoderError, ArgumentError, MessageTooLarge, NoRouteError, PublishError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to publish, and how: the options of the command."""

    stream: str
    files: Sequence[Path]
    format: str
    name: str | None
    key: str | None
    route: str
    filter_field: str | None
    rate: float | None
    sub_entries: int | None
    compression: str | None
    failed: Path | None
    quiet: bool


@click.command('publish', cls=ConnectedCommand)
@click.argument('stream')
@click.argument(
    'files',
    nargs=-1,
    metavar='[FILE]...',
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
@click.option(
    '-F',
    '--format',
    type=click.Choice(['text', 'json', 'bytes']),
    default='text',
    show_default=True,
    help='A line is a string, a JSON value, or bytes.',
)
@click.option(
    '--name',
    metavar='NAME',
    help='Name of the publisher: messages that are resent after a reconnect are stored once.',
)
@click.option(
    '--key',
    metavar='FIELD',
    help='Field of the JSON object whose value chooses the partition of a super stream; without'
    ' it, the partitions take turns.',
)
@click.option(
    '--route',
    type=click.Choice(['hash', 'key']),
    default='hash',
    show_default=True,
    help='Choose the partition by the hash of the key, or by its binding key.',
)
@click.option(
    '--filter-field', metavar='FIELD', help='Field of the JSON object that is the filter value.'
)
@click.option(
    '--rate',
    type=Number(min=0, min_open=True),
    metavar='NUMBER',
    help='Lines per second at most.',
)
@sub_entry_options
@click.option(
    '--failed',
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar='FILE',
    help='Write the lines that were not confirmed to this file.',
)
@click.option('-q', '--quiet', is_flag=True, help='Show neither progress nor the result.')
def command(files: tuple[Path, ...], **options: Any) -> int:
    """Publish each line of the files, or of standard input, as a message.

    Prints how many lines the broker has confirmed. Exit code 3 if some were not: the broker refused
    them, they are not valid, or it is unknown whether they are stored.
    """
    job = Job(files=files or (Path('-'),), **options)
    if job.format != 'json' and (job.key or job.filter_field):
        raise click.UsageError('--key and --filter-field need --format json')
    check_sub_entries(job.sub_entries, job.compression)
    if job.failed and any(is_same(job.failed, path) for path in job.files):
        raise click.UsageError(f'{job.failed} would be overwritten while it is read')
    return run(publish(target(), job))


def is_same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file; `-` is what standard input is redirected from."""
    with suppress(OSError):
        return first.is_file() and os.path.samefile(first, 0 if str(second) == '-' else second)
    return False


async def publish(where: Target, job: Job) -> int:
    """Publish all lines; return the exit code."""
    client = where.client(close_timeout=CLOSE_TIMEOUT)
    async with client, await open_publisher(client, job) as publisher:
        with open_failed(job.failed) as failed:
            publishing = Publishing(job, failed)
            try:
                with publishing.progress.shown():
                    await publishing.send_all(publisher)
            finally:
                publishing.report()
    if publishing.interrupted:
        raise asyncio.CancelledError
    if publishing.error is not None:
        if not isinstance(publishing.error, WriteError):
            show('rbfly publish', describe(publishing.error))
        return PARTIAL if publishing.confirmed else FAILED
    return PARTIAL if publishing.failed else 0


@contextmanager
def open_failed(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with path.open('wb', buffering=0) as file:  # so that no line is left to write
        yield file


async def open_publisher(client: StreamsClient, job: Job) -> Any:
    """Return the context of a publisher of a stream or of a super stream."""
    options: dict[str, Any] = {
        'name': job.name,
        'sub_entry_size': job.sub_entries,
        'compression': job.compression,
    }
    if job.filter_field is not None:
        field = job.filter_field
        options['filter_extract'] = lambda message: field_of(message.body, field)
    if await partitions_of(client, job.stream) is None:
        if job.key is not None:
            raise click.UsageError(f'{job.stream!r} is no super stream: omit --key')
        return client.publisher(job.stream, **options)
    route: Any
    if job.key is None:
        numbers = itertools.count()

        def route(message: object, partitions: Sequence[str]) -> str:
            return partitions[next(numbers) % len(partitions)]
    else:
        key = job.key
        by = by_hash if job.route == 'hash' else by_key
        route = by(lambda body: field_of(body, key) or '')  # the parser checks that it has one
    return client.super_stream(job.stream).publisher(route=route, **options)


def field_of(body: Any, field: str) -> str | None:
    """Return a field of a body as a string; None if there is none."""
    value = body.get(field) if isinstance(body, dict) else None
    return None if value is None else text_of(value)


def parser(job: Job) -> Callable[[bytes], Any]:
    """Return the function that converts a line to a body, and raises ValueError."""

    def text(line: bytes) -> str:
        try:
            return line.removesuffix(b'\r').decode()
        except UnicodeDecodeError as ex:
            raise ValueError(f'not UTF-8 at byte {ex.start}: see --format bytes') from ex

    def parse(line: bytes) -> Any:
        try:
            body = json.loads(line)
        except json.JSONDecodeError as ex:
            raise ValueError(f'not JSON: {ex.msg} at character {ex.pos + 1}') from ex
        except UnicodeDecodeError as ex:
            raise ValueError(f'not UTF-8 at byte {ex.start}') from ex
        except RecursionError as ex:
            raise ValueError('not JSON: nested too deeply') from ex
        if job.key is not None and field_of(body, job.key) is None:
            raise ValueError(f'it has no field {job.key!r}')
        return body

    parsers: dict[str, Callable[[bytes], Any]] = {'text': text, 'json': parse, 'bytes': bytes}
    return parsers[job.format]


class WriteError(click.ClickException):
    """The file for failed lines cannot be written, which is reported at once."""


class Publishing:
    """Publishes lines, and counts what became of them.

    :param file: for the lines that are not confirmed; None to count them only.
    :ivar confirmed: number of lines that the broker has confirmed.
    :ivar failed: number of lines that it has not.
    :ivar error: why the publisher cannot go on; None if it can.
    :ivar interrupted: the command was cancelled.
    """

    def __init__(self, job: Job, file: IO[bytes] | None) -> None:
        self.confirmed: int = 0
        self.failed: int = 0
        self.error: Exception | None = None
        self.interrupted: bool = False
        self._job = job
        self._file = file
        self._lines = Lines(job.files)
        self._parse = parser(job)
        self._number = 0  # of the last line
        self._read = 0  # lines that are messages
        self._in_flight: dict[int, bytes] = {}  # lines by number
        self._bytes = 0  # of these lines
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()  # when the next line may be sent, with a rate
        self.progress: Progress = Progress(job.quiet, lambda: self.confirmed, self._progress)

    async def send_all(self, publisher: BasePublisher) -> None:
        """Publish the lines of all files, and wait for their confirms."""
        try:
            try:
                await self._send_lines(publisher)
            except asyncio.CancelledError:
                self.interrupted = True
            except click.ClickException as ex:  # of a file
                self.error = self.error or ex
            # Waits for confirms; an error is that of lines, which know it.
            with suppress(RbFlyError):
                await publisher.close()
            await asyncio.sleep(0)  # until all lines know what became of them
        finally:  # a second interruption does not wait for them
            lines, self._in_flight = self._in_flight, {}
            for line in lines.values():
                self._keep(line)

    async def _send_lines(self, publisher: BasePublisher) -> None:
        is_json, rate = self._job.format == 'json', self._job.rate
        async for lines in self._lines:
            for line in lines:
                self._number += 1
                if is_json and not line.strip():
                    continue
                self._read += 1
                if self.error is not None:
                    self._keep(line)
                    continue
                try:
                    confirmation = await publisher.submit(self._parse(line))
                except (*OF_MESSAGE, ValueError) as ex:
                    self._fail(self._number, line, ex)
                    continue
                except asyncio.CancelledError:  # while it waited for capacity
                    self._keep(line)
                    raise
                except RbFlyError as ex:
                    self._give_up(ex)
                    self._keep(line)
                    continue
                self._in_flight[self._number] = line
                self._bytes += len(line)
                confirmation.add_done_callback(partial(self._on_done, self._number))
                if rate is not None:
                    now = self._loop.time()
                    self._due = max(self._due, now - LATE) + 1 / rate
                    await asyncio.sleep(max(0, self._due - now))
                while self._bytes > IN_FLIGHT_MAX:
                    await self._wait()
            if self.error is not None and self._file is None:
                return
        while self._in_flight:
            await self._wait()

    async def _wait(self) -> None:
        """Wait until a line is confirmed or has failed."""
        self._room.clear()
        await self._room.wait()

    def _on_done(self, number: int, future: asyncio.Future[None]) -> None:
        """Note what became of a line."""
        error = future.exception()
        line = self._in_flight.pop(number, None)
        if line is None:  # the command has ended before
            return
        self._bytes -= len(line)
        self._room.set()
        if error is None:
            self.confirmed += 1
        elif isinstance(error, PublishError | MessageTooLarge):
            self._fail(number, line, error)
        else:
            assert isinstance(error, Exception)
            self._give_up(error)
            self._keep(line)

    def _give_up(self, error: Exception) -> None:
        """Publish no more lines; read on only to write them to the file."""
        self.error = self.error or error
        if self._file is None:
            self._lines.stop()

    def _fail(self, number: int, line: bytes, error: Exception) -> None:
        """Report a line that failed by itself."""
        if self.failed < SHOWN:
            self.progress.clear()
            show('rbfly publish', f'line {number:,}: {" ".join(str(error).split())}')
        elif self.failed == SHOWN:
            show('rbfly publish', 'more lines failed')
        self._keep(line)

    def _keep(self, line: bytes) -> None:
        """Count a line that is not confirmed, and write it to the file."""
        self.failed += 1
        if self._file is None:
            return
        data = line + b'\n'
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as ex:
            self._file = None
            error = WriteError(f'cannot write {self._job.failed}: {ex.strerror}')
            self.progress.clear()
            show('rbfly publish', describe(error))
            self._give_up(error)

    # -- what people see

    def _progress(self, rate: float) -> str:
        text = f'{self.confirmed:,} confirmed, {rate:,.0f}/s, {len(self._in_flight):,} in flight'
        return text + (f', {self.failed:,} failed' if self.failed else '')

    def report(self) -> None:
        """Print the result."""
        if self._job.quiet:
            return
        lines = 'line' if self._read == 1 else 'lines'
        if not self.failed:
            text = f'{self.confirmed:,} {lines} confirmed'
        else:
            text = f'{self.confirmed:,} of {self._read:,} {lines} confirmed'
            kept = '' if self._file is None else f', kept in {self._job.failed}'
            text += f', {self.failed:,} failed{kept}'
        if isinstance(self.error, click.ClickException) or (self.error and self._file is None):
            text += '; the lines after them were not read'
        elif self.interrupted:
            text += '; interrupted'
        with suppress(BrokenPipeError):  # the exit code says the same
            print(text, flush=True)
