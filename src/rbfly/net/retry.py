"""Which errors are retried, when, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from math import inf
from typing import Any, Self, TypeVar

from ..error import (
    ConnectTimeout,
    FrameError,
    ProtocolError,
    RbFlyError,
    StreamConnectionError,
    TLSError,
    copy_error,
    without_frames,
)
from ..protocol.const import Key, ResponseCode
from ..time_limits import time_limit_at

T = TypeVar('T')
OnWait = Callable[[RbFlyError | None, float], None]
# The first and the longest delay, in seconds; empty for the usual ones.
Delays = tuple[()] | tuple[float, float]

BACKOFF_FIRST = 0.1  # seconds
BACKOFF_LAST = 30.0

# Commands that the client retries when the broker refuses them with these codes.
ALWAYS = {
    (Key.METADATA, ResponseCode.STREAM_NOT_AVAILABLE),
    (Key.DECLARE_PUBLISHER, ResponseCode.STREAM_NOT_AVAILABLE),
    (Key.SUBSCRIBE, ResponseCode.STREAM_NOT_AVAILABLE),
    (Key.QUERY_PUBLISHER_SEQUENCE, ResponseCode.STREAM_NOT_AVAILABLE),
    (Key.QUERY_OFFSET, ResponseCode.STREAM_NOT_AVAILABLE),
    (Key.STREAM_STATS, ResponseCode.STREAM_NOT_AVAILABLE),
}
# The same, but only to redeclare a publisher or subscription.
REDECLARING = {
    (Key.DECLARE_PUBLISHER, ResponseCode.INTERNAL_ERROR),
    # a disk alarm refuses publishers as a failed precondition
    (Key.DECLARE_PUBLISHER, ResponseCode.PRECONDITION_FAILED),
    (Key.SUBSCRIBE, ResponseCode.INTERNAL_ERROR),
    (Key.STREAM_STATS, ResponseCode.INTERNAL_ERROR),
}
# Connection errors that another connection would raise again.
FINAL = TLSError, FrameError


def can_retry(error: RbFlyError, declared: bool) -> bool:
    """True if another try may succeed.

    :param declared: the publisher or subscription was declared before.
    """
    if not isinstance(error, ProtocolError):
        return isinstance(error, StreamConnectionError) and not isinstance(error, FINAL)
    refused = error.command, error.code
    return refused in ALWAYS or (declared and refused in REDECLARING)


def is_cut(error: RbFlyError) -> bool:
    """True if the connection ended during the TLS handshake.

    The port may not be one for TLS; or a proxy has accepted the connection, but its node is down.
    """
    return isinstance(error, TLSError) and isinstance(error.__cause__, ConnectionError)


def backoff(first: float | None = None, last: float | None = None) -> Iterator[float]:
    """Yield the seconds before each further try: exponential, with jitter."""
    from random import uniform

    delay = BACKOFF_FIRST if first is None else first
    while True:
        yield delay * uniform(0.5, 1.0)
        delay = min(2 * delay, BACKOFF_LAST if last is None else last)


class Progress:
    """What a client is waiting for; the error of a deadline contains it.

    :ivar where: addresses that the client tries.
    :ivar step: what the client is doing, e.g. 'connecting'.
    :ivar error: why the last try failed; None if no try has failed.
    :ivar timeout: class of the error when the time is up.
    """

    def __init__(self, where: str = '', timeout: type[RbFlyError] = ConnectTimeout) -> None:
        self.where: str = where
        self.step: str = ''
        self.error: RbFlyError | None = None
        self.timeout = timeout

    def on_step(self, step: str) -> None:
        """Note the step that begins."""
        self.step = step

    def on_routes(self, addresses: Iterable[object]) -> None:
        """Note the addresses that a try begins with."""
        self.where = ', '.join(map(str, addresses))

    def on_error(self, error: RbFlyError | None) -> None:
        """Note why a try has failed; None if it succeeded."""
        self.error = error

    def copy(self) -> Progress:
        found = Progress(self.where, self.timeout)
        found.step, found.error = self.step, self.error
        return found


class Refusal:
    """Why the broker refused the last connect of a client for good, e.g. a wrong password.

    :ivar error: None if the last connect succeeded, failed otherwise, or there was none.
    :ivar step: the step of the handshake that was refused.
    """

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self.step: str = ''

    def set(self, error: ProtocolError, step: str) -> None:
        """Keep a copy of the error."""
        self.error, self.step = without_frames(copy_error(error)), step

    def clear(self) -> None:
        """Note that the last connect was not refused."""
        self.error = None

    def on_timeout(self, step: str) -> None:
        """A connect has timed out; RabbitMQ delays a refusal by 3 seconds."""
        if step != self.step:
            self.error = None


class Deadline:
    """Limits one call or one outage, including all tries.

    An `async with` block that exceeds the limit raises a timeout; its cause is the last error.
    If it was connecting, and the broker refuses the client, it raises the refusal.

    :param limit: seconds from now on; None for no limit.
    :param where: addresses of the broker.
    :param generation: generation of the cluster, which does not connect for an older one.
    :param refusal: the client's last refusal.
    :param on_wait: called with the error when waiting for another try, and the time of that try;
        called with None when trying again.
    :ivar when: time of the event loop; infinity for no limit.
    """

    def __init__(
        self, limit: float | None, where: str, generation: int, refusal: Refusal, on_wait: OnWait
    ) -> None:
        self.limit = limit
        self.generation = generation
        self._refusal = refusal
        self.progress: Progress = Progress(where)
        self.when: float = inf if limit is None else asyncio.get_running_loop().time() + limit
        self.on_wait: OnWait = on_wait
        self._last_try = False
        self._scope: asyncio.Timeout | None = None

    def release(self) -> None:
        """Call `on_wait` no more: the tries of this deadline no longer matter."""
        self.on_wait = lambda error, retry_at: None

    def follow(self, progress: Progress) -> None:
        """Note that the call or outage waits for something else from now on."""
        self.progress = progress

    @property
    def expired(self) -> bool:
        """True if the time is up, and the `async with` block ends because of that."""
        return self._scope is not None and self._scope.expired()

    def shorten(self, wanted: float, delay: float, now: float) -> float:
        """Return the delay, shortened once so that another try precedes the deadline.

        :param wanted: the delay before other deadlines have shortened it.
        """
        left = max(0.0, self.when - now)
        if self._last_try or wanted < left:
            return delay
        delay = min(delay, left / 2)
        self._last_try = delay >= left / 4  # else there is time for a later one
        return delay

    def _timeout(self) -> RbFlyError:
        progress, error = self.progress, self.progress.error
        if self._refusal.error is not None and progress.timeout is ConnectTimeout:
            return copy_error(self._refusal.error)
        if error is None:
            text = f'{progress.where}: no answer within {self.limit:g} s, while {progress.step}'
        else:
            text = f'gave up after {self.limit:g} s: {error}'
        timeout = progress.timeout(text)
        timeout.code = None if error is None else error.code
        timeout.__cause__ = error and without_frames(copy_error(error))  # hides the TimeoutError
        return timeout

    async def __aenter__(self) -> Self:
        self._scope = time_limit_at(None if self.limit is None else self.when)
        await self._scope.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        try:
            await scope.__aexit__(*raised)
        except TimeoutError:
            raise self._timeout()  # noqa: B904 - `_timeout` sets the cause


class Backoff:
    """Repeats an attempt that failed, after growing delays, for all tasks that wait for it.

    :param deadlines: deadlines of those tasks.
    :param delays: limits of the delays.
    :ivar error: why the last try failed, while waiting for the next one; else None.
    :ivar retry_at: time of the event loop at which the next try begins.
    """

    def __init__(self, *deadlines: Deadline, delays: Delays = ()) -> None:
        self.deadlines: list[Deadline] = [*deadlines]
        self.error: RbFlyError | None = None
        self.retry_at: float = 0.0
        self._delays = backoff(*delays)
        self._next: asyncio.Future[None] | None = None  # done when the next try is due

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], can_retry: Callable[[RbFlyError], bool]
    ) -> T:
        """Repeat an attempt until it succeeds, or fails with an error that is not retried."""
        while True:
            try:
                return await attempt()
            except RbFlyError as ex:
                if not can_retry(ex):
                    raise
                error = without_frames(ex)
            await self.wait(error)

    async def wait(self, error: RbFlyError) -> None:
        """Wait before the next try; there is one more try before each deadline."""
        delay = wanted = next(self._delays)
        loop = asyncio.get_running_loop()
        now = loop.time()
        for item in sorted(self.deadlines, key=lambda item: item.when):
            item.progress.on_error(error)
            delay = item.shorten(wanted, delay, now)
        self.retry_at = now + delay
        self._notify(error)
        self._next = loop.create_future()
        timer = loop.call_at(self.retry_at, self.wake)
        try:
            await self._next
        finally:
            timer.cancel()
        self._notify(None)

    def wake(self) -> None:
        """Try again now, if waiting before the next try."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def _notify(self, error: RbFlyError | None) -> None:
        self.error = error
        for item in self.deadlines:
            item.on_wait(error, self.retry_at)
