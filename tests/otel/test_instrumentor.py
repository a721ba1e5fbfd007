"""The entry point of `opentelemetry-instrument`."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rbfly.streams as rbs
from rbfly.otel import tracing
from rbfly.testing import StreamBroker


@pytest.fixture
def instrumentor() -> Iterator[Any]:
    """The instrumentor, as the entry point names it; the fixture ends its work."""
    (found,) = entry_points(group='opentelemetry_instrumentor', name='rbfly')
    instrumentor = found.load()()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


async def publish(uri: str, **options: Any) -> None:
    async with (
        rbs.streams_client(uri, **options) as client,
        client.publisher('orders') as publisher,
    ):
        await publisher.send({'id': 1})


async def test_clients_created_later_are_traced(
    instrumentor: Any, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        async with rbs.streams_client(broker.uri) as before:
            instrumentor.instrument(tracer_provider=provider, propagate='annotations')
            async with before.publisher('orders') as publisher:
                await publisher.send({'id': 1})
        assert exporter.get_finished_spans() == ()
        await publish(broker.uri)
        assert len(exporter.get_finished_spans()) == 1
        await publish(broker.uri, tracing=tracing(TracerProvider(shutdown_on_exit=False)))
        instrumentor.uninstrument()
        await publish(broker.uri)
        assert len(exporter.get_finished_spans()) == 1  # of the client without its own
        async with rbs.streams_client(broker.uri) as client:
            start = rbs.Offset.FIRST
            async with client.subscribe('orders', offset=start, until='now') as orders:
                carried = [sorted(message.annotations) != [] async for message in orders.messages()]
    assert carried == [False, True, False, False]


async def test_refused_arguments_change_nothing(
    instrumentor: Any, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(TypeError, match='meter_provider must be a MeterProvider'):
        instrumentor.instrument(tracer_provider=provider, meter_provider=1)
    with StreamBroker() as broker:
        broker.create_stream('orders')
        await publish(broker.uri)
    assert exporter.get_finished_spans() == ()


PROGRAM = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import rbfly.streams as rbs
from rbfly.testing import StreamBroker

async def main(uri):
    async with rbs.streams_client(uri) as client:
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send({'id': 1})

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
with StreamBroker() as broker:
    asyncio.run(main(broker.uri))
"""


def test_opentelemetry_instrument() -> None:
    """The command finds the entry point; the program sets the provider of spans."""
    command = Path(sys.executable).with_name('opentelemetry-instrument')
    assert '"name": "send orders"' in run(PROGRAM, str(command))


def run(program: str, *under: str) -> str:
    command = [*under, sys.executable, '-c', program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_package_without_opentelemetry() -> None:
    """The error names the extra."""
    program = """
import sys
sys.modules['opentelemetry'] = None
import rbfly.otel
try:
    rbfly.otel.tracing()
except ModuleNotFoundError as ex:
    print(ex)
"""
    expected = "rbfly.otel needs the package opentelemetry-api: install RbFly's extra `otel`"
    assert run(program) == expected


def test_nothing_is_imported_without_tracing() -> None:
    program = """
import sys
import rbfly.otel, rbfly.streams as rbs
rbs.streams_client('rabbitmq-stream://localhost/').publisher('orders').close()
print(*(name for name in sys.modules if name.startswith(('opentelemetry', 'rbfly.otel.'))))
"""
    assert run(program) == ''
