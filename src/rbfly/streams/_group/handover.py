"""The settings of a consumer group, and the program's part of a handover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Protocol

from ...checks import check_timeout, check_type
from ...error import (
    ArgumentError,
    ArgumentTypeError,
    CallbackError,
    OffsetNotStored,
    about,
    add_note,
)
from ...net.observer import facts
from ...net.waiting import settled
from ...protocol import commands
from ...record import CheckedRecord
from .._waiting import cancel, is_foreign, of_async_callback

logger: logging.Logger = logging.getLogger('rbfly.streams')

HANDOVER_MAX = 50  # seconds; the broker closes the connection after 60

OnRevoke = Callable[[str], Awaitable[object]]


class Group(CheckedRecord):
    """A consumer group, and how this member of it hands over a stream or partition.

    When the broker takes a stream or partition from a member, or the program closes the
    subscription, the member delivers no more messages of it, and waits until the program has
    finished those that it has received.  Then it calls `on_revoke`, stores the offset, and answers
    the broker.  A program that collects messages writes them in `on_revoke`, and calls `commit`:
    the next member repeats none of them.

    `on_revoke` runs in its own task, while the program may process messages of other partitions; it
    runs once for each time that the member was active.  It may call `commit` and `close`.  If it
    raises an error, the next wait for a message raises that error, or `close` does, and RbFly
    stores no offset.  If something that it awaits was cancelled, this error is a RuntimeError.  An
    error that no call can raise is logged.

    If the member loses its connection, RbFly does not call `on_revoke`, and cancels it if it runs:
    :class:`.Deactivated` says so (`lost`), and messages that were not committed are delivered
    again.

    :param name: name of the group, at most 255 bytes of UTF-8; offsets are stored under it.
    :param handover_timeout: seconds for the program to finish its messages and for `on_revoke`,
        both together; above 0, and at most 50.  After that, the member hands over: messages that
        are not committed may be delivered twice.  With `on_revoke`, it cancels that, and stores no
        offset.  A member that becomes active has as long to ask the broker where it starts.
    :param stranded_after: seconds without progress of the group after which a member that receives
        nothing joins again, because of errors in RabbitMQ before 4.3.4; None for never.
    :param on_revoke: async function of the name of the stream or partition; None for none.
    :raises ValueError: the name or a time is out of range.
    :raises TypeError: an argument has another type.
    """

    name: str
    handover_timeout: float = 30.0
    stranded_after: float | None = None
    on_revoke: OnRevoke | None = None

    def __init__(
        self,
        name: str,
        *,
        handover_timeout: float = 30.0,
        stranded_after: float | None = None,
        on_revoke: OnRevoke | None = None,
    ) -> None:
        super().__init__(name, handover_timeout, stranded_after, on_revoke)

    def __post_init__(self) -> None:
        check_type('group', self.name, str)
        if not self.name:
            raise ArgumentError('group must not be empty')
        commands.reference(self.name, 'group')
        check_type('handover_timeout', self.handover_timeout, int, float)
        if not 0 < self.handover_timeout <= HANDOVER_MAX:
            raise ArgumentError(
                f'handover_timeout must be above 0 and at most {HANDOVER_MAX} seconds, because'
                f' RabbitMQ waits no longer than 60, not {self.handover_timeout}'
            )
        check_timeout('stranded_after', self.stranded_after, positive=True)
        if not (self.on_revoke is None or callable(self.on_revoke)):
            raise ArgumentTypeError(
                f'on_revoke must be an async function, not {type(self.on_revoke).__name__}'
            )


class RevokeError(CallbackError):
    """Carries an error of `on_revoke`, which must not get lost: a call raises it, or it is logged.

    :ivar where: the function, and what it was called for.
    """

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__(error)
        self.args = (error, where)
        self.where = where

    def log(self, prefix: str) -> None:
        """Log the error: no call can raise it."""
        text = '%s%s has failed, and no task waits for the error: %s'
        extra = facts(prefix, 'on_revoke_failed', error=str(self))
        logger.warning(text, prefix, self.where, self, exc_info=self.error, extra=extra)


def first_of(errors: Sequence[BaseException]) -> BaseException:
    """Return the first error, with notes that show the others."""
    first, *others = errors
    shown = own_error(first)
    for error in others:
        other = own_error(error)
        if other is not shown:
            where = f'{error.where}: ' if isinstance(error, RevokeError) else ''
            add_note(shown, f'also failed: {where}{other!r}')
    return first


def own_error(error: BaseException) -> BaseException:
    """Return what a call raises for an error."""
    return error.error if isinstance(error, CallbackError) else error


class HookRun:
    """One call of `on_revoke`.

    It refers to nothing: a connection that is opened in the hook keeps the hook's context.

    :ivar ended: the hook has ended.
    :ivar takers: how many calls wait for its end, or have raised its error.
    """

    __slots__ = ('ended', 'takers')

    def __init__(self) -> None:
        self.ended = False
        self.takers = 0


# The hooks in which the code runs.
HOOKS: ContextVar[tuple[HookRun, ...]] = ContextVar('rbfly_hooks', default=())


class HookSource(Protocol):
    """Has the function to call at a handover; None for none."""

    @property
    def on_revoke(self) -> OnRevoke | None: ...


class Revocation:
    """Calls `on_revoke` of a member, once for each time that the member is active.

    :param group: name of the group.
    :param log_prefix: of the client.
    """

    def __init__(self, source: HookSource, group: str, stream: str, log_prefix: str) -> None:
        self._source = source
        self._group = group
        self._stream = stream
        self._log_prefix = log_prefix
        self._task: asyncio.Task[RevokeError | None] | None = None
        self._run = HookRun()  # of the task
        self._running: set[HookRun] = set()  # also those of earlier times, if they still run

    @property
    def is_here(self) -> bool:
        """True in the hook, and in the tasks that it has created, until the hook has ended."""
        return not self._running.isdisjoint(HOOKS.get())

    async def wait(self) -> None:
        """Call the hook, unless it was called, and wait for its end; cancelling that has no effect.

        Returns at once in the hook.

        :raises RevokeError: the hook has raised an error.
        :raises OffsetNotStored: it was cancelled.
        """
        if self.is_here:
            return
        task = self._task
        if task is None:
            if (hook := self._source.on_revoke) is None:
                return
            run = self._run = HookRun()
            loop = asyncio.get_running_loop()
            task = self._task = asyncio.Task(self._call(hook, run), loop=loop)  # never eager
            task.add_done_callback(partial(self._log_unless_taken, run))
        run = self._run
        run.takers += 1
        try:
            await settled(task)
        except BaseException:  # cancelled
            run.takers -= 1
            self._log_unless_taken(run, task)
            raise
        if task.cancelled():
            error = OffsetNotStored(f'{self._where} was cancelled')
            raise about(error, self._stream, self._group)
        if (failed := task.result()) is not None:
            raise failed

    async def _call(self, hook: OnRevoke, run: HookRun) -> RevokeError | None:
        HOOKS.set((*(other for other in HOOKS.get() if not other.ended), run))
        self._running.add(run)
        try:
            await hook(self._stream)
        except BaseException as ex:
            if is_foreign(ex):
                raise
            return RevokeError(of_async_callback(ex, self._where), self._where)
        finally:
            run.ended = True
            self._running.discard(run)
        return None

    def _log_unless_taken(self, run: HookRun, task: asyncio.Task[RevokeError | None]) -> None:
        """Log an error of the hook if no call raises it, because RbFly has cancelled the hook."""
        if run.takers or not task.done() or task.cancelled() or task.exception() is not None:
            return
        if (failed := task.result()) is not None:
            failed.log(self._log_prefix)

    @property
    def _where(self) -> str:
        return f'on_revoke of group {self._group!r}, for stream {self._stream!r}'

    def cancel(self) -> None:
        """Cancel the hook, unless it calls this."""
        if not self.is_here:
            cancel(self._task)

    def reset(self) -> None:
        """The member is no longer active: the next time, call the hook again."""
        self.cancel()
        self._task = None
