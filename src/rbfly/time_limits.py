"""`asyncio.timeout`, which also raises TimeoutError in a task that is being cancelled.

That of CPython 3.11.0 to 3.11.2 raises CancelledError there, for example while a cancelled program
closes its publisher.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import TracebackType
from typing import cast

IS_RELIABLE: bool = sys.version_info[:3] >= (3, 11, 3)


class Reliable:
    """A scope of `asyncio.timeout` that knows how often the task was cancelled before it."""

    def __init__(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._before = 0
        self.when: Callable[[], float | None] = scope.when
        self.reschedule: Callable[[float | None], None] = scope.reschedule
        self.expired: Callable[[], bool] = scope.expired

    async def __aenter__(self) -> Reliable:
        task = asyncio.current_task()
        self._before = 0 if task is None else task.cancelling()
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._scope.__aexit__(kind, error, traceback)
        if kind is not asyncio.CancelledError or not self._scope.expired():
            return
        task = asyncio.current_task()
        if task is not None and task.cancelling() <= self._before:
            raise TimeoutError from error


def limited(scope: asyncio.Timeout) -> asyncio.Timeout:
    return scope if IS_RELIABLE else cast('asyncio.Timeout', Reliable(scope))


def time_limit(seconds: float | None) -> asyncio.Timeout:
    """Like `asyncio.timeout`."""
    return limited(asyncio.timeout(seconds))


def time_limit_at(when: float | None) -> asyncio.Timeout:
    """Like `asyncio.timeout_at`."""
    return limited(asyncio.timeout_at(when))
