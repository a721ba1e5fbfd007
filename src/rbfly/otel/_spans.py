"""The spans of one publisher, named and attributed as OpenTelemetry's conventions say."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
)

from ..error import AMQPDecoderError, SendProgress
from ..net.observer import facts
from ..streams import MessageCtx
from ._carrier import WRITER, OfBody, origin_of

if TYPE_CHECKING:
    from ..net.uri import Address
    from ..streams._publish._core import PublisherCore

Attributes = dict[str, str | int]
Flush = Callable[[float | None], Awaitable[None]]
Sent = tuple[str | None, int]  # partition and explicit publishing id of a message
SendMany = Callable[..., Awaitable[int]]  # the method of a publisher
SendAtomic = Callable[..., Awaitable[None]]  # the same

SYSTEM = 'messaging.system'
OPERATION = 'messaging.operation.name'
TYPE = 'messaging.operation.type'
DESTINATION = 'messaging.destination.name'
PARTITION = 'messaging.destination.partition.id'
COUNT = 'messaging.batch.message_count'
GROUP = 'messaging.consumer.group.name'
CLIENT = 'messaging.client.id'
MESSAGE = 'messaging.message.id'
CONVERSATION = 'messaging.message.conversation_id'
OFFSET = 'messaging.rabbitmq.stream.offset'  # RbFly's own: the conventions have none
ERROR = 'error.type'

LINKS = 128  # of a span, as OpenTelemetry's SDK keeps by default
AGAIN = 10_000  # unconfirmed messages with explicit publishing ids whose contexts are kept
RUN = 10_000  # messages of a list between two turns of the event loop

logger: logging.Logger = logging.getLogger('rbfly.otel')


def attributes_of(operation: str, destination: str) -> Attributes:
    """Return the attributes that all spans of an operation have."""
    return {SYSTEM: 'rabbitmq', OPERATION: operation, TYPE: operation, DESTINATION: destination}


def fail(span: Span, error: BaseException) -> None:
    """Note the error that ends the operation of a span."""
    if span.is_recording():
        name = type(error).__qualname__
        span.set_attribute(ERROR, name)
        span.set_status(Status(StatusCode.ERROR, f'{name}: {error}' if str(error) else name))


def finish(span: Span) -> None:
    """End a span.

    If a processor of spans fails, its error goes to the exception handler of the event loop, or to
    the log without one: the caller must learn what became of the messages.
    """
    try:
        span.end()
    except Exception as ex:
        message = 'a processor of spans has failed'
        loop = asyncio._get_running_loop()
        if loop is None:
            logger.error(message, exc_info=ex, extra=facts('', 'span_processor_failed'))
        else:
            loop.call_exception_handler({'message': message, 'exception': ex})


def identify(span: Span, message: MessageCtx) -> None:
    """Note the ids of a message."""
    try:
        properties = message.properties
    except AMQPDecoderError:  # the program may not look at them
        return
    for name, value in (
        (MESSAGE, properties.message_id),
        (CONVERSATION, properties.correlation_id),
    ):
        if value is not None:
            span.set_attribute(name, value.hex() if isinstance(value, bytes) else str(value))


class TraceSettings(NamedTuple):
    """How publishers make spans.

    :ivar tracer: makes them.
    :ivar with_carrier: returns a message that carries a context.
    :ivar create_spans: make one for each message of several.
    """

    tracer: Tracer
    with_carrier: Callable[[Any, dict[str, str]], MessageCtx]
    create_spans: bool


class PublisherSpans:
    """Begins and ends the spans of a publisher.

    :param stream: name of the stream or super stream.
    :param carries: messages are AMQP 1.0, and so can carry a context.
    :param client_id: name of the client's connections; '' for none.
    """

    def __init__(self, settings: TraceSettings, stream: str, carries: bool, client_id: str) -> None:
        self.settings = settings
        self.carries = carries
        self._name = f'send {stream}'
        self._create_name = f'create {stream}'
        named: Attributes = {CLIENT: client_id} if client_id else {}
        self._attributes = attributes_of('send', stream) | named
        self._create_attributes = attributes_of('create', stream) | named
        # The attributes of spans by partition, and the node that they name.
        self._known: dict[str | None, tuple[Address | None, Attributes]] = {}
        # The contexts of messages that may be in flight.  A message that is sent again must be the
        # same as before.
        self._again: dict[Sent, tuple[SpanContext, dict[str, str]]] = {}
        self._queued: deque[Link] = deque(maxlen=LINKS)  # to the messages of `batch`
        self._context: Context | None = None  # in which `batch` was last called
        self._carrier: dict[str, str] = {}  # of that context
        # That context, if bodies that `batch` queues in it carry nothing.
        self.bare: Context | None = None

    def _attributes_at(self, core: PublisherCore | None, partition: str | None) -> Attributes:
        """Return the attributes of a span at its start, when a sampler sees them."""
        connection = None if core is None else core.connection
        address = None if connection is None else connection.address
        known = self._known.get(partition)
        if known is None or known[0] is not address:
            found = dict(self._attributes)
            if partition is not None:
                found[PARTITION] = partition
            if address is not None:
                found |= {'server.address': address.host, 'server.port': address.port}
            known = self._known[partition] = address, found
        return known[1]

    def _start(self, kind: SpanKind, attributes: Attributes, links: Sequence[Link] = ()) -> Span:
        return self.settings.tracer.start_span(self._name, None, kind, attributes, links)

    # -- one message

    def begin(
        self, message: Any, core: PublisherCore | None, partition: str | None = None
    ) -> tuple[Span, Any, Sent | None]:
        """Begin to send a message; return its span, the message to send, and what `end` needs."""
        origin: SpanContext | None = None
        carrier: dict[str, str] | None = None
        sent: Sent | None = None
        if self.carries and isinstance(message, MessageCtx):
            origin = origin_of(message)
            if message.publish_id is not None:
                sent = partition, message.publish_id
            if origin is None and sent in self._again:
                origin, carrier = self._again[sent]
        attributes = self._attributes_at(core, partition)
        if origin is not None or not self.carries:
            links = () if origin is None else (Link(origin),)
            span = self._start(SpanKind.CLIENT, attributes, links)
        else:
            span = self._start(SpanKind.PRODUCER, attributes)
            carrier = WRITER.inject(span, get_current())
            if sent is not None and carrier:
                self._keep(sent, span.get_span_context(), carrier)
        if isinstance(message, MessageCtx) and span.is_recording():
            identify(span, message)
        if carrier:
            message = self.settings.with_carrier(message, carrier)
        return span, message, sent

    def _keep(self, sent: Sent, context: SpanContext, carrier: dict[str, str]) -> None:
        self._again[sent] = context, carrier
        if len(self._again) > AGAIN:
            del self._again[next(iter(self._again))]

    def end(self, span: Span, sent: Sent | None, error: BaseException | None = None) -> None:
        """End the span of a message that is confirmed, or has failed."""
        if error is not None:
            fail(span, error)
        elif sent is not None:  # else it may still be in flight
            self._again.pop(sent, None)
        finish(span)

    def end_submitted(self, span: Span, sent: Sent | None, confirmation: Any) -> None:
        """The same, once the future of `submit` is done."""
        cancelled = confirmation.cancelled()
        error = asyncio.CancelledError() if cancelled else confirmation.failure
        self.end(span, sent, error)

    # -- many messages

    def create(self, context: Context | None) -> tuple[Link | None, dict[str, str]]:
        """Make the span of one message of several; return a link to it, and what to carry."""
        span = self.settings.tracer.start_span(
            self._create_name, context, SpanKind.PRODUCER, self._create_attributes
        )
        carrier = WRITER.inject(span, get_current() if context is None else context)
        finish(span)
        found = span.get_span_context()
        return Link(found) if found.is_valid else None, carrier

    def queue(self, message: Any, put: Callable[[Any], None]) -> None:
        """Queue a message of `batch`.

        :param put: queues a message.
        """
        link: Link | None = None
        if self.carries:
            carrier: dict[str, str] = {}
            origin = origin_of(message) if isinstance(message, MessageCtx) else None
            if origin is not None:
                link = Link(origin)
            elif self.settings.create_spans:
                link, carrier = self.create(None)
            else:
                context = get_current()
                if context is not self._context:  # contexts do not change
                    self._carrier = WRITER.inject(get_current_span(context), context)
                    self._context = context
                    self.bare = None if self._carrier else context
                carrier = self._carrier
            if carrier:
                message = self.settings.with_carrier(message, carrier)
        put(message)
        if link is not None:
            self._queued.append(link)

    async def flush(
        self, flush: Flush, timeout: float | None, count: int, core: PublisherCore | None
    ) -> None:
        """Call `flush` in a span, unless it has no messages to send.

        :param count: number of messages of `batch` whose outcome `flush` has not reported.
        """
        if not count:
            await flush(timeout)
            return
        links = [*self._queued]
        self._queued.clear()
        attributes = {**self._attributes_at(core, None), COUNT: count}
        span = self._start(SpanKind.CLIENT, attributes, links)
        try:
            await flush(timeout)
        except BaseException as ex:
            fail(span, ex)
            raise
        finally:
            finish(span)


class SendManySpan:
    """The span of one call of `send_many` or `send_atomic`.

    :param core: where the messages go; None for several partitions.
    """

    def __init__(self, spans: PublisherSpans, core: PublisherCore | None, messages: object) -> None:
        self._spans = spans
        self._settings = spans.settings
        self._ambient = get_current()
        self._creates = spans.carries and self._settings.create_spans
        own = spans.carries and not self._creates
        attributes = spans._attributes_at(core, None)
        if isinstance(messages, list | tuple):
            attributes = {**attributes, COUNT: len(messages)}
        self._span = spans._start(SpanKind.PRODUCER if own else SpanKind.CLIENT, attributes)
        # what messages carry: all of them, or each its own; routes must tell bodies from contexts
        self._kind: type[dict[str, str]] = OfBody if core is None else dict
        self._carrier: dict[str, str] = {}
        if own:
            self._carrier = self._kind(WRITER.inject(self._span, self._ambient))
        self._links = 0

    async def call(
        self,
        send_many: SendMany,
        messages: Any,
        timeout: float | None,
        progress: SendProgress | None,
    ) -> int:
        """Call `send_many` with messages that carry their context, and end the span."""
        progress = SendProgress() if progress is None else progress
        try:
            count = await send_many(await self.carried(messages), timeout, progress=progress)
        except BaseException as ex:
            self._end(progress, ex)
            raise
        self._end(progress)
        return count

    async def call_atomic(
        self,
        send_atomic: SendAtomic,
        messages: Sequence[Any],
        timeout: float | None,
        publish_id: int | None,
    ) -> None:
        """Call `send_atomic` in the same way; the number of messages is known."""
        try:
            await send_atomic(await self.carried(messages), timeout, publish_id=publish_id)
        except BaseException as ex:
            self._end(None, ex)
            raise
        self._end(None)

    def _end(self, progress: object, error: BaseException | None = None) -> None:
        span = self._span
        if isinstance(progress, SendProgress) and span.is_recording():
            span.set_attribute(COUNT, progress.taken)
        if error is not None:
            fail(span, error)
        finish(span)

    def _link(self, context: SpanContext) -> None:
        if self._links < LINKS:
            self._links += 1
            self._span.add_link(context)

    def carry(self, message: Any) -> Any:
        """Return a message that carries its context."""
        carrier = self._carrier
        if isinstance(message, MessageCtx):
            origin = origin_of(message)
            if origin is not None:
                self._link(origin)
                return message
        if self._creates:
            link, found = self._spans.create(self._ambient)
            carrier = self._kind(found)
            if link is not None:
                self._link(link.context)
        return self._settings.with_carrier(message, carrier) if carrier else message

    async def carried(self, messages: Any) -> Any:
        """Return messages that carry their contexts, as what `send_many` takes."""
        if not self._spans.carries or not (self._carrier or self._creates):
            return messages
        if isinstance(messages, str | bytes | bytearray | memoryview | Mapping | MessageCtx):
            return messages  # which `send_many` refuses
        if isinstance(messages, list | tuple):
            found: list[Any] = []
            for start in range(0, len(messages), RUN):
                if start:
                    await asyncio.sleep(0)
                found += map(self.carry, messages[start : start + RUN])
            return found
        if isinstance(messages, AsyncIterable):
            return CarryAsync(messages, self.carry)
        return Carry(messages, self.carry) if isinstance(messages, Iterable) else messages


class Carry(Iterable[Any]):
    """Messages that carry their contexts."""

    def __init__(self, messages: Iterable[Any], carry: Callable[[Any], Any]) -> None:
        self._messages = messages
        self._carry = carry

    def __iter__(self) -> Iterator[Any]:
        return map(self._carry, self._messages)


class CarryAsync(AsyncIterable[Any]):
    """The same, of an asynchronous iterator."""

    def __init__(self, messages: AsyncIterable[Any], carry: Callable[[Any], Any]) -> None:
        self._messages = messages
        self._carry = carry

    def __aiter__(self) -> AsyncIterator[Any]:
        return CarryingIterator(aiter(self._messages), self._carry)


class CarryingIterator(AsyncIterator[Any]):
    """Not an asynchronous generator, which the event loop would have to close."""

    def __init__(self, iterator: AsyncIterator[Any], carry: Callable[[Any], Any]) -> None:
        self._iterator = iterator
        self._carry = carry

    async def __anext__(self) -> Any:
        return self._carry(await anext(self._iterator))
