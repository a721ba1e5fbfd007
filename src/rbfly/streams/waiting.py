"""How tasks wait: for a deadline, for their turn, and for capacity."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ..checks import check_timeout
from ._confirm import ConfirmFuture
from ._sending import SemaphoreState

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


def end_of(timeout: float) -> float:
    """Return when a timeout ends, by the clock of the running loop; NOW for a timeout of 0."""
    check_timeout('timeout', timeout)
    return asyncio.get_running_loop().time() + timeout if timeout else NOW


def deadline(timeout: float) -> float | None:
    """Return when a timeout ends, by the clock of the running loop; None for no limit."""
    check_timeout('timeout', timeout)
    return asyncio.get_running_loop().time() + timeout if timeout else None


async def in_time(future: asyncio.Future[None] | ConfirmFuture, until: float | None) -> bool:
    """Await a future that no other task awaits; return False if `until` came first.

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


def expire(future: asyncio.Future[None] | ConfirmFuture, expired: list[bool]) -> None:
    if not future.done():
        expired.append(True)
        future.set_result(None)


class WindowSemaphore(SemaphoreState):
    """Tasks that wait for capacity in a window or in a batch: first come, first served.

    :param has_capacity: returns whether there is the capacity that a task asks for; reserved
        capacity counts as used.
    :ivar reserved: capacity granted to tasks that have not used it yet.
    :ivar waiting: arguments `asked` and `amount` of each waiting task, in order.
    """

    __slots__ = ('_granted', 'has_capacity')

    def __init__(self, has_capacity: Callable[[int], bool]) -> None:
        self.reserved: int = 0
        self.has_capacity: Callable[[int], bool] = has_capacity
        self.waiting: OrderedDict[ConfirmFuture, tuple[int, int]] = OrderedDict()
        self._granted: dict[ConfirmFuture, None] = {}

    async def wait(self, asked: int, amount: int, until: float | None = None) -> bool:
        """Wait for capacity; return False if there was none in time.

        A caller that does not use all capacity must call `grant`.

        :param asked: argument for `has_capacity`.
        :param amount: how much to reserve.
        :param until: when to give up, by the clock of the loop; None for never.
        """
        wait = ConfirmFuture(asyncio.get_running_loop())
        self.waiting[wait] = (asked, amount)
        in_use = False
        try:
            in_use = await in_time(wait, until)
        finally:
            self.waiting.pop(wait, None)
            if wait in self._granted:
                del self._granted[wait]
                self.reserved -= amount
            if not in_use:  # capacity may have been granted in the turn that cancelled this task
                self.grant()
        return in_use

    def grant(self) -> None:
        """Wake the tasks for which there is capacity now."""
        waiting = self.waiting
        while waiting:
            wait, (asked, amount) = next(iter(waiting.items()))
            if not wait.done():
                if not self.has_capacity(asked):
                    break
                wait.set_result(None)
                self._granted[wait] = None
                self.reserved += amount
            del waiting[wait]

    def fail(self, error: Exception) -> None:
        """Raise an error in every task that waits."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for wait in waiting:
            if not wait.done():
                wait.set_exception(error)

    def close(self) -> None:
        """Grant nothing any more, and drop the reference to `has_capacity`."""
        self.has_capacity = lambda asked: False
