"""What the publishers of streams and of super streams have in common."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable

from ...error import SendProgress
from .. import types
from ..types import MessageCtx
from .confirmation import Confirmation


class BasePublisher:
    """A :class:`Publisher` or a :class:`SuperStreamPublisher`, for a function that takes either.

    :ivar name: name for deduplication, empty for none.
    :ivar stream: name of the stream or of the super stream.
    """

    name: str
    stream: str

    def __repr__(self) -> str:
        return (
            f'<{type(self).__name__} stream={self.stream!r} name={self.name or None!r}'
            f' state={self._status!r} unconfirmed={self.unconfirmed} reconnects={self._reconnects}>'
        )

    @property
    def _status(self) -> str:
        """What the publisher does."""
        raise NotImplementedError

    @property
    def _reconnects(self) -> int:
        """How often the publisher was declared again."""
        raise NotImplementedError

    @property
    def next_publish_id(self) -> int:
        """Publishing id of the next message."""
        raise NotImplementedError

    @property
    def message_id(self) -> int:
        """The name of `next_publish_id` in RbFly 0.10."""
        return self.next_publish_id

    @property
    def unconfirmed(self) -> int:
        """Number of messages that the broker has neither confirmed nor refused."""
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """Number of messages that can be sent now without waiting for confirms."""
        raise NotImplementedError

    async def send(
        self, message: types.AMQPBody | MessageCtx, timeout: float | None = None
    ) -> None:
        """Send a message and wait until the broker has confirmed it."""
        raise NotImplementedError

    async def submit(
        self, message: types.AMQPBody | MessageCtx, timeout: float | None = None
    ) -> Confirmation:
        """Send a message without waiting for its confirm; return a future of the confirm."""
        raise NotImplementedError

    async def send_many(
        self,
        messages: Iterable[types.AMQPBody | MessageCtx]
        | AsyncIterable[types.AMQPBody | MessageCtx],
        timeout: float | None = None,
        *,
        progress: SendProgress | None = None,
    ) -> int:
        """Send messages and wait until all are confirmed; return their number."""
        raise NotImplementedError

    async def send_atomic(
        self,
        messages: Iterable[types.AMQPBody | MessageCtx],
        timeout: float | None = None,
        *,
        publish_id: int | None = None,
    ) -> None:
        """Send messages to one partition, of which the broker stores all or none."""
        raise NotImplementedError

    def batch(self, message: types.AMQPBody | MessageCtx) -> None:
        """Encode a message and queue it; `flush` sends it."""
        raise NotImplementedError

    async def flush(self, timeout: float | None = None) -> None:
        """Send the messages that `batch` has queued, and wait until all of them are confirmed."""
        raise NotImplementedError

    def _abort(self, error: Exception) -> None:
        """Send all queued messages, and close without waiting for confirms."""
        raise NotImplementedError

    async def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed."""
        raise NotImplementedError
