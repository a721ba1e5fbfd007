"""Publishers.

Ids are given and values are encoded when a message enters the outgoing frame, never after an
await; the window below keeps what is unconfirmed and tells whose messages are settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..checks import check_timeout
from ..error import (
    ArgumentTypeError,
    ConfirmTimeout,
    EventLoopError,
    PublisherError,
    RoomTimeout,
    StreamConnectionError,
)
from ..net.closing import answered
from ..net.cluster import Cluster
from ..net.connection import disconnected
from ..net.retry import STABLE, Retry
from ..protocol._entry import SubEntry
from ..protocol._frames import PendingConfirms
from ..protocol._publish import PublishWindow
from ..protocol.compression import compressor
from ..types import AMQPBody
from ._sending import ConfirmGroup, PublisherCore
from .declaration import declare, delete_publisher
from .types import MessageCtx, PublisherInfo
from .waiting import (
    Confirmation,
    WindowSemaphore,
    deadline,
    in_time,
    of_message,
    publish_error,
    raise_first,
)

if TYPE_CHECKING:
    from ..net.connection import Connection

__all__ = ['BasePublisher', 'Publisher', 'PublisherBin']

logger = logging.getLogger(__name__)

TURN = 0.005  # seconds that `send_many` keeps the loop at most, if messages come that fast
RUN = 200  # messages between two looks at the clock
CHECK = 100_000  # messages whose publish ids are looked at in a turn
FAILED = 1000  # failures kept before those that were seen are sorted out


class BasePublisher(PublisherCore):
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
        self._cluster: Cluster = None  # type: ignore[assignment]
        self._generation = 0
        self._connection: Connection | None = None  # None while it is being replaced
        self._recovery: asyncio.Task[None] | None = None
        self._retry: Retry | None = None  # of the outage, which ends with a confirm
        self._opened = 0.0  # when it was declared last
        self._loop = asyncio.get_running_loop()
        self._confirmed = self._loop.create_future()
        self._confirmed.set_result(None)
        self._scheduled = False
        self._closed = False
        self._ended = asyncio.Event()  # closing it
        # None once it is declared: what is compiled relies on the window.
        self._error: Exception | None = PublisherError('the publisher is not declared')
        self._room = WindowSemaphore(self._has_room)
        self._idle: asyncio.Future[None] | None = None
        # Those who wait for a message of an asynchronous iterator, and what ends the wait.
        self._receiving: dict[ConfirmGroup, asyncio.Timeout] = {}

    @property
    def message_id(self) -> int:
        """Publishing id of the next message, or of the next sub-entry that is begun."""
        return self._first_id if self._window is None else self._window.next_id

    def __repr__(self) -> str:
        return f'<{type(self).__name__} stream={self.stream!r} name={self.name!r}>'

    # -- connection

    def _attach(self, cluster: Cluster, connection: Connection) -> None:
        self._cluster = cluster
        self._generation = cluster.generation
        info = self._info
        block = None
        if info.sub_entry_size:
            compress = compressor(info.compression)
            block = SubEntry(info.sub_entry_size, info.compression.code, compress)
        self._window = window = PublishWindow(
            self._id,
            connection.frame_max,
            info.max_unconfirmed,
            self._first_id,
            info.filter_extract,
            info.amqp,
            self._batched,
            block,
        )
        window.on_settled = self._on_settled
        self._error = None
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._opened = self._loop.time()
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

    def _recover(self, error: StreamConnectionError) -> None:
        """Go on elsewhere: the connection was lost, or the broker has removed the publisher."""
        self._leave()
        if self._cluster.generation != self._generation:
            self._end(disconnected())
        elif self._closed and not self._window.unsettled:
            self._wake_idle()
        else:
            if self._retry is None or self._loop.time() > self._opened + STABLE:
                self._retry = self._cluster.retry()
            self._declare_later(self._retry, error)
            logger.warning('%r: %s; declaring it again', self, error)

    def _declare_later(self, retry: Retry, error: StreamConnectionError | None) -> None:
        self._recovery = self._loop.create_task(self._declare_again(retry, error))
        self._recovery.add_done_callback(self._on_recovery_done)
        self._cluster.on_close[self] = self._on_disconnect

    async def _declare_again(self, retry: Retry, error: StreamConnectionError | None) -> None:
        try:
            async with retry:
                if error is not None:
                    await retry.wait(error)
                connection, self._id, _ = await declare(
                    self._cluster, self._info, retry, again=True
                )
            done = self._window.replay(self._id, connection.frame_max)
        except Exception as ex:
            self._end(ex)
        else:
            self._use(connection)
            for waiter in done:  # too large for this connection
                self._settle(waiter, None)
            self._write()
            if self._idle is not None and self._window.unsettled == 0:
                self._wake_idle()
            self._stop_recovery()

    def _on_recovery_done(self, recovery: asyncio.Task[None]) -> None:
        if recovery is self._recovery:  # cancelled by somebody else, with every task of the loop
            self._end(StreamConnectionError(f'{self!r}: reconnecting was cancelled'))

    def _on_disconnect(self) -> None:
        self._end(disconnected())

    def _end(self, error: Exception) -> None:
        """Who waits is told; who publishes next tries anew, unless the client was disconnected."""
        self._error = error
        self._retry = None
        self._stop_recovery()
        self._abandon(error)

    def _stop_recovery(self) -> asyncio.Task[None] | None:
        # here, too: a task that is cancelled before it has begun does nothing at its end
        self._cluster.on_close.pop(self, None)
        recovery, self._recovery = self._recovery, None
        if recovery is None or recovery is asyncio.current_task():
            return None
        recovery.cancel()
        return recovery

    def _abandon(self, error: Exception, unsent: Exception | None = None) -> None:
        """Raise an error in all who wait; another one in those whose messages never left."""
        for waiter in self._window.fail_pending():
            self._settle(waiter, unsent or error if waiter.unsent else error)
        self._room.fail(unsent or error)
        self._wake_idle()
        for waiter, stop in self._receiving.items():
            if not waiter.settled:
                waiter.set_exception(error)
            self._end_wait(stop)

    def _end_wait(self, stop: asyncio.Timeout) -> None:
        if not stop.expired():
            stop.reschedule(self._loop.time())

    # -- writing

    def _check(self) -> None:
        if self._loop is not asyncio._get_running_loop():
            raise EventLoopError(f'{self!r} belongs to another event loop')
        if self._closed:
            raise PublisherError(f'{self!r} is closed')
        if self._error is None:
            return
        if self._cluster is None:
            raise self._error.with_traceback(None)
        if self._cluster.generation != self._generation:
            raise disconnected()
        self._retry = self._cluster.retry()
        self._error = None
        self._declare_later(self._retry, None)

    def _after_settled(self) -> None:
        if self._receiving:
            for waiter, stop in self._receiving.items():
                if waiter.errors:
                    self._end_wait(stop)
        window = self._window
        if window.needs_redeclare:
            if self._connection is not None:
                self._recover(StreamConnectionError('the broker does not know it any more'))
        else:
            self._retry = None
        if self._room.waiting:
            self._room.grant()
        if self._idle is not None and window.unsettled == 0:
            self._wake_idle()

    def _settle(self, waiter: PendingConfirms, error: Exception | None) -> None:
        if waiter.errors:
            error = publish_error(waiter)
        self._finish(waiter.future or waiter, error)

    def _finish(self, waiting: Any, error: Exception | None) -> None:
        """Tell whoever waits for messages that they are settled."""
        if waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    # -- room in the window

    def _has_room(self, count: int) -> bool:
        window = self._window
        used = window.unsettled + self._room.reserved
        return used + count <= window.max_unconfirmed and not self._is_paused()

    def _is_paused(self) -> bool:
        # without a connection the window is all that there is to fill
        return self._connection is not None and self._connection.paused

    async def _wait_room(self, count: int = 1, until: float | None = None) -> bool:
        """Wait, after those who wait already, until so many messages fit; false if not in time."""
        if not self._room.waiting and self._has_room(count):
            return True
        if not await self._room.wait(count, count, until):
            return False
        try:
            self._check()
        except BaseException:
            self._room.grant()
            raise
        return True

    # -- closing

    def _wake_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def close(self) -> None:
        """Send what is queued and wait until it is confirmed, within the client's `close_timeout`.

        Whoever still waits for a confirm then gets a :class:`PublisherError`.

        :raises ConfirmTimeout: not every confirm came in time.
        """
        if self._closed:
            await self._ended.wait()
            return
        self._cluster.check_loop()
        if self._loop.is_closed():  # and with it all who waited
            self._closed = True
            self._ended.set()
            return
        self._closed = True
        closing = self._cluster.closing
        try:
            async with closing.limit():
                if self._error is None:
                    self._release()
                    while self._window.unsettled and self._error is None:
                        self._idle = self._loop.create_future()
                        await self._idle
                answer = self._part(*self._closed_errors())
                if answer is not None:
                    await answered(answer)
        except (TimeoutError, StreamConnectionError):
            if self._window.unsettled:
                raise ConfirmTimeout(
                    f'{self!r}: {self._window.unsettled} messages were not confirmed'
                    f' within close_timeout, {closing.timeout} s; they may still be stored'
                ) from None
        finally:
            self._part(*self._closed_errors())
            self._ended.set()

    def _closed_errors(self) -> tuple[PublisherError, PublisherError]:
        return (
            PublisherError(f'{self!r} was closed before the confirm'),
            PublisherError(f'{self!r} was closed before the message was sent'),
        )

    def _abort(self, error: Exception) -> None:
        """Close without waiting: what is queued leaves, and its confirms are given up."""
        if not self._closed:
            self._closed = True
            if self._error is None:
                self._release()
            self._part(error)
            self._ended.set()

    def _part(
        self, error: Exception, unsent: Exception | None = None
    ) -> asyncio.Future[Any] | None:
        """Give up what is unconfirmed, and the connection; what is to be waited for yet."""
        recovery = self._stop_recovery()
        self._abandon(error, unsent)
        self._window.on_settled = None  # no cycles: it goes with the last reference to it
        self._room.close()
        return self._leave() or recovery

    def _release(self) -> None:
        self._write()


class Publisher(BasePublisher):
    """Sends messages and waits for their confirms; safe to use from many tasks at once."""

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        super().__init__(publisher_id, info, client, message_id)
        self._failed: list[Confirmation] = []  # nobody may have asked about these
        self._failed_max = FAILED

    async def send(self, message: AMQPBody | MessageCtx, timeout: float | None = None) -> None:
        """Send a message; returns when the broker has confirmed it.

        What many tasks send in one turn of the event loop leaves in as few frames as fit.  If
        the wait is cancelled or times out, the message may still be stored.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for the confirm; None or 0 for no limit.
        :raises PublishError: the broker did not store the message.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form.
        :raises ValueError: its explicit publish id is not above the last one used, or the timeout
            is negative.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message fits no frame.
        :raises ConfirmTimeout: no confirm in time; :class:`RoomTimeout` if it was not sent at all.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the connection was lost, and there was none again within
            the client's `reconnect_timeout`.
        """
        until = None if timeout is None else deadline(timeout)
        wait = self._begin(message)
        if wait is None:
            if not await self._wait_room(1, until):
                raise RoomTimeout(f'no room in the window within {timeout} s')
            try:
                wait = self._put_wait(message)
            except BaseException:
                self._room.grant()  # the room that this message does not need
                raise
        if until is None:
            await wait
        elif not await in_time(wait, until):
            raise ConfirmTimeout(f'no confirm within {timeout} s')

    async def submit(
        self, message: AMQPBody | MessageCtx, timeout: float | None = None
    ) -> Confirmation:
        """Send a message and wait for room in the window only.

        The broker's confirm is awaited by what this gives: `await (await publisher.submit(m))`.
        Failures that nobody has asked about are raised by `close`.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for room; None or 0 for no limit.
        :returns: a future of the confirm, which fails as `send` does.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form.
        :raises ValueError: its explicit publish id is not above the last one used, or the timeout
            is negative.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message fits no frame.
        :raises RoomTimeout: no room in time; the message was not sent.
        """
        until = None if timeout is None else deadline(timeout)
        self._check()
        if not await self._wait_room(1, until):
            raise RoomTimeout(f'no room in the window within {timeout} s')
        confirmation = Confirmation(loop=self._loop)
        try:
            confirmation.publish_id = self._window.put(message, confirmation)
        except BaseException:
            self._room.grant()  # the room that this message does not need
            raise
        self._schedule()
        return confirmation

    async def send_many(
        self,
        messages: Iterable[AMQPBody | MessageCtx] | AsyncIterable[AMQPBody | MessageCtx],
        timeout: float | None = None,
    ) -> int:
        """Send messages, as many at once as the window takes; returns when all are confirmed.

        Stops at the first error, whose `index` says which message it was.  No message behind it
        is taken from an iterator, and those before it are confirmed when the error is raised;
        if one of them was refused, that is what is raised.  An asynchronous iterator that has no
        message yet is not waited for then: the wait is cancelled.  Whatever was taken was sent,
        also if this is cancelled or times out, and may then still be stored.

        :param messages: list, iterator or asynchronous iterator of bodies or contexts.
        :param timeout: seconds until the last confirm; None or 0 for no limit.
        :returns: how many messages there were.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises AMQPEncoderError: a message has no AMQP 1.0 form.
        :raises ValueError: an explicit publish id is not above the one before it; of those in a
            list or tuple nothing is sent then.  Or the timeout is negative.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: a message fits no frame.
        :raises ConfirmTimeout: not all confirms in time.
        :raises StreamConnectionError: the connection was lost before every confirm.
        """
        check_timeout('timeout', timeout)
        self._check()
        if isinstance(messages, str | bytes | bytearray | memoryview | Mapping | MessageCtx):
            raise ArgumentTypeError(f'send_many takes messages, not one {type(messages).__name__}')
        waiter = ConfirmGroup(self._loop)
        error: Exception | None = None
        late = False
        limit = asyncio.timeout(timeout or None)
        try:
            async with limit:
                if isinstance(messages, AsyncIterable):
                    error = await self._send_aiter_until(aiter(messages), waiter)
                else:
                    if isinstance(messages, list | tuple):
                        await self._check_ids(messages)
                    error = await self._send_iter(iter(messages), waiter)
                if not waiter.seal():
                    await waiter.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            late = True
        finally:
            del limit  # it refers to the task
        if late:
            raise ConfirmTimeout(
                f'{waiter.count - waiter.remaining} of {waiter.count} messages were confirmed'
                f' within {timeout} s; the others may still be stored'
            ) from error
        if waiter.errors:
            raise of_message(publish_error(waiter), waiter.first_refused) from error
        if waiter.error is not None:  # others may raise it, too: it keeps its cause
            if error is None:
                raise waiter.error.with_traceback(None)
            raise waiter.error.with_traceback(None) from error
        if error is not None:
            raise of_message(error, waiter.count)
        return waiter.count

    async def _send_iter(
        self, messages: Iterator[AMQPBody | MessageCtx], waiter: ConfirmGroup
    ) -> Exception | None:
        """Send what an iterator gives; the error of message `waiter.count`, if that ends it."""
        step = self._window.frame_entries  # whole frames
        more = True
        while more:
            await self._wait_room(step)
            self._check()
            if waiter.errors or waiter.settled:
                self._room.grant()  # the room that it does not need
                break
            try:
                more = self._fill(messages, waiter, step)
            except Exception as ex:
                return ex
            finally:
                self._write()
            if more and not self._room.waiting and self._has_room(step):
                await asyncio.sleep(0)  # its time was up
        return None

    def _fill(
        self, messages: Iterator[AMQPBody | MessageCtx], waiter: PendingConfirms, step: int
    ) -> bool:
        """Fill the window, for a short time; true if there may be more messages."""
        window = self._window
        end = monotonic() + TURN
        room = window.max_unconfirmed - window.unsettled - self._room.reserved
        goal = waiter.count + room - room % step
        more = True
        while more and waiter.count < goal and monotonic() < end:
            run = min(goal - waiter.count, RUN)
            limit = waiter.count + run
            more = window.extend(messages, run, waiter)
            if more and waiter.count < limit:  # large messages: not all of the window at once
                self._write()
                if self._is_paused():
                    break
        return more

    async def _send_aiter_until(
        self, messages: AsyncIterator[AMQPBody | MessageCtx], waiter: ConfirmGroup
    ) -> Exception | None:
        """`_send_aiter`; what fails meanwhile is not kept back until the next message comes."""
        stop = self._receiving[waiter] = asyncio.timeout(None)
        try:
            async with stop:
                return await self._send_aiter(messages, waiter)
        except TimeoutError:
            if not stop.expired():
                raise
        finally:
            del self._receiving[waiter], stop  # it refers to the task
        return None  # the waiter knows what was refused, or lost

    async def _send_aiter(
        self, messages: AsyncIterator[AMQPBody | MessageCtx], waiter: ConfirmGroup
    ) -> Exception | None:
        """The same for an asynchronous iterator."""
        end = monotonic() + TURN
        while not waiter.errors and not waiter.settled:
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                break
            except Exception as ex:
                return ex
            await self._wait_room()
            self._check()
            if waiter.settled:  # what was sent before is lost
                self._room.grant()
                break
            try:
                self._window.append(message, waiter)
            except Exception as ex:
                self._room.grant()
                return ex
            if not self._scheduled:
                self._schedule()
            if monotonic() > end:  # perhaps nothing has waited so far
                await asyncio.sleep(0)
                end = monotonic() + TURN
        return None

    async def _check_ids(self, messages: Sequence[AMQPBody | MessageCtx]) -> None:
        """Raise ValueError for explicit publish ids that do not ascend."""
        last: int | None = None
        for start in range(0, len(messages), CHECK):
            if start:
                await asyncio.sleep(0)
            last = self._window.check_ids(messages, start, start + CHECK, last)

    def _finish(self, waiting: Any, error: Exception | None) -> None:
        super()._finish(waiting, error)
        if error is not None and type(waiting) is Confirmation and not waiting.cancelled():
            self._failed.append(waiting)
            if len(self._failed) >= self._failed_max:
                self._failed = [item for item in self._failed if not item.seen]
                self._failed_max = max(FAILED, 2 * len(self._failed))

    async def close(self) -> None:
        """Send what is queued and wait until it is confirmed, within the client's `close_timeout`.

        Whoever still waits for a confirm then gets a :class:`PublisherError`.

        :raises PublishError: the broker did not store what `submit` sent, and nobody has asked.
        :raises ConfirmTimeout: not every confirm came in time.
        :raises StreamConnectionError: the connection was lost before a confirm nobody asked about.
        """
        told = self._closed
        await super().close()
        if not told:
            failed, self._failed = self._failed, []
            raise_first([item.failure for item in failed if item.failure and not item.seen])


class PublisherBin(Publisher):
    """:class:`Publisher` of raw bytes, which is not `amqp` whatever is asked for."""

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        super().__init__(publisher_id, replace(info, amqp=False), client, message_id)
