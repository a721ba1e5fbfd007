"""The spans of a client: what `tracing` returns."""

from __future__ import annotations

from functools import partial
from types import TracebackType, new_class
from typing import Any, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from .. import __version__
from ..amqp._message import last_super_stream
from ..error import ArgumentError, ArgumentTypeError
from ..streams import MessageBatch, MessageCtx, Publisher, SuperStreamPublisher, get_message_ctx
from ._carrier import carrying, extracted, origin_of
from ._publishers import TracedPublisher, TracedSuperStreamPublisher
from ._spans import (
    COUNT,
    GROUP,
    LINKS,
    OFFSET,
    PARTITION,
    TraceSettings,
    attributes_of,
    fail,
    finish,
    identify,
)

T = TypeVar('T')

SCHEMA = 'https://opentelemetry.io/schemas/1.44.0'
WRITERS = {
    'properties': partial(carrying, 'app_properties'),
    'annotations': partial(carrying, 'annotations'),
}


class Tracing:
    """Makes the spans of clients; :func:`rbfly.otel.tracing` creates one."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        propagate: str,
        create_spans: bool,
        continue_trace: bool,
    ) -> None:
        if propagate not in WRITERS:
            raise ArgumentError(
                f"propagate must be 'properties' or 'annotations', not {propagate!r}"
            )
        if tracer_provider is not None and not hasattr(tracer_provider, 'get_tracer'):
            kind = type(tracer_provider).__name__
            raise ArgumentTypeError(f'tracer_provider must be TracerProvider, not {kind}')
        self._tracer = get_tracer('rbfly', __version__, tracer_provider, SCHEMA)
        self._settings = TraceSettings(self._tracer, WRITERS[propagate], create_spans)
        self._continue_trace = continue_trace
        self._classes: dict[type[Publisher], type[Publisher]] = {}

    def publisher_class(self, cls: type[Publisher]) -> type[Publisher]:
        """Return a subclass of a publisher class whose calls are spans."""
        if cls not in self._classes:
            bases = (TracedPublisher,) if cls is Publisher else (cls, TracedPublisher)
            self._classes[cls] = self._traced(cls, bases)
        return self._classes[cls]

    def _traced(self, cls: type[T], bases: tuple[type[T], ...]) -> type[T]:
        """Return a class that looks like `cls`."""
        names = {
            '_trace_settings': self._settings,
            '__module__': cls.__module__,
            '__qualname__': cls.__qualname__,
            '__doc__': cls.__doc__,
        }
        made: type[T] = new_class(cls.__name__, bases, None, lambda found: found.update(names))
        return made

    def super_stream_publisher_class(self) -> type[SuperStreamPublisher]:
        """The same for publishers of super streams."""
        return self._traced(SuperStreamPublisher, (TracedSuperStreamPublisher,))

    def process(
        self,
        message: MessageCtx | MessageBatch | None = None,
        *,
        destination: str | None = None,
        group: str | None = None,
        continue_trace: bool | None = None,
    ) -> Processing:
        """Return a context manager that makes a span of a loop body: `with tracing.process():`.

        The span is current in the body, so that spans of other libraries, and messages that the
        body publishes, become its children.  It is linked to the span in which the message was
        created, if the message carries its context.  Baggage that the message carries is current
        too.  An error that leaves the body marks the span as failed.

        :param message: context of the message, or a batch; None for the message that the current
            task received last.
        :param destination: name of the stream or super stream, for the span; None for the one of
            the subscription in the task that has received the message, in other tasks for
            `message.stream`, which may be a partition.
        :param group: name of the consumer group, for the span; None for none.
        :param continue_trace: make the span a child of the span in which the message was created;
            the span that was current before the body is then a link.  None for what
            :func:`rbfly.otel.tracing` was told.  A batch only has links.
        :raises MessageContextError: the task has received no message.
        :raises TypeError: `message` is a body.
        """
        if message is None:
            message = get_message_ctx()
        elif not isinstance(message, MessageCtx | MessageBatch):
            kind = type(message).__name__
            raise ArgumentTypeError(
                f'message must be a context or a batch, not {kind}: iterate over'
                ' `subscription.messages()`, or pass nothing for the last message'
            )
        follow = self._continue_trace if continue_trace is None else continue_trace
        return Processing(self._tracer, message, destination, group, follow)


class Processing:
    """The span of a loop body; `with` returns it.  :meth:`Tracing.process` creates one."""

    def __init__(
        self,
        tracer: Tracer,
        message: MessageCtx | MessageBatch,
        destination: str | None,
        group: str | None,
        continue_trace: bool,
    ) -> None:
        self._tracer = tracer
        self._message = message
        self._destination = destination
        self._group = group
        self._continue_trace = continue_trace
        self._span: Span
        self._token: Any

    def __enter__(self) -> Span:
        message = self._message
        parent = get_current()
        links: list[Link]
        if isinstance(message, MessageBatch):
            links = [Link(item) for item in origins(message)]
        else:
            parent, links = self._origin(message, parent)
        stream = message.stream or ''
        destination = self._destination or last_super_stream(stream) or stream
        attributes = attributes_of('process', destination)
        if stream != destination and stream:
            attributes[PARTITION] = stream
        if self._group is not None:
            attributes[GROUP] = self._group
        if isinstance(message, MessageBatch):
            attributes[COUNT] = len(message)
        else:
            attributes[OFFSET] = message.stream_offset
        name = f'process {destination}'.rstrip()
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        if isinstance(message, MessageCtx) and span.is_recording():
            identify(span, message)
        self._span = span
        self._token = attach(set_span_in_context(span, parent))
        return span

    def _origin(self, message: MessageCtx, ambient: Context) -> tuple[Context, list[Link]]:
        """Return the parent of the span, and its links."""
        context = extracted(message, ambient)
        origin = get_current_span(context).get_span_context()
        current = get_current_span(ambient)
        before = current.get_span_context()
        if origin is before or not origin.is_valid:
            return context, []
        links = [Link(origin)]
        if not self._continue_trace:
            return set_span_in_context(current, context), links
        if before.is_valid:
            links.append(Link(before))
        return context, links

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        detach(self._token)
        if error is not None:
            if self._span.is_recording():
                self._span.record_exception(error)
            fail(self._span, error)
        finish(self._span)


def origins(batch: MessageBatch) -> list[SpanContext]:
    """Return the contexts in which the messages of a batch were created, each of them once."""
    found: dict[tuple[int, int], SpanContext] = {}
    for message in batch.contexts():
        origin = origin_of(message)
        if origin is not None:
            found[origin.trace_id, origin.span_id] = origin
            if len(found) == LINKS:
                break
    return [*found.values()]
