"""Futures that several tasks share."""

import asyncio
from typing import Any, TypeVar

from ..error import copy_error

__all__ = ['fail', 'outcome', 'settled']

T = TypeVar('T')


async def outcome(future: asyncio.Future[T]) -> T | None:
    """The result of a future that several tasks wait for; None if it is cancelled.

    Cancelling the wait leaves the future alone.  Each task raises an error of its own.
    """
    await settled(future)
    if future.cancelled():
        return None
    error = future.exception()
    if error is None:
        return future.result()
    raise copy_error(error) if isinstance(error, Exception) else error


async def settled(future: asyncio.Future[T]) -> None:
    """Wait until a future is done, whatever its outcome; cancelling the wait leaves it alone.

    Unlike `asyncio.wait` since Python 3.14, no frame refers to the waiting task: with the exception
    of a cancelled task, that would be a cycle.
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
    """End a future with an error, unless it is done; nobody has to retrieve the error."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: the caller may have stopped waiting
