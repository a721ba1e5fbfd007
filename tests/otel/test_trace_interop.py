"""One trace through publishers and consumers of other clients."""

import asyncio
from pathlib import Path

import pika
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rbfly.streams as rbs
from brokers import RabbitMQ
from perf import programs
from tests.otel.conftest import Traced, context_of, header

TRACE, SPAN = 0x5EED, 0xB0B
CARRIED = f'00-{TRACE:032x}-{SPAN:016x}-01'
SOURCE = Path(__file__).parents[1] / 'data' / 'java' / 'Traced.java'


async def java(broker: RabbitMQ, *arguments: str) -> str:
    """Run the program; it publishes a message with a context, or prints that of the first one."""
    out = await asyncio.to_thread(programs.build, 'java')
    logs = '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn'
    uri = broker.uri.removesuffix('/')  # this client takes a path of / for a nameless virtual host
    command = ('java', logs, '-cp', f'{out}/lib/*', str(SOURCE), uri, *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode().strip()


async def process_and_publish(traced: Traced, stream: str, target: str, propagate: str) -> None:
    """Process the first message of a stream, and meanwhile publish one to another stream."""
    client, tracing = traced(propagate=propagate, continue_trace=True)
    await client.create_stream(target)
    async with (
        client.publisher(target) as publisher,
        client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=30) as messages,
    ):
        async for message in messages.messages():
            with tracing.process(message):
                await publisher.send(b'2')
            break


def check_trace(exporter: InMemorySpanExporter) -> str:
    """Check that the spans follow those of the other client; return what the message carries."""
    send, process = exporter.get_finished_spans()
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == (TRACE, SPAN)
    assert send.parent == process.get_span_context()
    assert context_of(send).trace_id == TRACE
    return header(send)


@pytest.mark.java
@pytest.mark.rabbitmq
async def test_trace_through_java(
    traced: Traced, broker: RabbitMQ, stream: str, stream_name: str, exporter: InMemorySpanExporter
) -> None:
    """From a publisher in Java to a consumer in Java."""
    await java(broker, stream, CARRIED)
    await process_and_publish(traced, stream, stream_name, 'annotations')
    assert await java(broker, stream_name) == check_trace(exporter)


async def test_trace_through_pika(
    traced: Traced, own_broker: RabbitMQ, own_stream: str, exporter: InMemorySpanExporter
) -> None:
    """From a publisher to a consumer of AMQP 0.9.1."""
    target = f'{own_stream}-2'
    properties = pika.BasicProperties(headers={'traceparent': CARRIED})
    with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish('', own_stream, b'1', properties, mandatory=True)
        await process_and_publish(traced, own_stream, target, 'properties')
        carried = check_trace(exporter)
        channel.basic_qos(prefetch_count=1)
        arguments = {'x-stream-offset': 'first'}
        for method, received, body in channel.consume(target, arguments=arguments):
            assert body == b'2'
            assert received.headers['traceparent'] == carried
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()
        channel.queue_delete(target)
