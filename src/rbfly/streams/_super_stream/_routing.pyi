from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, final

from ..._turn import Turn
from ...amqp import Message
from ...types import AMQPBody
from .._publish._confirm import ConfirmFuture, ConfirmGroup
from .._publish._core import PublisherCore
from .._publish.session import PublisherSession

_Message = AMQPBody | Message

def hash32(key: str) -> int: ...

@final
class HashRoute:
    key: Final[Callable[[Any], str]]
    def __init__(self, key: Callable[[Any], str]) -> None: ...
    def __call__(self, message: Any, partitions: Sequence[str]) -> str: ...

@final
class KeyRoute:
    key: Final[Callable[[Any], str]]
    def __init__(self, key: Callable[[Any], str]) -> None: ...

@final
class PublishTarget:
    index: Final[int]
    publisher: Final[Any]
    session: Final[PublisherSession]
    core: Final[PublisherCore]
    def __init__(self, index: int, publisher: object) -> None: ...

_Found = PublishTarget | tuple[PublishTarget, ...]

@final
class Router:
    route: Final[Any]
    key: Final[Callable[[Any], str] | None]
    names: Final[tuple[str, ...]]
    partitions: Final[dict[str, PublishTarget]]
    cache: Final[dict[str, _Found]]
    holds: Final[bool]
    def __init__(
        self,
        route: object,
        names: tuple[str, ...],
        partitions: dict[str, PublishTarget],
    ) -> None: ...
    def hold(self, holds: bool) -> None: ...
    def find(self, message: _Message) -> _Found | str: ...
    def find_batch(self, messages: Iterable[_Message], explicit: bool) -> list[_Found | str]: ...
    def targets(self, found: object, key: str | None = None) -> _Found: ...

class FastRoutedPublisher:
    _router: Router
    def batch(self, message: _Message) -> None: ...
    def _begin(
        self, message: _Message, timeout: float | None
    ) -> ConfirmFuture | Coroutine[Any, Any, None]: ...

@final
class RoutedMessages:
    taken: Final[int]
    target: Final[_Found | str]
    in_hand: Final[bool]
    groups: Final[dict[PublisherSession, ConfirmGroup]]
    skipped: Final[list[int]]
    partial: Final[list[int]]
    def __init__(self, router: Router) -> None: ...
    def fill(self, iterator: Iterator[_Message], turn: Turn) -> bool: ...
    def put(self, partition: PublishTarget) -> None: ...
    def take(self, message: _Message) -> None: ...
    def find(self) -> None: ...
    def finish(self) -> None: ...
    def skip(self) -> None: ...
    def write(self) -> None: ...
    def has_failed(self, sessions: Iterable[PublisherSession]) -> bool: ...
