"""USER room: the broker's side of a subscription.

    idle -- start() -> opening (a task) -> open -- lost, moved --> idle

A feed fills the queue that a subscription reads, and holds no reference to the subscription.  It is
started where the subscription has given everything and is asked for more; so whoever stops waiting
neither stops the opening nor moves where the subscription starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from . import commands
from ._chunk import ChunkQueue
from .const import ResponseCode
from .error import FrameError, ProtocolError, StreamConnectionError
from .offset import Offset, OffsetType
from .topology import Patience, backoff

if TYPE_CHECKING:
    from .connection import Connection
    from .topology import Topology
    from .tracking import Tracker

__all__ = ['Feed', 'stored_offset']

STABLE = 5.0  # seconds; one that was lost sooner is opened again with a delay
SKEW = 10.0  # seconds that the broker's clock may be ahead of ours


class Feed:
    """Subscribes a queue to a stream, as often as it is told to.

    :param offset: where to start at first.
    :param properties: properties of the subscription: its filter.
    :param credit: how many chunks the broker may send before one is consumed.
    :param wake: called when there is something for the subscription to do.
    :ivar error: why it ended, if starting it again would not help at once.
    :ivar tracker: stores how far the subscription has come, before the client closes connections.
    """

    def __init__(
        self,
        topology: Topology,
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
        self._topology = topology
        self._offset = offset
        self._properties = properties
        self._credit = credit
        self._queue = queue
        self._wake = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._id = -1
        self._task: asyncio.Task[None] | None = None
        self._committed: int | None = None  # last committed chunk when it was to start
        self._moved = False
        self._opened = -STABLE  # when it was opened last
        self._position: int | None = None  # and where
        self._delays = backoff()

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
        self._topology.on_close[self] = self._on_close
        self._task = asyncio.Task(self._run(position), loop=self._loop)  # never an eager one

    def start_over(self) -> bool:
        """Go on at the first message, of another stream; false if there was none before."""
        if self._opened < 0:
            return False
        self._unsubscribe()
        self._offset = Offset.FIRST
        return True

    def grant(self) -> None:
        """Let the broker send one more chunk."""
        if self._connection is not None:
            self._connection.write(commands.credit(self._id, 1))

    def write(self, frame: bytes) -> bool:
        """Write a frame on the connection of the subscription; false if it has none."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return False
        connection.write(frame)
        return True

    def close(self) -> asyncio.Future[bytes] | None:
        """End it; the future, if there is one, is done when the broker has answered."""
        self._topology.on_close.pop(self, None)
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
            self._topology.on_close.pop(self, None)
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
        finally:
            if self._task is task:
                self._task = None
                self._wake()

    async def _open(self, position: int | None) -> None:
        patience = Patience(self._topology)
        loop = asyncio.get_running_loop()
        stable = loop.time() > self._opened + STABLE
        if stable or position != self._position:  # messages came in between
            self._delays = backoff()
        self._position = position
        if not stable:
            await asyncio.sleep(next(self._delays))
        while True:
            connection = await self._topology.consuming(self.stream)
            try:
                await self._subscribe(connection, position)
                self._opened = loop.time()
                return
            except FrameError:
                raise
            except (StreamConnectionError, ProtocolError) as ex:
                code = getattr(ex, 'code', ResponseCode.STREAM_NOT_AVAILABLE)
                if code != ResponseCode.STREAM_NOT_AVAILABLE:
                    raise
                error = ex
            await patience.wait(error)

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
        except ProtocolError:
            self._forget()
            connection.subscription_ids.add(subscription_id)
            raise
        except BaseException:
            self._unsubscribe()
            raise
        if self._moved:
            # Chunks may have come: where to go on, the subscription knows.
            self._unsubscribe()

    async def _resolve(self, connection: Connection, position: int | None) -> Offset:
        """What offset to ask the broker for; the queue is told what to drop."""
        if position is not None:
            self._queue.rewind(position)
            return await self._within(connection, position)
        if self._offset.type == OffsetType.REFERENCE:
            stored = await stored_offset(connection, self.stream, str(self._offset.value))
            default = self._offset.default or Offset.FIRST
            self._offset = default if stored is None else Offset.offset(stored + 1)
        offset = self._offset
        if offset.type in (OffsetType.NEXT, OffsetType.LAST):
            if self._committed is None:
                self._committed = await self._last_chunk(connection)
                self._queue.last = -1 if self._committed is None else self._committed
                self._queue.newest = round((time.time() + SKEW) * 1000)
            elif self._committed == -1:
                # The stream was empty then: what it has now was published since.
                offset = Offset.FIRST
            elif offset.type == OffsetType.NEXT:
                self._queue.rewind(0, self._committed)
                return await self._within(connection, self._committed)
        self._queue.rewind(cast(int, offset.value) if offset.type == OffsetType.OFFSET else 0)
        return offset

    async def _within(self, connection: Connection, offset: int) -> Offset:
        """An offset; or the stream's last chunk if there is none behind those that were read.

        That one tells whether the stream was created anew; or else this replica lags behind.
        """
        committed = await self._last_chunk(connection)
        if committed is None or committed > self._queue.last:
            return Offset.offset(offset)
        return Offset.FIRST if committed < 0 else Offset.offset(committed)

    async def _last_chunk(self, connection: Connection) -> int | None:
        """Id of the last committed chunk, -1 for none; None if the broker does not tell."""
        if not connection.knows_optional:
            return None
        stats = await connection.request(commands.StreamStats(self.stream))
        return stats.get('committed_chunk_id')

    # -- what happens to the connection

    def _on_lost(self, error: Exception) -> None:
        self._forget()
        if self.tracker is not None:
            self.tracker.on_lost()
        if isinstance(error, FrameError):
            self.error = error  # the task may have its answer already
        if self._task is None:
            if not isinstance(error, StreamConnectionError):
                self.error = error
            self._wake()

    def _on_metadata_update(self, stream: str) -> None:
        if stream != self.stream:
            return
        if self._task is not None:
            self._moved = True
        else:
            # The broker has removed the subscription, or it will on being told.
            self._unsubscribe()
            self._wake()

    def _on_close(self) -> None:
        if self.tracker is not None:
            self.tracker.store()
        self.close()
        self.error = StreamConnectionError('the client was disconnected')
        self._wake()

    # -- ending

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
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
