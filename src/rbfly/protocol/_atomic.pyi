from collections.abc import Iterable
from typing import Final, final

from ..amqp import Message
from ..types import AMQPBody
from ._publish import PublishWindow

ATOMIC_MAX: Final[int]

@final
class AtomicBatch:
    count: Final[int]
    def __init__(self, window: PublishWindow) -> None: ...
    def extend(self, messages: Iterable[AMQPBody | Message]) -> None: ...
    def close(self) -> None: ...
