"""Declares a publisher, resends its unconfirmed messages after a reconnect, and closes it.

The state of a publisher changes only in these ways (:data:`TRANSITIONS`)::

    CONNECTING -> OPEN, FAILED, DROPPED, CLOSING, CLOSED
    OPEN -> FAILED, LOCKED_OUT, DROPPED, CLOSING, CLOSED
    FAILED -> CONNECTING, OPEN, LOCKED_OUT, DROPPED, CLOSING, CLOSED
    LOCKED_OUT -> DROPPED, CLOSING, CLOSED
    DROPPED -> CLOSING, CLOSED
    CLOSING -> DROPPED, CLOSED

An open publisher takes messages with or without a connection; its registration knows about that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from ...error import (
    ConfirmTimeout,
    ProtocolError,
    PublisherError,
    PublisherNameInUse,
    RbFlyError,
    StreamConnectionError,
    WindowTimeout,
    copy_error,
    set_fields,
    without_frames,
)
from ...net.busy_poll import BusyPoll
from ...net.cluster import Cluster
from ...net.connection import Connection, disconnected
from ...net.observer import Life, Role, check_transition
from ...net.registration import Owner, Registration
from ...net.waiting import CloseTimeout
from ...protocol import commands
from .._waiting import NOW, WaitingTasks
from ._confirm import ConfirmFuture, ConfirmGroup
from ._core import PublisherCore
from .confirmation import Confirmation, or_refusal, publish_error, with_outcome
from .name_check import NameCheck
from .overdue import ConfirmAge, ConfirmCheck
from .semaphore import WindowSemaphore

E = TypeVar('E', bound=Exception)

ID_MAX = 2**64 - 1


class PublisherState(Enum):
    """Whether a publisher takes messages."""

    CONNECTING = 'connecting'  # it has a name: only the broker knows its next publishing id
    OPEN = 'open'  # it takes messages
    FAILED = 'failed'  # it could not reconnect; the next call tries again
    LOCKED_OUT = 'locked out'  # another publisher uses its name
    DROPPED = 'dropped'  # the program has dropped its last reference: it closes soon
    CLOSING = 'closing'  # it sends the messages that it has
    CLOSED = 'closed'


S = PublisherState
TRANSITIONS: Mapping[S, Sequence[S]] = {
    S.CONNECTING: [S.OPEN, S.FAILED, S.DROPPED, S.CLOSING, S.CLOSED],
    S.OPEN: [S.FAILED, S.LOCKED_OUT, S.DROPPED, S.CLOSING, S.CLOSED],
    S.FAILED: [S.CONNECTING, S.OPEN, S.LOCKED_OUT, S.DROPPED, S.CLOSING, S.CLOSED],
    S.LOCKED_OUT: [S.DROPPED, S.CLOSING, S.CLOSED],
    S.DROPPED: [S.CLOSING, S.CLOSED],
    S.CLOSING: [S.DROPPED, S.CLOSED],
    S.CLOSED: [],
}
ENDED = (S.DROPPED, S.CLOSING, S.CLOSED)


class PublisherSession(Owner):
    """Owns the registration of a publisher; does not refer to the object that the user holds.

    :param name: name for deduplication, empty for none.
    :param core: the window of unconfirmed messages, and the tasks that wait for it.
    :param patient: of the registration.
    :ivar state: whether the publisher takes messages.
    :ivar receiving: calls of `send_many` that wait for an asynchronous iterator, with the timeout
        that ends the wait.
    :ivar age: how long its first message in flight has waited for the confirm.
    :ivar closing: the client's time for closing.
    :ivar queues: semaphores that tasks wait for; failed when the publisher gives up.
    :ivar name_check: detects another publisher of the same name; None without a name.
    :ivar full: `batch` has refused a message: the next `flush` waits until there is capacity.
    """

    role = Role.PUBLISH
    open_until_closed = True

    def __init__(
        self, cluster: Cluster, stream: str, name: str, core: PublisherCore, patient: bool = False
    ) -> None:
        self.stream = stream
        self.name = name
        self.core = core
        self.state = PublisherState.CONNECTING if name else PublisherState.OPEN
        self.full: bool = False
        self.registration: Registration = Registration(cluster, self, patient)
        self.receiving: dict[ConfirmGroup, asyncio.Timeout] = {}
        self.queues: list[WindowSemaphore] = [core.capacity]
        self.name_check: NameCheck | None = (
            NameCheck(self.registration, stream, name) if name else None
        )
        self.age: ConfirmAge = ConfirmAge()
        self.closing: CloseTimeout = cluster.closing
        self._cluster = cluster
        self._limit: int = core.window.max_unconfirmed
        self._idle = WaitingTasks()  # while closing it, until no message is unsettled
        self._on_progress: Callable[[], None] | None = None  # while closing it
        self._unsettled = self._unsent = 0  # messages, when closing last made progress
        self._lockout: PublisherNameInUse | None = None  # until a call raises it
        cluster.totals.add_window(stream, core.window)
        busy_poll = cluster.busy_poll
        core.bind(self, BusyPoll(core.loop, busy_poll) if busy_poll else None)

    def __repr__(self) -> str:
        name = f' {self.name!r}' if self.name else ''
        return f'publisher{name} of {self.stream!r}'

    @property
    def status(self) -> str:
        """What the publisher does, for people."""
        if self.state in (*ENDED, PublisherState.FAILED, PublisherState.LOCKED_OUT):
            return self.state.value
        if self.registration.is_disconnected:
            return 'disconnected'
        return f'{self.registration.status}{", confirms are late" * self.age.overdue}'

    @property
    def failure(self) -> Exception | None:
        """Why the publisher takes no messages, until a call tries again; None if it does."""
        failed = self.state in (PublisherState.FAILED, PublisherState.LOCKED_OUT)
        return self.core.error if failed else None

    def _enter(self, state: PublisherState, error: Exception | None = None) -> None:
        """Change the state.

        :param error: why the publisher takes no messages.
        """
        self.state = check_transition(self, self.state, state, TRANSITIONS)
        self.core.enter(state is PublisherState.OPEN, error)

    # -- the registration

    @property
    def resent(self) -> int:
        return self.core.window.resent

    async def prepare(self, connection: Connection, id: int) -> commands.Command[Any]:
        return commands.DeclarePublisher(id, self.name, self.stream)

    async def complete(self, connection: Connection) -> None:
        if self.registration.declared:
            if self.name_check is not None:
                self.name_check.ask(self.core)
            return
        if self.name_check is not None:
            last_id = await self.name_check.open(connection)
            if last_id == ID_MAX:
                raise PublisherError(
                    f'publisher {self.name!r} on stream {self.stream!r} has already used the'
                    f' highest publishing id, {ID_MAX}: choose another name'
                )
            self.core.window.start_at(last_id + 1)

    def detach(self, connection: Connection, id: int) -> commands.Command[Any]:
        connection.set_publisher(id, None)
        if self.name_check is not None:
            self.name_check.stop()
        ConfirmCheck.stop(connection)
        self.core.suspend()
        return commands.DeletePublisher(id)

    def on_open(self, connection: Connection, id: int) -> None:
        core = self.core
        if core.undeclared and self.state not in ENDED:  # its next publishing id is known now
            self._enter(PublisherState.OPEN)
        connection.set_publisher(id, core.window)
        self.age.restart()
        ConfirmCheck.start(connection)
        core.resume(connection, id)
        self._note_sent()
        self._end_refused()
        if core.window.awaited == 0:
            self._idle.wake()

    def on_lost(self, error: RbFlyError) -> None:
        if self.state in ENDED and not self.core.window.awaited:
            return  # nothing is left to wait for
        self.registration.ensure_open()

    def on_failed(self, error: Exception) -> None:
        """Raise the error in waiting calls; the next call declares the publisher again."""
        if self.state in (*ENDED, PublisherState.LOCKED_OUT):
            self.core.enter(False, error)
        else:
            in_use = isinstance(error, PublisherNameInUse)
            self._enter(PublisherState.LOCKED_OUT if in_use else PublisherState.FAILED, error)
        if isinstance(error, PublisherNameInUse):
            self._lockout = error
        self._give_up(error)
        self.age.clear()

    def on_disconnect(self) -> None:
        if self.core.scheduled:  # before the client asks the broker to close the connection
            self.core.write()

    def on_resume(self) -> None:
        self.core.write()
        self._note_sent()

    # -- messages

    @property
    def is_over(self) -> bool:
        """True if the publisher takes no more messages, for good."""
        return self.is_closed or self.state is PublisherState.LOCKED_OUT

    @property
    def is_in_use(self) -> bool:
        """True if the program has the publisher, or opens it; its name then belongs to it."""
        dropped = self.state is PublisherState.DROPPED
        return not dropped and self.registration.life is not Life.CLOSED

    @property
    def is_closed(self) -> bool:
        """True if the publisher is closed, or its client was disconnected."""
        return self.state in ENDED or self.registration.is_disconnected

    def check(self) -> None:
        """Check that the publisher takes messages; redeclare it if it had given up."""
        self.core.check_loop()
        if self.state in (PublisherState.OPEN, PublisherState.CONNECTING):
            return
        if self.state in ENDED:
            raise self.name_stream(PublisherError(f'{self!r} is closed'))
        if self.name_check is not None and self.name_check.error is not None:  # it is locked out
            self._lockout = None
            raise self.name_stream(copy_error(self.name_check.error))
        try:
            if self.registration.is_disconnected:
                raise disconnected()
            self.registration.ensure_open()
        except StreamConnectionError as ex:  # the client has been disconnected
            self.not_sent(ex)
            raise
        self._enter(PublisherState.CONNECTING if self.core.undeclared else PublisherState.OPEN)

    def not_sent(self, error: E) -> E:
        """Say in an error that a message was not sent, for good, and return the error."""
        return set_fields(error, outcome='not_sent', retriable=False, stream=self.stream)

    def name_stream(self, error: E) -> E:
        """Name the stream in an error of publishing, and return the error."""
        return set_fields(error, stream=self.stream)

    def resize(self, limit: int) -> None:
        """Limit the messages in flight, also by the limit that the publisher was opened with."""
        core = self.core
        core.window.resize(min(self._limit, limit))
        waiting = core.capacity.waiting
        for wait, (asked, amount) in waiting.items():
            waiting[wait] = min(asked, core.window.max_unconfirmed), amount
        if waiting:
            core.capacity.grant()

    @property
    def not_declared(self) -> str:
        """The text of the error of calls that need the next publishing id, but cannot wait."""
        return (
            f'{self!r} is still connecting: the broker has not reported its last publishing id;'
            ' `send`, `submit`, `send_many` and `flush` wait for it'
        )

    async def wait_declared(self, until: float | None = None) -> bool:
        """Wait until a publisher with a name is declared; false if not in time.

        Return at once if `check` raises an error that waiting does not help.
        """
        core = self.core
        core.check_loop()
        if self.is_over:
            return True
        self.registration.ensure_open()
        if self.state is PublisherState.FAILED:
            self._enter(PublisherState.CONNECTING)
        in_time: bool = await core.capacity.wait(1, 0, until)
        return in_time

    @property
    def _refusal(self) -> ProtocolError | None:
        """Why the broker refuses the client, if there is no connection."""
        return None if self.registration.is_open else self._cluster.refusal.error

    def late(
        self, text: str, kind: type[ConfirmTimeout] = ConfirmTimeout, sent: bool = True
    ) -> RbFlyError:
        """Return the error of a call whose time is up; without a connection, why it is refused.

        :param sent: messages of the call may have been sent.
        """
        error = self.timed_out(text, kind)
        if not sent:
            error.outcome, error.retriable = 'not_sent', True
        return self.or_refusal(error)

    def or_refusal(self, error: ConfirmTimeout) -> RbFlyError:
        """Return an error, or without a connection why the client is refused, if it is."""
        return self.name_stream(or_refusal(error, self._refusal))

    def batch_full(self, error: Exception | None = None) -> Exception:
        """Return the error of a message that `batch` has no capacity for.

        :param error: why the publisher is not declared.
        """
        self.full = True
        if self.core.undeclared:
            error = PublisherError(self.not_declared) if error is None else copy_error(error)
            return set_fields(error, outcome='not_sent', stream=self.stream)
        limit = self.core.window.max_unconfirmed
        text = f'max_unconfirmed ({limit}) messages are queued or in flight'
        return self.late(f'{text}; the message was not queued: await flush()', WindowTimeout)

    def on_flush(self) -> None:
        """Note that a `flush` has waited for the capacity that `batch` lacked."""
        self.full = False

    def window_timeout(self, timeout: float | None) -> RbFlyError:
        """Return the error of a message that had no capacity in time."""
        problem = 'the window of unconfirmed messages was full for'
        if self.core.undeclared:
            problem = 'it was not declared within'
        return self.late(f'{problem} {timeout} s; the message was not sent', WindowTimeout)

    def no_time(self, *, queued: bool = False) -> RbFlyError:
        """Return the error of a call with a timeout of 0 that needs a confirm.

        :param queued: messages are queued or in flight, and may still be stored.
        """
        text = 'a timeout of 0 does not wait for confirms; nothing was sent'
        if queued:
            text += '; messages that are queued or in flight may still be stored'
        return self.late(text, sent=queued)

    def timed_out(
        self,
        text: str,
        kind: type[ConfirmTimeout] = ConfirmTimeout,
        stream: str = '',
        cause: RbFlyError | None = None,
    ) -> ConfirmTimeout:
        """Return the error of a call that timed out; it says why there is no connection, if so.

        :param stream: name of the super stream.
        :param cause: the reason, if the registration is closed.
        """
        name = f' {self.name!r}' if self.name else ''
        part = f'super stream {stream!r}' if stream else f'stream {self.stream!r}'
        text = f'publisher{name} of {part}: {text}'
        if cause is None and self._refusal is None:  # else the caller raises the refusal instead
            cause = self.registration.problem
        error = kind(text if cause is None else f'{text}; there is no connection: {cause}')
        if cause is not None:
            error.__cause__ = without_frames(copy_error(cause))
        return self.name_stream(error)

    def has_capacity(self, count: int) -> bool:
        """Return whether `count` messages fit into the window, and no other task comes first."""
        core = self.core
        # Tasks that have been granted capacity go first, even if there is more.
        return not (core.capacity.waiting or core.capacity.reserved) and core.has_capacity(count)

    async def wait_capacity(self, count: int = 1, until: float | None = None) -> bool:
        """Wait, in turn, until `count` messages fit into the window; false if not in time."""
        core = self.core
        if self.has_capacity(count):
            return True
        # declares it again if it had given up: else nothing would end the wait
        self.check()
        core.write()  # batched messages use capacity until they are confirmed
        if until == NOW or not await core.capacity.wait(count, count, until):
            return False
        try:
            self.check()
        except BaseException:
            core.capacity.grant()
            raise
        return True

    def settle(self, waiter: Any, error: Exception | None = None) -> None:
        """Set the outcome of a waiter: confirmed, refused or given up."""
        if waiter.errors:
            error = publish_error(waiter, error is not None and not waiter.unsent)
            self.name_stream(error)
        if type(waiter.future) is list:  # several calls of `send` wait for one message
            for wait in waiter.future:
                self.settle(wait, error)
            return
        waiting = waiter.future or waiter
        if waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            if not isinstance(waiting, ConfirmGroup):  # its caller may have given up
                self.on_raised(error)
                if not waiter.errors:  # others get it, too
                    error = copy_error(error)
            waiting.set_exception(error)

    def on_raised(self, error: Exception) -> None:
        """Note that a call raises an error, which `close` does not repeat."""
        if isinstance(error, PublisherNameInUse):
            self._lockout = None

    def give_up(self, wait: ConfirmFuture | Confirmation) -> bool:
        """Note that a call of `send` has given up; return True if its message was withdrawn."""
        core = self.core
        withdrawn = core.give_up(wait)
        if core.window.awaited == 0:
            self._idle.wake()
        return withdrawn

    def after_settled(self) -> None:
        """The broker confirmed or refused messages, and the core is watched."""
        core = self.core
        if self.name_check is not None:
            self.name_check.start(core)
        if self.receiving:
            self._end_refused()
        if core.window.needs_redeclare:
            self.registration.lose(StreamConnectionError('the broker no longer knows it'))
        else:
            self.registration.end_outage()
        if self._on_progress is not None:
            self._note_settled(self._on_progress)
        if self.age.overdue and self.age.is_over(core.window):
            ConfirmCheck.end(self)
        if self.state in ENDED or self.receiving or self.age.overdue:
            core.watch()

    def on_sent(self) -> None:
        """A message was sent, the first one after nothing was in flight for a while."""
        if self.registration.connection is not None:
            ConfirmCheck.start(self.registration.connection)

    def _give_up(self, error: Exception, unsent: Exception | None = None) -> None:
        """Raise `error` in all waiting calls, or `unsent` if their messages were never sent."""
        count: int = self.core.window.unsettled
        count += sum(amount for queue in self.queues for _, amount in queue.waiting.values())
        unsent = self.name_stream(with_outcome(unsent or error, 'not_sent', count))
        error = self.name_stream(with_outcome(error, 'unknown', count))
        for waiter in self.core.window.fail_pending():
            self.settle(waiter, unsent if waiter.unsent else error)
        for queue in self.queues:
            if queue.waiting:
                self.on_raised(unsent)
            queue.fail(unsent)
        self._idle.wake()
        for waiter, stop in self.receiving.items():
            if not waiter.settled:
                waiter.set_exception(error)
            self._end_wait(stop)

    def _end_refused(self) -> None:
        for waiter, stop in self.receiving.items():
            if waiter.errors:
                self._end_wait(stop)

    def _end_wait(self, stop: asyncio.Timeout) -> None:
        if not stop.expired():
            stop.reschedule(self.core.loop.time())

    # -- closing

    # Resending does not count as progress: the messages may crash the broker each time.

    def _note_sent(self) -> None:
        """Note progress of closing: messages were sent for the first time."""
        if self._on_progress is not None:
            unsent = self.core.window.count_unsent()
            if unsent < self._unsent:
                self._unsent = unsent
                self._on_progress()

    def _note_settled(self, on_progress: Callable[[], None]) -> None:
        """Note progress of closing: messages were confirmed or refused."""
        unsettled = self.core.window.awaited
        if unsettled < self._unsettled:
            self._unsettled = unsettled
            on_progress()
        if unsettled == 0:
            self._idle.wake()

    async def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed.

        :raises ConfirmTimeout: the publisher made no progress for the client's `close_timeout`, and
            there are messages that no call has reported.
        :raises PublisherNameInUse: no call has raised this error.
        """
        core, registration = self.core, self.registration
        if registration.life is Life.CLOSED:
            return
        self._cluster.check_loop()
        if registration.life is Life.CLOSING:
            await registration.wait_closed()
            return
        if core.loop.is_closed():  # no call waits any more
            self._begin_close()
            self.end()
            return
        errors = (
            PublisherError(f'{self!r} was closed before the confirm'),
            PublisherError(f'{self!r} was closed before the message was sent'),
        )
        sent = unsent = 0
        cause: RbFlyError | None = None
        try:
            self._begin_close()
            if core.error is None:
                self.core.release()
            if core.window.awaited and core.error is None:
                async with self.closing.limit() as self._on_progress:
                    self._unsettled = core.window.awaited
                    self._unsent = core.window.count_unsent()
                    while core.window.awaited and core.error is None:
                        await self._idle.wait()
            # A publisher that has sent nothing has lost nothing.
            if self.name_check is not None and core.window.last_sent:
                self.name_check.ask(core)
            self._give_up(*errors)
            await self._cluster.idle_closing.wait(registration.reset())
        except (TimeoutError, StreamConnectionError):
            sent, unsent = core.window.count_unreported()
            cause = self._refusal or registration.problem
        finally:
            self._on_progress = None
            self.end(*errors)
        if sent or unsent:  # not in the handler: the TimeoutError refers to the task
            raise self._gave_up(sent, unsent, cause)
        if self._lockout is not None:
            raise self.name_stream(copy_error(self._lockout))

    def _gave_up(self, unconfirmed: int, unsent: int, cause: RbFlyError | None) -> ConfirmTimeout:
        """Return the error of a close that made no progress."""
        error = self.timed_out(
            f'gave up closing for lack of progress (close_timeout is {self.closing.timeout} s);'
            f' messages sent but not confirmed, which may be stored: {unconfirmed};'
            f' never sent: {unsent}',
            cause=cause,
        )
        error.unconfirmed, error.unsent = unconfirmed, unsent
        error.outcome = 'unknown' if unconfirmed else 'not_sent'
        return error

    def abort(self, error: Exception) -> None:
        """Close without waiting: send all queued messages, and give up their confirms.

        A task that waits in :meth:`close` returns.
        """
        if self.registration.life is Life.CLOSED or self._cluster.is_forked:
            return
        try:
            if self.registration.life is Life.ACTIVE:
                self._begin_close()
                if self.core.error is None:
                    self.core.release()
        finally:
            self.end(error)

    def abandon(self) -> None:
        """Close without waiting: the program has dropped its last reference to the publisher.

        May be called from any thread, with or without a running event loop.
        """
        loop = self.core.loop
        if self.registration.life is Life.CLOSED:
            return
        self._enter(PublisherState.DROPPED, self.core.error)
        if loop.is_closed():
            self.end()
        else:  # never directly: the garbage collector may run within any method of the core
            text = f'{self!r} was closed because the program dropped its last reference'
            loop.call_soon_threadsafe(self.abort, PublisherError(text))

    def _begin_close(self) -> None:
        self.registration.begin_close()
        self._enter(PublisherState.CLOSING, self.core.error)
        self.core.watch()

    def end(self, *errors: Exception) -> None:
        """Give up if there are errors, end the registration and drop references.

        The publisher goes with the last reference.
        """
        connection = self.registration.connection
        if connection is not None and self.core.window.awaited:
            connection.require_answer()
        try:
            if errors:
                self._give_up(*errors)
        finally:
            if self.name_check is not None:
                self.name_check.end(self.core)
            if self.state is not PublisherState.CLOSED:
                closed = self.name_stream(PublisherError(f'{self!r} is closed'))
                self._enter(PublisherState.CLOSED, closed)
            self._cluster.totals.remove_window(self.stream, self.core.window)
            self.core.end()
            for queue in self.queues:
                queue.close()
            self.registration.close()
