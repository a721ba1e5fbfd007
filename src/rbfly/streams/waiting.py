"""Who waits for a publisher: for room, and for confirms."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import Any

from ..checks import check_timeout
from ..error import PublishError, PublishErrorInfo
from ..protocol._frames import PendingConfirms
from ._confirm import ConfirmFuture
from ._sending import PublisherCore, SemaphoreState
from .types import AMQPBody, MessageCtx

__all__ = [
    'Confirmation',
    'Failures',
    'WindowSemaphore',
    'deadline',
    'in_time',
    'of_message',
    'publish_error',
    'raise_first',
]


FAILED = 1000  # failures kept before those that were seen are sorted out


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

    :param has_room: whether what a task asks for is free; room that was granted counts as used.
    :ivar reserved: room that was given to tasks and that they have not used yet.
    :ivar waiting: who waits, in order, with what each asks for and is to be granted.
    """

    __slots__ = ('_given', '_has_room')

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self.reserved = 0
        self._has_room = has_room
        self.waiting: OrderedDict[ConfirmFuture, tuple[int, int]] = OrderedDict()
        self._given: set[ConfirmFuture] = set()

    async def wait(self, asked: int, amount: int, until: float | None = None) -> bool:
        """Wait for room; what is not used of it is given on by `grant`.

        :param asked: what `has_room` is asked.
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
                if not self._has_room(asked):
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
        self._has_room = no_room


def no_room(asked: int) -> bool:
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
        self.publish_id = core.window.put(message, self)

    def __await__(self) -> Generator[Any, None, None]:
        self.seen = True
        return super().__await__()

    __iter__ = __await__

    def result(self) -> None:
        self.seen = True
        return super().result()

    def exception(self) -> BaseException | None:
        self.seen = True
        return super().exception()

    def set_exception(self, error: Exception, /) -> None:  # type: ignore[override]
        super().set_exception(error)
        super().exception()  # the publisher tells of it at the end, asyncio need not
        self.failure = error
        self._failures.add(self)


class Failures:
    """Messages of `submit` that were not confirmed, and perhaps nobody has asked about them."""

    def __init__(self) -> None:
        self._items: list[Confirmation] = []
        self._max = FAILED

    def add(self, item: Confirmation) -> None:
        self._items.append(item)
        if len(self._items) >= self._max:
            self._items = [item for item in self._items if not item.seen]
            self._max = max(FAILED, 2 * len(self._items))

    def tell(self) -> None:
        """Raise what nobody has asked about, once."""
        items, self._items = self._items, []
        raise_first([item.failure for item in items if item.failure and not item.seen])


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


def joined(errors: Sequence[tuple[int, int]], detail: str = '') -> PublishError:
    """The error of several messages, of each its publishing id and the code."""
    error = PublishError(errors[0][1], errors[0][0], detail)
    error.errors = [PublishErrorInfo(*item) for item in errors]
    return error


def of_message(error: Exception, index: int) -> Exception:
    """Let an error say which message of `send_many` it is about."""
    try:
        error.index = index  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an error of the user's, with slots
    error.add_note(f'message {index} of send_many')
    return error


def raise_first(errors: Sequence[Exception]) -> None:
    """Raise the error that stands for all of them, if there is one."""
    refused = [error for error in errors if isinstance(error, PublishError)]
    if len(refused) > 1:  # one of its own: others may be told of each of them
        raise joined([item for error in refused for item in error.errors])
    for error in (*refused, *errors):
        raise error.with_traceback(None)  # others may raise it, too
