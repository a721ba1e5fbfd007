"""A subscription on the broker: made, made again where it was, and what waits for its messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from .._turn import Turn
from ..error import (
    MessageTimeout,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionError,
    copy_error,
)
from ..net.cluster import Cluster, Role
from ..net.registration import Registration
from ..protocol import commands
from ..protocol._chunk import Chunk
from ..protocol._cursor import MessageCursor
from ..protocol.offset import Offset, OffsetType
from ..protocol.start import Start
from .offsets import chunk_ids, leader_ends_before, stored_offset
from .tracking import OffsetTracking, Tracker
from .types import MessageFilter, OnDecodeError
from .waiting import TURN, deadline, in_time, let_others_run
from .watchdog import DeliveryWatchdog

if TYPE_CHECKING:
    from ..net.connection import Connection

__all__ = ['SubscriptionSession']

logger = logging.getLogger(__name__)


class Wakeup:
    """Wakes the task that waits for a message."""

    __slots__ = ('future',)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def wait(self, until: float | None) -> bool:
        """Wait until it is called; false if that was not before `until`."""
        self.future = asyncio.get_running_loop().create_future()
        return await in_time(self.future, until)


class SubscriptionSession:
    """Drives the registration of a subscription; refers to its cursor, not to what users hold.

    It opens the registration when a task waits and every message has been delivered.  A task that
    stops waiting neither stops the opening nor changes where the subscription resumes.

    :param offset: where to start at first.
    :param credit: how many chunks the broker may send before one is consumed.
    :param timeout: seconds to wait for each message; None for no limit.
    :ivar cursor: over what has come.
    :ivar closed: nothing is given any more.
    """

    role = Role.CONSUME
    open_until_closed = False

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        offset: Offset,
        filter: MessageFilter | None,
        timeout: float | None,
        amqp: bool,
        on_decode_error: OnDecodeError,
        credit: int,
        auto_offset: OffsetTracking | None,
    ) -> None:
        self.stream = stream
        self.closed = False
        self._wakeup = Wakeup()
        self.cursor = MessageCursor(
            self,
            amqp,
            filter,
            on_decode_error,
            asyncio.current_task,
            self._wakeup,
            Turn(TURN),
            credit // 2 + 1,  # the broker goes on with more than half
            stream,
        )
        self.cursor.queue.limit = 2 * credit  # RabbitMQ never exceeds the credit itself
        self.registration = Registration(cluster, self)
        self.check_loop = cluster.check_loop
        self._cluster = cluster
        self._properties = {} if filter is None else filter.properties()
        self._start = Start(offset)
        self._credit = credit
        self._timeout = timeout
        self._error: Exception | None = None  # to be raised where a task waits
        self._position: int | None = None  # where it was opened last
        self._ended = asyncio.Event()  # closing it
        self._waiting = False
        self._watchdog = DeliveryWatchdog(stream, self.cursor, self._wakeup)
        self._tracker: Tracker | None = None
        if auto_offset is not None:
            self._tracker = Tracker(auto_offset, stream, self.cursor, self.write)

    def __repr__(self) -> str:
        return f'subscription of stream {self.stream!r}'

    # -- the registration

    async def prepare(self, connection: Connection, id: int) -> commands.Command[Any]:
        start, cursor = self._start, self.cursor
        if cursor.position is None and start.reference is not None:
            start.resolve(await stored_offset(connection, self.stream, start.reference))
        first = committed = None
        if start.needs_chunks(cursor):
            first, committed = await chunk_ids(connection, self.stream)
            end = start.missing_end(cursor, committed)
            if end is not None:
                if await leader_ends_before(self._cluster, connection, self.stream, end):
                    raise StreamDoesNotExist(self.stream, 'was deleted and created again')
                raise StreamConnectionError(f'stream {self.stream!r} lags behind on this node')
        # from here on without waiting: what was given meanwhile counts
        self._position = cursor.position
        offset = start.subscribe_at(cursor, first, committed)
        if start.is_probe:
            return commands.Subscribe(id, self.stream, offset, 1, {})
        return commands.Subscribe(id, self.stream, offset, self._credit, self._properties)

    def attach(self, connection: Connection, id: int) -> None:
        connection.set_subscription(id, self.cursor.queue)

    def detach(self, connection: Connection, id: int) -> None:
        connection.set_subscription(id, None)
        self._watchdog.stop()

    async def complete(self, connection: Connection) -> None:
        pass

    def undeclare(self, id: int) -> commands.Command[Any]:
        return commands.Unsubscribe(id)

    def on_open(self, connection: Connection, id: int) -> None:
        self._wakeup()  # who waits begins to listen

    def on_lost(self, error: RbFlyError) -> None:
        if self._tracker is not None:
            self._tracker.on_lost()
        if not self.closed and not self.registration.is_opening:
            if not error.retriable:
                self._error = copy_error(error)
            logger.warning('%r: %s', self, error)
            self._wakeup()

    def on_failed(self, error: Exception) -> None:
        self._error = error
        self._wakeup()

    def on_resume(self) -> None:
        pass

    def on_disconnect(self) -> None:
        if self._tracker is not None:
            self._tracker.store(last=True)

    # -- the cursor

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        """Let the broker send one more chunk."""
        connection = self.registration.connection
        if connection is not None and connection.is_open:
            connection.write(commands.credit(self.registration.id, 1))

    def on_progress(self) -> None:
        """Messages are done with that are to be stored."""
        if self._tracker is not None:
            self._tracker.store()

    def on_replaced(self) -> None:
        """The stream is another one."""
        self._start_over()
        raise StreamDoesNotExist(self.stream, 'was deleted and created again')

    def on_probed(self) -> None:
        """Subscribe where the first chunk has shown that the subscription starts."""
        self.registration.reset()

    def _start_over(self) -> None:
        """The stream is gone; if there is one of that name again, nothing of it was seen."""
        self._start.start_over(self.registration.declared)
        self.registration.reset()
        self.cursor.start_over()
        self._watchdog.start_over()
        if self._tracker is not None:
            self._tracker.on_lost()  # went with the stream

    def write(self, frame: bytes, last: bool) -> bool:
        """Write a frame that stores an offset; false without a connection, or if it may lead to
        another stream of that name.

        :param last: write it even if the connection is paused.
        """
        connection = self.registration.connection
        if connection is None or not connection.is_open or self.cursor.last_chunk.unverified:
            return False
        if connection.paused and not last:
            return False
        connection.write(frame)
        return True

    # -- who waits

    async def wait(self, kind: int, limit: int, subscription: object) -> Any:
        """Wait for something of a kind, and take it.

        :param subscription: is kept until then.
        """
        cursor = self.cursor
        self._cluster.check_loop()
        if self._waiting:
            raise SubscriptionError(f'{subscription!r} is being iterated by another task')
        self._waiting = True
        until: float | None = None
        woken = True
        try:
            while not self.closed:
                if cursor.must_yield:
                    await self._yield()
                if cursor.advance(kind, limit):
                    break
                if cursor.must_yield:  # much was dropped
                    continue
                if not woken:
                    raise MessageTimeout(f'{subscription!r}: no message within {self._timeout} s')
                if until is None and self._timeout is not None:
                    until = deadline(self._timeout)
                cursor.mark_consumed()
                woken = await self._wait_chunk(until)
        finally:
            self._waiting = False
        if self.closed:
            raise StopAsyncIteration
        return cursor.take(kind)

    async def _yield(self) -> None:
        """Let other tasks run, and return the credit of consumed chunks."""
        if self.cursor.turn.is_over:
            await let_others_run()
        else:
            await asyncio.sleep(0)
        self.cursor.on_yield()

    async def _wait_chunk(self, until: float | None) -> bool:
        """Wait until something has happened; false if nothing has before `until`."""
        if self._error is not None:
            if isinstance(self._error, StreamDoesNotExist):
                self._start_over()
            try:
                raise self._error
            finally:
                self._error = None
        self._listen()
        self._ensure_open()
        woken = await self._wakeup.wait(until)
        self.cursor.on_yield()
        return woken

    def _ensure_open(self) -> None:
        if self._tracker is not None:
            self._tracker.start()
        if self.cursor.position != self._position:
            self.registration.end_outage()
        self.registration.ensure_open()

    def _listen(self) -> None:
        connection = self.registration.connection
        if (
            self._watchdog.timer is not None
            or connection is None
            or not self.registration.is_open
            or self._properties  # what is filtered may well be silent
            or not connection.knows_optional
        ):
            return
        by_time = self._start.offset.type == OffsetType.TIMESTAMP
        if not self._watchdog.listen(connection, may_begin_later=by_time):
            self.registration.reset()

    # -- ending

    async def close(self, *, wait: bool) -> None:
        """End it.

        :param wait: for the broker's answers.
        """
        if self._ended.is_set():
            return
        self._cluster.check_loop()
        if self.closed:
            if wait:
                await self._ended.wait()
            return
        self.closed = True
        self._wakeup()
        self.cursor.rewind()
        try:
            if self._tracker is not None:
                await self._tracker.close(self._cluster, wait=wait)
            answer = self.registration.close()
            if wait:
                await self._cluster.closing.wait(answer)
        finally:
            self._end()
            self._ended.set()

    def _end(self) -> None:
        self.registration.close()
        self.cursor.close(Closed())

    def release(self) -> None:
        """Nobody can iterate any more; what is done with is stored, without waiting.

        From any thread, and while any event loop runs or none.
        """
        if self.closed:
            return
        self.closed = True
        loop = self.registration.loop
        if loop is None or loop.is_closed():
            self._end()
        else:  # never directly: the garbage collector may run within any method of the registration
            loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if self._tracker is not None:
            self._tracker.stop()
            if (data := self._tracker.pending()) is not None:
                self.write(data, last=True)
        self._end()


class Closed:
    """In place of the session of a subscription that is closed."""

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        """Nothing is to be done."""

    def on_progress(self) -> None:
        """Nothing is to be done."""

    on_replaced = on_probed = check_loop = on_progress

    async def wait(self, kind: int, limit: int, subscription: object) -> Any:
        """The iteration has ended."""
        raise StopAsyncIteration
