from collections.abc import Callable
from typing import Final, Protocol

from .._turn import Turn
from ..amqp import Message
from ._chunk import Chunk, ChunkQueue
from ._decoder import Decoder
from ._identity import LastChunk

class _Filter(Protocol):
    def matches(self, message: Message, /) -> bool: ...

class _Session(Protocol):
    def on_chunk_consumed(self, chunk: Chunk, /) -> None: ...
    def on_progress(self) -> None: ...
    def on_replaced(self) -> None: ...
    def on_end(self) -> None: ...

class _End(Protocol):
    def stop(self, chunk: Chunk, /) -> int: ...

KINDS: dict[str, int]

class LastMessage:
    stream: Final[str | None]
    super_stream: Final[str | None]
    def __init__(self, cursor: MessageCursor) -> None: ...
    def context(self) -> Message: ...

class MessageCursor:
    queue: Final[ChunkQueue]
    stream: Final[str | None]
    super_stream: Final[str | None]
    last: Final[LastMessage]
    chunk: Final[Chunk | None]
    last_chunk: Final[LastChunk]
    skip_before: Final[int]
    skip_through_chunk: Final[int]
    turn: Final[Turn]
    must_yield: Final[bool]
    has_messages: Final[bool]
    delivered_count: Final[int]
    position: Final[int | None]
    delivered: Final[int | None]
    unfinished: Final[int | None]
    finished: Final[int | None]
    finished_count: Final[int | None]
    def __init__(
        self,
        session: _Session | None,
        decoder: Decoder,
        filter: _Filter | None = None,
        wake: Callable[[], object] | None = None,
        turn: Turn | None = None,
        yield_after: int = ...,
        stream: str | None = None,
        super_stream: str | None = None,
        until: _End | None = None,
        queue_limit: int = ...,
    ) -> None: ...
    def close(self) -> None: ...
    def join(self, limit: int, now: float) -> float | None: ...
    def resume(self, skip_before: int = 0, skip_through_chunk: int = -1) -> None: ...
    def drop(self) -> int: ...
    def start_over(self) -> None: ...
    def notify_at(self, offset: int) -> None: ...
    def mark_consumed(self) -> None: ...
