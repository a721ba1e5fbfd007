"""USER room: subscriptions."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from ..types import AMQPBody
from . import commands
from ._chunk import Chunk, MessageCursor
from .const import ResponseCode
from .error import MessageTimeout, ProtocolError, StreamConnectionError, SubscriptionError
from .offset import Offset, OffsetType
from .types import MessageFilter

if TYPE_CHECKING:
    from .connection import Connection
    from .topology import Topology

__all__ = ['Subscription']

INITIAL_CREDIT = 10  # chunks
CLOSE_TIMEOUT = 30.0  # seconds that aclose() waits for the broker


class StreamMovedError(StreamConnectionError):
    """The broker has ended the subscription: the stream is elsewhere now, or was deleted."""


class Wakeup:
    """Wakes the task that waits for a chunk; holds no reference to its subscription."""

    __slots__ = ('future',)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Subscription(MessageCursor):
    """Messages of a stream, by `async for`; made by :meth:`StreamsClient.subscribe`.

    Nothing happens before the first message is asked for.  The subscription ends with `aclose`,
    with leaving `async with`, or when the last reference to it goes.
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
        super().__init__(amqp)
        self.stream = stream
        self._topology = topology
        self._offset = offset
        self._filter = filter
        self._timeout = timeout or None
        self._connection: Connection | None = None
        self._id = -1
        self._closed = False
        self._waiting = False
        self._wakeup = Wakeup()
        self._error: list[Exception] = []
        self.queue.wake = self._wakeup
        self.identify = asyncio.current_task
        self.direct = filter is None

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
        self.rewind(0)
        future = self._unsubscribe()
        if future is not None:
            # Whoever is cancelled meanwhile leaves the request alone: its answer frees the id.
            await asyncio.wait([future], timeout=CLOSE_TIMEOUT)

    def __del__(self) -> None:
        connection = self._connection
        if connection is not None and not self._closed:
            self._closed = True
            connection.run_in_loop(self._unsubscribe)

    # -- iteration

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        if self._connection is not None:
            self._connection.write(commands.credit(self._id, 1))

    async def wait_message(self) -> AMQPBody:
        """Wait for the next message.

        :raises StopAsyncIteration: the subscription is closed.
        :raises MessageTimeout: none came within the subscription's `timeout`.
        :raises StreamDoesNotExist: the stream does not exist, or was deleted.
        :raises StreamConnectionError: the connection was lost.
        """
        if self._waiting:
            raise SubscriptionError(f'{self!r} is being iterated by another task')
        self._waiting = True
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    await self._wait_ready()
                    body = self.take()
                    if self._filter is None or self._matches(self._filter):
                        return body
        except TimeoutError:
            raise MessageTimeout(f'{self!r}: no message within {self._timeout} s') from None
        finally:
            self._waiting = False

    async def _wait_ready(self) -> None:
        if self._connection is None and not self._closed:
            await self._subscribe()
        while not self._closed and not self.advance():
            if self._error:
                if isinstance(self._error[0], StreamMovedError):
                    await self._topology.check_stream(self.stream)
                raise self._error[0]
            self._wakeup.future = asyncio.get_running_loop().create_future()
            await self._wakeup.future
        if self._closed:
            self._unsubscribe()  # closed while it was being made
            raise StopAsyncIteration

    def _matches(self, wanted: MessageFilter) -> bool:
        # The broker gives whole chunks: those that hold one wanted message, or seem to.
        return wanted.extract(self.last.context()) in wanted.values

    # -- connection

    async def _subscribe(self) -> None:
        offset = self._offset
        connection = await self._topology.consuming(self.stream)
        subscription_id = connection.subscription_ids.pop()
        try:
            if offset.type == OffsetType.REFERENCE:
                offset = await stored_offset(connection, self.stream, str(offset.value))
            start = cast(int, offset.value) if offset.type == OffsetType.OFFSET else 0
            properties = {}
            if self._filter is not None:
                values = sorted(self._filter.values)
                properties = {f'filter.{i}': value for i, value in enumerate(values)}
            self.rewind(start)
        except BaseException:
            connection.subscription_ids.add(subscription_id)
            raise
        self._id = subscription_id
        connection.set_subscription(subscription_id, self.queue)
        request = commands.Subscribe(
            subscription_id, self.stream, offset, INITIAL_CREDIT, properties
        )
        self._connection = connection
        errors, wakeup = self._error, self._wakeup

        def lost(error: Exception) -> None:
            errors.append(error)
            wakeup()

        def metadata_update(stream: str) -> None:
            if stream == request.stream:
                lost(StreamMovedError(f'stream {stream!r} has left the node'))

        connection.on_lost[self.queue] = lost
        connection.on_metadata_update[self.queue] = metadata_update
        try:
            await connection.request(request)
        except BaseException as ex:
            if isinstance(ex, ProtocolError):
                self._connection = None
                forget(connection, subscription_id, self.queue)
                connection.subscription_ids.add(subscription_id)
            else:
                self._unsubscribe()
            raise

    def _unsubscribe(self) -> asyncio.Future[bytes] | None:
        connection, self._connection = self._connection, None
        if connection is None:
            return None
        subscription_id = self._id
        forget(connection, subscription_id, self.queue)
        if not connection.is_open:
            return None
        future = connection.send_request(commands.Unsubscribe(subscription_id))
        future.add_done_callback(lambda _: connection.subscription_ids.add(subscription_id))
        return future


def forget(connection: Connection, subscription_id: int, queue: object) -> None:
    connection.set_subscription(subscription_id, None)
    connection.on_lost.pop(queue, None)
    connection.on_metadata_update.pop(queue, None)


async def stored_offset(connection: Connection, stream: str, reference: str) -> Offset:
    """Where to go on behind a stored offset; at the first message if none is stored."""
    try:
        value = await connection.request(commands.QueryOffset(reference, stream))
    except ProtocolError as ex:
        if ex.code != ResponseCode.NO_OFFSET:
            raise
        return Offset.FIRST
    return Offset.offset(value + 1)
