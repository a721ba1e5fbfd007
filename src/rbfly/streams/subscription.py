"""Subscriptions, as users know them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ..error import ArgumentError, ArgumentTypeError
from ..net.closing import can_wait
from ..protocol._batch import MessageBatch
from ..protocol._cursor import KINDS
from ..protocol._iteration import MessageIterator, SubscriptionBase
from ..protocol.offset import Offset
from .consuming import SubscriptionDriver
from .types import MessageCtx

__all__ = ['Subscription']

MAX_MESSAGES = 2**31 - 1  # of a batch


class Subscription(SubscriptionBase):
    """Messages of a stream, by `async for`; made by :meth:`StreamsClient.subscribe`.

    It gives bodies; `messages` gives contexts, and `batches` many bodies at once.

    Nothing happens before the first message is asked for.  If the connection is lost, or the
    stream moves to another node, the subscription goes on there behind the last message it gave.
    It ends with `aclose`, with leaving `async with`, or when the last reference to it goes.

    Waiting for a message raises:

    * :class:`StopAsyncIteration`: the subscription is closed;
    * :class:`.MessageTimeout`: none came within the subscription's `timeout`;
    * :class:`.StreamDoesNotExist`: the stream does not exist, or was deleted; if there is one of
      that name again, it goes on with the first message of that one; this may go unnoticed until
      the first message was received, see :meth:`Offset.offset`;
    * :class:`.StreamConnectionError`: there was no connection within the client's
      `connect_timeout` or `reconnect_timeout`, or the client was disconnected;
    * :class:`.ProtocolError`: the broker refused, e.g. for want of permission;
    * :class:`.SubscriptionError`: the stored offset to start from is 2**64 - 1;
    * :class:`.ChunkError`: a chunk is damaged;
    * :class:`.AMQPDecoderError`: a message is not AMQP 1.0.

    The iteration can go on after each of them but the first.
    """

    def __init__(self, driver: SubscriptionDriver, offset: Offset) -> None:
        super().__init__(driver.cursor)
        self.stream = driver.stream
        self._offset = offset
        self._driver = driver

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
        await self._driver.close(wait=can_wait(kind))

    async def aclose(self) -> None:
        """End the subscription; whoever iterates it gets the end of the iteration.

        Gives up waiting for the broker after the client's `close_timeout`.
        """
        await self._driver.close(wait=True)

    def __del__(self) -> None:
        driver = getattr(self, '_driver', None)
        if driver is not None:
            driver.release()

    def messages(self) -> AsyncIterator[MessageCtx]:
        """Iterate over messages with all that belongs to them, not their bodies alone.

        Sections but the body are decoded when they are first asked for.
        """
        return MessageIterator(self, KINDS['context'])

    def batches(self, max_messages: int | None = None) -> AsyncIterator[MessageBatch]:
        """Iterate over chunks: one await for all messages of one.

        What was given is done with when the next is asked for, here as well.  A batch ends before
        a message that is raised or skipped because it is not AMQP 1.0, and after a sub-entry once
        it holds 16 MiB of decompressed ones.

        :param max_messages: the most messages of a batch; longer chunks are given in pieces.
        :raises ValueError: `max_messages` is out of range: 1 to 2**31 - 1.
        """
        if isinstance(max_messages, bool) or not isinstance(max_messages, int | None):
            raise ArgumentTypeError(f'max_messages must be int, not {type(max_messages).__name__}')
        if max_messages is not None and not 1 <= max_messages <= MAX_MESSAGES:
            raise ArgumentError(f'max_messages must be in 1 to 2**31 - 1, not {max_messages}')
        return MessageIterator(self, KINDS['batch'], max_messages or MAX_MESSAGES)
