"""The options of commands that publish in sub-entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rbfly.streams import Compression

F = TypeVar('F', bound=Callable[..., Any])


def sub_entry_options(command: F) -> F:
    """Add the options `--sub-entries` and `--compression` to a command."""
    command = click.option(
        '--compression',
        type=click.Choice([item.name.lower() for item in Compression]),
        help='Compression of sub-entries.',
    )(command)
    return click.option(
        '--sub-entries',
        type=click.IntRange(1, 65535),
        metavar='COUNT',
        help='Group up to this many messages in a sub-entry.',
    )(command)


def check_sub_entries(sub_entries: int | None, compression: str | None) -> None:
    """Refuse a compression without sub-entries."""
    if compression and not sub_entries:
        raise click.UsageError('--compression needs --sub-entries')
