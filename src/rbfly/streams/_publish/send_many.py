"""Sends many messages, as fast as the window permits."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from ..._turn import Turn
from ...checks import check_timeout, check_type
from ...error import (
    ArgumentTypeError,
    ConfirmTimeout,
    PublishError,
    RbFlyError,
    SendProgress,
    copy_error,
    counted,
    of_callback,
)
from .._waiting import TURN, is_foreign, let_others_run
from ..types import MessageCtx
from ._confirm import ConfirmGroup
from .confirmation import of_iterator, of_message, publish_error, set_attribute
from .session import PublisherSession

if TYPE_CHECKING:
    from ..types import AMQPBody

    Message = AMQPBody | MessageCtx
    Messages = Iterable[Message] | AsyncIterable[Message]
    CheckIds = Callable[[Sequence[Message], int, int, int | None], int | None]

RUN = 200  # messages between two checks of the clock, if they are cheap
CHECK = 10_000  # the same, while publishing ids are checked


class ManyMessages:
    """One call of `send_many`.

    :param session: session of the publisher.
    """

    def __init__(self, session: PublisherSession) -> None:
        self._session = session
        self._stream: str | None = session.stream
        self._core = session.core
        self._waiter = ConfirmGroup(session.core.loop)
        self._turn = Turn(TURN)

    async def send(
        self, messages: Messages, timeout: float | None, progress: SendProgress | None
    ) -> int:
        """Send messages and wait until all are confirmed; return their number."""
        if progress is None:
            progress = SendProgress()
        else:
            check_type('progress', progress, SendProgress)
        error: Exception | None
        try:
            error = await self._run(messages, timeout)
        except Exception as ex:
            error = ex
        except BaseException as ex:
            if not (is_foreign(ex) or hasattr(ex, '__notes__')):  # else it has said where
                of_callback(ex, self._iterator)
            raise
        finally:
            self._report(progress)
        if error is None:
            return progress.taken
        set_attribute(error, 'progress', progress)
        if isinstance(error, RbFlyError):
            error.stream = error.stream or self._stream
            if progress.unknown:
                error.outcome = 'unknown'
            elif not isinstance(error, PublishError):
                error.outcome = 'not_sent'
            if progress.taken > len(progress.refused):  # a message is, or may be, stored
                error.retriable = False
        self._on_raised(error)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    async def wait(self, progress: SendProgress) -> None:
        """Wait until the window holds no message of this call; see :meth:`SendProgress.wait`."""
        self._core.check_loop()
        await self._settle()
        self._report(progress)

    def _report(self, progress: SendProgress) -> None:
        progress.taken, progress.refused, progress.unknown = (
            self._taken,
            self._refused,
            self._unknown,
        )
        progress._sending = self if self._remaining else None
        self._mark_reported()

    # -- the outcome

    @property
    def _taken(self) -> int:
        return self._waiter.count

    @property
    def _remaining(self) -> int:
        return self._waiter.remaining

    @property
    def _refused(self) -> list[int]:
        """Indexes of the messages that are not stored."""
        refused, dropped, _ = self._waiter.missed or ([], [], [])
        return sorted(refused + dropped)

    @property
    def _unknown(self) -> list[int]:
        """Indexes of the messages that may be stored."""
        waiter = self._waiter
        unknown = [] if waiter.missed is None else waiter.missed[2]
        return sorted(
            unknown + (self._core.window.unsettled_of(waiter) if waiter.remaining else [])
        )

    async def _settle(self) -> None:
        """Wait until all messages are confirmed or refused."""
        if not self._waiter.seal():
            await self._waiter.wait()

    def _mark_reported(self) -> None:
        self._waiter.reported = True  # to the caller

    def _failure(self) -> Exception | None:
        """Return the error of the messages that were sent, if any."""
        if self._waiter.errors:
            return of_message(publish_error(self._waiter), self._waiter.first_refused)
        return None if self._waiter.error is None else copy_error(self._waiter.error)

    def _on_raised(self, error: Exception) -> None:
        self._session.on_raised(error)

    # -- sending

    def _check(self) -> None:
        """Check that the publisher takes messages."""
        self._session.check()

    async def _run(self, messages: Messages, timeout: float | None) -> Exception | None:
        """Send messages and wait for their confirms; return the error to raise, if any."""
        check_timeout('timeout', timeout)
        self._check()
        if timeout == 0:
            return self._session.no_time()
        if isinstance(messages, str | bytes | bytearray | memoryview | Mapping | MessageCtx):
            raise ArgumentTypeError(
                f'send_many takes an iterable of messages, not a single {type(messages).__name__}'
            )
        error: Exception | None = None
        ended = False  # no message is left to take
        limit = asyncio.timeout(timeout or None)
        try:
            async with limit:
                try:
                    error = await self._send(messages)
                except RbFlyError as ex:
                    # The publisher has failed, and other calls raise the same error.
                    error = copy_error(ex)
                ended = True
                await self._settle()
        except TimeoutError:
            if not limit.expired():
                raise
            if not ended or self._remaining:  # else the last confirm came in the same turn
                return self._late(timeout, error)
        finally:
            del limit  # it refers to the task
        failure = self._failure()
        if failure is None:
            return error
        if error is not None:
            failure.__cause__ = error
        return failure

    def _late(self, timeout: float | None, error: Exception | None) -> RbFlyError:
        taken, missing = self._taken, len(self._unknown)
        confirmed = taken - missing - len(self._refused)
        messages = counted(taken, 'message')
        text = f'the broker confirmed {confirmed} of {messages} in {timeout} s'
        failure = self._timed_out(f'{text}; the others may still be stored' if missing else text)
        failure.__cause__ = error or failure.__cause__
        failure.retriable = not taken
        return self._session.late(failure)

    def _timed_out(self, text: str) -> ConfirmTimeout:
        return self._session.timed_out(ConfirmTimeout, text)

    async def _send(self, messages: Messages) -> Exception | None:
        if isinstance(messages, list | tuple):
            await self._check_ids(messages)
            return await self._send_iter(iter(messages), messages)
        iterator: Any
        is_async = isinstance(messages, AsyncIterable)
        try:
            iterator = aiter(messages) if isinstance(messages, AsyncIterable) else iter(messages)
        except Exception as ex:
            return self._of_last(ex)
        return await (self._send_aiter_until if is_async else self._send_iter)(iterator)

    async def _send_iter(
        self, messages: Iterator[Message], source: Sequence[Message] = ()
    ) -> Exception | None:
        """Send the messages of an iterator; return the error that ends them, if any.

        :param source: what it iterates over, so that nothing waits for capacity after the last one.
        """
        session, core, waiter = self._session, self._core, self._waiter
        step = core.window.frame_entries  # whole frames
        more = True
        while more:
            await session.wait_capacity(step)
            session.check()
            if waiter.errors or waiter.settled:
                core.capacity.grant()  # the capacity that this call does not need
                break
            try:
                more = self._fill(messages, step)
            except Exception as ex:
                return self._of_last(ex)
            finally:
                core.write()
            if source and waiter.count >= len(source):
                break
            if more and self._turn.is_over:
                await self._yield()
        return None

    @property
    def _iterator(self) -> str:
        """Where the iterator has failed."""
        return f'the iterator given to send_many, after {counted(self._taken, "message")}'

    def _of_last(self, error: Exception) -> Exception:
        """Attribute an error to the last message taken, or to the iterator."""
        count, missed = self._waiter.count, self._waiter.missed
        if missed is not None and missed[1][-1:] == [count - 1]:
            return of_message(error, count - 1)
        return of_iterator(error, self._iterator, count)

    def _fill(self, messages: Iterator[Message], step: int) -> bool:
        """Fill the window until the turn is over; return True if there may be more messages.

        A turn sends at least one message, however long other processes kept the processor.
        """
        core, waiter = self._core, self._waiter
        free = core.free()
        goal = waiter.count + free - free % step
        more = True
        while more and waiter.count < goal:
            run = min(goal - waiter.count, RUN)
            limit = waiter.count + run
            more = core.window.extend(messages, run, waiter, self._turn)
            if more and waiter.count < limit:  # large messages: write them before encoding more
                core.write()
                if core.is_paused():
                    break
            if self._turn.is_over:
                break
        return more

    async def _send_aiter_until(self, messages: AsyncIterator[Message]) -> Exception | None:
        """Call `_send_aiter`, and stop waiting for the next message when an earlier one fails."""
        receiving = self._session.receiving
        stop = receiving[self._waiter] = asyncio.timeout(None)
        self._core.watched = True
        try:
            async with stop:
                return await self._send_aiter(messages)
        except TimeoutError:
            if not stop.expired():
                raise
        finally:
            del receiving[self._waiter], stop  # it refers to the task
        return None  # the waiter has the error

    async def _send_aiter(self, messages: AsyncIterator[Message]) -> Exception | None:
        """Like `_send_iter`, for an asynchronous iterator."""
        session, core, waiter = self._session, self._core, self._waiter
        while True:
            if core.capacity.waiting or not core.has_capacity(1):
                await session.wait_capacity()
            if core.closed or core.error is not None:
                session.check()
            # Other tasks may use the capacity while the iterator waits.  Its message then exceeds
            # `max_unconfirmed` by one, and stays queued until the window has capacity.
            if core.capacity.waiting:
                core.loop.call_soon(core.capacity.grant)
            if waiter.errors or waiter.settled:
                return None
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                return None
            except Exception as ex:
                return self._of_last(ex)
            # No await from here on: a message that was taken is sent.
            if waiter.settled:  # the publisher gave up meanwhile
                waiter.skip()
                return None
            try:
                core.window.extend((message,), 1, waiter)
            except Exception as ex:
                return self._of_last(ex)
            if not core.scheduled:
                core.schedule()
            if self._turn.is_over:  # the iterator may never have suspended
                await self._yield()

    async def _check_ids(self, messages: Sequence[Message]) -> None:
        """Raise ValueError unless explicit publishing ids ascend; no message is sent then."""
        if self._session.undeclared:
            await self._session.wait_declared()
            self._session.check()
        await self._check_in_turns(messages, self._core.window.check_ids)

    async def _check_in_turns(self, messages: Sequence[Message], check: CheckIds) -> None:
        last: int | None = None
        for start in range(0, len(messages), CHECK):
            if start and self._turn.is_over:
                await self._yield()
            last = check(messages, start, start + CHECK, last)

    async def _yield(self) -> None:
        """Let other tasks run, then begin a new turn."""
        await let_others_run()
        self._turn.begin()
