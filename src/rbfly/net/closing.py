"""The time that closing may take without progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..error import StreamConnectionError
from .waiting import outcome

__all__ = ['CloseTimeout', 'can_wait']


def can_wait(kind: type[BaseException] | None) -> bool:
    """False if a cancellation or an interrupt ends the `async with` block."""
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

    def limit(self) -> InactivityTimeout:
        """Limit one close, as `async with`."""
        return InactivityTimeout(self)

    async def wait(self, answer: asyncio.Future[Any] | None) -> None:
        """Wait for an answer; silent if there is none in time."""
        if answer is not None:
            try:
                async with self.limit():
                    await outcome(answer)
            except (TimeoutError, StreamConnectionError):
                pass


class InactivityTimeout:
    """Raises TimeoutError in an `async with` block that makes no progress for too long.

    The block gets a function to call whenever it makes progress.
    """

    def __init__(self, budget: CloseTimeout) -> None:
        self._budget = budget
        self._seconds = budget.timeout if budget.left is None else budget.left
        self._scope = asyncio.timeout(self._seconds)

    async def __aenter__(self) -> Callable[[], None]:
        await self._scope.__aenter__()
        return self.on_progress

    def on_progress(self) -> None:
        budget = self._budget
        budget.left, self._seconds = None, budget.timeout
        if self._seconds is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope = self._scope
        del self._scope  # it refers to the task
        until = scope.when()
        if kind is None:
            self._budget.left = None
        elif self._seconds is not None and until is not None:
            left = until - asyncio.get_running_loop().time()
            self._budget.left = max(left, self._seconds / 10)
        try:
            await scope.__aexit__(kind, error, traceback)
        finally:
            del scope
