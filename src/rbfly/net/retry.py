"""What is worth another try, when, and for how long."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from types import TracebackType

from ..error import ConnectTimeout, ProtocolError, RbFlyError, StreamConnectionError
from ..protocol.const import Key, ResponseCode

__all__ = ['STABLE', 'Retry', 'backoff', 'can_retry']

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.1  # seconds
BACKOFF_LAST = 30.0
STABLE = 5.0  # seconds; what is lost sooner, and without progress, is the same outage

# Codes that are worth another try, by command; for what was declared before, some more.
FIRST = {
    Key.DECLARE_PUBLISHER: {ResponseCode.STREAM_NOT_AVAILABLE},
    Key.SUBSCRIBE: {ResponseCode.STREAM_NOT_AVAILABLE},
}
AGAIN = {
    # a disk alarm refuses publishers as a failed precondition
    Key.DECLARE_PUBLISHER: {ResponseCode.INTERNAL_ERROR, ResponseCode.PRECONDITION_FAILED},
    Key.SUBSCRIBE: {ResponseCode.INTERNAL_ERROR},
}


def can_retry(error: RbFlyError, command: Key, again: bool) -> bool:
    """True if another try may mend it.

    :param again: what the command declares was declared before.
    """
    if isinstance(error, ProtocolError):
        return error.code in FIRST[command] or (again and error.code in AGAIN[command])
    return error.retriable


def backoff() -> Iterator[float]:
    """Seconds to wait before each next try: exponential, with jitter, from 0.1 to 30."""
    delay = BACKOFF_FIRST
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(2 * delay, BACKOFF_LAST)


class Retry:
    """One outage, or one call that needs a connection: its tries, its delays and its limit.

    It is handed down through every layer, so that none has delays or a limit of its own.  Used as
    `async with`, it ends what takes longer than the limit.

    :param limit: seconds for all of it, from now on; None for no limit.
    :param where: addresses that are tried.
    :param check: raises if there is to be no other try.
    :ivar step: what is waited for.
    :ivar error: why no connection could be made last; None if one was.
    """

    def __init__(self, limit: float | None, where: str, check: Callable[[], None]) -> None:
        self.limit = limit
        self.where = where
        self.check = check
        self.error: RbFlyError | None = None
        self.step = ''
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline = None if limit is None else self._began + limit
        self._delays = backoff()
        self._is_last = False
        self._scope: asyncio.Timeout | None = None

    async def wait(self, error: RbFlyError) -> None:
        """Wait before the next try; raises the error if there is no time for one."""
        self.check()
        delay = next(self._delays)
        now = self._loop.time()
        if self._deadline is not None and now + delay >= self._deadline:
            if self._is_last:
                raise self._given_up(error) from error.__cause__
            self._is_last = True  # with half of the time that is left
            delay = max(0.0, self._deadline - now) / 2
        since = f' (for {now - self._began:.0f} s)' if now - self._began >= 1 else ''
        logger.warning('%s%s; trying again in %.1f s', error, since, delay)
        await asyncio.sleep(delay)
        self.check()

    def on_step(self, step: str) -> None:
        """Something else is waited for."""
        self.step = step

    def _given_up(self, error: RbFlyError | None) -> RbFlyError:
        if error is None or isinstance(error, ConnectTimeout):
            return ConnectTimeout(
                f'{self.where}: no answer within {self.limit} s, while {self.step}'
            )
        text = f'gave up after {self.limit} s'
        if isinstance(error, StreamConnectionError):
            return type(error)(f'{error} ({text})')
        error.add_note(text)
        return error

    async def __aenter__(self) -> None:
        self._scope = asyncio.timeout_at(self._deadline)
        await self._scope.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        try:
            await scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._given_up(self.error) from None
