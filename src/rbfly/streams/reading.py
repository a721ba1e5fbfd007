"""Waiting for messages of one or several sources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from .._turn import Turn
from ..error import MessageTimeout, SubscriptionError
from ..protocol._cursor import MessageCursor
from ._iteration import SubscriptionBase
from .waiting import TURN, deadline, in_time, let_others_run


class Source(Protocol):
    """A source of messages, e.g. a stream.

    :ivar cursor: returns the messages that have arrived; its turn and the callback that it wakes
        are the waiter's `turn` and `wake`.
    """

    @property
    def cursor(self) -> MessageCursor: ...

    def on_wait(self) -> None:
        """A task is about to wait, because no message is left; raise the pending error, if any."""

    async def finish(self) -> None:
        """Close the source: the program asks for a message after the last one."""


class MessageWaiter:
    """Waits for messages of its sources, for one task at a time.

    :param check_loop: raises in another event loop than that of the client.
    :param timeout: seconds to wait for each message; None for no limit.
    :ivar turn: limits how long other tasks wait while messages are read.
    :ivar ended: no more messages arrive.
    """

    def __init__(self, check_loop: Callable[[], None], timeout: float | None) -> None:
        self.check_loop = check_loop
        self.turn = Turn(TURN)
        self.ended = False
        self._timeout = timeout
        self._sources: tuple[Source, ...] = ()
        self._future: asyncio.Future[None] | None = None
        self._iterating = False

    def add(self, source: Source) -> None:
        """Add a source."""
        self._sources = (*self._sources, source)

    def remove(self, source: Source) -> None:
        """Remove a source; without any source, the iteration ends."""
        self._sources = tuple(item for item in self._sources if item is not source)

    def end(self) -> None:
        """End the iteration after the messages that have arrived.

        The task that asks for the next one closes the sources.
        """
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Wake the waiting task: a message or an error has arrived, or a source was removed."""
        if self.is_waiting():
            assert self._future is not None
            self._future.set_result(None)

    def is_waiting(self) -> bool:
        """True if a task waits for a message."""
        return self._future is not None and not self._future.done()

    async def wait(self, kind: int, limit: int, subscription: SubscriptionBase) -> Any:
        """Wait for a body, context or batch, and take it.

        :param subscription: kept alive until then.
        """
        self.check_loop()
        if self._iterating:
            raise SubscriptionError(
                f'{subscription!r} is being iterated by another task: use one subscription per task'
            )
        self._iterating = True
        until: float | None = None
        woken = True
        try:
            while self._sources:
                for source in self._sources:
                    cursor = source.cursor
                    if cursor.must_yield:
                        await self._yield()
                    if subscription._advance(cursor, kind, limit):
                        return subscription._take(cursor, kind)
                    if cursor.must_yield:  # after it dropped many messages
                        break
                else:
                    if not self._sources or self.ended:  # perhaps while other tasks ran
                        break
                    if not woken:
                        seconds = self._timeout
                        raise MessageTimeout(f'{subscription!r}: no message within {seconds} s')
                    if until is None and self._timeout is not None:
                        until = deadline(self._timeout)
                    for source in self._sources:
                        source.on_wait()
                    woken = await self._wait_wakeup(until)
        finally:
            self._iterating = False
        await self._finish()
        raise StopAsyncIteration

    async def _finish(self) -> None:
        for source in self._sources:  # none if the subscription was closed
            await source.finish()

    async def _yield(self) -> None:
        """Let other tasks run, and return the credit of consumed chunks."""
        if self.turn.is_over:
            await let_others_run()
        else:
            await asyncio.sleep(0)
        for source in self._sources:
            source.cursor.on_yield()

    async def _wait_wakeup(self, until: float | None) -> bool:
        """Wait for `wake`; return false if it was not called before `until`."""
        self._future = asyncio.get_running_loop().create_future()
        woken = await in_time(self._future, until)
        for source in self._sources:
            source.cursor.on_yield()
        return woken
