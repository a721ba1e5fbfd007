from collections.abc import Callable
from typing import Final, final

from ._chunk import ChunkQueue
from ._publish import PublishWindow

FRAME_CAP: int

@final
class Counters:
    connections: Final[int]
    connections_lost: Final[int]
    bytes_sent: Final[int]
    bytes_received: Final[int]
    def on_open(self) -> None: ...
    def on_end(self, lost: bool) -> None: ...

class Engine:
    frame_cap: int
    sink: Final[Callable[[bytes], object] | None]
    gather: Final[Callable[[list[bytes]], object] | None]
    wrote: bool
    heard: bool
    counters: Final[Counters]
    stopped: Final[bool]
    publishers: Final[list[PublishWindow | None]]
    def __init__(self, frame_cap: int = ..., counters: Counters | None = ...) -> None: ...
    def set_publisher(self, id: int, window: PublishWindow | None) -> None: ...
    def set_subscription(self, id: int, queue: ChunkQueue | None) -> None: ...
    def on_frame(self, key: int, version: int, body: bytes) -> None: ...
    def on_failure(self, error: Exception) -> None: ...
    def stop(self) -> None: ...
    def send_to(
        self,
        sink: Callable[[bytes], object] | None,
        gather: Callable[[list[bytes]], object] | None = None,
    ) -> None: ...
    def write(self, data: bytes | list[bytes]) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
