from collections.abc import Callable
from typing import final

from ..amqp import MessageCtx
from ._entry import SubEntry
from ._frames import FrameBuilder, Waiter

@final
class PublishWindow(FrameBuilder):
    on_settled: Callable[[list[Waiter]], None] | None
    @property
    def in_flight(self) -> int: ...
    @property
    def max_unconfirmed(self) -> int: ...
    @property
    def gone(self) -> bool: ...
    @property
    def unsettled(self) -> int: ...
    def __init__(
        self,
        publisher_id: int,
        frame_max: int,
        max_unconfirmed: int,
        next_id: int,
        filter_extract: Callable[[MessageCtx], str | None] | None = None,
        amqp: bool = True,
        batched: bool = False,
        block: SubEntry | None = None,
    ) -> None: ...
    def take(self) -> bytes | None: ...
    def release(self) -> None: ...
    def replay(self, publisher_id: int, frame_max: int) -> list[Waiter]: ...
    def abandon(self) -> list[Waiter]: ...
