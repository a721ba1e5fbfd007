"""What is declared on the broker, and is declared again when its connection goes.

    IDLE --want, open--> OPENING --declared--> OPEN     OPEN --lost, moved, unknown--> LOST
    LOST --want, after backing off--> OPENING           OPENING --lost--> tried again, still OPENING
    final error, deadline over, reset, client disconnected: --> IDLE
    any --close--> CLOSED                               after its event loop closed: IDLE

A publisher wants always, a subscription while a task waits for messages and it has none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from ..error import RbFlyError, RequestTimeout, StreamConnectionError, copy_error, without_frames
from .connection import disconnected
from .observer import Observer, State
from .retry import Backoff, Deadline, can_retry

if TYPE_CHECKING:
    from ..protocol.commands import Command
    from .cluster import Cluster
    from .connection import Connection, Role

__all__ = ['STABLE', 'Owner', 'Registration']

logger = logging.getLogger(__name__)

STABLE = 5.0  # seconds; what is lost sooner, and without progress, is the same outage


class Owner(Protocol):
    """What differs between a publisher and a subscription.

    :ivar role: which connections it needs.
    :ivar stream: name of the stream.
    :ivar open_until_closed: it goes on until its connection ends, where the client disconnects.
    """

    role: Role
    stream: str
    open_until_closed: bool

    async def prepare(self, connection: Connection, id: int) -> Command[Any]:
        """The request that declares it under an id; it leaves at once."""

    def attach(self, connection: Connection, id: int) -> None:
        """Frames with that id are its own from now on; the request was not sent yet."""

    def detach(self, connection: Connection, id: int) -> None:
        """They are not any more."""

    async def complete(self, connection: Connection) -> None:
        """The request was answered: ask what else there is to know."""

    def undeclare(self, id: int) -> Command[Any]:
        """The request that removes it."""

    def on_open(self, connection: Connection, id: int) -> None:
        """It is open."""

    def on_lost(self, error: RbFlyError) -> None:
        """The connection was lost while the registration was open, or opening: the first needs
        `ensure_open` to redeclare it."""

    def on_failed(self, error: Exception) -> None:
        """It could not be opened: `ensure_open` begins anew."""

    def on_resume(self) -> None:
        """The connection takes more again."""

    def on_disconnect(self) -> None:
        """The client is about to disconnect: the last chance to write."""


class Ended:
    """In place of the owner of a registration that is closed."""

    role: Any = None
    stream = ''
    open_until_closed = False

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f'{self}: {name} of a registration that is closed')


class Registration:
    """A publisher or a subscription on the broker.

    :ivar connection: where it is declared, or being declared; else None.
    :ivar id: its id there.
    :ivar declared: it was open before.
    :ivar loop: the event loop that it was opened in last; None before.
    """

    def __init__(self, cluster: Cluster, owner: Owner) -> None:
        self.cluster = cluster
        self.connection: Connection | None = None
        self.id = -1
        self.declared = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._owner: Owner = owner
        self._state = State.IDLE
        self._task: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None  # of the outage
        self._backoff = Backoff()
        self._opened = 0.0  # when
        self._lost: StreamConnectionError | None = None
        self._lost_at = 0.0
        self._moved = False
        self._outcome: asyncio.Future[None] | None = None  # for who opens it

    def __repr__(self) -> str:
        return f'<Registration {self.state.value} of {self._owner!r}>'

    @property
    def state(self) -> State:
        """State; that of a registration whose event loop was closed is IDLE."""
        if self.loop is not None and self.loop.is_closed() and self._state is not State.CLOSED:
            return State.IDLE
        return self._state

    @property
    def is_open(self) -> bool:
        """True if it is open."""
        return self.state is State.OPEN

    @property
    def is_opening(self) -> bool:
        """True if it is about to be open."""
        return self.state is State.OPENING

    def _enter(self, state: State, error: Exception | None = None) -> None:
        before, self._state = self.state, state
        logger.debug('%r: %s -> %s', self._owner, before.value, state.value)
        self.cluster.observers.notify(Observer.on_transition, self, before, state, error)
        if state is not State.OPENING and self._outcome is not None and not self._outcome.done():
            if state is State.OPEN:
                self._outcome.set_result(None)
            else:
                self._outcome.set_exception(error or disconnected())

    # -- opening

    def ensure_open(self) -> None:
        """Open it in background, if it is neither open nor about to be.

        :raises EventLoopError: the client belongs to another event loop.
        :raises StreamConnectionError: the client is being disconnected.
        """
        here = self.loop is asyncio.get_running_loop()
        if self._state is State.CLOSED or (here and self._state in (State.OPENING, State.OPEN)):
            return
        deadline = self._begin()
        assert self.loop is not None
        # never an eager one
        self._task = asyncio.Task(self._run(deadline), loop=self.loop)
        self._task.add_done_callback(self._on_done)

    async def open(self) -> None:
        """Open it, for the first time.

        :raises RbFlyError: it cannot be opened.
        """
        self.ensure_open()
        assert self.loop is not None
        self._outcome = self.loop.create_future()
        try:
            await self._outcome
        except asyncio.CancelledError:
            if self.is_opening:
                self.reset()
            raise
        finally:
            self._outcome = None
        if self.state is State.IDLE:  # disconnected in the turn that opened it
            raise disconnected()

    def _begin(self) -> Deadline:
        loop = asyncio.get_running_loop()
        if self._state is not State.LOST or loop is not self.loop:
            self._deadline = self._lost = None
        elif loop.time() > self._lost_at + STABLE:
            self._deadline = None  # it is wanted from now on
        if self._deadline is None:
            self._deadline = self.cluster.deadline()
            self._backoff = Backoff()
        self.cluster.registrations[self] = None
        self._enter(State.OPENING)
        if self.loop is not loop:  # of no use any more, and with it what it had
            self._cancel()
            self._leave()
            self.loop = loop
        return self._deadline

    async def _run(self, deadline: Deadline) -> None:
        try:
            await self._open(deadline)
        except Exception as ex:
            if self._task is asyncio.current_task():
                self._fail(ex)
        else:
            task, self._task = self._task, None
            if task is not None:
                task.remove_done_callback(self._on_done)  # it keeps the client for one more turn
            self._finish()

    async def _open(self, deadline: Deadline) -> None:
        owner = self._owner
        async with deadline:
            lost, self._lost = self._lost, None
            if lost is not None:
                await self._backoff.wait(lost, [deadline])
                deadline.progress.on_error(None)  # that was another connection
            while True:
                connection = await self.cluster.member(owner.role, owner.stream, deadline)
                deadline.check()  # the client was disconnected in this turn
                try:
                    await self._declare(connection, deadline)
                except RbFlyError as ex:
                    if not can_retry(ex, self.declared):
                        raise
                    error = without_frames(ex)
                else:
                    return
                await self._backoff.wait(error, [deadline])

    async def _declare(self, connection: Connection, deadline: Deadline) -> None:
        owner = self._owner
        deadline.progress.on_step(f'declaring {owner!r}')
        ids = connection.ids(owner.role)
        found = ids.pop()
        try:
            request = await owner.prepare(connection, found)
        except BaseException:
            ids.add(found)
            raise
        self.connection, self.id, self._moved = connection, found, False
        owner.attach(connection, found)
        connection.registrations[self] = None
        try:
            await connection.request(request)
            await owner.complete(connection)
            if connection.error is not None:  # lost in the turn of the answer
                raise copy_error(connection.error)
        except RequestTimeout:
            self._leave()
            self.cluster.probe(connection)
            raise
        except BaseException:
            self._leave()
            raise

    def _finish(self) -> None:
        connection = self.connection
        if connection is None or self._state is not State.OPENING:
            return  # closed in the same turn
        assert self.loop is not None
        self._opened = self.loop.time()
        self.declared = True
        if self._outcome is not None:
            self.end_outage()  # to open it was no outage
        self._enter(State.OPEN)
        try:
            self._owner.on_open(connection, self.id)
        except Exception as ex:  # e.g. no memory for what is to be sent again
            self._leave()
            self._fail(ex)
        if self._moved and self.is_open:
            self.lose(self._has_moved())

    def _fail(self, error: Exception) -> None:
        self._task = None
        self._forget()
        self._enter(State.IDLE, error)
        self._owner.on_failed(error)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:  # cancelled by somebody else, with every task of the loop
            self._leave()
            self._fail(StreamConnectionError(f'{self._owner!r}: opening it was cancelled'))

    def _forget(self) -> None:
        self._deadline = None
        self.cluster.registrations.pop(self, None)

    # -- what happens to it

    def end_outage(self) -> None:
        """It does what it is for: if it is lost from now on, that is another outage."""
        self._deadline = None
        self.cluster.closing.left = None  # the broker answers

    def reset(self) -> None:
        """Give up this declaration, and all that was lost before: it begins anew when wanted."""
        if self._state in (State.OPENING, State.OPEN, State.LOST):
            self._cancel()
            self._leave()
            self._forget()
            self._enter(State.IDLE)

    def lose(self, error: StreamConnectionError) -> None:
        """Give up this declaration: the broker has removed it, or it is of no use."""
        if self._state is State.OPEN:
            self._leave()
            self._on_gone(error)

    def on_lost(self, error: StreamConnectionError) -> None:
        """The connection has ended."""
        if self.connection is None:
            return  # it has left since this was called for all
        opening = self._state is State.OPENING
        self._leave()
        if opening:
            self._owner.on_lost(error)  # whoever opens it is told by its request
        else:
            self._on_gone(error)

    def _on_gone(self, error: StreamConnectionError) -> None:
        assert self.loop is not None
        if self not in self.cluster.registrations:
            self._fail(disconnected())
            return
        self._lost, self._lost_at = error, self.loop.time()
        if self._lost_at > self._opened + STABLE:
            self._deadline = None
        self._enter(State.LOST, error)
        self._owner.on_lost(error)

    def on_metadata_update(self, stream: str) -> None:
        """The broker has removed its publishers and subscriptions of a stream."""
        if stream == self._owner.stream:
            self._moved = True
            self.lose(self._has_moved())

    def _has_moved(self) -> StreamConnectionError:
        return StreamConnectionError(
            f'stream {self._owner.stream!r} is no longer available on this node'
        )

    def on_resume(self) -> None:
        """The connection takes more again."""
        if self.connection is not None:
            self._owner.on_resume()

    def on_disconnect(self) -> None:
        """The client disconnects; what was opened before is not opened again by itself."""
        if self not in self.cluster.registrations:
            return  # it has left since this was called for all
        del self.cluster.registrations[self]
        if self.state is State.IDLE:
            return  # its event loop has ended, and nobody waits
        self._owner.on_disconnect()
        if self._state is not State.OPEN or not self._owner.open_until_closed:
            self._cancel()
            self._leave()
            self._fail(disconnected())

    # -- leaving

    def close(self) -> asyncio.Future[Any] | None:
        """End it; the future, if there is one, is done when nothing of it is left."""
        if self._state is State.CLOSED:
            return None
        task = self._cancel()
        self._forget()
        answer = self._leave()
        self._enter(State.CLOSED)
        self._owner = Ended(repr(self._owner))  # no cycles: it goes with the last reference
        return answer or task

    def _cancel(self) -> asyncio.Task[None] | None:
        """Go on with opening no longer; the task that did, until it has ended."""
        task, self._task = self._task, None
        if task is None or task.done() or task.get_loop().is_closed():
            return None
        task.cancel()
        return task

    def _leave(self) -> asyncio.Future[bytes] | None:
        """Use the connection no more; the answer by which the broker has removed it."""
        connection, self.connection = self.connection, None
        if connection is None:
            return None
        owner, used = self._owner, self.id
        connection.registrations.pop(self, None)
        owner.detach(connection, used)
        if not connection.is_open:
            return None
        return connection.undeclare(owner.role, used, owner.undeclare(used))
