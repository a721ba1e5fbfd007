"""`rbfly tail`: shows the messages of a stream."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from rbfly.streams import (
    BaseSubscription,
    Message,
    MessageFilter,
    Offset,
    StreamsClient,
)

from .connection import ConnectedCommand, Target, target
from .formats import Format, body_of, body_text, find_format, text_of
from .output import has_colors, is_terminal, when_reader_goes, write
from .partitions import partitions_of
from .places import Range, range_of
from .running import run, show
from .values import parsed

BATCH = 1000  # messages at most that are formatted before they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to show.

    :ivar limit: number of messages; None for no limit.
    :ivar values: filter values; none for all messages.
    :ivar field: name of the field that holds the filter value of a message.
    """

    range: Range
    limit: int | None
    follow: bool
    format: str
    values: tuple[str, ...]
    field: str | None
    unfiltered: bool
    grep: re.Pattern[str] | None


def format_of(text: str) -> str:
    find_format(text, terminal=False, colors=False, with_stream=False)
    return text


def regex_of(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as ex:
        raise ValueError(f'{text!r}: {ex}') from ex


@click.command('tail', cls=ConnectedCommand)
@click.argument('stream')
@click.option(
    '-o',
    '--offset',
    callback=parsed(range_of),
    default='-10',
    metavar='WHERE',
    help='Where to start, and to stop: start, end, 47, +2 (after the start), -3 (before the end),'
    ' 10:20, :end, @-1h:end, @2026-01-01; by default the last 10 messages (-10).',
)
@click.option(
    '-n',
    '--limit',
    type=click.IntRange(min=1),
    metavar='COUNT',
    help='Stop after this many messages.',
)
@click.option('-f', '--follow', is_flag=True, help='Wait for more messages at the end.')
@click.option(
    '-F',
    '--format',
    'format_',
    default='text',
    callback=parsed(format_of),
    metavar='FORMAT',
    help=r'text, json, hex, or a pattern such as "%o %s\n".',
)
@click.option(
    '--filter',
    'values',
    multiple=True,
    metavar='VALUE',
    help='Only chunks that may contain this filter value; repeat it for several values.',
)
@click.option(
    '--filter-field',
    metavar='NAME',
    help='Application property, or field of the body, that has the filter value: then only messages'
    ' with one of the values are shown.',
)
@click.option(
    '--match-unfiltered', is_flag=True, help='With --filter: also messages without a filter value.'
)
@click.option(
    '--grep', metavar='REGEX', callback=parsed(regex_of), help='Only messages whose body matches.'
)
def command(
    stream: str,
    offset: Range,
    limit: int | None,
    follow: bool,
    format_: str,
    values: tuple[str, ...],
    filter_field: str | None,
    match_unfiltered: bool,
    grep: re.Pattern[str] | None,
) -> None:
    r"""Show the messages of a stream or a super stream.

    Without --follow, it ends at the end that the stream has now. A message that is not AMQP 1.0 is
    shown as its bytes.

    Patterns have %o offset, %t stream, %s body, %S its size in bytes, %x body in hex, %j body as
    JSON, %T milliseconds since the epoch, %d time in UTC, %h application properties, %p
    properties, %a annotations; \n, \t, \x41.
    """
    if follow and offset.stop is not None:
        raise click.UsageError('--follow has no end: use either --follow or a range')
    if (filter_field or match_unfiltered) and not values:
        raise click.UsageError('--filter-field and --match-unfiltered need --filter')
    wanted = Wanted(
        range=offset,
        limit=limit,
        follow=follow or offset.start.kind == 'end',
        format=format_,
        values=values,
        field=filter_field,
        unfiltered=match_unfiltered,
        grep=grep,
    )
    run(tail(target(), stream, wanted))


async def tail(where: Target, stream: str, wanted: Wanted) -> None:
    """Write the messages of a stream, or of a super stream, to stdout."""
    options = {'reconnect_timeout': None} if wanted.follow else {}
    async with where.client(**options) as client:
        partitions = await partitions_of(client, stream)
        write_format = find_format(
            wanted.format,
            terminal=is_terminal(),
            colors=has_colors(),
            with_stream=partitions is not None,
        )
        subscription = await subscribe(client, stream, partitions, wanted)
        with when_reader_goes(subscription.stop):
            async with subscription:
                shown = Shown(write_format, wanted, partitions is None)
                try:
                    await shown.all_of(subscription)
                finally:
                    shown.report()


async def subscribe(
    client: StreamsClient, stream: str, partitions: tuple[str, ...] | None, wanted: Wanted
) -> BaseSubscription[Any]:
    """Create a subscription from where the command starts."""
    stop = wanted.range.stop
    until: Any = None if wanted.follow else 'now'
    if isinstance(stop, float):
        until = Offset.timestamp(stop)
    options: dict[str, Any] = {
        'until': until,
        'on_decode_error': 'raw',
        'filter': message_filter(wanted),
        'on_gap': 'ignore',
    }
    start = wanted.range.start
    if partitions is None:
        return client.subscribe(stream, offset=await start.offset(client, stream), **options)
    offset: Any = {name: await start.offset(client, name) for name in partitions}
    if start.kind != 'after':  # the same for all, also for one that is added
        offset = offset[partitions[0]]
    return client.super_stream(stream).subscribe(offset=offset, **options)


def message_filter(wanted: Wanted) -> MessageFilter | None:
    """Return the filter of the subscription; None for all messages."""
    if not wanted.values:
        return None
    first, field = wanted.values[0], wanted.field
    if field is None:
        # Only the broker filters: it skips chunks without such a value.
        return MessageFilter(lambda message: first, {*wanted.values}, wanted.unfiltered)
    return MessageFilter(
        lambda message: field_of(message, field), {*wanted.values}, wanted.unfiltered
    )


def field_of(message: Message, name: str) -> str | None:
    """Return an application property, or a field of the body, as a string."""
    if message.decode_error is not None:
        return None
    value = message.app_properties.get(name)
    if value is None:
        body = body_of(message)
        if isinstance(body, bytes | str) and body[:1] in (b'{', '{'):
            import json

            with suppress(ValueError):
                body = json.loads(body)
        value = body.get(name) if isinstance(body, dict) else None
    return None if value is None else text_of(value)


class Shown:
    """Writes messages, and counts them.

    :param is_stream: they come from one stream, so that no message after an offset is before it.
    """

    def __init__(self, write_format: Format, wanted: Wanted, is_stream: bool) -> None:
        self._format = write_format
        self._grep = wanted.grep
        self._left = wanted.limit
        self._stop = wanted.range.stop if isinstance(wanted.range.stop, int) else None
        self._is_stream = is_stream
        self._undecoded = 0

    async def all_of(self, subscription: BaseSubscription[Any]) -> None:
        """Write the messages of a subscription until its end, or until there are enough."""
        async for batch in subscription.batches(BATCH):
            parts: list[bytes] = []
            is_end = False
            for message in batch.contexts():
                if self._stop is not None and message.stream_offset >= self._stop:
                    is_end = self._is_stream
                    break
                if self._grep is not None and not self._grep.search(body_text(message)):
                    continue
                parts.append(self._format(message))
                self._undecoded += message.decode_error is not None
                if self._left is not None:
                    self._left -= 1
                    if not self._left:
                        is_end = True
                        break
            if parts:
                write(b''.join(parts))
            if is_end:
                return

    def report(self) -> None:
        if self._undecoded:
            text = '1 message is' if self._undecoded == 1 else f'{self._undecoded:,} messages are'
            sys.stdout.flush()
            show('rbfly tail', f'{text} not AMQP 1.0, and shown as bytes')
