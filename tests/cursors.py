"""A cursor driven by hand."""

from collections.abc import Coroutine
from typing import Any, Literal

from rbfly.amqp import MessageCtx, encode_amqp_bytes, stream_message_ctx
from rbfly.protocol._batch import MessageBatch
from rbfly.protocol._chunk import Chunk
from rbfly.protocol._cursor import KINDS, MessageCursor
from rbfly.protocol._decoder import Decoder
from rbfly.streams._consume._iteration import FastSubscription
from rbfly.streams.types import MessageFilter

NO_LIMIT = 2**31 - 1


class Cursor(MessageCursor):
    """A cursor driven by hand, which records consumed chunks and progress."""

    def __init__(
        self,
        amqp: bool = False,
        filter: MessageFilter | None = None,
        on_decode_error: Literal['raise', 'skip', 'raw'] = 'raise',
        copy: bool = True,
    ) -> None:
        super().__init__(self, Decoder(amqp, on_decode_error, copy=copy), filter)
        self.consumed: list[int] = []
        self.progress: list[int | None] = []

    def check_loop(self) -> None:
        """Accept every event loop."""

    def on_progress(self) -> None:
        self.progress.append(self.finished)

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        self.consumed.append(chunk.offset)

    def advance(self, kind: int = KINDS['body'], limit: int = NO_LIMIT) -> bool:
        return FastSubscription(self, self)._advance(self, kind, limit)

    def take(self, kind: int = KINDS['body']) -> Any:
        return FastSubscription(self, self)._take(self, kind)

    def push(self, data: bytes) -> None:
        self.queue.push(Chunk.parse(data))

    def on_replaced(self) -> None:
        raise AssertionError

    def __aiter__(self) -> FastSubscription:
        return FastSubscription(self, self)

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return anext(FastSubscription(self, self))

    def on_end(self) -> None:
        raise AssertionError

    async def wait(self, kind: int, limit: int, subscription: FastSubscription) -> Any:
        if not subscription._advance(self, kind, limit):
            raise StopAsyncIteration
        return subscription._take(self, kind)


def contexts(cursor: Cursor) -> list[MessageCtx]:
    """Contexts of all messages that have arrived."""
    found = []
    while cursor.advance(KINDS['context']):
        found.append(cursor.take(KINDS['context']))
    return found


def batches(cursor: Cursor, limit: int = 1000) -> list[MessageBatch]:
    """All messages that have arrived, in batches."""
    found = []
    while cursor.advance(KINDS['batch'], limit):
        found.append(cursor.take(KINDS['batch']))
    return found


def drain(cursor: Cursor) -> list[tuple[int, Any]]:
    """Offset and body of all messages that have arrived."""
    found = []
    while cursor.advance():
        value = cursor.take()
        found.append((cursor.last.context().stream_offset, value))
    return found


def amqp(body: Any) -> bytes:
    data: bytes = encode_amqp_bytes(stream_message_ctx(body))
    return data
