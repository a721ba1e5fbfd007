from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

from .._turn import Sampler, Turn
from ..amqp import Message
from ..types import AMQPBody
from ._entry import SubEntry
from ._pending import ConfirmWaiter

@final
class PublishWindow:
    publisher_id: Final[int]
    next_id: Final[int]
    amqp: Final[bool]
    encode: Final[Callable[[Any], bytes] | None]
    queued: Final[int]
    frame_max: Final[int]
    max_unconfirmed: Final[int]
    frame_entries: Final[int]
    in_flight: Final[int]
    published: Final[int]
    confirmed: Final[int]
    refused: Final[int]
    repeated: Final[int]
    last_confirm: Final[float | None]
    resent: Final[int]
    needs_redeclare: Final[bool]
    unsettled: Final[int]
    last_sent: Final[int]
    given_up: Final[int]
    awaited: Final[int]
    oldest: Final[int | None]
    named: Final[bool]
    def __init__(
        self,
        publisher_id: int,
        frame_max: int | None,
        max_unconfirmed: int,
        next_id: int,
        filter_extract: Callable[[Message], str | None] | None = None,
        amqp: bool = True,
        sub_entry: SubEntry | None = None,
        encode: Callable[[Any], bytes] | None = None,
    ) -> None: ...
    def append(self, message: AMQPBody | Message, waiter: ConfirmWaiter) -> int: ...
    def put(self, message: AMQPBody | Message, future: Any) -> int: ...
    def extend(
        self,
        iterator: Iterable[AMQPBody | Message],
        limit: int,
        waiter: ConfirmWaiter,
        turn: Turn | None = None,
    ) -> bool: ...
    def check_ids(
        self,
        messages: Sequence[AMQPBody | Message],
        start: int,
        stop: int,
        before: int | None = None,
    ) -> int | None: ...
    def resize(self, max_unconfirmed: int) -> None: ...
    def set_named(self, named: bool) -> None: ...
    def start_at(self, next_id: int) -> None: ...
    def listen(self, on_settled: Callable[[list[ConfirmWaiter]], None] | None) -> None: ...
    def time_confirms(self, latency: Sampler) -> None: ...
    def take(self) -> bytes | None: ...
    def give_up(self, id: int, waiter: Any) -> bool: ...
    def resume(self, id: int, future: Any) -> bool: ...
    def join(self, message: AMQPBody | Message, waiter: ConfirmWaiter) -> int | None: ...
    def replay(self, publisher_id: int, frame_max: int) -> list[ConfirmWaiter]: ...
    def count_in_flight(self, last: int) -> int: ...
    def count_unsent(self) -> int: ...
    def count_unreported(self) -> tuple[int, int]: ...
    def fail_pending(self) -> list[ConfirmWaiter]: ...
    def unsettled_of(self, waiter: ConfirmWaiter) -> list[int]: ...
