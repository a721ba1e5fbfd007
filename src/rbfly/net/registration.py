"""A publisher or a subscription on the broker, redeclared when its connection is lost.

The state of the declaration changes only in these ways (:data:`TRANSITIONS`)::

    IDLE -> OPENING
    OPENING -> OPEN, BACKING_OFF, IDLE
    BACKING_OFF -> OPENING, IDLE
    OPEN -> LOST, IDLE
    LOST -> BACKING_OFF, IDLE

The life of a registration ends when its owner closes it (:data:`LIFE`)::

    ACTIVE -> CLOSING, CLOSED
    CLOSING -> CLOSED

There are two tables because a closing publisher still redeclares itself to resend its messages.
A publisher leaves LOST at once; a subscription leaves it when a task waits for a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Protocol

from ..error import RbFlyError, RequestTimeout, StreamConnectionError, copy_error, without_frames
from ..protocol.commands import Command
from .cluster import Cluster
from .connection import Connection, disconnected
from .observer import Life, Observer, Role, State, check_transition, facts
from .retry import Backoff, can_retry, is_cut

logger: logging.Logger = logging.getLogger('rbfly.net')

STABLE = 5.0  # seconds; a declaration that is lost sooner, without progress, is the same outage

TRANSITIONS: Mapping[State, Sequence[State]] = {
    State.IDLE: [State.OPENING],
    State.OPENING: [State.OPEN, State.BACKING_OFF, State.IDLE],
    State.BACKING_OFF: [State.OPENING, State.IDLE],
    State.OPEN: [State.LOST, State.IDLE],
    State.LOST: [State.BACKING_OFF, State.IDLE],
}
LIFE: Mapping[Life, Sequence[Life]] = {
    Life.ACTIVE: [Life.CLOSING, Life.CLOSED],
    Life.CLOSING: [Life.CLOSED],
    Life.CLOSED: [],
}


class Owner(Protocol):
    """The part of a registration that differs between a publisher and a subscription.

    :ivar role: role of the connections that the declaration uses.
    :ivar stream: name of the stream.
    :ivar open_until_closed: when the client disconnects, stay open until the connection ends.
    """

    role: Role
    stream: str
    open_until_closed: bool

    @property
    def resent(self) -> int:
        """Number of messages that were sent again after a reconnect, in total."""
        return 0

    async def prepare(self, connection: Connection, id: int) -> Command[Any]:
        """Prepare to receive frames for an id, and return the request that declares it."""

    async def complete(self, connection: Connection) -> None:
        """Send the requests that must follow the declaration."""
        return

    def detach(self, connection: Connection, id: int) -> Command[Any]:
        """Stop using the connection; return the request that removes the declaration."""

    def on_open(self, connection: Connection, id: int) -> None:
        """The declaration is open."""

    def on_lost(self, error: RbFlyError) -> None:
        """The declaration was open and is lost; `ensure_open` declares it again."""

    def on_failed(self, error: Exception) -> None:
        """The registration gave up because of an error; `ensure_open` starts again."""

    def on_resume(self) -> None:
        """The connection accepts more data again."""
        return

    def on_disconnect(self) -> None:
        """The client disconnects; this is the last chance to write."""
        return


class Registration:
    """Keeps a publisher or a subscription declared while its owner needs it.

    :param patient: until it is declared, connecting has no time limit, and a cut TLS handshake is
        retried.
    :ivar connection: connection of the declaration, open or in progress; else None.
    :ivar id: publisher or subscription id on that connection; -1 without a connection.
    :ivar declared: True once the declaration has been open.
    :ivar state: state of the declaration.
    :ivar life: whether the registration is in use.
    :ivar opened: number of times that the declaration has been open.
    :ivar waiting_since: time of the event loop from which the owner has needed the declaration,
        while it is not open; None if it is open, or nothing needs it.
    :ivar retry_at: time of the event loop at which the next try begins, while it backs off.
    :ivar moved: the broker has ended the last declaration: the stream is not available there.
    """

    def __init__(self, cluster: Cluster, owner: Owner, patient: bool = False) -> None:
        self.cluster = cluster
        self.connection: Connection | None = None
        self.id: int = -1
        self.declared: bool = False
        self.patient = patient
        self.state: State = State.IDLE
        self.life: Life = Life.ACTIVE
        self.opened: int = 0
        self.waiting_since: float | None = None
        self.retry_at: float = 0.0
        self._generation = cluster.generation  # at the last `ensure_open`
        self.moved: bool = False
        self._owner = owner
        self._task: asyncio.Task[None] | None = None
        self._outage: Backoff | None = None  # of the first open, or of an outage
        self._opening: Backoff | None = None  # of the task, even if the outage has ended since
        self._opened_at = 0.0
        self._lost: StreamConnectionError | None = None
        self._lost_at = 0.0
        self._fails = False  # `lose` ends it: the program wants no reconnect
        self._lost_by: RbFlyError | None = None  # until it is declared again
        self._outcome: asyncio.Future[int] | None = None  # of `open`
        self._closed: asyncio.Event | None = None  # of `wait_closed`
        cluster.known.add(self)

    def __repr__(self) -> str:
        owner = getattr(self, '_owner', None)
        return f'<Registration {self.state.value} {self.life.value} of {owner!r}>'

    @property
    def owner(self) -> Owner:
        """The publisher's or subscription's part; the registration has none once it is closed."""
        return self._owner

    @property
    def is_open(self) -> bool:
        """True if the publisher or subscription is declared."""
        return self.state is State.OPEN

    @property
    def status(self) -> str:
        """The state in one word, for people."""
        if self.state in (State.OPENING, State.BACKING_OFF):
            return 'reconnecting' if self.declared else 'connecting'
        return 'not open' if self.state is State.IDLE else self.state.value

    @property
    def is_disconnected(self) -> bool:
        """True if the client was disconnected since it was last to be opened."""
        return self._generation != self.cluster.generation

    @property
    def problem(self) -> RbFlyError | None:
        """Why it is not declared: the error of the last try, or of the loss; None if unknown."""
        if self.is_open:
            return None
        tried = None if self._opening is None else self._opening.deadlines[0].progress.error
        return tried or self._lost_by

    def _enter(self, state: State, error: Exception | None = None) -> None:
        """Change the state of the declaration."""
        before, self.state = self.state, check_transition(self, self.state, state, TRANSITIONS)
        if state not in (State.OPENING, State.BACKING_OFF):
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = asyncio.get_running_loop().time()
        self._notify(before, state, error)
        outcome = self._outcome
        if state in (State.OPENING, State.BACKING_OFF) or outcome is None or outcome.done():
            return
        if state is State.OPEN:
            outcome.set_result(self.id)
        elif not outcome.get_loop().is_closed():
            outcome.set_exception(error or disconnected())

    def _enter_life(self, life: Life) -> None:
        before, self.life = self.life, check_transition(self, self.life, life, LIFE)
        self._notify(before, life, None)

    def _notify(self, before: State | Life, after: State | Life, error: Exception | None) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            prefix, states = self.cluster.settings.log_prefix, (before.value, after.value)
            extra = facts(prefix, 'state', self._owner, before=states[0], state=states[1])
            logger.debug('%s%r: %s -> %s', prefix, self._owner, *states, extra=extra)
        self.cluster.observers.notify(Observer.on_transition, self, before, after, error)

    # -- what the owner calls

    async def open(self) -> int:
        """Declare the publisher or subscription for the first time, and return its id.

        If this fails, the caller closes the registration.

        :raises RbFlyError: the broker cannot be reached, or refuses the declaration.
        """
        self.ensure_open()
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            found = await self._outcome
        finally:
            self._outcome = None
        if self.state is State.IDLE:  # disconnected in the turn that opened it
            raise disconnected()
        return found

    def ensure_open(self) -> None:
        """Start a declaration in the background, unless one is open or in progress.

        :raises EventLoopError: the client belongs to another event loop.
        :raises StreamConnectionError: the client is being disconnected.
        """
        self.cluster.check_loop()
        if self.state not in (State.IDLE, State.LOST):
            return
        if self.state is State.LOST and self._fails:
            return  # `lose` ends it
        loop = asyncio.get_running_loop()
        if self.state is State.IDLE or loop.time() > self._lost_at + STABLE:
            self._outage = None
        if self._outage is None:
            limit = inf if self.patient and not self.declared else None
            deadline = self.cluster.deadline(limit, self._on_wait)
            self._outage = Backoff(deadline, delays=self.cluster.settings.backoff)
        self._opening = self._outage
        self.cluster.registrations[self] = None
        self._generation = self.cluster.generation
        lost, self._lost = self._lost, None
        self._enter(State.OPENING if lost is None else State.BACKING_OFF, lost)
        self._task = asyncio.Task(self._run(self._outage, lost), loop=loop)  # never an eager one
        self._task.add_done_callback(self._on_done)

    def end_outage(self) -> None:
        """Note that the declaration works: its next loss begins a new outage."""
        self._outage = None
        self.cluster.on_answer()

    def lose(self, error: StreamConnectionError) -> None:
        """Give up an open declaration that no longer works; call the owner's `on_lost`."""
        if self.state is not State.OPEN:
            return
        # A connection that the program replaces is no outage.
        is_replaced = self.connection is not None and self.connection.held
        self._fails = self.cluster.settings.reconnect_timeout == 0 and not is_replaced
        self._leave()
        if self not in self.cluster.registrations:  # the client disconnects
            self.fail(disconnected())
            return
        self._lost_by = without_frames(copy_error(error))
        self._lost, self._lost_at = error, asyncio.get_running_loop().time()
        if self._lost_at > self._opened_at + STABLE:
            self._outage = None
        self._enter(State.LOST, error)
        self._owner.on_lost(error)
        if self._fails:
            self.fail(copy_error(error))

    def reset(self, error: Exception | None = None) -> asyncio.Future[Any] | None:
        """Give up the declaration until the owner needs it again, without calling the owner.

        :param error: the reason, for observers.
        :returns: a future of the broker's answer or the cancelled task; None if there is neither.
        """
        task, self._task = self._task, None
        if self._opening is not None:
            self._opening.deadlines[0].release()
        self._opening = self._outage = self._lost = None
        self.cluster.registrations.pop(self, None)
        answer = self._leave()
        if self.state is not State.IDLE:
            self._enter(State.IDLE, error)
        if task is None or task.done() or task.get_loop().is_closed():
            return answer
        task.cancel()
        return answer or task

    def fail(self, error: Exception) -> None:
        """Give up the declaration because of an error; call the owner's `on_failed`."""
        self.reset(error)
        self._owner.on_failed(error)

    def begin_close(self) -> None:
        """Note that the owner has begun to close; it calls `close` at the end."""
        self._enter_life(Life.CLOSING)

    def close(self) -> None:
        """Give up the declaration for good; do nothing if already closed."""
        if self.life is Life.CLOSED:
            return
        try:
            self.reset()
        finally:
            self._enter_life(Life.CLOSED)
            self.cluster.known.discard(self)
            if self._closed is not None:
                self._closed.set()
            del self._owner  # the owner refers back: break the reference cycle

    async def wait_closed(self) -> None:
        """Wait until closing has ended."""
        if self.life is not Life.CLOSED:
            self._closed = self._closed or asyncio.Event()
            await self._closed.wait()

    # -- declaring

    async def _run(self, outage: Backoff, lost: StreamConnectionError | None) -> None:
        [deadline] = outage.deadlines
        try:
            async with deadline:
                if lost is not None:
                    await outage.wait(lost)
                    deadline.progress.on_error(None)  # of the previous connection
                await outage.retry(
                    lambda: self._declare(outage),
                    lambda ex: can_retry(ex, self.declared) or (self.patient and is_cut(ex)),
                )
        except Exception as ex:
            if self._task is asyncio.current_task():
                self._task = None
                self.fail(ex)
        else:
            task, self._task = self._task, None
            if task is not None:
                task.remove_done_callback(self._on_done)  # which would keep the client for a turn
            self._on_declared()

    async def _declare(self, outage: Backoff) -> None:
        owner, [deadline] = self._owner, outage.deadlines
        connection, found = await self.cluster.reserve(
            owner.role, owner.stream, deadline, self.declared
        )
        deadline.progress.on_step(f'declaring {owner!r}')
        try:
            request = await owner.prepare(connection, found)
        except BaseException:
            connection.ids(owner.role).add(found)
            raise
        self.connection, self.id, self.moved = connection, found, False
        connection.registrations[self] = None
        try:
            await connection.request(request)
            await owner.complete(connection)
            if connection.error is not None:  # lost in the turn of the answer
                raise copy_error(connection.error)
        except BaseException as ex:
            self._leave()
            if isinstance(ex, RequestTimeout):
                self.cluster.probe(connection)
            raise

    def _on_wait(self, error: RbFlyError | None, retry_at: float) -> None:
        """The declaration backs off because of an error, or tries again (None)."""
        self.retry_at = retry_at
        state = State.OPENING if error is None else State.BACKING_OFF
        if self.state is not state:
            self._enter(state, error)
        if error is not None:
            self.cluster.observers.notify(Observer.on_back_off, self, error, retry_at)

    def _on_declared(self) -> None:
        connection = self.connection
        if connection is None or self.state is not State.OPENING:
            return  # closed in the same turn
        self._opened_at = asyncio.get_running_loop().time()
        if self._lost_by is not None:
            self.cluster.totals.on_reconnect(self._owner.stream)
        self._opening = self._lost_by = None
        if not self.declared:
            self.end_outage()  # the first open was no outage
        self.declared = True
        self.opened += 1
        try:
            self._enter(State.OPEN)
            self._owner.on_open(connection, self.id)
        except Exception as ex:  # e.g. no memory for the messages to resend
            self.fail(ex)
        if self.moved:
            self.lose(self._has_moved())

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:  # the program has cancelled every task of the loop
            self.fail(StreamConnectionError(f'{self._owner!r}: its task was cancelled'))

    def _leave(self) -> asyncio.Future[bytes] | None:
        """Leave the connection; return a future of the broker's answer, None without a request."""
        connection, used = self.connection, self.id
        if connection is None:
            return None
        self.connection, self.id = None, -1
        connection.registrations.pop(self, None)
        request = self._owner.detach(connection, used)
        return connection.undeclare(self._owner.role, used, request) if connection.is_open else None

    # -- what the connection and the cluster call

    def on_lost(self, error: StreamConnectionError) -> None:
        """The connection has ended."""
        if self.state is State.OPEN:
            self.lose(error)
        else:  # the pending request fails, too
            self._leave()

    def on_metadata_update(self, stream: str) -> None:
        """The broker has removed its publishers and subscriptions of a stream."""
        if self.connection is not None and stream == self._owner.stream:
            self.moved = True
            self.lose(self._has_moved())

    def _has_moved(self) -> StreamConnectionError:
        return StreamConnectionError(
            f'stream {self._owner.stream!r} is no longer available on this node'
        )

    def on_resume(self) -> None:
        """The connection accepts more data again."""
        if self.connection is not None:
            self._owner.on_resume()

    def on_disconnect(self) -> None:
        """The client disconnects: end the declaration, now or with its connection."""
        if self not in self.cluster.registrations:
            return  # removed while other registrations were called
        del self.cluster.registrations[self]
        self._owner.on_disconnect()
        if self.state is not State.OPEN or not self._owner.open_until_closed:
            self.fail(disconnected())

    def on_leave_loop(self) -> None:
        """The client moves to another event loop; a publisher fails, a subscription moves along."""
        loop = self.cluster.loop
        if self._owner.open_until_closed and loop is not None and not loop.is_closed():
            self.fail(disconnected())
        else:
            self.reset()
