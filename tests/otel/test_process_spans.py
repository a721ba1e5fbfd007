"""Spans of loop bodies."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import rbfly.streams as rbs
from rbfly.amqp import AMQPProperties, decode_amqp
from tests.otel.conftest import Traced, ids, linked

TRACE, SPAN = 0xA, 0xB
CARRIED = f'00-{TRACE:032x}-{SPAN:016x}-01'


@pytest.fixture
def message(traced: Traced) -> rbs.Message:
    return rbs.Message(b'a', app_properties={'traceparent': CARRIED}, stream_offset=47)


async def test_loop_body_is_a_span(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, tracing = traced()
    sent = rbs.Message(b'a', properties=AMQPProperties(message_id='m-1'))
    async with client.publisher(stream) as publisher:
        await publisher.send_many([b'0', sent])
    async with client.subscribe(stream, offset=rbs.Offset.offset(1)) as orders:
        async for message in orders.messages():
            with tracing.process(message, group='billing') as span:
                assert get_current_span() is span
            assert get_current_span() is not span
            break
    send, process = exporter.get_finished_spans()
    assert (process.name, process.kind) == (f'process {stream}', SpanKind.CONSUMER)
    assert process.parent is None
    assert linked(process) == ids([send])
    assert process.status.status_code is StatusCode.UNSET
    assert process.attributes == {
        'messaging.system': 'rabbitmq',
        'messaging.operation.name': 'process',
        'messaging.operation.type': 'process',
        'messaging.destination.name': stream,
        'messaging.consumer.group.name': 'billing',
        'messaging.message.id': 'm-1',
        'messaging.rabbitmq.stream.offset': 1,
    }


async def test_bodies(traced: Traced, stream: str, exporter: InMemorySpanExporter) -> None:
    """Without an argument, the message is the one that the task received last."""
    client, tracing = traced()
    with pytest.raises(rbs.MessageContextError):
        tracing.process()
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as orders:
        async for order in orders:
            with tracing.process():
                pass
            with pytest.raises(TypeError, match='must be a context or a batch, not bytes'):
                tracing.process(order)
            break
    send, process = exporter.get_finished_spans()
    assert process.name == f'process {stream}'
    assert linked(process) == ids([send])


async def test_batch(traced: Traced, stream: str, exporter: InMemorySpanExporter) -> None:
    """Each context is linked once."""
    client, tracing = traced(continue_trace=True)
    async with client.publisher(stream) as publisher:
        await publisher.send_many([b'%d' % i for i in range(10)])
        await publisher.send(b'10')
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, until='now') as orders:
        async for batch in orders.batches(max_wait=30, max_messages=11):
            with tracing.process(batch):
                pass
    many, single, process = exporter.get_finished_spans()
    assert process.parent is None
    assert linked(process) == ids([many, single])
    assert process.attributes is not None
    assert process.attributes['messaging.batch.message_count'] == 11
    assert 'messaging.rabbitmq.stream.offset' not in process.attributes


@pytest.mark.parametrize('chosen', [{}, {'continue_trace': True}])
def test_ambient_span_is_the_parent(
    traced: Traced,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    message: rbs.Message,
    chosen: dict[str, bool],
) -> None:
    _, tracing = traced(continue_trace=not chosen)
    with provider.get_tracer('test').start_as_current_span('poll'):
        with tracing.process(message, continue_trace=False) as span:
            pass
        with tracing.process(message, **chosen) as followed:
            assert followed.get_span_context().trace_id == TRACE
    parallel, child, poll = exporter.get_finished_spans()
    context = poll.get_span_context()
    assert context is not None
    assert parallel.parent == context
    assert span.get_span_context().trace_id == context.trace_id
    assert linked(parallel) == [SPAN]
    assert child.parent is not None
    assert (child.parent.span_id, child.parent.is_remote) == (SPAN, True)
    assert linked(child) == [SPAN, context.span_id]


def test_destination(traced: Traced, exporter: InMemorySpanExporter, message: rbs.Message) -> None:
    _, tracing = traced()
    with tracing.process(message, destination='orders'):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.name == 'process orders'


def test_malformed_message(traced: Traced, exporter: InMemorySpanExporter) -> None:
    """A loop body that does not need the sections runs."""
    _, tracing = traced()
    body = b'\x00\x53\x75\xa0\x01a'
    malformed = decode_amqp(b'\x00\x53\x73\xc0\x03\x01\x3f\x3f\x00\x53\x74\xc1\x02\x02\xa1' + body)
    with pytest.raises(rbs.AMQPDecoderError):
        _ = malformed.properties
    with tracing.process(malformed):
        assert malformed.body == b'a'
    (span,) = exporter.get_finished_spans()
    assert span.links == ()


def test_body_that_fails(
    traced: Traced, exporter: InMemorySpanExporter, message: rbs.Message
) -> None:
    _, tracing = traced()
    with pytest.raises(ZeroDivisionError), tracing.process(message):
        raise ZeroDivisionError('no such order')
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == 'ZeroDivisionError: no such order'
    assert span.attributes is not None
    assert span.attributes['error.type'] == 'ZeroDivisionError'
    (event,) = span.events
    assert event.name == 'exception'


@pytest.mark.parametrize('carried', [None, 'nonsense', f'00-{0:032x}-{0:016x}-01', 47, b'\xff'])
def test_message_without_a_context(
    traced: Traced, exporter: InMemorySpanExporter, carried: Any
) -> None:
    _, tracing = traced(continue_trace=True)
    properties = {} if carried is None else {'traceparent': carried}
    with tracing.process(rbs.Message(b'a', app_properties=properties)):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.name == 'process'  # of no stream
    assert (span.parent, span.links) == (None, ())


async def test_published_messages_continue_the_trace(
    traced: Traced, stream: str, exporter: InMemorySpanExporter, message: rbs.Message
) -> None:
    client, tracing = traced()
    async with client.publisher(stream) as publisher:
        with tracing.process(message, continue_trace=True):
            await asyncio.gather(publisher.send(b'a'), publisher.send(b'b'))
    *sends, process = exporter.get_finished_spans()
    assert [span.parent for span in sends] == [process.get_span_context()] * 2


@pytest.fixture
def with_baggage() -> Iterator[None]:
    """Baggage is carried, and nothing else."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(W3CBaggagePropagator())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures('with_baggage')
async def test_other_propagators(traced: Traced, stream: str) -> None:
    client, tracing = traced()
    token = attach(baggage.set_baggage('tenant', 'emea'))
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
    detach(token)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as orders:
        async for message in orders.messages():
            assert message.app_properties == {'baggage': 'tenant=emea'}
            assert baggage.get_all() == {}
            with tracing.process(message):
                assert baggage.get_all() == {'tenant': 'emea'}
            break
