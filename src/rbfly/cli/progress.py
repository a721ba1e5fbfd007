"""A line of progress on stderr."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL = 0.2  # seconds between two lines of progress


class Progress:
    """Shows how many messages are done, if stderr is a terminal.

    :param quiet: show nothing.
    :param done: returns the number of messages that are done.
    :param text: returns the line for a rate per second.
    """

    def __init__(self, quiet: bool, done: Callable[[], int], text: Callable[[float], str]) -> None:
        self._is_shown = not quiet and sys.stderr.isatty()
        self._done = done
        self._text = text

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the line until the block ends."""
        if not self._is_shown:
            yield
            return
        task = asyncio.create_task(self._show())
        try:
            yield
        finally:
            task.cancel()
            self.clear()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._write('')

    async def _show(self) -> None:
        loop = asyncio.get_running_loop()
        before, then = 0, loop.time()
        while True:
            await asyncio.sleep(INTERVAL)
            done, now = self._done(), loop.time()
            rate = (done - before) / (now - then)
            before, then = done, now
            self._write(self._text(rate))

    def _write(self, text: str) -> None:
        sys.stderr.write(f'\r{text}\x1b[K')
        sys.stderr.flush()
