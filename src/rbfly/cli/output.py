"""What commands write to stdout."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

Row = Mapping[str, Any]

CONTROL = re.compile(r'[\x00-\x08\x0a-\x1f\x7f-\x9f]')


def is_terminal() -> bool:
    return sys.stdout.isatty()


def has_colors() -> bool:
    """Return whether stdout shows colors: see https://no-color.org."""
    return is_terminal() and not os.environ.get('NO_COLOR') and os.environ.get('TERM') != 'dumb'


def write(data: bytes) -> None:
    """Write bytes to stdout at once.

    :raises BrokenPipeError: its reader has gone.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def print_table(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print rows with aligned columns; numbers to the right, None as `-`.

    :param columns: titles by the key of a row.
    """
    print('\n'.join(table_lines(rows, columns)), flush=True)


def table_lines(rows: Sequence[Row], columns: Mapping[str, str]) -> list[str]:
    cells = [[cell(row.get(key)) for key in columns] for row in rows]
    right = [
        any(isinstance(row.get(key), int) for row in rows)
        or all(row.get(key) is None for row in rows)
        for key in columns
    ]
    titles = [*columns.values()]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    return [
        '  '.join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [titles, *cells]
    ]


def cell(value: object) -> str:
    return '-' if value is None else escaped(str(value))


def escaped(text: str) -> str:
    """Escape control characters, a sequence of which could change what the terminal does."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


@contextmanager
def when_reader_goes(call: Callable[[], object]) -> Iterator[None]:
    """Call a function when nobody reads stdout any more, also while nothing is written.

    Only where epoll exists: elsewhere the next write fails.
    """
    if not hasattr(select, 'epoll'):
        yield
        return
    loop = asyncio.get_running_loop()
    with select.epoll() as poll:
        with suppress(OSError):  # a file
            poll.register(sys.stdout.fileno(), 0)  # an error is always reported

        def on_event() -> None:
            loop.remove_reader(poll.fileno())
            call()

        loop.add_reader(poll.fileno(), on_event)
        try:
            yield
        finally:
            loop.remove_reader(poll.fileno())
