from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Self, final
from uuid import UUID

from typing_extensions import disjoint_base

from ._types import Symbol, Timestamp

__pyx_capi__: Final[dict[str, Any]]
__test__: Final[dict[str, Any]]

@disjoint_base
class DataBody(bytes):
    @property
    def sections(self) -> tuple[bytes, ...]: ...
    def __new__(cls, sections: Iterable[bytes | bytearray | memoryview] = ...) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

class SequenceBody(list[Any]):
    def __init__(self, sections: Iterable[Iterable[Any]] = ...) -> None: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def sections(self) -> list[list[Any]]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

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
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

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
    @property
    def message_id(self) -> int | UUID | bytes | str | None: ...
    @property
    def user_id(self) -> bytes | None: ...
    @property
    def to(self) -> str | None: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def correlation_id(self) -> int | UUID | bytes | str | None: ...
    @property
    def content_type(self) -> Symbol | None: ...
    @property
    def content_encoding(self) -> Symbol | None: ...
    @property
    def absolute_expiry_time(self) -> datetime | Timestamp | None: ...
    @property
    def creation_time(self) -> datetime | Timestamp | None: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def group_sequence(self) -> int | None: ...
    @property
    def reply_to_group_id(self) -> str | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
