"""How long closing waits without progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..error import StreamConnectionError
from .waiting import settled

__all__ = ['CloseTimeout', 'answered', 'can_wait']


def can_wait(kind: type[BaseException] | None) -> bool:
    """False where what ends `async with` is a cancelled task, or an interrupted program."""
    return kind is None or issubclass(kind, Exception | GeneratorExit)


class CloseTimeout:
    """Limits how long a client waits without progress while it closes.

    A close that gives up leaves a tenth of its time to the next one.  So nested closes with a dead
    broker take little longer than one close, and a publisher on a node that still answers can
    finish.  Progress restores the full time.

    :param timeout: seconds; None or 0 for no limit.
    :ivar left: seconds that the next close may wait without progress; None for all of `timeout`.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout or None
        self.left: float | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[Callable[[], None]]:
        """Limit one close; yields a function to call whenever the close makes progress.

        :raises TimeoutError: the close made no progress for too long.
        """
        now = asyncio.get_running_loop().time
        given = self.timeout if self.left is None else self.left
        scope: asyncio.Timeout | None = asyncio.timeout(given)
        assert scope is not None

        def on_progress() -> None:
            nonlocal given
            self.left = None
            given = self.timeout
            if given is not None and scope is not None and not scope.expired():
                scope.reschedule(now() + given)

        try:
            async with scope:
                yield on_progress
        except BaseException:
            until = scope.when()
            if given is not None and until is not None:
                self.left = max(until - now(), given / 10)
            raise
        else:
            self.left = None
        finally:
            scope = None  # it refers to the task

    async def wait(self, answer: asyncio.Future[Any] | None) -> None:
        """Wait for an answer; silent if there is none in time."""
        if answer is not None:
            try:
                async with self.limit():
                    await answered(answer)
            except (TimeoutError, StreamConnectionError):
                pass


async def answered(answer: asyncio.Future[Any]) -> None:
    """Wait for an answer; whoever is cancelled meanwhile leaves the request alone."""
    await settled(answer)
    if not answer.cancelled() and (error := answer.exception()) is not None:
        raise error
