"""The future that `submit` returns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

from ..error import wrong_loop
from ._sending import PublisherCore
from .failures import Failures
from .types import AMQPBody, MessageCtx

__all__ = ['Confirmation']


class Confirmation(asyncio.Future[None]):
    """A future of the broker's confirm; :meth:`Publisher.submit` returns one.

    :ivar publish_id: publishing id of the message (int).
    :ivar seen: the program has asked for the outcome, or awaits it.
    :ivar failure: why the message is not confirmed; reading this does not set `seen`.
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
        super().exception()  # `close` reports the failure: asyncio need not log it
        self.failure = error
        if not self.seen:
            self._number = self._failures.add(error)

    def _see(self) -> None:
        if not self.seen:
            self.seen = True
            if self.failure is not None:
                self._failures.remove(self._number)
