from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, final, overload

from typing_extensions import TypeVar

from ..error import AMQPDecoderError
from ..types import AMQPBody
from ._sections import AMQPHeader as AMQPHeader
from ._sections import AMQPProperties as AMQPProperties

_Get = TypeVar('_Get')
_Set = TypeVar('_Set')
_Body = TypeVar('_Body', default=Any)

class _Attribute(Generic[_Get, _Set]):
    def __get__(self, ctx: Message, owner: type[Message]) -> _Get: ...
    def __set__(self, ctx: Message, value: _Set) -> None: ...

class _ContextHolder(Protocol):
    def _current_message_ctx(self) -> Message: ...

@final
class Message(Generic[_Body]):
    is_set_stream_publish_id: bool
    @overload
    def __init__(
        self: Message[Any],
        body: AMQPBody,
        *,
        publish_id: int | None = None,
        properties: AMQPProperties | None = None,
        app_properties: Mapping[str, Any] | None = None,
        annotations: Mapping[Any, Any] | None = None,
        delivery_annotations: Mapping[Any, Any] | None = None,
        header: AMQPHeader | None = None,
        footer: Mapping[Any, Any] | None = None,
        stream_offset: int = 0,
        stream_timestamp: float = 0,
    ) -> None: ...
    @overload  # as in RbFly 0.10
    def __init__(
        self: Message[Any],
        body: AMQPBody,
        header: AMQPHeader | None = None,
        delivery_annotations: Mapping[Any, Any] | None = None,
        annotations: Mapping[Any, Any] | None = None,
        properties: AMQPProperties | None = None,
        app_properties: Mapping[str, Any] | None = None,
        footer: Mapping[Any, Any] | None = None,
        *,
        stream_offset: int = 0,
        stream_timestamp: float = 0,
        stream_publish_id: int | None = None,
        is_set_stream_publish_id: bool | None = None,
    ) -> None: ...
    body: _Body
    header: _Attribute[AMQPHeader, AMQPHeader | None]
    delivery_annotations: _Attribute[dict[Any, Any], Mapping[Any, Any] | None]
    annotations: _Attribute[dict[Any, Any], Mapping[Any, Any] | None]
    properties: _Attribute[AMQPProperties, AMQPProperties | None]
    app_properties: _Attribute[dict[str, Any], Mapping[str, Any] | None]
    footer: _Attribute[dict[Any, Any], Mapping[Any, Any] | None]
    @property
    def stream(self) -> str | None: ...
    @property
    def next_offset(self) -> int: ...
    stream_offset: int
    stream_timestamp: float
    publish_id: int | None
    stream_publish_id: _Attribute[int, int | None]
    @property
    def decode_error(self) -> AMQPDecoderError | None: ...
    raw: Final[memoryview | None]
    def body_view(self) -> memoryview: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

MessageCtx = Message
stream_message_ctx = Message

def get_message_ctx() -> Message: ...
def last_offset(stream: str) -> int: ...
def last_partition(super_stream: str) -> str | None: ...
def last_super_stream(partition: str | None) -> str | None: ...
def set_message_ctx(context: Message | _ContextHolder) -> None: ...
