"""The event loop and the process that a client belongs to."""

from __future__ import annotations

import asyncio
import os

from ..error import wrong_loop

__all__ = ['Ownership']


class Ownership:
    """A client belongs to the event loop that connects first; to another one once that has ended.

    :ivar loop: the event loop; None before the first connect, or after the loop has ended.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def take(self) -> None:
        """Belong to the running event loop."""
        self.loop, self._pid = asyncio.get_running_loop(), os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """True unless the caller runs in the event loop and its process."""
        loop = self.loop
        return loop is not None and (
            loop is not asyncio._get_running_loop() or self._pid != os.getpid()
        )

    def has_ended(self, *, connected: bool) -> bool:
        """True if another event loop runs now and may replace this one.

        :param connected: connections are open, so that only a closed loop has ended.
        :raises EventLoopError: the loop runs elsewhere, or has connections open.
        """
        loop, running = self.loop, asyncio._get_running_loop()
        assert loop is not None
        if not loop.is_closed() and (loop.is_running() or (connected and running is not None)):
            raise wrong_loop('the client')
        return running is not None
