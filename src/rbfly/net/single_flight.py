"""One connect for all tasks that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .connection import Connection
from .retry import Backoff, Deadline, Delays, Progress
from .waiting import outcome

Connect = Callable[[Progress, Sequence[Deadline]], Awaitable[Connection]]


class SharedConnect:
    """Connects to a node in a role, for all tasks that wait for it.

    :param connect: tries each address once, within the deadlines; raises `progress.error` if
        another try may succeed.
    :param delays: limits of the delays between tries.
    :param linger: if the last deadline expires during a try, complete the try.
    :ivar task: returns the connection; it may have fewer free ids than tasks that wait.
    """

    def __init__(self, connect: Connect, delays: Delays, linger: bool = False) -> None:
        self._linger = linger
        self._progress = Progress()
        self._backoff = Backoff(delays=delays)
        self.task: asyncio.Task[Connection] = asyncio.Task(  # never eager: no task waits yet
            run(connect, self._progress, self._backoff), loop=asyncio.get_running_loop()
        )

    async def join(self, deadline: Deadline) -> Connection | None:
        """Wait for the connection; return None if the connect was cancelled.

        When the last waiting task leaves, it cancels the connect, unless that lingers.

        :raises RbFlyError: no further try would help, or a load balancer led to another node.
        """
        waiting = self._backoff.deadlines
        waiting.append(deadline)
        if self._backoff.error is not None:
            deadline.on_wait(self._backoff.error, self._backoff.retry_at)
        try:
            found = await outcome(self.task)
        finally:
            waiting.remove(deadline)
            progress = self._progress.copy()
            if not self.task.done() and progress.error is None:
                progress.on_error(deadline.progress.error)
            deadline.follow(progress)
            lingers = self._linger and deadline.expired and self._backoff.error is None
            if not (waiting or lingers):
                self.task.cancel()
        deadline.on_wait(None, 0.0)  # has an effect only if a connect that backed off was cancelled
        return found

    def wake(self) -> None:
        """Try again now, if waiting before the next try."""
        self._backoff.wake()


async def run(connect: Connect, progress: Progress, backoff: Backoff) -> Connection:
    # A function, because the frame of a cancelled method would keep its task alive.
    return await backoff.retry(
        lambda: connect(progress, backoff.deadlines),
        lambda error: error is progress.error and error.retriable and bool(backoff.deadlines),
    )
