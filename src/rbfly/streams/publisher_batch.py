"""Publishers that queue messages until they are flushed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ..checks import check_integer
from ..error import ConfirmTimeout, PublisherNameInUse, WindowTimeout
from ._sending import BatchBase, Batches
from .confirmation import summary
from .misuse import BatchOnly
from .publisher import BasePublisher
from .publishing import PublisherSession
from .types import AMQPBody, MessageCtx
from .waiting import WindowSemaphore, deadline, in_time

MAX_LEN = 2**63 - 1
USER = 5  # stack level of `client.publisher(...)` being awaited or entered, from `warn`


class PublisherBatchFast(BatchBase, BasePublisher, BatchOnly):
    """A publisher that queues messages with `batch` and sends them with `flush`."""

    _batched = True
    _semaphore: type[WindowSemaphore] | None = None

    def _attach(self, session: PublisherSession) -> None:
        self._session = session
        self._batches = Batches(self._core, self._semaphore)
        session.bind(self._core, self._batches.release)
        if self._batches.capacity is not None:
            session.queues.append(self._batches.capacity)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all queued messages, and wait until the broker has confirmed them.

        Before a publisher with a name is declared (`wait=False`), wait for that.

        :param timeout: seconds to wait for the confirms; None or 0 for no limit.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises ConfirmTimeout: the broker did not confirm all messages in time.
        :raises ValueError: the timeout is negative.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        until = None if timeout is None else deadline(timeout)
        session = self._session or self._require_session()
        if session.undeclared and not await session.wait_declared(until):
            raise session.window_timeout(timeout)
        # Includes batches of a flush that timed out, or that runs concurrently.
        batches = self._batches.send()
        for batch in batches:
            if batch.settled:
                continue
            if until is None:
                await batch.wait()
            elif not await in_time(batch.wait(), until):
                for late in batches:
                    late.reported = True  # for `close`
                raise session.late(
                    session.timed_out(
                        ConfirmTimeout,
                        f'the broker did not confirm all messages within {timeout} s;'
                        ' the others may still be stored',
                    )
                )
        if (errors := self._batches.report(batches)) and (error := summary(errors)):
            session.on_raised(error)
            raise error

    def _unreported(self) -> Callable[[], list[Exception]]:
        batches = [*self._batches.sent, self._batches.filling]
        # `PublisherSession.close` raises PublisherNameInUse, if no call has raised it.
        return lambda: [
            batch.error
            for batch in batches
            if batch.error is not None and not isinstance(batch.error, PublisherNameInUse)
        ]


class PublisherBatchLimit(PublisherBatchFast):
    """A batch publisher for concurrent tasks: `batch` waits while too many messages are queued."""

    _semaphore = WindowSemaphore

    async def batch(  # type: ignore[override]
        self, message: AMQPBody | MessageCtx, *, max_len: int, timeout: float | None = None
    ) -> None:
        """Encode a message and queue it until `flush` or `close`.

        Waits while `max_len` messages are queued, until another task calls `flush`.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param max_len: maximum number of queued messages, at least 1.
        :param timeout: seconds to wait for capacity; None or 0 for no limit.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0; the batch is unchanged.
        :raises ValueError: its explicit publishing id is already in the batch, or not above the
            last one sent; or the timeout is negative.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises WindowTimeout: the batch stayed full; the message was not queued.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        until = None if timeout is None else deadline(timeout)
        check_integer('max_len', max_len, 1, MAX_LEN)
        await self._wait_capacity(max_len, timeout, until)
        try:
            self._require_session().check()
            super().batch(message)
        except BaseException:
            self._batches.capacity.grant()  # the capacity that this message does not need
            raise

    async def _wait_capacity(
        self, max_len: int, timeout: float | None, until: float | None
    ) -> None:
        """Wait, in turn, until fewer than `max_len` messages are queued."""
        session = self._require_session()
        session.check()
        queue = self._batches.capacity
        is_full = bool(queue.waiting) or not self._batches.fits(max_len)
        if is_full and not await queue.wait(max_len, 1, until):
            raise session.late(
                session.timed_out(
                    WindowTimeout,
                    f'the batch was full for {timeout} s (max_len is {max_len});'
                    ' the message was not queued: call flush',
                )
            )


class PublisherBinBatch(PublisherBatchFast):
    """A :class:`PublisherBatchFast` that sends raw bytes, regardless of the argument `amqp`."""

    _amqp = False


def warn(old: str, new: str) -> None:
    """Warn about a deprecated class; its constructor calls this."""
    warnings.warn(f'{old} is deprecated: use {new}', DeprecationWarning, stacklevel=USER)


class PublisherBatch(PublisherBatchFast):
    """Deprecated name of :class:`PublisherBatchFast`."""

    def __init__(self, *args: Any) -> None:
        warn('PublisherBatch', 'PublisherBatchFast')
        super().__init__(*args)


class PublisherBatchMem(PublisherBatchLimit):
    """Deprecated name of :class:`PublisherBatchLimit`."""

    def __init__(self, *args: Any) -> None:
        warn('PublisherBatchMem', 'PublisherBatchLimit')
        super().__init__(*args)
