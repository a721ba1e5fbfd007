from collections import deque
from collections.abc import Callable
from typing import Final, final

from .._turn import Sampler

@final
class Chunk:
    type: Final[int]
    entries: Final[int]
    records: Final[int]
    timestamp: Final[int]
    epoch: Final[int]
    offset: Final[int]
    committed_chunk_id: Final[int | None]
    @staticmethod
    def parse(data: bytes, committed_chunk_id: int | None = None) -> Chunk: ...
    @property
    def trailer(self) -> bytes: ...
    def verify(self) -> None: ...
    def messages(self) -> list[bytes]: ...

@final
class ChunkQueue:
    chunks: Final[deque[Chunk]]
    received: Final[int]
    last_chunk: Final[float | None]
    def __init__(self, wake: Callable[[], object] | None = None, limit: int = ...) -> None: ...
    def push(self, chunk: Chunk) -> None: ...
    def measure(self, sizes: Sampler) -> None: ...
