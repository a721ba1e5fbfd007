"""Who waits for a publisher: for room, and for confirms."""

from __future__ import annotations

import asyncio
import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from ..checks import check_timeout
from ..error import PublishError, PublishErrorInfo, RbFlyError, wrong_loop
from ..protocol._frames import PendingConfirms
from ._confirm import ConfirmFuture
from ._sending import PublisherCore, SemaphoreState
from .types import AMQPBody, MessageCtx

__all__ = [
    'TURN',
    'Confirmation',
    'Failures',
    'WindowSemaphore',
    'deadline',
    'in_time',
    'let_others_run',
    'of_message',
    'publish_error',
    'set_attribute',
    'summary',
]


KEPT = 1000  # failures of `submit` that are kept; the others are counted
# Seconds; with the messages that a turn may pass before it looks at the clock, less than 5 ms.
TURN = 0.004
YIELDS = 3


async def let_others_run() -> None:
    """Let every task run that is ready, the timers that are due, and the tasks that they wake.

    A task that yields runs before everything that becomes ready later: asyncio's loop reaches the
    timers after the first yield, and the tasks that they wake after the second.
    """
    for _ in range(YIELDS):
        await asyncio.sleep(0)


def deadline(timeout: float) -> float | None:
    """When a timeout is over, by the clock of the running loop; None for no limit."""
    check_timeout('timeout', timeout)
    return asyncio.get_running_loop().time() + timeout if timeout else None


async def in_time(future: asyncio.Future[None] | ConfirmFuture, until: float | None) -> bool:
    """Await what no other task awaits; false if it was not settled before `until`.

    Unlike `asyncio.timeout` this is in no cycle with the task, which goes with its last reference.
    """
    if until is None:
        await future
        return True
    over: list[bool] = []
    handle = asyncio.get_running_loop().call_at(until, expire, future, over)
    try:
        await future
    finally:
        handle.cancel()
    return not over


def expire(future: asyncio.Future[None] | ConfirmFuture, over: list[bool]) -> None:
    if not future.done():
        over.append(True)
        future.set_result(None)


class WindowSemaphore(SemaphoreState):
    """Who waits for room in a window or in a batch: first come, first served.

    :param has_capacity: whether what a task asks for is free; room that was granted counts as used.
    :ivar reserved: room that was given to tasks and that they have not used yet.
    :ivar waiting: who waits, in order, with what each asks for and is to be granted.
    """

    __slots__ = ('_given', '_has_capacity')

    def __init__(self, has_capacity: Callable[[int], bool]) -> None:
        self.reserved = 0
        self._has_capacity = has_capacity
        self.waiting: OrderedDict[ConfirmFuture, tuple[int, int]] = OrderedDict()
        self._given: set[ConfirmFuture] = set()

    async def wait(self, asked: int, amount: int, until: float | None = None) -> bool:
        """Wait for room; what is not used of it is given on by `grant`.

        :param asked: what `has_capacity` is asked.
        :param amount: how much is taken.
        :param until: when to give up, by the clock of the loop; None for never.
        :returns: whether there is room.
        """
        wait = ConfirmFuture(asyncio.get_running_loop())
        self.waiting[wait] = (asked, amount)
        in_use = False
        try:
            in_use = await in_time(wait, until)
        finally:
            self.waiting.pop(wait, None)
            if wait in self._given:
                self._given.remove(wait)
                self.reserved -= amount
            if not in_use:  # perhaps it was granted in the turn in which this was cancelled
                self.grant()
        return in_use

    def grant(self) -> None:
        """Wake those for whom there is room now."""
        waiting = self.waiting
        while waiting:
            wait, (asked, amount) = next(iter(waiting.items()))
            if not wait.done():
                if not self._has_capacity(asked):
                    break
                wait.set_result(None)
                self._given.add(wait)
                self.reserved += amount
            del waiting[wait]

    def fail(self, error: Exception) -> None:
        """Raise an error in all who wait."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for wait in waiting:
            if not wait.done():
                wait.set_exception(error)

    def close(self) -> None:
        """Give no room any more, and refer to nobody who knows about it."""
        self._has_capacity = no_capacity


def no_capacity(asked: int) -> bool:
    return False


class Confirmation(asyncio.Future[None]):
    """What :meth:`Publisher.submit` gives: a future of the broker's confirm.

    :param message: is put into the window.
    :ivar publish_id: publishing id of the message (int).
    :ivar seen: somebody has asked for the outcome, or awaits it.
    :ivar failure: why the message is not confirmed; to look at it is not to have seen it.
    """

    publish_id: int
    seen = False
    failure: Exception | None = None

    def __init__(
        self, message: AMQPBody | MessageCtx, core: PublisherCore, failures: Failures
    ) -> None:
        super().__init__(loop=core.loop)
        self._failures = failures
        self._number = 0  # of the failure
        self.publish_id = core.window.put(message, self)

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done() and (
            asyncio._get_running_loop() is not self.get_loop() or os.getpid() != self._failures.pid
        ):
            raise wrong_loop('the confirmation')
        self._see()
        return super().__await__()

    __iter__ = __await__

    def result(self) -> None:
        if self.done():
            self._see()
        return super().result()

    def exception(self) -> BaseException | None:
        if self.done():
            self._see()
        return super().exception()

    def set_exception(self, error: Exception, /) -> None:  # type: ignore[override]
        super().set_exception(error)
        super().exception()  # the publisher tells of it at the end, asyncio need not
        self.failure = error
        if not self.seen:
            self._number = self._failures.add(error)

    def _see(self) -> None:
        if not self.seen:
            self.seen = True
            if self.failure is not None:
                self._failures.remove(self._number)


class Failures:
    """Failures of `submit` that the program has not looked at: the first errors, and a count.

    :ivar count: number of failures (int).
    :ivar pid: process of the publisher (int).
    """

    def __init__(self) -> None:
        self.count = 0
        self.pid = os.getpid()
        self._errors: dict[int, Exception] = {}  # by number
        self._newest: Exception | None = None  # of the failures that are only counted
        self._number = 0

    def add(self, error: Exception) -> int:
        """Add a failure and return its number."""
        self.count += 1
        self._number += 1
        if len(self._errors) < KEPT:
            self._errors[self._number] = error
        else:
            self._newest = error
        return self._number

    def remove(self, number: int) -> None:
        """Forget a failure that the program has looked at."""
        self.count -= 1
        self._errors.pop(number, None)

    def refused(self) -> Exception | None:
        """Return one error for all messages that the broker refused, or None."""
        return summary([item for item in self._kept() if isinstance(item, PublishError)])

    def tell(self) -> None:
        """Raise one error for all failures, if there are any."""
        if error := summary(self._kept(), self.count):
            raise error

    def _kept(self) -> list[Exception]:
        """Errors that are kept; the newest failure if the program has looked at all of them."""
        if not self._errors and self.count and self._newest is not None:
            return [self._newest]
        return [*self._errors.values()]


def publish_error(waiter: PendingConfirms) -> PublishError:
    """The error of a waiter that had messages refused."""
    assert waiter.errors
    errors = sorted(waiter.errors)
    detail = ''
    if waiter.too_large is not None and waiter.too_large[0] == errors[0][0]:
        _, size, limit, count = waiter.too_large
        of_all = f' of its sub-entry of {count} messages' if count > 1 else ' with its headers'
        detail = f'{size} bytes{of_all} fit no frame of the new connection, {limit} do'
    return joined(errors, detail)


def joined(errors: Sequence[tuple[int, int]], detail: str = '', total: int = 0) -> PublishError:
    """Return one error for several messages, given as publishing id and code.

    :param total: number of messages that failed, if there are more.
    """
    error = PublishError(errors[0][1], errors[0][0], detail)
    error.errors = [PublishErrorInfo(*item) for item in errors]
    error.total = max(total, len(errors))
    return error


def of_message(error: Exception, index: int) -> Exception:
    """Let an error say which message of `send_many` it is about."""
    text = f'message {index} of send_many'
    if isinstance(error, RbFlyError):
        error.args = (f'{text}: {error}', *error.args[1:])
    else:
        with suppress(AttributeError):
            error.add_note(text)
    set_attribute(error, 'index', index)
    return error


def set_attribute(error: Exception, name: str, value: object) -> None:
    """Set an attribute of an error, unless its class does not allow it."""
    with suppress(AttributeError):
        setattr(error, name, value)


def summary(errors: Sequence[Exception], total: int = 0) -> Exception | None:
    """Return one error that stands for all of them; None if there are none.

    :param total: number of failures, if there were more.
    """
    if not errors:
        return None
    refused = [error for error in errors if isinstance(error, PublishError)]
    infos = [info for error in refused for info in error.errors]
    total = max(total, len(errors), len(infos))
    first = (refused or errors)[0]
    if total == 1 or (len(infos) == total and len(refused) == 1):
        return first.with_traceback(None)
    # a new error: other calls may raise each of these
    if infos:
        return joined(infos, f'{total} messages failed in all', total)
    error = copy.copy(first)
    error.__cause__ = first.__cause__
    error.add_note(f'{total} messages failed in all')
    return error
