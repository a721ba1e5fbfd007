"""Waiting for messages of a source: a stream, or a super stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Any, Protocol, cast

from ..._turn import Turn
from ...error import CallbackError, MessageTimeout, SubscriptionError, about
from ...net.observer import check_transition
from ...protocol._batch import MessageBatch
from ...protocol._cursor import KINDS, MessageCursor
from .._waiting import TURN, end_of, in_time, let_others_run
from ._iteration import FastSubscription


class WaiterState(Enum):
    """Whether messages of a source arrive."""

    READING = 'reading'
    MISSING = 'missing'  # the stream: none arrive until it is created again
    ENDED = 'ended'  # no more messages arrive
    CLOSED = 'closed'  # the source


W = WaiterState
TRANSITIONS: Mapping[W, Sequence[W]] = {
    W.READING: [W.MISSING, W.ENDED, W.CLOSED],
    W.MISSING: [W.READING, W.ENDED, W.CLOSED],
    W.ENDED: [W.CLOSED],
    W.CLOSED: [],
}


class Waiter(ABC):
    """What a source wakes and ends.

    :ivar turn: limits how long other tasks wait while messages are read.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.state: WaiterState = WaiterState.READING

    def _enter(self, state: WaiterState) -> None:
        self.state = check_transition(self, self.state, state, TRANSITIONS)

    @property
    def ended(self) -> bool:
        """True if no more messages arrive."""
        return self.state in (WaiterState.ENDED, WaiterState.CLOSED)

    def end(self) -> None:
        """End after the messages that have arrived."""
        if not self.ended:
            self._enter(WaiterState.ENDED)

    def close(self) -> None:
        """End at once: the source is closed."""
        if self.state is not WaiterState.CLOSED:
            self._enter(WaiterState.CLOSED)

    @abstractmethod
    def wake(self) -> None:
        """A message or an error has arrived, or the source is closed."""

    @abstractmethod
    def is_waiting(self) -> bool:
        """True if a task waits for a message."""


class Source(Protocol):
    """A source of messages: a stream, or several that are read in turn.

    :ivar cursor: returns the messages that have arrived; its turn and the callback that it wakes
        are the waiter's `turn` and `wake`.
    """

    @property
    def cursor(self) -> MessageCursor: ...

    @property
    def failed(self) -> bool:
        """True if `on_wait` would raise an error."""

    def on_wait(self, *, finished: bool = True) -> None:
        """A task is about to wait, because no message is left; raise the pending error, if any.

        :param finished: the program has finished all messages that the cursor has made ready.
        """

    def on_yield(self) -> None:
        """Called after other tasks have run; may raise the error of a source without messages."""

    def parts(self) -> Sequence[Source]:
        """Return the streams to read next, each a source."""

    async def finish(self) -> None:
        """Close the source: the program asks for a message after the last one."""


class Ended(Exception):
    """No more messages arrive.  The program cannot raise this: it ends an iteration."""


def raise_own(failed: CallbackError | None) -> None:
    """Raise the error of a function of the program, if there is one, without the carrier."""
    if failed is not None:
        try:
            raise failed.error
        finally:
            del failed  # the traceback refers to this frame


async def own_errors(call: Awaitable[None]) -> None:
    """Await a call; raise the error of a function of the program without the carrier."""
    failed: CallbackError | None = None
    try:
        await call
    except CallbackError as ex:
        failed = ex
    raise_own(failed)


class MessageWaiter(Waiter):
    """Waits for messages of its source, for one task at a time.

    :param check_loop: raises in another event loop than that of the client.
    :param timeout: seconds to wait for each message; None for no limit.
    """

    def __init__(self, check_loop: Callable[[], None], timeout: float | None) -> None:
        super().__init__(Turn(TURN))
        self.check_loop = check_loop
        self.timeout = timeout
        self._source: Source | None = None
        self._future: asyncio.Future[None] | None = None
        self._iterating = False

    def attach(self, source: Source) -> None:
        """Read a source."""
        self._source = source

    def close(self) -> None:
        super().close()
        self._source = None
        if self._future is not None and not self._future.get_loop().is_closed():
            self.wake()

    def end(self) -> None:
        """End after the messages that have arrived.

        The task that asks for the next one closes the source.
        """
        super().end()
        self.wake()

    def wake(self) -> None:
        if self.is_waiting():
            assert self._future is not None
            self._future.set_result(None)

    def is_waiting(self) -> bool:
        return self._future is not None and not self._future.done()

    async def wait(self, kind: int, limit: int, subscription: FastSubscription) -> Any:
        """Wait for a body, context or batch, and take it.

        :param subscription: kept alive until then.
        """
        self._begin(subscription)
        until: float | None = None
        woken = True
        failed: CallbackError | None = None
        try:
            while (source := self._source) is not None:
                if source.cursor.must_yield:
                    await self._yield()
                if subscription._advance(source.cursor, kind, limit):
                    return subscription._take(source.cursor, kind)
                if source.cursor.must_yield:  # after it dropped many messages
                    continue
                if self.ended:  # perhaps while other tasks ran
                    break
                if not woken:
                    raise self.timed_out(subscription)
                if until is None and self.timeout:
                    until = end_of(self.timeout)
                source.on_wait()
                if not self.ended:
                    woken = await self._wait_wakeup(until)
        except CallbackError as ex:
            failed = ex
        finally:
            self._iterating = False
        raise_own(failed)
        await self._finish()
        raise StopAsyncIteration

    def _begin(self, subscription: FastSubscription) -> None:
        self.check_loop()
        if self._iterating:
            error = SubscriptionError(
                f'{subscription!r} is being iterated by another task: use one subscription per task'
            )
            raise about(error, getattr(subscription, 'stream', ''))
        self._iterating = True

    def timed_out(self, subscription: FastSubscription) -> MessageTimeout:
        """Create the error for a wait that was too long."""
        error = MessageTimeout(f'{subscription!r}: no message within {self.timeout} s')
        return about(error, getattr(subscription, 'stream', ''))

    async def wait_joined(
        self, limit: int, max_wait: float, timeout: float | None, subscription: FastSubscription
    ) -> MessageBatch | None:
        """Wait for messages, and return all that arrive in time, from any number of chunks.

        If the task is cancelled, the messages stay in the cursor, and the next call adds to them.

        :param limit: maximum number of messages.
        :param max_wait: seconds to wait for more messages after the first one.
        :param timeout: seconds to wait for the first one; None for no limit.
        :param subscription: kept alive until then.
        :returns: None if no message has arrived within the timeout.
        :raises Ended: no more messages arrive.
        """
        self._begin(subscription)
        woken = True
        joining = False  # the last wait was for more messages of a batch
        failed: CallbackError | None = None
        try:
            clock = asyncio.get_running_loop().time
            until = None if timeout is None else clock() + timeout
            while (source := self._source) is not None:
                ages: dict[Source, float] = {}  # of batches that wait for more
                others_ran = False
                for part in source.parts():
                    cursor = part.cursor
                    if cursor.must_yield:
                        await self._yield()
                        others_ran = True
                    age = cursor.join(limit, clock())
                    # Then more messages may have arrived than the batch contains.
                    must_yield = cursor.must_yield
                    if age is not None:
                        is_last = not woken or self.state is WaiterState.ENDED
                        is_due = age >= max_wait or is_last or part.failed
                        if age == inf or (is_due and not must_yield):
                            return cast(MessageBatch, subscription._take(cursor, KINDS['batch']))
                        ages[part] = age
                    if must_yield:
                        break
                else:
                    if others_ran and any(part.cursor.queue.chunks for part in source.parts()):
                        continue  # messages have arrived meanwhile
                    if self.ended:
                        if not ages:
                            break
                        continue  # these batches are the last ones
                    if not woken and not joining:  # a handover drops the batch
                        return None
                    source.on_wait(finished=source not in ages)
                    due = clock() + max_wait - max(ages.values()) if ages else until
                    joining = bool(ages)
                    if not self.ended:
                        woken = await self._wait_wakeup(due)
        except CallbackError as ex:
            failed = ex
        finally:
            self._iterating = False
        raise_own(failed)
        await self._finish()
        raise Ended

    async def _finish(self) -> None:
        if self._source is not None:  # else the subscription was closed
            await own_errors(self._source.finish())

    async def _yield(self) -> None:
        """Let other tasks run, and return the credit of consumed chunks."""
        if self.turn.is_over:
            await let_others_run()
        else:
            await asyncio.sleep(0)
        self._on_yield()

    def _on_yield(self) -> None:
        self.turn.begin()
        if self._source is not None:
            self._source.on_yield()

    async def _wait_wakeup(self, until: float | None) -> bool:
        """Wait for `wake`; return false if it was not called before `until`."""
        self._future = asyncio.get_running_loop().create_future()
        woken = await in_time(self._future, until)
        self._on_yield()
        return woken


class JoinedBatches(AsyncIterator[MessageBatch]):
    """Iterates over batches of messages of several chunks, and keeps the subscription alive.

    :param limit: maximum number of messages in a batch.
    :param max_wait: seconds to wait for more messages after the first one.
    """

    def __init__(
        self, subscription: FastSubscription, waiter: MessageWaiter, limit: int, max_wait: float
    ) -> None:
        self._subscription = subscription
        self._waiter = waiter
        self._limit = limit
        self._max_wait = max_wait

    async def __anext__(self) -> MessageBatch:
        waiter, subscription = self._waiter, self._subscription
        try:
            batch = await waiter.wait_joined(
                self._limit, self._max_wait, waiter.timeout, subscription
            )
        except Ended:
            raise StopAsyncIteration from None
        if batch is None:
            raise waiter.timed_out(subscription)
        return batch
