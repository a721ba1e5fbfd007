from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, final

from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody
from ._sections import AMQPHeader as AMQPHeader
from ._sections import AMQPProperties as AMQPProperties

class _ContextHolder(Protocol):
    def _current_message_ctx(self) -> MessageCtx: ...

@final
class MessageCtx:
    is_set_stream_publish_id: bool
    def __init__(
        self,
        body: AMQPBody,
        header: AMQPHeader | None = None,
        delivery_annotations: AMQPAnnotations | None = None,
        annotations: AMQPAnnotations | None = None,
        properties: AMQPProperties | None = None,
        app_properties: AMQPAppProperties | None = None,
        footer: AMQPAnnotations | None = None,
        *,
        stream_offset: int = 0,
        stream_timestamp: float = 0,
        stream_publish_id: int | None = None,
        is_set_stream_publish_id: bool | None = None,
    ) -> None: ...
    # the type of the body depends on the message
    body: Any
    @property
    def header(self) -> AMQPHeader: ...
    @header.setter
    def header(self, value: AMQPHeader | None) -> None: ...
    @property
    def delivery_annotations(self) -> dict[Any, Any]: ...
    @delivery_annotations.setter
    def delivery_annotations(self, value: Mapping[Any, Any] | None) -> None: ...
    @property
    def annotations(self) -> dict[Any, Any]: ...
    @annotations.setter
    def annotations(self, value: Mapping[Any, Any] | None) -> None: ...
    @property
    def properties(self) -> AMQPProperties: ...
    @properties.setter
    def properties(self, value: AMQPProperties | None) -> None: ...
    @property
    def app_properties(self) -> dict[str, Any]: ...
    @app_properties.setter
    def app_properties(self, value: Mapping[str, Any] | None) -> None: ...
    @property
    def footer(self) -> dict[Any, Any]: ...
    @footer.setter
    def footer(self, value: Mapping[Any, Any] | None) -> None: ...
    @property
    def stream_offset(self) -> int: ...
    @stream_offset.setter
    def stream_offset(self, value: int) -> None: ...
    @property
    def stream_timestamp(self) -> float: ...
    @stream_timestamp.setter
    def stream_timestamp(self, value: float) -> None: ...
    @property
    def stream_publish_id(self) -> int: ...
    @stream_publish_id.setter
    def stream_publish_id(self, value: int | None) -> None: ...
    raw: Final[memoryview | None]
    def body_view(self) -> memoryview: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

def stream_message_ctx(
    body: AMQPBody,
    *,
    publish_id: int | None = None,
    header: AMQPHeader | None = None,
    properties: AMQPProperties | None = None,
    annotations: Mapping[Any, Any] | None = None,
    delivery_annotations: Mapping[Any, Any] | None = None,
    app_properties: Mapping[str, Any] | None = None,
    footer: Mapping[Any, Any] | None = None,
) -> MessageCtx: ...
def get_message_ctx() -> MessageCtx: ...
def last_offset(stream: str) -> int: ...
def set_message_ctx(context: MessageCtx | _ContextHolder) -> None: ...
