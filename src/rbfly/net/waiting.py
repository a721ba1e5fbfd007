"""Waits for futures that several tasks share, and the time that closing may take."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ..error import StreamConnectionError, copy_error
from ..time_limits import time_limit

T = TypeVar('T')

IDLE_CLOSE = 0.5  # seconds to wait for the answer of a broker that has nothing to confirm


async def outcome(future: asyncio.Future[T]) -> T | None:
    """Return the result of a future that several tasks wait for; None if it is cancelled.

    Cancelling the wait does not cancel the future.  Each task raises its own copy of an error.
    """
    await settled(future)
    if future.cancelled():
        return None
    error = future.exception()
    if error is None:
        return future.result()
    raise copy_error(error) if isinstance(error, Exception) else error


async def settled(future: asyncio.Future[T]) -> None:
    """Wait until a future is done, whatever its outcome; cancelling the wait does not cancel it.

    Unlike in `asyncio.wait` since Python 3.14, no frame refers to the waiting task: if the task is
    cancelled, its exception would complete a reference cycle.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(wake)
    try:
        await done
    finally:
        future.remove_done_callback(wake)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """End a future with an error, unless it is done; asyncio does not log the error."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: the caller may have stopped waiting


def can_wait(kind: type[BaseException] | None) -> bool:
    """False if a cancellation or an interrupt ends the `async with` block."""
    return kind is None or issubclass(kind, Exception | GeneratorExit)


class CloseTimeout:
    """Limits how long a client waits without progress while it closes.

    A close that gives up leaves a tenth of its time to the next one.  So nested closes with a dead
    broker take little longer than one close, and a publisher on a node that still answers can
    finish.  Progress restores the full time.

    :param timeout: seconds; None for no limit, 0 not to wait.
    :ivar left: seconds that the next close may wait without progress; None for all of `timeout`.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.left: float | None = None

    def restore(self) -> None:
        """Give the next close its full time: the broker answers."""
        self.left = None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[Callable[[], None]]:
        """Limit one close; the `async with` block calls what it gets whenever it makes progress."""
        loop = asyncio.get_running_loop()
        seconds = self.timeout if self.left is None else self.left
        scope: Any = time_limit(seconds)

        def on_progress() -> None:
            nonlocal seconds
            self.left, seconds = None, self.timeout
            if seconds is not None and not scope.expired():
                scope.reschedule(loop.time() + seconds)

        try:
            async with scope:
                yield on_progress
                self.left = None
        except BaseException:
            until = scope.when()
            if seconds is not None and until is not None:
                self.left = max(until - loop.time(), seconds / 10)
            raise
        finally:
            scope = None  # it refers to the task

    async def wait(self, answer: asyncio.Future[Any] | None) -> None:
        """Wait for an answer; return without an error if it does not arrive in time."""
        if answer is not None:
            try:
                async with self.limit():
                    await outcome(answer)
            except (TimeoutError, StreamConnectionError):
                pass
