"""OpenTelemetry: metrics of clients, and spans for their messages.  Needs the extra `otel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NoReturn

from ..later import later

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ._metrics import ClientMetrics as ClientMetrics
    from ._tracing import Processing as Processing
    from ._tracing import Tracing as Tracing
else:  # OpenTelemetry may not be installed
    __getattr__ = later(
        __name__,
        {'rbfly.otel._metrics': 'ClientMetrics', 'rbfly.otel._tracing': 'Processing Tracing'},
    )

__all__ = ['ClientMetrics', 'Processing', 'Tracing', 'metrics', 'tracing']


def metrics(meter_provider: MeterProvider | None = None, *, streams: bool = False) -> ClientMetrics:
    """Export the metrics of clients: pass the result as `metrics` to :func:`.streams_client`.

    The numbers of all clients of a meter provider add up, whether they share the result or not.
    The attribute `messaging.client.id` distinguishes clients that have a `connection_name`.  See
    :ref:`metrics` for the names.

    :param meter_provider: where the metrics go; None for the global provider, also if that is set
        later.
    :param streams: give each stream and partition its own numbers, with its name in the attribute
        `messaging.destination.name`.
    :raises ModuleNotFoundError: `opentelemetry-api` is not installed: install RbFly's extra `otel`.
    :raises TypeError: `meter_provider` is no meter provider.
    """
    try:
        from ._metrics import ClientMetrics
    except ModuleNotFoundError as ex:
        raise_missing(ex)
    return ClientMetrics(meter_provider, streams)


def tracing(
    tracer_provider: TracerProvider | None = None,
    *,
    propagate: Literal['properties', 'annotations'] = 'properties',
    create_spans: bool = False,
    continue_trace: bool = False,
) -> Tracing:
    """Trace the messages of clients: pass the result as `tracing` to :func:`.streams_client`.

    Each call of `send` and `submit` becomes a span, from the call to the confirm, and so does each
    `flush` and `send_many`.  Messages carry the context of their span to their consumers, which
    `with tracing.process(message)` reads.  Several clients may share the result.

    :param tracer_provider: makes the spans; None for the global one, also if that is set later.
    :param propagate: where messages carry the context: in their application properties, which AMQP
        0.9.1 consumers receive as headers; or in their message annotations, where RabbitMQ's Java
        client for streams writes it, and which RabbitMQ 4.0 cannot deliver to AMQP 0.9.1 consumers.
        Both are read.
    :param create_spans: also make a span for each message of `batch` and `send_many`.  Without
        them, messages of `send_many` carry the context of its span, and messages of `batch` that
        of the span that is current when it is called.
    :param continue_trace: `process` continues the trace of a message: the span of its publisher
        becomes the parent.  Else the two spans are only linked.
    :raises ModuleNotFoundError: `opentelemetry-api` is not installed: install RbFly's extra `otel`.
    :raises ValueError: `propagate` is unknown.
    """
    try:
        from ._tracing import Tracing
    except ModuleNotFoundError as ex:
        raise_missing(ex)
    return Tracing(tracer_provider, propagate, create_spans, continue_trace)


def raise_missing(error: ModuleNotFoundError) -> NoReturn:
    """Name the extra if OpenTelemetry is missing; raise any other error unchanged."""
    if error.name is None or error.name.partition('.')[0] != 'opentelemetry':
        raise error
    text = "rbfly.otel needs the package opentelemetry-api: install RbFly's extra `otel`"
    raise ModuleNotFoundError(text, name=error.name) from None
