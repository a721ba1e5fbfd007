"""The trace context that a message carries: writing it, and reading it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator

from ..amqp._lookup import find_text
from ..error import AMQPDecoderError
from ..streams import MessageCtx


class OfBody(dict[str, str]):
    """What a message carries that the program has passed as a body: routes get that body."""


class MessageGetter(Getter[MessageCtx]):
    """Reads annotations first, then application properties, as strings or binary values."""

    def get(self, carrier: MessageCtx, key: str) -> list[str] | None:
        found = find_text(carrier, key)
        return None if found is None else [found]

    def keys(self, carrier: MessageCtx) -> list[str]:
        try:
            return [*{str(key) for key in [*carrier.annotations, *carrier.app_properties]}]
        except AMQPDecoderError:
            return []


GETTER = MessageGetter()


def extracted(message: MessageCtx, context: Context | None = None) -> Context:
    """Return a context with what a message carries.

    :param context: what to add it to; None for the current context.
    """
    return propagate.extract(message, context, GETTER)


def origin_of(message: MessageCtx) -> trace.SpanContext | None:
    """Return the context in which a message was created; None if it carries none."""
    found = trace.get_current_span(extracted(message, Context())).get_span_context()
    return found if found.is_valid else None


class Writer:
    """Writes what a message must carry, with the global propagator.

    OpenTelemetry's default propagator takes several times as long as this class, which writes the
    same `traceparent` if there is nothing else to write.
    """

    FIELDS = frozenset({'traceparent', 'tracestate', 'baggage'})
    PROBE = trace.SpanContext(0x0102030405060708090A0B0C0D0E0F10, 0x0102030405060708, False)

    def __init__(self) -> None:
        # The propagator, and whether it is the default one; the last context, and whether it has
        # baggage.  Each pair is one value, because threads share the writer.
        self._propagator: tuple[TextMapPropagator | None, bool] = None, False
        self._context: tuple[Context | None, bool] = None, False  # contexts do not change

    def inject(self, span: trace.Span, context: Context) -> dict[str, str]:
        """Return what a message must carry for a span; {} for nothing.

        :param context: what else is current.
        """
        propagator = propagate.get_global_textmap()
        known, is_default = self._propagator
        if propagator is not known:
            is_default = self._writes_as_default(propagator)
            self._propagator = propagator, is_default
        last, has_baggage = self._context
        if context is not last:
            has_baggage = bool(baggage.get_all(context))
            self._context = context, has_baggage
        found = span.get_span_context()
        if is_default and not has_baggage and not found.trace_state:
            return {'traceparent': traceparent(found)} if found.is_valid else {}
        carrier: dict[str, str] = {}
        propagator.inject(carrier, trace.set_span_in_context(span, context))
        return carrier

    def _writes_as_default(self, propagator: TextMapPropagator) -> bool:
        carrier: dict[str, str] = {}
        span = trace.NonRecordingSpan(self.PROBE)
        try:
            propagator.inject(carrier, trace.set_span_in_context(span, Context()))
            return carrier == {'traceparent': traceparent(self.PROBE)} and (
                propagator.fields <= self.FIELDS
            )
        except Exception:  # each call raises it where it is used
            return False


def traceparent(span: trace.SpanContext) -> str:
    """Return a span as the header of W3C's Trace Context."""
    return f'00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}'


WRITER = Writer()


def merged(found: Mapping[Any, Any], carrier: Mapping[str, str]) -> dict[Any, Any]:
    return {
        **{key: item for key, item in dict(found).items() if str(key) not in carrier},
        **carrier,
    }


def carrying(section: str, message: Any, carrier: dict[str, str]) -> MessageCtx:
    """Return a message that carries a context.

    The message of the program stays as it is; it is returned if it is malformed.

    :param section: where it carries the context: `app_properties` or `annotations`.
    """
    if not isinstance(message, MessageCtx):
        sections: dict[str, Any] = {section: carrier}
        return MessageCtx(message, **sections)
    made = copy(message)
    try:
        setattr(made, section, merged(getattr(message, section), carrier))
    except Exception:  # the encoder says what is wrong, unless it sends what was received
        return message
    return made


def as_passed(message: Any) -> Any:
    """Return a message as the program has passed it to the publisher: a body, or a context."""
    if not isinstance(message, MessageCtx) or message.raw is not None:
        return message
    is_body = OfBody in (type(message.app_properties), type(message.annotations))
    return message.body if is_body else message
