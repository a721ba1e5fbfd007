"""Subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..error import (
    ArgumentError,
    ArgumentTypeError,
    MessageTimeout,
    StreamDoesNotExist,
    SubscriptionError,
)
from ..net.closing import can_wait
from ..protocol._batch import MessageBatch
from ..protocol._chunk import Chunk
from ..protocol._cursor import KINDS, MessageCursor, MessageIterator
from ..protocol.offset import Offset
from .feed import Feed
from .tracking import OffsetTracking, Tracker
from .types import MessageCtx, MessageFilter, OnDecodeError
from .waiting import deadline, in_time

if TYPE_CHECKING:
    from ..net.cluster import Cluster

__all__ = ['Subscription']

MAX_MESSAGES = 2**31 - 1  # of a batch


class Wakeup:
    """Wakes the task that waits for a message; holds no reference to its subscription."""

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


class Subscription(MessageCursor):
    """Messages of a stream, by `async for`; made by :meth:`StreamsClient.subscribe`.

    It gives bodies; `messages` gives contexts, and `batches` many bodies at once.

    Nothing happens before the first message is asked for.  If the connection is lost, or the
    stream moves to another node, the subscription goes on there behind the last message it gave.
    It ends with `aclose`, with leaving `async with`, or when the last reference to it goes.

    Waiting for a message raises:

    * :class:`StopAsyncIteration`: the subscription is closed;
    * :class:`MessageTimeout`: none came within the subscription's `timeout`;
    * :class:`StreamDoesNotExist`: the stream does not exist, or was deleted; if there is one of
      that name again, it goes on with the first message of that one;
    * :class:`StreamConnectionError`: there was no connection within the client's
      `connect_timeout` or `reconnect_timeout`, or the client was disconnected;
    * :class:`ProtocolError`: the broker refused, e.g. for want of permission;
    * :class:`ChunkError`: a chunk is damaged;
    * :class:`AMQPDecoderError`: a message is not AMQP 1.0.

    The iteration can go on after each of them but the first.
    """

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        offset: Offset,
        filter: MessageFilter | None,
        timeout: float | None,
        amqp: bool,
        on_decode_error: OnDecodeError,
        initial_credit: int,
        auto_offset: OffsetTracking | None,
    ) -> None:
        super().__init__(amqp, filter, on_decode_error)
        self.stream = stream
        self._offset = offset
        self._timeout = timeout or None
        self._closed = False
        self._ended = asyncio.Event()  # closing it
        self._waiting = False
        self._cluster = cluster
        self._wakeup = Wakeup()
        self.queue.wake = self._wakeup
        self.yield_after = initial_credit // 2 + 1  # the broker goes on with more than half
        properties = {} if filter is None else filter.properties()
        self._feed = Feed(
            cluster, stream, offset, properties, initial_credit, self.queue, self._wakeup
        )
        self._tracker: Tracker | None = None
        if auto_offset is not None:
            self._tracker = Tracker(auto_offset, stream, self, self._feed.write)
            self._feed.tracker = self._tracker
        self.current_task = asyncio.current_task

    def __repr__(self) -> str:
        return f'<Subscription stream={self.stream!r} offset={self._offset!r}>'

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(wait=can_wait(kind))

    async def aclose(self) -> None:
        """End the subscription; whoever iterates it gets the end of the iteration.

        The broker is waited for within the client's `close_timeout`.
        """
        await self._close(wait=True)

    async def _close(self, *, wait: bool) -> None:
        if self._closed:
            if wait:
                await self._ended.wait()
            return
        self._cluster.check_loop()
        self._closed = True
        self._wakeup()
        self.rewind()
        try:
            if self._tracker is not None:
                await self._tracker.close(self._cluster, wait=wait)
            answer = self._feed.close()
            if wait:
                await self._cluster.closing.wait(answer)
        finally:
            self._feed.tracker = None
            self._feed.close()
            self._ended.set()

    def __del__(self) -> None:
        feed = getattr(self, '_feed', None)
        if feed is None or self._closed:
            return
        data = None if feed.tracker is None else feed.tracker.pending(self)
        feed.run_in_loop(lambda: feed.release(data))

    # -- iteration

    def messages(self) -> AsyncIterator[MessageCtx]:
        """Iterate over messages with all that belongs to them, not their bodies alone.

        Sections but the body are decoded when they are first asked for.
        """
        return MessageIterator(self, KINDS['context'])

    def batches(self, max_messages: int | None = None) -> AsyncIterator[MessageBatch]:
        """Iterate over chunks: one await for all messages of one.

        What was given is done with when the next is asked for, here as well.  A batch ends before
        a message that is raised or skipped because it is not AMQP 1.0.

        :param max_messages: the most messages of a batch; longer chunks are given in pieces.
        :raises ValueError: `max_messages` is out of range: 1 to 2**31 - 1.
        """
        if isinstance(max_messages, bool) or not isinstance(max_messages, int | None):
            raise ArgumentTypeError(f'max_messages must be int, not {type(max_messages).__name__}')
        if max_messages is not None and not 1 <= max_messages <= MAX_MESSAGES:
            raise ArgumentError(f'max_messages must be in 1 to 2**31 - 1, not {max_messages}')
        return MessageIterator(self, KINDS['batch'], max_messages or MAX_MESSAGES)

    def on_replaced(self) -> None:
        self._start_over()
        raise StreamDoesNotExist(self.stream, 'was deleted and created anew')

    def _start_over(self) -> None:
        """The stream is gone; if there is one of that name again, nothing of it was seen."""
        self._feed.start_over()
        self.start_over()
        if self._tracker is not None:
            self._tracker.on_lost()  # went with the stream

    def on_progress(self) -> None:
        if self._tracker is not None:
            self._tracker.store()

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        self._feed.grant()

    async def wait(self, kind: int, limit: int) -> Any:
        if self._waiting:
            raise SubscriptionError(f'{self!r} is being iterated by another task')
        self._cluster.check_loop()
        self._waiting = True
        try:
            if self.chunks_since_yield >= self.yield_after:
                # The broker gets credit back, and other tasks their turn, before all is consumed.
                await asyncio.sleep(0)
                self.chunks_since_yield = 0
            if not self.advance(kind, limit):
                await self._wait_ready(kind, limit)
        finally:
            self._waiting = False
        if self._closed:
            raise StopAsyncIteration
        return self.take(kind)

    async def _wait_ready(self, kind: int, limit: int) -> None:
        until = None if self._timeout is None else deadline(self._timeout)
        while not self._closed:
            self.mark_consumed()
            woken = await self._wait_chunk(until)
            if self.advance(kind, limit):
                break
            if not woken:
                raise MessageTimeout(f'{self!r}: no message within {self._timeout} s')

    async def _wait_chunk(self, until: float | None) -> bool:
        """Wait until something has happened; false if nothing has before `until`."""
        feed = self._feed
        if feed.error is not None:
            if isinstance(feed.error, StreamDoesNotExist):
                self._start_over()
            try:
                raise feed.error
            finally:
                feed.error = None
        if feed.timer is None:
            feed.listen()
        if feed.is_idle:
            if self._tracker is not None:
                self._tracker.start()
            feed.start(self.position)
        woken = await self._wakeup.wait(until)
        self.chunks_since_yield = 0
        return woken
