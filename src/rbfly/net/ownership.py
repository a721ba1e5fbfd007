"""The event loop and the process that a client belongs to."""

from __future__ import annotations

import asyncio
import os

from ..error import wrong_loop


class Ownership:
    """The event loop that first connects a client owns it; once it ends, another may take over.

    :ivar loop: the event loop; None before the first connect, or after the loop has ended.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def take(self) -> None:
        """Make the running event loop and the current process the owners."""
        self.loop, self._pid = asyncio.get_running_loop(), os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """True if the caller runs outside the owning event loop or its process."""
        loop = self.loop
        return loop is not None and (
            loop is not asyncio._get_running_loop() or self._pid != os.getpid()
        )

    def has_ended(self, *, connected: bool) -> bool:
        """True if another event loop runs now and may replace this one.

        :param connected: connections are open; the loop then counts as ended only if it is closed.
        :raises EventLoopError: the owning loop is still running, or has open connections.
        """
        loop, running = self.loop, asyncio._get_running_loop()
        assert loop is not None
        if not loop.is_closed() and (loop.is_running() or (connected and running is not None)):
            raise wrong_loop('the client')
        return running is not None
