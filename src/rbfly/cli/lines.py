"""Reads lines without blocking the event loop, and no faster than they are published."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

BLOCK = 256 * 1024  # bytes to read at once
BLOCKS = 8  # blocks in memory at most
LINE_MAX = 64 * 1024 * 1024  # bytes; RabbitMQ takes far less


class Lines:
    """Iterates over lists of lines, without their ends, of files in turn.

    A daemon thread reads: nothing else can wait for a terminal, a pipe and a file alike, and end
    when the command does.

    :param files: `-` for standard input.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(BLOCKS)
        self._thread = threading.Thread(target=self._read, name='rbfly-lines', daemon=True)

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        self._thread.start()
        while (item := await self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self._room.release()
            yield item

    def stop(self) -> None:
        """End the iteration, also while it waits for lines."""
        self._queue.put_nowait(None)

    def _read(self) -> None:
        """Read all files; runs in the thread."""
        try:
            for path in self._files:
                for lines in read_lines(path):
                    self._room.acquire()
                    self._put(lines)
        except Exception as ex:
            self._put(ex)
        else:
            self._put(None)

    def _put(self, item: list[bytes] | Exception | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody reads on
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


def read_lines(path: Path) -> Iterator[list[bytes]]:
    """Yield lists of lines.

    :raises click.ClickException: the file cannot be read, or a line does not end.
    """
    is_input = str(path) == '-'
    if is_input and sys.stdin is None:
        raise click.ClickException('standard input is closed: name a file')
    # not through sys.stdin, whose lock this thread would hold at exit
    fd = sys.stdin.fileno() if is_input else os.open(path, os.O_RDONLY)
    parts: list[bytes] = []  # of the line that has not ended
    size = 0
    try:
        while data := os.read(fd, BLOCK):
            first, newline, rest = data.partition(b'\n')
            parts.append(first)
            size += len(first)
            if size > LINE_MAX:
                limit = LINE_MAX >> 20
                raise click.ClickException(f'{path} has a line longer than {limit} MiB')
            if not newline:
                continue
            lines = rest.split(b'\n')
            last = lines.pop()
            yield [b''.join(parts), *lines]
            parts, size = [last], len(last)
        if size:
            yield [b''.join(parts)]
    except OSError as ex:
        raise click.ClickException(f'cannot read {path}: {ex.strerror}') from ex
    finally:
        if not is_input:
            os.close(fd)
