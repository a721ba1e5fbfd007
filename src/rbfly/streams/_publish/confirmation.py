"""The future that `submit` returns, and the errors of several messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...error import (
    ConfirmTimeout,
    Outcome,
    ProtocolError,
    PublishError,
    PublishErrorInfo,
    RbFlyError,
    add_text,
    copy_error,
    of_callback,
    set_fields,
    wrong_loop,
)
from ...protocol._pending import ConfirmWaiter
from .. import types
from ..types import MessageCtx
from ._core import PublisherCore

# Collections of messages, and single messages.  `isinstance` is several times faster with a tuple
# than with a union that the call creates.
SEQUENCES = (list, tuple)
SINGLE = (str, bytes, bytearray, memoryview, Mapping, MessageCtx)
KEPT = 1000  # errors of `submit` that are kept; further failures are only counted


class Confirmation(asyncio.Future[None]):
    """A future of the broker's confirm; :meth:`Publisher.submit` returns one.

    :ivar publish_id: publishing id of the message (int).
    :ivar seen: the program has retrieved the outcome, or awaits it.
    :ivar failure: why the message is not confirmed; reading this does not set `seen`.
    """

    publish_id: int
    seen: bool = False
    failure: Exception | None = None

    def __init__(
        self, message: types.AMQPBody | MessageCtx, core: PublisherCore, failures: Failures
    ) -> None:
        super().__init__(loop=core.loop)
        self._failures = failures
        self._number = 0  # of the failure
        self._core = core
        self.publish_id = core.window.put(message, self)

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done():
            running = asyncio._get_running_loop()
            if running is not self.get_loop() or os.getpid() != self._failures.pid:
                raise wrong_loop('the confirmation')
            self._send()
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

    def _send(self) -> None:
        """Write the message now if nothing is in flight: the task submits no more for now."""
        if self._core.scheduled:
            self._core.schedule()

    def _see(self) -> None:
        if not self.seen:
            self.seen = True
            if self.failure is not None:
                self._failures.remove(self._number)


class JoinedConfirmation(Confirmation):
    """A future of the confirms of a message that several partitions take."""

    def __init__(self, parts: Sequence[Confirmation], failures: Failures) -> None:
        asyncio.Future.__init__(self, loop=parts[0].get_loop())
        self._failures = failures
        self._number = 0
        self.publish_id: int = parts[0].publish_id
        self._parts = parts
        self._left = len(parts)
        for part in parts:
            part.add_done_callback(self._on_done)

    def _send(self) -> None:
        for part in self._parts:
            part._send()

    def _on_done(self, part: asyncio.Future[None]) -> None:
        self._left -= 1
        if not part.cancelled():
            part.exception()  # this future reports it
        if self._left or self.done():
            return
        errors = [item.failure for item in self._parts if item.failure is not None]
        if error := summary(errors):
            if len(errors) < len(self._parts):  # a partition has stored the message
                set_fields(error, outcome='unknown', retriable=False)
            self.set_exception(error)
        else:
            self.set_result(None)


class Failures:
    """Failures of `submit` that the program has not retrieved.

    :ivar count: number of failures (int).
    :ivar pid: process of the publisher (int).
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.pid: int = os.getpid()
        self._errors: dict[int, Exception] = {}  # by number
        self._newest: Exception | None = None  # of the failures that are only counted
        self._number = 0

    def add(self, error: Exception) -> int:
        """Add a failure and return its number."""
        self.count += 1
        self._number += 1
        if len(self._errors) < KEPT:
            self._errors[self._number] = error
        else:
            self._newest = error
        return self._number

    def remove(self, number: int) -> None:
        """Forget a failure that the program has retrieved."""
        self.count -= 1
        self._errors.pop(number, None)

    def errors(self) -> list[Exception]:
        """Return the errors that are kept; if all of those were retrieved, the newest one."""
        if not self._errors and self.count and self._newest is not None:
            return [self._newest]
        return [*self._errors.values()]


def publish_error(waiter: ConfirmWaiter, given_up: bool = False) -> PublishError:
    """Return the error of a waiter that has messages that the broker refused.

    :param given_up: other messages of the waiter were sent, and will not be confirmed.
    """
    assert waiter.errors
    errors = sorted(waiter.errors)
    detail = ''
    if waiter.too_large is not None and waiter.too_large[0] == errors[0][0]:
        _, size, limit, count = waiter.too_large
        part = f'of its sub-entry of {count} messages' if count > 1 else 'with its headers'
        detail = (
            f'{size} bytes {part} do not fit into a frame of the new connection;'
            f' the limit is {limit} bytes'
        )
    notes = [detail] if detail else []
    if waiter.doubtful:
        notes.append('the previous connection may have stored it')
    if given_up:
        notes.append(ENDS['unknown'])
    error = joined(errors, '; '.join(notes))
    if waiter.doubtful or given_up:
        error.outcome, error.retriable = 'unknown', False
    elif waiter.too_large is not None:
        error.outcome = 'not_sent'
    return error


def joined(errors: Sequence[tuple[int, int]], detail: str = '', total: int = 0) -> PublishError:
    """Return one error for publishing ids and their response codes, or for a larger total."""
    error = PublishError(errors[0][1], errors[0][0], detail)
    error.errors = [PublishErrorInfo(*item) for item in errors]
    error.total = max(total, len(errors))
    error.retriable = error.retriable and error.total == 1
    return error


def summary(errors: Sequence[Exception], total: int = 0) -> Exception | None:
    """Return one error that stands for all of them; None if there are none.

    :param total: number of failures, if `errors` does not list all of them.
    """
    if not errors:
        return None
    late = [error for error in errors if isinstance(error, ConfirmTimeout)]
    if late and len(errors) > 1:
        found = copy_error(next((error for error in late if error.outcome == 'unknown'), late[0]))
        found.unconfirmed = sum(error.unconfirmed for error in late)
        found.unsent = sum(error.unsent for error in late)
        found.stream = None if len(late) > 1 else found.stream
        found.add_note(f'{len(errors)} partitions failed in total')
        others = summary([error for error in errors if error not in late])
        found.__cause__ = others or found.__cause__
        return found
    refused = [error for error in errors if isinstance(error, PublishError)]
    infos = [info for error in refused for info in error.errors]
    total = max(total, len(errors), len(infos))
    first = (refused or errors)[0]
    if total == 1 or (len(infos) == total and len(refused) == 1):
        return copy_error(first) if isinstance(first, RbFlyError) else first.with_traceback(None)
    # a new error: other calls may raise each of these
    if infos:
        error: Exception = joined(infos, f'{total} messages failed in total', total)
    else:
        error = copy_error(first)
        error.add_note(f'{total} messages failed in total')
    streams = {getattr(item, 'stream', None) for item in errors}
    set_fields(error, stream=streams.pop() if len(streams) == 1 else None)
    if any(getattr(item, 'outcome', None) == 'unknown' for item in errors):
        set_fields(error, outcome='unknown', retriable=False)
    return error


def or_refusal(error: ConfirmTimeout, refusal: ProtocolError | None) -> RbFlyError:
    """Return the error of a call whose time is up, or the refusal if the broker refuses the client.

    :param refusal: why the broker refuses the client; None if it does not.
    """
    if refusal is None:
        return error
    found = add_text(copy_error(refusal), after=f'; {error}')
    return set_fields(found, outcome=error.outcome)


ENDS: dict[Outcome, str] = {'not_sent': 'not sent', 'unknown': 'may still be stored'}


def with_outcome(error: Exception, outcome: Outcome, count: int) -> Exception:
    """Return a copy of an error that says what became of the messages that await confirms.

    :param count: number of those messages.
    """
    if not isinstance(error, RbFlyError):
        return error
    messages = 'the message' if count == 1 else 'messages without a confirm'
    was = {'unknown': '', 'not_sent': 'was ' if count == 1 else 'were '}[outcome]
    found = add_text(copy_error(error), after=f'; {messages} {was}{ENDS[outcome]}')
    retriable = found.retriable and outcome == 'not_sent'
    return set_fields(found, outcome=outcome, retriable=retriable)


def of_message(error: Exception, index: int, call: str = 'send_many') -> Exception:
    """Add the number of a message of a call to the error that it caused."""
    text = f'message {index} of {call}'
    if isinstance(error, RbFlyError):
        add_text(error, before=f'{text}: ')
    else:
        with suppress(AttributeError):
            error.add_note(text)
    return set_fields(error, index=index)


def of_iterator(error: Exception, where: str, index: int) -> Exception:
    """Add to the error of an iterator where it was raised, and the number of its next message."""
    found = of_callback(error, where)
    assert isinstance(found, Exception)
    return set_fields(found, index=index)
