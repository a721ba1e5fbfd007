"""What is worth another try, when, and until when."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from math import inf
from random import uniform
from types import TracebackType

from ..error import (
    ConnectTimeout,
    ProtocolError,
    RbFlyError,
    StreamConnectionError,
    copy_error,
    without_frames,
)
from ..protocol.const import Key, ResponseCode

__all__ = ['TABLE', 'Backoff', 'Deadline', 'Try', 'can_retry']

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.1  # seconds
BACKOFF_LAST = 30.0


class Try(Enum):
    """When a refused command is worth another try; those that are not in the table never are."""

    ALWAYS = 'always'
    AGAIN = 'again'  # where the same was declared before


TABLE: dict[tuple[Key, int], Try] = {
    (Key.METADATA, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.DECLARE_PUBLISHER, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.DECLARE_PUBLISHER, ResponseCode.INTERNAL_ERROR): Try.AGAIN,
    # a disk alarm refuses publishers as a failed precondition
    (Key.DECLARE_PUBLISHER, ResponseCode.PRECONDITION_FAILED): Try.AGAIN,
    (Key.SUBSCRIBE, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.SUBSCRIBE, ResponseCode.INTERNAL_ERROR): Try.AGAIN,
    (Key.QUERY_PUBLISHER_SEQUENCE, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.QUERY_OFFSET, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.STREAM_STATS, ResponseCode.STREAM_NOT_AVAILABLE): Try.ALWAYS,
    (Key.STREAM_STATS, ResponseCode.INTERNAL_ERROR): Try.AGAIN,
}


def can_retry(error: RbFlyError, again: bool) -> bool:
    """True if another try may mend it.

    :param again: the publisher or subscription of the command was declared before.
    """
    if not isinstance(error, ProtocolError):
        return error.retriable
    found = error.command and TABLE.get((error.command, error.code))
    return found is Try.ALWAYS or (again and found is Try.AGAIN)


def backoff() -> Iterator[float]:
    """Seconds to wait before each next try: exponential, with jitter, from 0.1 to 30."""
    delay = BACKOFF_FIRST
    while True:
        yield delay * uniform(0.5, 1.0)
        delay = min(2 * delay, BACKOFF_LAST)


class Progress:
    """What is being tried: which addresses, which step, and what went wrong last."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.step = ''
        self.error: RbFlyError | None = None

    def on_where(self, where: str) -> None:
        """Other addresses are tried."""
        self.where = where

    def on_step(self, step: str) -> None:
        """Something else is waited for."""
        self.step = step

    def on_error(self, error: RbFlyError | None) -> None:
        """It went wrong; None: it is over."""
        self.error = error and without_frames(error)


class Deadline:
    """Until when one call, or one outage, may take; handed down through every layer.

    Used as `async with`, it ends what takes longer.

    :param limit: seconds for all of it, from now on; None for no limit.
    :param where: addresses that are tried.
    :param check: raises if there is to be no other try.
    :ivar when: by the clock of the loop; None for never.
    :ivar progress: what is waited for.
    """

    def __init__(self, limit: float | None, where: str, check: Callable[[], None]) -> None:
        self.limit = limit
        self.check = check
        self.progress = Progress(where)
        self._last_try = False  # there is time for one more only
        self.began = asyncio.get_running_loop().time()
        self.when = None if limit is None else self.began + limit
        self._scope: asyncio.Timeout | None = None

    def follow(self, other: Deadline) -> None:
        """It waits for the same as another one."""
        self.progress = other.progress

    def part(self) -> None:
        """It goes on by itself."""
        self.progress = copy.copy(self.progress)

    def shorten(self, delay: float, now: float) -> float:
        """How long to wait of a delay: there is one more try before it is over."""
        if self.when is None or self._last_try or now + delay < self.when:
            return delay
        self._last_try = True
        return max(0.0, self.when - now) / 2

    def _given_up(self) -> RbFlyError:
        progress, error = self.progress, self.progress.error
        text = f'gave up after {self.limit} s'
        told: RbFlyError
        if error is None or isinstance(error, ConnectTimeout):
            told = ConnectTimeout(
                f'{progress.where}: no answer within {self.limit} s, while {progress.step}'
            )
        elif isinstance(error, StreamConnectionError):
            told = type(error)(f'{error} ({text})')
        else:
            told = copy_error(error)
            told.add_note(text)
        told.__cause__ = error and error.__cause__  # and nothing else is told of
        return told

    async def __aenter__(self) -> None:
        self._scope = asyncio.timeout_at(self.when)
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
            raise self._given_up()  # noqa: B904 - it has its cause


class Backoff:
    """The delays between the tries of one thing; they begin anew with each object."""

    def __init__(self) -> None:
        self._delays = backoff()

    async def wait(self, error: RbFlyError, deadlines: Collection[Deadline]) -> None:
        """Wait before the next try, of which there is at least one more before each deadline."""
        delay = next(self._delays)
        now = asyncio.get_running_loop().time()
        for item in sorted(deadlines, key=lambda item: inf if item.when is None else item.when):
            item.check()
            item.progress.on_error(error)
            delay = item.shorten(delay, now)
        lasted = now - min((item.began for item in deadlines), default=now)
        since = f' (for {lasted:.0f} s)' if lasted >= 1 else ''
        logger.warning('%s%s; trying again in %.1f s', error, since, delay)
        await asyncio.sleep(delay)
        for item in deadlines:
            item.check()
