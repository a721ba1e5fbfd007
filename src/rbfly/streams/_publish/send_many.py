"""Sends many messages, as fast as the window permits."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
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
    set_fields,
)
from ...time_limits import time_limit
from .._waiting import TURN, is_foreign, let_others_run
from ._confirm import ConfirmGroup
from ._core import PublisherCore
from .confirmation import SEQUENCES, SINGLE, of_iterator, of_message, publish_error
from .session import PublisherSession

if TYPE_CHECKING:
    from ..types import AMQPBody, MessageCtx

    Message = AMQPBody | MessageCtx
    Messages = Iterable[Message] | AsyncIterable[Message]

RUN = 200  # messages between two checks of the clock, if they are cheap
CHECK = 10_000  # the same, while publishing ids are checked


class Destination(ABC):
    """Where the messages of one call of `send_many` go: a stream, or the partitions of one.

    :param session: session of the publisher, or of the first partition.
    :param core: of the stream, whose window must have capacity before a message is taken; None for
        partitions: that of a message is not known before, and errors of each name it.
    :ivar groups: the messages that each session has taken.
    :ivar skipped: indexes of messages that entered no window.
    :ivar partial: the same, of those that entered only some of their windows.
    """

    skipped: Sequence[int] = ()
    partial: Sequence[int] = ()

    def __init__(self, session: PublisherSession, core: PublisherCore | None) -> None:
        self.session = session
        self.core = core
        self.groups: dict[PublisherSession, ConfirmGroup] = {}
        self.turn: Turn = Turn(TURN)
        self._has_waited = False  # other tasks have run since `ready`

    async def pause(self) -> None:
        """Let other tasks run, then begin a new turn."""
        await let_others_run()
        self.turn.begin()
        self._has_waited = True

    @property
    @abstractmethod
    def taken(self) -> int:
        """Number of messages taken."""

    @abstractmethod
    def check(self) -> None:
        """Check that the publisher takes messages."""

    @abstractmethod
    def timed_out(self, text: str) -> ConfirmTimeout:
        """Return the error of a call that has waited for confirms."""

    @abstractmethod
    async def begin(self, messages: Messages) -> None:
        """Prepare for messages; check the publishing ids of a list or tuple."""

    @abstractmethod
    async def ready(self) -> bool:
        """Wait until messages can be taken; return False if an earlier one has failed."""

    @abstractmethod
    def fill(self, messages: Iterator[Message]) -> bool:
        """Put messages into windows until the turn is over; return True if there may be more."""

    @abstractmethod
    def write(self) -> None:
        """Write the messages in the windows."""

    @abstractmethod
    def receive(self, stop: asyncio.Timeout) -> None:
        """Take messages one by one; `stop` ends the wait for one if an earlier one fails."""

    def end_receive(self) -> None:
        """Forget `stop`."""
        for session, group in self.groups.items():
            session.receiving.pop(group, None)

    @abstractmethod
    def take(self, message: Message) -> bool:
        """Take one of them; return True if `place` must put it into windows."""

    @abstractmethod
    async def place(self) -> None:
        """Wait for capacity for a message that `fill` or `take` has left in hand, and send it."""

    @abstractmethod
    def failed(self) -> int | None:
        """Count the last message; return its index if it is in no window, or not in all."""


class SendManyCall:
    """One call of `send_many`."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._session = destination.session
        self._groups = destination.groups
        self._error: Exception | None = None  # that has ended the sending
        self._has_sent = False  # no message is left to take

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
            self._error = None  # `progress` may refer to this call
        if error is None:
            return progress.taken
        set_fields(error, progress=progress)
        if isinstance(error, RbFlyError):
            if self._destination.core is not None:
                error.stream = error.stream or self._session.stream
            if progress.unknown:
                error.outcome = 'unknown'
            elif not isinstance(error, PublishError):
                error.outcome = 'not_sent'
            if progress.taken > len(progress.refused):  # a message is, or may be, stored
                error.retriable = False
        for session in self._groups:
            if session.stream == getattr(error, 'stream', None):
                session.on_raised(error)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    async def wait(self, progress: SendProgress) -> None:
        """Wait until the window holds no message of this call; see :meth:`SendProgress.wait`."""
        self._session.core.check_loop()
        await self._settle()
        self._report(progress)

    # -- the outcome

    def _report(self, progress: SendProgress) -> None:
        """Tell the caller, for whom `close` then need not do so."""
        unknown, refused = set(self._destination.partial), set(self._destination.skipped)
        progress._sending = None
        for session, group in self._groups.items():
            if group.unconfirmed is not None:
                refused.update(group.unconfirmed[0], group.unconfirmed[1])
                unknown.update(group.unconfirmed[2])
            if group.remaining:
                unknown.update(session.core.window.unsettled_of(group))
                progress._sending = self
            group.reported = True
        progress.taken = self._destination.taken
        progress.refused = sorted(refused.difference(unknown))
        progress.unknown = sorted(unknown)

    async def _settle(self) -> None:
        """Wait until all messages are confirmed or refused."""
        for group in self._groups.values():
            if not group.seal():
                await group.wait(self._session.core.loop)

    def _failure(self) -> Exception | None:
        """Return the error of the messages that were sent, if any."""
        found: list[Exception] = []
        for session, group in self._groups.items():
            if group.errors:
                error: Exception = of_message(publish_error(group), group.first_refused)
            elif group.error is not None:
                error = copy_error(group.error)
            else:
                continue
            found.append(session.name_stream(error))
        return min(found, key=lambda item: getattr(item, 'index', None) is None, default=None)

    async def _run(self, messages: Messages, timeout: float | None) -> Exception | None:
        """Send messages and wait for their confirms; return the error to raise, if any."""
        check_timeout('timeout', timeout)
        self._destination.check()
        if timeout == 0:
            return self._session.no_time()
        if not isinstance(messages, SEQUENCES) and isinstance(messages, SINGLE):
            raise ArgumentTypeError(
                f'send_many takes an iterable of messages, not a single {type(messages).__name__}'
            )
        if timeout is None:
            await self._send_and_settle(messages)
        elif not await self._is_in_time(messages, timeout):
            return self._late(timeout)
        failure = self._failure()
        if failure is None:
            return self._error
        if self._error is not None:
            failure.__cause__ = self._error
        return failure

    async def _send_and_settle(self, messages: Messages) -> None:
        try:
            self._error = await self._send(messages)
        except RbFlyError as ex:
            # The publisher has failed, and other calls raise the same error.
            self._error = copy_error(ex)
        self._has_sent = True
        await self._settle()

    async def _is_in_time(self, messages: Messages, timeout: float) -> bool:
        limit = time_limit(timeout)
        try:
            async with limit:
                await self._send_and_settle(messages)
        except TimeoutError:
            if not limit.expired():
                raise
            # The last confirm may have come in the same turn.
            return self._has_sent and not any(item.remaining for item in self._groups.values())
        finally:
            del limit  # it refers to the task
        return True

    def _late(self, timeout: float) -> RbFlyError:
        progress = SendProgress()
        self._report(progress)
        text = (
            f'the broker confirmed {progress.confirmed} of {counted(progress.taken, "message")}'
            f' in {timeout} s'
        )
        if progress.unknown:
            text += '; the others may still be stored'
        failure = self._destination.timed_out(text)
        failure.__cause__ = self._error or failure.__cause__
        failure.retriable = not progress.taken
        return self._session.or_refusal(failure)

    # -- sending

    async def _send(self, messages: Messages) -> Exception | None:
        await self._destination.begin(messages)
        if isinstance(messages, SEQUENCES):
            if not messages:
                return None
            return await self._send_iter(iter(messages), messages)
        iterator: Any
        is_async = isinstance(messages, AsyncIterable)
        try:
            iterator = aiter(messages) if isinstance(messages, AsyncIterable) else iter(messages)
        except Exception as ex:
            return self._of_last(ex)
        return await (self._send_aiter if is_async else self._send_iter)(iterator)

    async def _send_iter(
        self, messages: Iterator[Message], source: Sequence[Message] = ()
    ) -> Exception | None:
        """Send the messages of an iterator; return the error that ends them, if any.

        :param source: what it iterates over, so that nothing waits for capacity after the last one.
        """
        destination = self._destination
        more = True
        try:
            while more and await destination.ready():
                try:
                    more = destination.fill(messages)
                except Exception as ex:
                    return self._of_last(ex)
                finally:
                    destination.write()
                try:
                    await destination.place()
                except Exception as ex:
                    return self._of_last(ex)
                if source and destination.taken >= len(source):
                    break
                if more and destination.turn.is_over:
                    await destination.pause()
        finally:
            destination.write()
        return None

    async def _send_aiter(self, messages: AsyncIterator[Message]) -> Exception | None:
        """The same for an asynchronous iterator.

        An earlier message that fails ends the wait for the next one; its group has the error.
        """
        session, destination = self._session, self._destination
        core, take = destination.core, destination.take
        stop = time_limit(None)
        destination.receive(stop)
        try:
            async with stop:
                while True:
                    if core is not None and (
                        core.capacity.waiting or not core.has_capacity(1) or not core.accepts
                    ):
                        await session.wait_capacity()
                        session.check()
                        # Other tasks may use the capacity while the iterator waits.  Its message
                        # then exceeds `max_unconfirmed` by one, and stays queued.
                        if core.capacity.waiting:
                            core.loop.call_soon(core.capacity.grant)
                    if stop.when() is not None:
                        break
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return None
                    except Exception as ex:
                        return self._of_last(ex)
                    try:
                        if take(message):
                            await destination.place()
                    except Exception as ex:
                        return self._of_last(ex)
                    if destination.turn.is_over:  # the iterator may never have suspended
                        await destination.pause()
        except TimeoutError:
            if not stop.expired():
                raise
        finally:
            del stop  # it refers to the task
            destination.end_receive()
        if self._failure() is None:  # the publisher was closed before it took a message
            destination.check()
        return None

    @property
    def _iterator(self) -> str:
        """Where the iterator has failed."""
        taken = self._destination.taken
        return f'the iterator given to send_many, after {counted(taken, "message")}'

    def _of_last(self, error: Exception) -> Exception:
        """Attribute an error to the last message taken, or to the iterator."""
        index = self._destination.failed()
        if index is None:
            return of_iterator(error, self._iterator, self._destination.taken)
        return of_message(error, index)


class StreamDestination(Destination):
    """The stream of a publisher, whose messages are one group."""

    def __init__(self, session: PublisherSession) -> None:
        super().__init__(session, session.core)
        self._core = session.core
        self._group = self.groups[session] = ConfirmGroup()

    @property
    def taken(self) -> int:
        return self._group.count

    def check(self) -> None:
        self.session.check()

    def timed_out(self, text: str) -> ConfirmTimeout:
        return self.session.timed_out(text)

    async def begin(self, messages: Messages) -> None:
        if not isinstance(messages, SEQUENCES):
            return
        if self._core.undeclared:
            await self.session.wait_declared()
            self.session.check()
        last: int | None = None
        for start in range(0, len(messages), CHECK):
            if start and self.turn.is_over:
                await self.pause()
            last = self._core.window.check_ids(messages, start, start + CHECK, last)

    async def ready(self) -> bool:
        session, core, group = self.session, self._core, self._group
        needed = core.window.frame_entries - group.count % core.window.frame_entries  # whole frames
        if not session.has_capacity(needed):
            await session.wait_capacity(needed)
            self.turn.begin()  # other tasks have run
        session.check()
        if not (group.errors or group.settled):
            return True
        core.capacity.grant()  # the capacity that this call does not need
        return False

    def fill(self, messages: Iterator[Message]) -> bool:
        """A turn sends at least one message, however long other processes kept the processor."""
        core, group = self._core, self._group
        goal = group.count + core.free()
        goal -= goal % core.window.frame_entries
        more = True
        while more and group.count < goal:
            run = min(goal - group.count, RUN)
            limit = group.count + run
            more = core.window.extend(messages, run, group, self.turn)
            if more and group.count < limit:  # large messages: write them before encoding more
                core.write()
                if core.is_paused():
                    break
            if self.turn.is_over:
                break
        return more

    def write(self) -> None:
        self._core.write()

    def receive(self, stop: asyncio.Timeout) -> None:
        self.session.receiving[self._group] = stop
        self._core.watch()

    def take(self, message: Message) -> bool:
        core, group = self._core, self._group
        if group.settled:  # the publisher gave up meanwhile
            group.skip()
            return False
        core.window.extend((message,), 1, group)
        if not core.scheduled:
            core.schedule()
        return False

    async def place(self) -> None:
        """Nothing is left in hand."""

    def failed(self) -> int | None:
        last, unconfirmed = self._group.count - 1, self._group.unconfirmed
        return last if unconfirmed is not None and unconfirmed[1][-1:] == [last] else None
