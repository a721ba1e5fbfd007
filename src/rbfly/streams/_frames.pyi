from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from typing_extensions import disjoint_base

from ..amqp import MessageCtx
from ..types import AMQPBody
from ._entry import SubEntry

@final
class Waiter:
    future: Any
    @property
    def remaining(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def first_refused(self) -> int: ...
    @property
    def errors(self) -> list[tuple[int, int]] | None: ...
    @property
    def too_large(self) -> tuple[int, int, int] | None: ...
    def __init__(self, future: Any = None, sealed: bool = False) -> None: ...
    def seal(self) -> bool: ...

@final
class Share: ...

@final
class Frame: ...

@disjoint_base
class FrameBuilder:
    @property
    def publisher_id(self) -> int: ...
    @property
    def next_id(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def frame_entries(self) -> int: ...
    def __init__(
        self,
        publisher_id: int,
        frame_max: int,
        frame_entries: int,
        next_id: int,
        filter_extract: Callable[[MessageCtx], str | None] | None = None,
        amqp: bool = True,
        batched: bool = False,
        block: SubEntry | None = None,
    ) -> None: ...
    def append(self, message: AMQPBody | MessageCtx, waiter: Waiter) -> int: ...
    def put(self, message: AMQPBody | MessageCtx, future: Any) -> int: ...
    def extend(
        self, iterator: Iterable[AMQPBody | MessageCtx], limit: int, waiter: Waiter
    ) -> bool: ...
    def check_ids(
        self,
        messages: Sequence[AMQPBody | MessageCtx],
        start: int,
        stop: int,
        before: int | None = None,
    ) -> int | None: ...
