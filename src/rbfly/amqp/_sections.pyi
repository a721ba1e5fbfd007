from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Self, final
from uuid import UUID

from ._types import Symbol, Timestamp

class DataBody(bytes):
    @property
    def sections(self) -> tuple[bytes, ...]: ...
    def __new__(cls, sections: Iterable[bytes | bytearray | memoryview] = ...) -> Self: ...

class SequenceBody(list[Any]):
    def __init__(self, sections: Iterable[Iterable[Any]] = ...) -> None: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def sections(self) -> list[list[Any]]: ...

@final
class AMQPHeader:
    durable: Final[bool]
    priority: Final[int]
    ttl: Final[int | None]
    first_acquirer: Final[bool]
    delivery_count: Final[int]
    def __init__(
        self,
        fields: Sequence[Any] | None = None,
        *,
        durable: bool | None = None,
        priority: int | None = None,
        ttl: int | None = None,
        first_acquirer: bool | None = None,
        delivery_count: int | None = None,
    ) -> None: ...

@final
class AMQPProperties:
    def __init__(
        self,
        fields: Sequence[Any] | None = None,
        *,
        message_id: int | UUID | bytes | bytearray | memoryview | str | None = None,
        user_id: bytes | bytearray | memoryview | None = None,
        to: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        correlation_id: int | UUID | bytes | bytearray | memoryview | str | None = None,
        content_type: Symbol | str | None = None,
        content_encoding: Symbol | str | None = None,
        absolute_expiry_time: datetime | Timestamp | None = None,
        creation_time: datetime | Timestamp | None = None,
        group_id: str | None = None,
        group_sequence: int | None = None,
        reply_to_group_id: str | None = None,
    ) -> None: ...
    message_id: Final[int | UUID | bytes | str | None]
    user_id: Final[bytes | None]
    to: Final[str | None]
    subject: Final[str | None]
    reply_to: Final[str | None]
    correlation_id: Final[int | UUID | bytes | str | None]
    content_type: Final[Symbol | None]
    content_encoding: Final[Symbol | None]
    absolute_expiry_time: Final[datetime | Timestamp | None]
    creation_time: Final[datetime | Timestamp | None]
    group_id: Final[str | None]
    group_sequence: Final[int | None]
    reply_to_group_id: Final[str | None]
