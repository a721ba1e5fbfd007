"""Fixtures of the tests of OpenTelemetry."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

import rbfly.otel
import rbfly.streams as rbs
from tests.brokers import CONNECT_TIMEOUT
from tests.super_streams import super_stream_of

Traced = Callable[..., tuple[rbs.StreamsClient, Any]]


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def header(span: ReadableSpan) -> str:
    context = context_of(span)
    return f'00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}'


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def ids(spans: Iterable[ReadableSpan]) -> list[int]:
    return [context_of(span).span_id for span in spans]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Has the spans that ended."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest_asyncio.fixture
async def traced(broker_uri: str, provider: TracerProvider) -> AsyncIterator[Traced]:
    """Creates clients, with arguments of `rbfly.otel.tracing`; the fixture closes them."""
    made: list[rbs.StreamsClient] = []

    def new(**options: Any) -> tuple[rbs.StreamsClient, Any]:
        tracing = rbfly.otel.tracing(**{'tracer_provider': provider, **options})
        client = rbs.streams_client(
            broker_uri, connect_timeout=CONNECT_TIMEOUT, connection_name='shop', tracing=tracing
        )
        made.append(client)
        return client, tracing

    yield new
    for client in made:
        await client.disconnect()


@pytest_asyncio.fixture
async def super_stream(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A super stream of three partitions."""
    async with super_stream_of(client, 3) as name:
        yield name
