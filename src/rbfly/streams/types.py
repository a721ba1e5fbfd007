"""Types of the streams API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..amqp import MessageCtx
from ..error import ArgumentTypeError, PublishErrorInfo, SendProgress, of_callback
from ..later import later
from ..protocol.compression import Compression
from ..protocol.offset import Offset
from ..record import CheckedRecord, Record

if TYPE_CHECKING:
    from ..amqp.body_codec import Codec
    from ..types import AMQPBody as AMQPBody
else:
    __getattr__ = later(__name__, {'rbfly.types': 'AMQPBody'})

__all__ = [
    'AMQPBody',
    'BloomFilterExtract',
    'Commit',
    'MessageCtx',
    'MessageFilter',
    'OnDecodeError',
    'OnGap',
    'PSubscriber',
    'PublishErrorInfo',
    'PublisherInfo',
    'SendProgress',
    'StreamStats',
    'SubscriptionInfo',
]

Commit = Literal['auto', 'manual', 'off']
"""How a subscription stores its offset: automatically, when the program calls `commit`, or not."""

OnDecodeError = Literal['raise', 'skip', 'raw']
"""What to do with a message that is not AMQP 1.0: raise AMQPDecoderError, skip it, or yield its
bytes."""

OnGap = Literal['raise', 'warn', 'ignore']
"""What to do if retention has removed messages before they were read: raise OffsetGapError, log a
warning, or nothing."""

BloomFilterExtract = Callable[[MessageCtx], str | None]
"""Returns the filter value of a message, or None."""


class MessageFilter(CheckedRecord):
    """Selects the messages of a subscription by their filter values.

    The broker sends the chunks that may contain such messages; RbFly drops all other messages of
    these chunks.

    :param extract: returns the filter value of a message, a str; None for a message without one.
    :param values: filter values to select, at least one unless `match_unfiltered` is set; the empty
        string selects messages without one.
    :param match_unfiltered: also select messages without a filter value.
    """

    extract: BloomFilterExtract
    values: set[str]
    match_unfiltered: bool = False

    def __post_init__(self) -> None:
        # An iterator can be read only once.  `subscribe` rejects values that are not strings.
        if not isinstance(self.values, str):
            with suppress(TypeError):
                object.__setattr__(self, 'values', frozenset(self.values))

    def matches(self, message: MessageCtx) -> bool:
        """Return True if the filter selects a message."""
        try:
            value = self.extract(message)
        except BaseException as ex:
            where = f'`extract` of MessageFilter for the message at offset {message.stream_offset}'
            raise of_callback(ex, where)  # noqa: B904 - the same error
        if value is None:
            value = ''
        elif not isinstance(value, str):  # else the messages would silently be dropped
            raise ArgumentTypeError(
                f'`extract` of MessageFilter must return str or None, not {type(value).__name__}'
                f' (message at offset {message.stream_offset})'
            )
        return value in self.values or (self.match_unfiltered and not value)

    def properties(self) -> dict[str, str]:
        """Return the subscription properties that make the broker filter."""
        found = {f'filter.{i}': value for i, value in enumerate(sorted(self.values))}
        return found | {'match-unfiltered': 'true'} if self.match_unfiltered else found


class PublisherInfo(Record):
    """Settings of a publisher, named as the arguments of :meth:`StreamsClient.publisher`."""

    stream: str
    name: str = ''
    filter_extract: BloomFilterExtract | None = None
    amqp: bool = True
    max_unconfirmed: int = 10_000
    sub_entry_size: int | None = None
    compression: Compression = Compression.NONE
    codec: Codec[Any] | None = None


class SubscriptionInfo(Record):
    """Settings of a subscription, named as the arguments of :meth:`StreamsClient.subscribe`."""

    stream: str
    offset: Offset = Offset.NEXT
    filter: MessageFilter | None = None
    timeout: float | None = 0
    amqp: bool = True


@runtime_checkable
class PSubscriber(Protocol):
    """Protocol of an iterator over the messages of a stream, such as `Subscription`.

    :ivar stream: name of the stream.
    """

    stream: str

    def __aiter__(self) -> AsyncIterator[Any]: ...

    def __anext__(self) -> Awaitable[Any]: ...

    async def aclose(self) -> None: ...


class ClientTracing(Protocol):
    """What makes spans of the calls of publishers; :func:`rbfly.otel.tracing` returns one."""

    def publisher_class(self, cls: type[Any]) -> type[Any]:
        """Return the class to use instead of a publisher class, derived from it."""

    def super_stream_publisher_class(self) -> type[Any]:
        """Return the class to use instead of SuperStreamPublisher, derived from it."""


class StreamStats(Record):
    """Positions in a stream; None if the stream is empty or the broker does not report them.

    :param first_chunk_id: offset of the first message of the first chunk.
    :param last_chunk_id: offset of the first message of the last chunk; stored offsets are written
        in chunks of their own, which count.
    :param committed_chunk_id: offset of the first message of the last committed chunk.
    :param committed_offset: offset of the last committed message (since RabbitMQ 4.3).
    """

    first_chunk_id: int | None
    last_chunk_id: int | None
    committed_chunk_id: int | None
    committed_offset: int | None
