"""USER room: subscriptions."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._chunk import Chunk
from ._cursor import MessageCursor
from .error import MessageTimeout, SubscriptionError
from .feed import Feed
from .offset import Offset
from .types import MessageFilter

if TYPE_CHECKING:
    from .topology import Topology

__all__ = ['Subscription']

INITIAL_CREDIT = 10  # chunks
CLOSE_TIMEOUT = 30.0  # seconds that aclose() waits for the broker


class Wakeup:
    """Wakes the task that waits for a message; holds no reference to its subscription."""

    __slots__ = ('future',)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> None:
        self.future = asyncio.get_running_loop().create_future()
        await self.future


class Subscription(MessageCursor):
    """Messages of a stream, by `async for`; made by :meth:`StreamsClient.subscribe`.

    Nothing happens before the first message is asked for.  If the connection is lost, or the
    stream moves to another node, the subscription goes on there behind the last message it gave.
    It ends with `aclose`, with leaving `async with`, or when the last reference to it goes.

    Waiting for a message raises:

    * :class:`StopAsyncIteration`: the subscription is closed;
    * :class:`MessageTimeout`: none came within the subscription's `timeout`;
    * :class:`StreamDoesNotExist`: the stream does not exist, or was deleted;
    * :class:`StreamConnectionError`: there was no connection within the client's
      `connect_timeout` or `reconnect_timeout`, or the client was disconnected;
    * :class:`ProtocolError`: the broker refused, e.g. for want of permission;
    * :class:`ChunkError`: a chunk is damaged;
    * :class:`AMQPDecoderError`: a message is not AMQP 1.0.

    The iteration can go on after each of them but the first.
    """

    def __init__(
        self,
        topology: Topology,
        stream: str,
        offset: Offset,
        filter: MessageFilter | None,
        timeout: float | None,
        amqp: bool,
    ) -> None:
        super().__init__(amqp, filter)
        self.stream = stream
        self._offset = offset
        self._timeout = timeout or None
        self._closed = False
        self._waiting = False
        self._wakeup = Wakeup()
        self.queue.wake = self._wakeup
        properties = {} if filter is None else filter.properties()
        self._feed = Feed(
            topology, stream, offset, properties, INITIAL_CREDIT, self.queue, self._wakeup
        )
        self.identify = asyncio.current_task

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
        await self.aclose()

    async def aclose(self) -> None:
        """End the subscription; whoever iterates it gets the end of the iteration."""
        if self._closed:
            return
        self._closed = True
        self._wakeup()
        self.rewind()
        future = self._feed.close()
        if future is not None:
            # Whoever is cancelled meanwhile leaves the request alone: its answer frees the id.
            await asyncio.wait([future], timeout=CLOSE_TIMEOUT)

    def __del__(self) -> None:
        feed = getattr(self, '_feed', None)
        if feed is not None and not self._closed:
            feed.run_in_loop(feed.close)

    # -- iteration

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        self._feed.grant()

    async def wait(self, kind: int, limit: int) -> Any:
        if self._waiting:
            raise SubscriptionError(f'{self!r} is being iterated by another task')
        self._waiting = True
        scope = asyncio.timeout(self._timeout)
        try:
            async with scope:
                while not self._closed and not self.advance(kind, limit):
                    self.ask()
                    await self._wait_chunk()
        except TimeoutError:
            if not scope.expired():
                raise
            raise MessageTimeout(f'{self!r}: no message within {self._timeout} s') from None
        finally:
            self._waiting = False
        if self._closed:
            raise StopAsyncIteration
        return self.take(kind)

    async def _wait_chunk(self) -> None:
        """Wait until something has happened."""
        feed = self._feed
        if feed.error is not None:
            error, feed.error = feed.error, None
            raise error
        if feed.is_idle:
            feed.start(self.position)
        await self._wakeup.wait()
