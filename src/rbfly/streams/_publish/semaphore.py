"""Capacity in a window or in a batch, and the tasks that wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ...error import copy_error
from .._waiting import in_time
from ._confirm import ConfirmFuture
from ._core import SemaphoreState


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
        """Raise an error in every task that waits; each task gets its own copy."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for wait in waiting:
            if not wait.done():
                wait.set_exception(copy_error(error))

    def close(self) -> None:
        """Grant nothing any more, and drop the reference to `has_capacity`."""
        self.has_capacity = lambda asked: False
