"""How tasks wait: until a deadline, for other tasks to run, and to be woken together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..checks import check_timeout
from ..error import STOPS, counted, of_callback

# Seconds.  A turn may pass a few messages before it looks at the clock: together less than 5 ms.
TURN = 0.004
YIELDS = 3
NOW = 0.0  # the end of a timeout of 0: do not wait


async def let_others_run() -> None:
    """Run every task that is ready, the timers that are due, and the tasks that the timers wake.

    A task that yields runs before everything that becomes ready later: asyncio's loop reaches the
    timers after the first yield, and the tasks that they wake after the second.
    """
    for _ in range(YIELDS):
        await asyncio.sleep(0)


def is_foreign(error: BaseException) -> bool:
    """Return whether an error ends the running task or the program, wherever it was raised."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def of_async_callback(error: BaseException, where: str) -> BaseException:
    """Return what to raise for an error of an async function of the program, as `of_callback` does.

    A CancelledError of something that the function has awaited would end a task silently, though
    nobody has cancelled that: it becomes a RuntimeError too.

    :param error: not foreign.
    """
    return of_callback(error, where, (*STOPS, asyncio.CancelledError))


def end_of(timeout: float | None) -> float | None:
    """Return when a timeout ends, by the clock of the running loop; NOW for 0, None for None."""
    check_timeout('timeout', timeout)
    return asyncio.get_running_loop().time() + timeout if timeout else timeout


async def in_time(future: Any, until: float | None) -> bool:
    """Await a future that no other task awaits; return False if `until` came first.

    :param future: an asyncio future, or one of a confirm.

    Unlike `asyncio.timeout`, this forms no reference cycle with the task.
    """
    if until is None:
        await future
        return True
    expired: list[bool] = []
    handle = asyncio.get_running_loop().call_at(until, expire, future, expired)
    try:
        await future
    finally:
        handle.cancel()
    return not expired


def cancel(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task, unless there is none, or its event loop is closed."""
    if task is not None and not task.get_loop().is_closed():
        task.cancel()


class WaitingTasks:
    """Tasks that wait until they are woken together."""

    __slots__ = ('_futures',)

    def __init__(self) -> None:
        # An empty dict is smaller than an empty set.
        self._futures: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self) -> None:
        """Wait for the next call of `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            del self._futures[future]

    def wake(self) -> None:
        """Wake all tasks that wait."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)


def expire(future: Any, expired: list[bool]) -> None:
    if not future.done():
        expired.append(True)
        future.set_result(None)


def counted_states(states: Sequence[str]) -> str:
    """Return the states of the partitions of a super stream in words, the most common one first."""
    found = [f'{count} {state}' for state, count in Counter(states).most_common()]
    return f'{counted(len(states), "partition")}: {", ".join(found)}' if found else 'no partitions'
