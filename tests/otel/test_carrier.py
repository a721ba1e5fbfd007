"""A message carries for a span what OpenTelemetry's propagator writes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rbfly.otel._carrier import Writer


class Tenant(TextMapPropagator):
    """Writes W3C's header, and a header of its own if the context has a tenant."""

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Context:
        return Context()

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        TraceContextTextMapPropagator().inject(carrier, context)
        if context.get('tenant'):
            carrier['tenant'] = context['tenant']

    @property
    def fields(self) -> set[str]:
        return {'traceparent', 'tracestate', 'tenant'}


class Failing(Tenant):
    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        raise ZeroDivisionError


@pytest.fixture
def default() -> Iterator[TextMapPropagator]:
    found = propagate.get_global_textmap()
    yield found
    propagate.set_global_textmap(found)


SPANS = {
    'sampled': SpanContext(1, 2, False, TraceFlags(TraceFlags.SAMPLED)),
    'not sampled': SpanContext(2**128 - 1, 2**64 - 1, False),
    'all flags': SpanContext(3, 4, False, TraceFlags(0xFF)),
    'with a state': SpanContext(5, 6, False, TraceFlags(1), TraceState([('a', 'b')])),
    'invalid': trace.INVALID_SPAN_CONTEXT,
}
CONTEXTS = {
    'empty': Context(),
    'with baggage': baggage.set_baggage('customer', 'acme ltd', Context()),
    'with a tenant': Context({'tenant': 'acme'}),
    'with another span': trace.set_span_in_context(
        NonRecordingSpan(SpanContext(7, 8, False)), Context()
    ),
}


@pytest.mark.parametrize('context', CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize('span', SPANS.values(), ids=SPANS.keys())
@pytest.mark.parametrize('propagator', ['default', 'W3C only', 'another'])
def test_same_as_the_propagator(
    default: TextMapPropagator, propagator: str, span: SpanContext, context: Context
) -> None:
    found = {'W3C only': TraceContextTextMapPropagator(), 'another': Tenant()}
    propagate.set_global_textmap(found.get(propagator, default))
    carrier: dict[str, str] = {}
    current = NonRecordingSpan(span)
    propagate.inject(carrier, trace.set_span_in_context(current, context))
    assert Writer().inject(current, context) == carrier


def test_propagator_may_be_replaced(default: TextMapPropagator) -> None:
    writer, span = Writer(), NonRecordingSpan(SPANS['sampled'])
    writer.inject(span, Context())
    propagate.set_global_textmap(Tenant())
    assert writer.inject(span, CONTEXTS['with a tenant'])['tenant'] == 'acme'


def test_errors_of_a_propagator_are_raised(default: TextMapPropagator) -> None:
    propagate.set_global_textmap(Failing())
    with pytest.raises(ZeroDivisionError):
        Writer().inject(NonRecordingSpan(SPANS['sampled']), Context())


def test_two_threads_use_a_writer() -> None:
    """The context of one has baggage, that of the other has not."""
    writer, other = Writer(), NonRecordingSpan(SPANS['all flags'])

    class Interrupted(NonRecordingSpan):
        def get_span_context(self) -> SpanContext:
            thread = threading.Thread(target=writer.inject, args=(other, Context()))
            thread.start()
            thread.join()
            return super().get_span_context()

    carried = writer.inject(Interrupted(SPANS['sampled']), CONTEXTS['with baggage'])
    assert carried['baggage'] == 'customer=acme+ltd'
