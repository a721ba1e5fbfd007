import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from ..amqp import MessageCtx
from ..net.connection import Connection
from ..net.polling import BusyPoll
from ..net.waiting import CloseTimeout
from ..protocol._pending import PendingConfirms
from ..protocol._publish import PublishWindow
from ..types import AMQPBody
from ._confirm import ConfirmFuture, ConfirmGroup

class _Session(Protocol):
    closing: CloseTimeout
    def check(self) -> None: ...
    def settle(self, waiter: Any) -> None: ...
    def after_settled(self) -> None: ...

class SemaphoreState:
    reserved: int
    waiting: Any

@final
class PublisherCore:
    session: Final[_Session | None]
    connection: Final[Connection | None]
    error: Final[Exception | None]
    closed: Final[bool]
    window: Final[PublishWindow]
    scheduled: Final[bool]
    loop: Final[asyncio.AbstractEventLoop]
    capacity: Final[Any]
    poll: BusyPoll | None
    watched: bool
    def __init__(
        self,
        error: Exception,
        loop: asyncio.AbstractEventLoop,
        window: PublishWindow,
        semaphore: Callable[[Callable[[int], bool]], SemaphoreState],
    ) -> None: ...
    def bind(self, session: _Session) -> None: ...
    def resume(self, connection: Connection, publisher_id: int) -> None: ...
    def suspend(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def close(self) -> None: ...
    def end(self, error: Exception) -> None: ...
    def has_capacity(self, count: int) -> bool: ...
    def is_paused(self) -> bool: ...
    def check_loop(self) -> None: ...
    def schedule(self) -> None: ...
    def write(self) -> None: ...
    def on_settled(self, done: list[PendingConfirms]) -> None: ...

class PublisherBase:
    _core: PublisherCore
    def _begin(self, message: AMQPBody | MessageCtx) -> ConfirmFuture | None: ...
    def _put(self, message: AMQPBody | MessageCtx) -> ConfirmFuture: ...

@final
class Batches:
    sent: Final[list[ConfirmGroup]]
    filling: Final[ConfirmGroup]
    capacity: Final[Any]
    def __init__(
        self,
        core: PublisherCore,
        semaphore: Callable[[Callable[[int], bool]], SemaphoreState] | None = None,
    ) -> None: ...
    def fits(self, max_len: int) -> bool: ...
    def release(self) -> None: ...
    def forget(self, reported: list[ConfirmGroup]) -> None: ...

class BatchBase(PublisherBase):
    _batches: Batches
    def batch(self, message: AMQPBody | MessageCtx) -> None: ...
