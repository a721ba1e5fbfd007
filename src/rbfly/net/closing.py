"""How long closing may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..error import StreamConnectionError

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ['Closing', 'answered', 'can_wait']


def can_wait(kind: type[BaseException] | None) -> bool:
    """False where what ends `async with` is a cancelled task, or an interrupted program."""
    return kind is None or issubclass(kind, Exception | GeneratorExit)


class Closing:
    """One time limit for all that a client closes while the broker does not answer.

    What is closed behind something that was not answered in time, such as the blocks of `async
    with` around it, waits no longer; unless the broker has sent anything since.

    :param timeout: seconds; None or 0 for no limit.
    :param connections: the client's connections.
    """

    def __init__(
        self, timeout: float | None, connections: Mapping[Any, Iterable[Connection]]
    ) -> None:
        self.timeout = timeout or None
        self._connections = connections
        self._deadline: float | None = None
        self._running = 0
        self._received: dict[Connection, int] = {}  # when nothing was answered last

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Bound what is closed within.

        :raises TimeoutError: it was not done in time.
        """
        received = self._count()
        if self.timeout and (self._deadline is None or received.items() - self._received.items()):
            self._deadline = asyncio.get_running_loop().time() + self.timeout
            self._received = received
        self._running += 1
        try:
            async with asyncio.timeout_at(self._deadline):
                yield
        except BaseException:
            self._received = self._count()
            raise
        else:
            if self._running == 1:
                self._deadline = None
                self._received = {}
        finally:
            self._running -= 1

    async def wait(self, answer: asyncio.Future[Any] | None) -> None:
        """Wait for an answer; silent if there is none in time."""
        if answer is not None:
            try:
                async with self.limit():
                    await answered(answer)
            except (TimeoutError, StreamConnectionError):
                pass

    def renew(self) -> None:
        """A broker has answered a handshake: what is closed from now on waits anew."""
        self._deadline = None
        self._received = {}

    def _count(self) -> dict[Connection, int]:
        """How many bytes have come on each open connection."""
        return {
            item: item.received
            for group in self._connections.values()
            for item in group
            if item.is_open
        }


async def answered(answer: asyncio.Future[Any]) -> None:
    """Wait for an answer; whoever is cancelled meanwhile leaves the request alone."""
    await asyncio.wait([answer])
    if not answer.cancelled() and (error := answer.exception()) is not None:
        raise error
