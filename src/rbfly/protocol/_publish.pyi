from collections.abc import Callable
from typing import final

from ..amqp import MessageCtx
from ._entry import SubEntry
from ._frames import FrameBuilder, PendingConfirms

@final
class PublishWindow(FrameBuilder):
    on_settled: Callable[[list[PendingConfirms]], None] | None
    @property
    def in_flight(self) -> int: ...
    @property
    def max_unconfirmed(self) -> int: ...
    @property
    def needs_redeclare(self) -> bool: ...
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
        sub_entry: SubEntry | None = None,
    ) -> None: ...
    def take(self) -> bytes | None: ...
    def release(self) -> None: ...
    def replay(self, publisher_id: int, frame_max: int) -> list[PendingConfirms]: ...
    def fail_pending(self) -> list[PendingConfirms]: ...
