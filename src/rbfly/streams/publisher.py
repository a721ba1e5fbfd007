"""USER room: publishers.

Ids are given and values are encoded when a message enters the outgoing frame, never after an
await; the window below keeps what is unconfirmed and tells whose messages are settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from ..error import RbFlyError
from ..types import AMQPBody
from . import commands
from ._publish import PublishWindow, Waiter
from .const import ResponseCode
from .error import (
    AuthenticationError,
    ConfirmTimeout,
    FrameError,
    ProtocolError,
    PublisherError,
    PublishError,
    StreamConnectionError,
    StreamDoesNotExist,
    VirtualHostError,
)
from .topology import Patience, Topology, backoff
from .types import MessageCtx, PublisherInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .connection import Connection

__all__ = ['BasePublisher', 'Publisher', 'PublisherBatchFast']

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 30.0  # seconds that close() waits for confirms
DELETE_TIMEOUT = 5.0  # and for the broker to remove the publisher


class BasePublisher:
    """What all publishers share; made by :meth:`StreamsClient.publisher`.

    :ivar name: name for deduplication, empty for none.
    :ivar stream: name of the stream.
    """

    _batched = False

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        self.name = info.name
        self.stream = info.stream
        self._id = publisher_id
        self._info = info
        self._client = client
        self._first_id = message_id
        self._window: PublishWindow = None  # type: ignore[assignment]  # set by _attach
        self._topology: Topology = None  # type: ignore[assignment]
        self._generation = 0
        self._connection: Connection | None = None  # None while it is being replaced
        self._recovery: asyncio.Task[None] | None = None
        self._delays: Iterator[float] | None = None  # between recoveries without a confirm
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._closed = False
        self._error: Exception | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        self._idle: asyncio.Future[None] | None = None

    @property
    def message_id(self) -> int:
        """Publishing id of the next message."""
        return self._first_id if self._window is None else self._window.next_id

    def __repr__(self) -> str:
        return f'<{type(self).__name__} stream={self.stream!r} name={self.name!r}>'

    # -- connection

    def _attach(self, topology: Topology, connection: Connection) -> None:
        self._topology = topology
        self._generation = topology.generation
        self._window = window = PublishWindow(
            self._id,
            connection.frame_max,
            self._info.max_unconfirmed,
            self._first_id,
            self._info.filter_extract,
            self._info.amqp,
            self._batched,
        )
        window.on_settled = self._on_settled
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        connection.set_publisher(self._id, self._window)
        connection.on_lost[self] = self._recover
        connection.on_resume[self] = self._write
        connection.on_metadata_update[self] = self._on_metadata_update

    def _leave(self) -> asyncio.Future[bytes] | None:
        """Use the connection no more; the answer by which it has removed the publisher."""
        connection, self._connection = self._connection, None
        if connection is None:
            return None
        connection.set_publisher(self._id, None)
        connection.on_lost.pop(self, None)
        connection.on_resume.pop(self, None)
        connection.on_metadata_update.pop(self, None)
        return delete_publisher(connection, self._id)

    def _on_metadata_update(self, stream: str) -> None:
        if stream == self.stream:
            self._recover(StreamConnectionError(f'stream {stream!r} has left the node'))

    def _recover(self, error: Exception) -> None:
        """Go on elsewhere: the connection was lost, or the broker has removed the publisher."""
        self._leave()
        if self._topology.generation != self._generation:
            self._end(error)
        elif self._closed and not self._window.unsettled:
            self._wake_idle()
        else:
            logger.warning('%r: %s; declaring it again', self, error)
            self._recovery = self._loop.create_task(self._declare_again())
            self._topology.on_close[self] = self._on_disconnect

    async def _declare_again(self) -> None:
        if self._delays is None:
            self._delays = backoff()
        try:
            await asyncio.sleep(next(self._delays))
            connection, self._id, _ = await declare(self._topology, self._info, again=True)
            done = self._window.replay(self._id, connection.frame_max)
        except Exception as ex:
            self._end(ex)
        else:
            self._use(connection)
            self._on_settled(done)
            self._write()
        finally:
            self._recovery = None
            self._topology.on_close.pop(self, None)

    def _on_disconnect(self) -> None:
        self._end(StreamConnectionError('the client was disconnected'))

    def _end(self, error: Exception) -> None:
        """Nothing can be published any more."""
        self._error = error
        self._stop_recovery()
        self._abandon(error)

    def _stop_recovery(self) -> asyncio.Task[None] | None:
        recovery = self._recovery
        if recovery is not None and recovery is not asyncio.current_task():
            recovery.cancel()
            return recovery
        return None

    def _abandon(self, error: Exception) -> None:
        for waiter in self._window.abandon():
            self._settle(waiter, error)
        while self._room:
            future = self._room.popleft()
            if not future.done():
                future.set_exception(error)
        self._wake_idle()

    # -- writing

    def _check(self) -> None:
        if self._closed:
            raise PublisherError(f'{self!r} is closed')
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _write(self) -> None:
        self._scheduled = False
        connection = self._connection
        window = self._window
        while connection is not None and not connection.paused:
            data = window.take()
            if data is None:
                break
            connection.write(data)

    def _schedule(self) -> None:
        # Idle: at once.  Otherwise what is sent in this turn of the loop leaves together.
        if self._scheduled:
            return
        if self._window.in_flight == 0:
            self._write()
        else:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _on_settled(self, done: list[Waiter]) -> None:
        for waiter in done:
            self._settle(waiter, None)
        window = self._window
        if window.gone:
            if self._connection is not None:
                self._recover(StreamConnectionError('the broker does not know it any more'))
        elif done:
            self._delays = None
        if window.queued:
            self._write()
        if self._room:
            self._grant()
        if self._idle is not None and window.unsettled == 0:
            self._wake_idle()

    def _settle(self, waiter: Waiter, error: Exception | None) -> None:
        if waiter.errors:
            error = PublishError(waiter.errors[0][1], waiter.errors[0][0])
            error.errors = waiter.errors
        self._finish(waiter.future, error)

    def _finish(self, waiting: Any, error: Exception | None) -> None:
        """Tell whoever waits for messages that they are settled."""
        if waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    # -- room in the window

    def _is_full(self) -> bool:
        window = self._window
        return bool(self._room) or window.unsettled + self._granted >= window.max_unconfirmed

    def _grant(self) -> None:
        window = self._window
        free = window.max_unconfirmed - window.unsettled - self._granted
        while self._room and free > 0:
            future = self._room.popleft()
            if not future.done():
                future.set_result(None)
                self._granted += 1
                free -= 1

    async def _wait_room(self) -> None:
        future = self._loop.create_future()
        self._room.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._granted -= 1  # granted in the same turn as cancelled: to the next one
                self._grant()
            raise
        self._granted -= 1
        try:
            self._check()
        except BaseException:
            self._grant()
            raise

    # -- closing

    def _wake_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def close(self) -> None:
        """Send what is queued and wait until it is confirmed, at most 30 seconds.

        Whoever still waits for a confirm then gets a :class:`PublisherError`.

        :raises ConfirmTimeout: not every confirm came in time.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._error is None:
                self._release()
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    while self._window.unsettled and self._error is None:
                        self._idle = self._loop.create_future()
                        await self._idle
        except TimeoutError:
            raise ConfirmTimeout(
                f'{self!r}: {self._window.unsettled} messages were not confirmed'
                f' within {CLOSE_TIMEOUT} s; they may still be stored'
            ) from None
        finally:
            recovery = self._stop_recovery()
            self._abandon(PublisherError(f'{self!r} was closed before the confirm'))
            await deleted(self._leave() or recovery)

    def _abort(self, error: Exception) -> None:
        """Close without waiting: what is queued leaves, and its confirms are given up."""
        if not self._closed:
            self._closed = True
            if self._error is None:
                self._release()
            self._stop_recovery()
            self._abandon(error)
            self._leave()

    def _release(self) -> None:
        self._write()


class Publisher(BasePublisher):
    """Sends messages and waits for their confirms; safe to use from many tasks at once."""

    async def send(self, message: AMQPBody | MessageCtx, timeout: float | None = None) -> None:
        """Send a message; returns when the broker has confirmed it.

        What many tasks send in one turn of the event loop leaves in as few frames as fit.  If
        the wait is cancelled or times out, the message may still be stored.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for the confirm; None or 0 for no limit.
        :raises PublishError: the broker did not store the message.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form.
        :raises ValueError: its explicit publish id is not above the last one used.
        :raises PublisherError: the publisher is closed, or the message fits no frame.
        :raises ConfirmTimeout: no confirm in time.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the connection was lost, and there was none again within
            the client's `reconnect_timeout`.
        """
        if timeout:
            try:
                async with asyncio.timeout(timeout):
                    await self.send(message)
            except TimeoutError:
                raise ConfirmTimeout(f'no confirm within {timeout} s') from None
            return
        self._check()
        if self._is_full():
            await self._wait_room()
        future = self._loop.create_future()
        try:
            self._window.append(message, Waiter(future, True))
        except BaseException:
            self._grant()  # the room that this message does not need
            raise
        self._schedule()
        await future


class PublisherBatchFast(BasePublisher):
    """Encodes messages with `batch`, sends them with `flush`."""

    _batched = True

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        super().__init__(publisher_id, info, client, message_id)
        # Batches whose outcome no flush has told yet; the last one is being filled.
        self._batches = [Batch()]
        self._waiter = Waiter(self._batches[-1])

    def batch(self, message: AMQPBody | MessageCtx) -> None:
        """Encode a message and queue it; nothing leaves before `flush` or `close`.

        Never blocks.  Explicit publish ids may come in any order; `flush` sorts them.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form; the batch is untouched.
        :raises ValueError: its explicit publish id is in the batch, or not above the last sent.
        :raises PublisherError: the publisher is closed, or the message fits no frame.
        """
        self._check()
        self._window.append(message, self._waiter)

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is queued; returns when the broker has confirmed all of it.

        :param timeout: seconds to wait for the confirms; None or 0 for no limit.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises ConfirmTimeout: not every confirm came in time.
        :raises StreamConnectionError: the connection was lost before the confirms.
        """
        self._check()
        if timeout:
            try:
                async with asyncio.timeout(timeout):
                    await self._flush()
            except TimeoutError:
                raise ConfirmTimeout(f'not all confirms within {timeout} s') from None
        else:
            await self._flush()

    async def _flush(self) -> None:
        self._release()
        # Those of a flush that was given up, or runs beside this one, are waited for as well.
        batches = self._batches[:-1]
        for batch in batches:
            if not batch.done:
                future = self._loop.create_future()
                batch.waiting.append(future)
                await future
        self._tell(batches)

    def _tell(self, batches: list[Batch]) -> None:
        """Raise what went wrong with them, once."""
        self._batches = [batch for batch in self._batches if batch not in batches]
        errors = [batch.error for batch in batches if batch.error is not None]
        refused = [error for error in errors if isinstance(error, PublishError)]
        if len(refused) > 1:
            refused[0].errors = [item for error in refused for item in error.errors]
        for error in (*refused, *errors):
            raise error

    async def close(self) -> None:
        """Send what is batched and wait until it is confirmed, at most 30 seconds.

        :raises PublishError: the broker did not store a message, and no flush has told.
        :raises ConfirmTimeout: not every confirm came in time.
        :raises StreamConnectionError: the connection was lost before every confirm.
        """
        if not self._closed:
            batches = list(self._batches)
            await super().close()
            self._tell(batches)

    def _finish(self, waiting: Batch, error: Exception | None) -> None:
        waiting.done = True
        waiting.error = error
        for future in waiting.waiting:
            if not future.done():
                future.set_result(None)

    def _release(self) -> None:
        if self._waiter.remaining:
            self._waiter.seal()
            self._batches.append(Batch())
            self._waiter = Waiter(self._batches[-1])
            self._window.release()
        self._write()


class Batch:
    """What one flush sends: its outcome, and who waits for it."""

    __slots__ = ('done', 'error', 'waiting')

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self.waiting: list[asyncio.Future[None]] = []


async def declare(
    topology: Topology, info: PublisherInfo, *, again: bool = False
) -> tuple[Connection, int, int]:
    """Declare a publisher: its connection, its id there, and the last publishing id of its name.

    :param again: it was declared before: all but what no retry can mend is tried again.
    """
    patience = Patience(topology.limit)
    while True:
        connection = await topology.publishing(info.stream)
        publisher_id = connection.publisher_ids.pop()
        last_id = 0
        try:
            await connection.request(
                commands.DeclarePublisher(publisher_id, info.name, info.stream)
            )
            if info.name:
                last_id = await connection.request(
                    commands.QueryPublisherSequence(info.name, info.stream)
                )
            if connection.error is not None:  # lost in the turn of the answer
                raise StreamConnectionError(str(connection.error))
            return connection, publisher_id, last_id
        except RbFlyError as ex:
            delete_publisher(connection, publisher_id)
            if not can_retry(ex, again):
                raise
            error = ex
        except BaseException:
            delete_publisher(connection, publisher_id)
            raise
        await patience.wait(error)


def can_retry(error: RbFlyError, again: bool) -> bool:
    if not isinstance(error, ProtocolError):
        return isinstance(error, StreamConnectionError) and not isinstance(error, FrameError)
    if not again:
        return error.code == ResponseCode.STREAM_NOT_AVAILABLE
    final = (StreamDoesNotExist, AuthenticationError, VirtualHostError)
    return not isinstance(error, final) and error.code != ResponseCode.ACCESS_REFUSED


def delete_publisher(connection: Connection, publisher_id: int) -> asyncio.Future[bytes] | None:
    """Remove a publisher that may or may not be declared; the broker's answer frees its id."""
    if not connection.is_open:
        return None
    future = connection.send_request(commands.DeletePublisher(publisher_id))
    future.add_done_callback(lambda _: connection.publisher_ids.add(publisher_id))
    return future


async def deleted(future: asyncio.Future[Any] | None) -> None:
    """Wait for the answer; whoever is cancelled meanwhile leaves the request alone."""
    if future is not None:
        await asyncio.wait([future], timeout=DELETE_TIMEOUT)
