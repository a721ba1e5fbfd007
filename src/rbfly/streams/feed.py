"""The broker's side of a subscription.

    idle -- start() -> opening (a task) -> open -- lost, moved --> idle

A feed fills the queue that a subscription reads, and holds no reference to the subscription.  It is
started where the subscription has given everything and is asked for more; so whoever stops waiting
neither stops the opening nor moves where the subscription starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from ..error import EventLoopError, FrameError, ProtocolError, RbFlyError, StreamConnectionError
from ..net.connection import disconnected
from ..net.retry import STABLE, Retry, can_retry
from ..protocol import commands
from ..protocol._chunk import ChunkQueue
from ..protocol.const import Key, ResponseCode
from ..protocol.offset import Offset, OffsetType
from .tracking import chunk_ids

if TYPE_CHECKING:
    from ..net.cluster import Cluster
    from ..net.connection import Connection
    from .tracking import Tracker

__all__ = ['Feed', 'stored_offset']

logger = logging.getLogger(__name__)

SKEW = 10.0  # seconds that the broker's clock may be ahead of ours
SILENCE = 30.0  # seconds without a chunk until the broker is asked; each time twice as many
SILENCE_LAST = 3600.0
GRACE = 1.0  # seconds; what the broker says it has may be on its way


class Feed:
    """Subscribes a queue to a stream, as often as it is told to.

    :param offset: where to start at first.
    :param properties: properties of the subscription: its filter.
    :param credit: how many chunks the broker may send before one is consumed.
    :param wake: called when there is something for the subscription to do.
    :ivar error: why it ended, if starting it again would not help at once.
    :ivar tracker: stores how far the subscription has come, before the client closes connections.
    :ivar timer: for `listen`, which is to be called if there is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        offset: Offset,
        properties: Mapping[str, str],
        credit: int,
        queue: ChunkQueue,
        wake: Callable[[], None],
    ) -> None:
        self.stream = stream
        self.error: Exception | None = None
        self.tracker: Tracker | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._cluster = cluster
        self._offset = self._wanted = offset
        self._properties = properties
        self._credit = credit
        self._queue = queue
        self._wake = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._id = -1
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0  # messages at the offset
        self._committed: int | None = None  # last committed chunk when it was to start
        self._moved = False
        self._opened = -STABLE  # when it was opened last
        self._position: int | None = None  # and where
        self._lost: StreamConnectionError | None = None  # why it is not open any more
        self._retry: Retry | None = None  # since it was open for some time, or gave messages
        self._silence = SILENCE
        self._heard = -1  # id of the last chunk when the timer was set
        self._over = False  # its time is
        self._lacking: int | None = None  # chunk that the broker has, and that does not come
        self._settled: int | None = None  # the one that it was subscribed anew for

    @property
    def is_idle(self) -> bool:
        """True if it is to be started for more chunks to come."""
        if self._loop is not None and self._loop.is_closed():
            return True  # and with it what it had
        return self._task is None and self._connection is None

    def start(self, position: int | None) -> None:
        """Subscribe in background.

        :param position: offset of the first message wanted; None to start where it was to start.
        """
        self._forget()
        self._loop = asyncio.get_running_loop()
        self._cluster.on_close[self] = self._on_close
        self._task = asyncio.Task(self._run(position), loop=self._loop)  # never an eager one

    def start_over(self) -> None:
        """Go on at the first message, of another stream; where it was to start if none was open."""
        self._unsubscribe()
        self._retry = None
        self._offset = self._wanted if self._opened < 0 else Offset.FIRST
        self._dropped = 0
        self._committed = self._settled = None

    def grant(self) -> None:
        """Let the broker send one more chunk.

        :raises EventLoopError: this is not the event loop that it was started in.
        """
        if self._connection is not None:
            loop = self._loop
            if (
                loop is not asyncio._get_running_loop()
                and loop is not None
                and not loop.is_closed()
            ):
                self.run_in_loop(self.grant)
                raise EventLoopError('the subscription belongs to another event loop')
            self._connection.write(commands.credit(self._id, 1))

    def write(self, frame: bytes) -> bool:
        """Store an offset by a frame; false if it has no connection, or another stream perhaps."""
        connection = self._connection
        if connection is None or not connection.is_open or self._queue.last_chunk.doubt:
            return False
        connection.write(frame)
        return True

    def close(self) -> asyncio.Future[bytes] | None:
        """End it; the future, if there is one, is done when the broker has answered."""
        self._cluster.on_close.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        return self._unsubscribe()

    def release(self, data: bytes | None) -> None:
        """End it without waiting; a frame is written before."""
        if self.tracker is not None:
            self.tracker.stop()
            self.tracker = None
        if data is not None:
            self.write(data)
        self.close()

    def run_in_loop(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop that it was started in: now, if this is its thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._cluster.on_close.pop(self, None)
            return
        try:
            inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            inside = False
        if inside:
            function()
        else:
            loop.call_soon_threadsafe(function)

    # -- opening

    async def _run(self, position: int | None) -> None:
        task = self._task
        try:
            await self._open(position)
        except Exception as ex:
            if self._task is task:
                self.error = ex
                self._retry = None
        finally:
            if self._task is task:
                self._task = None
                self._wake()

    async def _open(self, position: int | None) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() > self._opened + STABLE or position != self._position:
            self._retry = None
        lost, self._lost = self._lost, None
        self._position = position
        if self._retry is None:
            self._retry, lost = self._cluster.retry(), None
        retry = self._retry
        async with retry:
            if lost is not None:
                await retry.wait(lost)
            while True:
                connection = await self._cluster.consuming(self.stream, retry)
                retry.on_step(f'subscribing to stream {self.stream!r}')
                try:
                    await self._subscribe(connection, position)
                except RbFlyError as ex:
                    if not can_retry(ex, Key.SUBSCRIBE, self._opened >= 0):
                        raise
                    error = ex
                else:
                    self._opened = loop.time()
                    break
                await retry.wait(error)

    async def _subscribe(self, connection: Connection, position: int | None) -> None:
        subscription_id = connection.subscription_ids.pop()
        try:
            offset = await self._resolve(connection, position)
        except BaseException:
            connection.subscription_ids.add(subscription_id)
            raise
        request = commands.Subscribe(
            subscription_id, self.stream, offset, self._credit, self._properties
        )
        self._moved = False
        self._connection = connection
        self._id = subscription_id
        connection.set_subscription(subscription_id, self._queue)
        connection.on_lost[self] = self._on_lost
        connection.on_metadata_update[self] = self._on_metadata_update
        try:
            await connection.request(request)
            if connection.error is not None:  # in the turn of the answer
                raise connection.error.with_traceback(None)
        except ProtocolError:
            self._forget()
            connection.subscription_ids.add(subscription_id)
            raise
        except BaseException:
            self._unsubscribe()
            raise
        if self._moved:
            # Chunks may have come: where to go on, the subscription knows.
            self._leave_node()

    async def _resolve(self, connection: Connection, position: int | None) -> Offset:
        """What offset to ask the broker for; the queue is told what to drop."""
        queue = self._queue
        if position is not None:
            queue.rewind(position, queue.skip_through_chunk)
            if queue.last_chunk.id < 0:
                return Offset.offset(position)  # all that came was damaged
            return await self._seek(connection)
        if self._offset.type == OffsetType.REFERENCE:
            stored = await stored_offset(connection, self.stream, str(self._offset.value))
            if stored is None:
                self._offset = self._offset.default or Offset.FIRST
            else:
                # The message that was read last is taken along, and dropped: see LastChunk.
                self._offset = Offset.offset(stored)
                self._dropped = 1
        offset = self._offset
        if offset.type in (OffsetType.NEXT, OffsetType.LAST):
            committed = self._committed
            if committed is None:
                _, committed = await chunk_ids(connection, self.stream)
                self._committed = committed
                if offset.type == OffsetType.NEXT and committed is not None and committed >= 0:
                    # The last chunk is taken along, and dropped: see LastChunk.
                    queue.rewind(0, committed)
                    queue.last_chunk.presume(committed, round((time.time() + SKEW) * 1000))
                    return Offset.LAST
            elif offset.type == OffsetType.NEXT and committed >= 0:
                queue.rewind(0, committed)
                return await self._seek(connection)
            if committed == -1:
                # The stream was empty then: what it has now was published since.
                offset = Offset.FIRST
        queue.rewind(
            cast(int, offset.value) + self._dropped if offset.type == OffsetType.OFFSET else 0
        )
        return offset

    async def _seek(self, connection: Connection) -> Offset:
        """Where the chunk that was read last is to be found, if the stream is the same."""
        offset = self._queue.last_chunk.seek(*await chunk_ids(connection, self.stream))
        return Offset.FIRST if offset < 0 else Offset.offset(offset)

    # -- a broker that has lost its reader without knowing

    def listen(self) -> None:
        """A task waits for a chunk: ask the broker, now and then, whether it has one."""
        if self.is_idle or self._task is not None:
            return
        connection = self._connection
        assert connection is not None
        if self._properties or not connection.knows_optional:
            return  # what is filtered may well be silent
        heard = self._queue.last_chunk.id
        if heard != self._heard:
            self._heard, self._silence, self._over = heard, SILENCE, False
        elif self._lacking is not None:
            self._settled = self._lacking
            self._unsubscribe()
            # A chunk of stored offsets alone is never given: the broker may well be right.
            logger.info(
                'stream %r: chunk %d was not given; subscribing anew to be sure',
                self.stream,
                self._settled,
            )
            return
        elif self._over:
            self._silence, self._over = min(2 * self._silence, SILENCE_LAST), False
            future = connection.send_request(commands.StreamStats(self.stream))
            future.add_done_callback(lambda future: self._on_stats(connection, future))
        self._lacking = None
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(self._silence, self._on_silence)

    def _on_silence(self) -> None:
        self.timer = None
        self._over = True
        self._wake()  # who waits goes on to `listen`

    def _on_stats(self, connection: Connection, future: asyncio.Future[bytes]) -> None:
        if connection is not self._connection or self.timer is None:
            return
        reader = commands.Reader(future.result())
        try:
            if reader.u16() != ResponseCode.OK:
                return
            stats = commands.StreamStats(self.stream).parse(reader)
        except FrameError as ex:
            connection.on_failure(ex)
            return
        committed = stats.get('committed_chunk_id', -1)
        queue = self._queue
        if self._settled is None and self._offset.type == OffsetType.TIMESTAMP:
            self._settled = committed  # it may lie before that time
        wanted = max(queue.last_chunk.id + 1, queue.skip_through_chunk + 1, queue.skip_before)
        if -1 < committed != self._settled and (committed >= wanted or queue.last_chunk.doubt):
            self._lacking = committed
            self.timer.cancel()
            self.timer = asyncio.get_running_loop().call_later(GRACE, self._on_silence)

    # -- what happens to the connection

    def _on_lost(self, error: StreamConnectionError) -> None:
        self._forget()
        if self.tracker is not None:
            self.tracker.on_lost()
        if self._task is None:
            self._lost = error
            if not error.retriable:
                self.error = error
            self._wake()
            logger.warning('subscription of stream %r: %s', self.stream, error)

    def _on_metadata_update(self, stream: str) -> None:
        if stream != self.stream:
            return
        if self._task is not None:
            self._moved = True
        else:
            # The broker has removed the subscription, or it will on being told.
            self._leave_node()
            self._wake()

    def _leave_node(self) -> None:
        self._lost = StreamConnectionError(f'stream {self.stream!r} has left the node')
        self._unsubscribe()

    def _on_close(self) -> None:
        self._retry = None
        if self.tracker is not None:
            self.tracker.store()
        self.close()
        self.error = disconnected()
        self._wake()

    # -- ending

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._over, self._lacking = False, None
        if connection is not None:
            connection.set_subscription(self._id, None)
            connection.on_lost.pop(self, None)
            connection.on_metadata_update.pop(self, None)

    def _unsubscribe(self) -> asyncio.Future[bytes] | None:
        connection, subscription_id = self._connection, self._id
        self._forget()
        if connection is None or not connection.is_open:
            return None
        future = connection.send_request(commands.Unsubscribe(subscription_id))
        future.add_done_callback(lambda _: connection.subscription_ids.add(subscription_id))
        return future


async def stored_offset(connection: Connection, stream: str, reference: str) -> int | None:
    """The offset stored under a reference; None if there is none."""
    try:
        return await connection.request(commands.QueryOffset(reference, stream))
    except ProtocolError as ex:
        if ex.code != ResponseCode.NO_OFFSET:
            raise
        return None
