"""Spans of publishers, and the contexts that their messages carry."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

import rbfly.amqp
import rbfly.otel
import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.otel.conftest import Traced, header, ids, linked

BOTH = pytest.mark.parametrize('propagate', ['properties', 'annotations'])


async def read(client: rbs.StreamsClient, stream: str, count: int) -> list[rbs.Message]:
    """Return the first messages of a stream."""
    found: list[rbs.Message] = []
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=20) as messages:
        async for message in messages.messages():
            found.append(message)
            if len(found) == count:
                break
    return found


def parent_of(message: rbs.Message) -> str:
    """Return what a message carries."""
    carried = {str(key): value for key, value in message.annotations.items()}
    return str((carried | message.app_properties)['traceparent'])


async def test_send_is_a_span_whose_context_the_message_carries(
    traced: Traced, stream: str, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    client, _ = traced()
    async with client.publisher(stream) as publisher:
        with provider.get_tracer('test').start_as_current_span('request') as request:
            await publisher.send({'id': 1})
    span, outer = exporter.get_finished_spans()
    assert span.name == f'send {stream}'
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent == request.get_span_context() == outer.get_span_context()
    attributes = dict(span.attributes or {})
    assert isinstance(attributes.pop('server.port'), int)
    assert isinstance(attributes.pop('server.address'), str)
    assert attributes == {
        'messaging.system': 'rabbitmq',
        'messaging.operation.name': 'send',
        'messaging.operation.type': 'send',
        'messaging.destination.name': stream,
        'messaging.client.id': 'shop',
    }
    scope = span.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version) == ('rbfly', rbfly.__version__)
    assert scope.schema_url == 'https://opentelemetry.io/schemas/1.44.0'
    (message,) = await read(client, stream, 1)
    assert message.body == {'id': 1}
    assert message.app_properties == {'traceparent': header(span)}
    assert message.annotations == {}


@BOTH
async def test_contexts_keep_their_other_sections(
    traced: Traced, stream: str, exporter: InMemorySpanExporter, propagate: str
) -> None:
    client, _ = traced(propagate=propagate)
    properties = rbfly.amqp.AMQPProperties(message_id='m-1', correlation_id=b'\x01\xff')
    sent = rbs.Message(
        b'body',
        publish_id=7,
        properties=properties,
        app_properties={'a': 1},
        annotations={'x-b': 2},
    )
    async with client.publisher(stream, name='shop') as publisher:
        await publisher.send(sent)
    assert sent.app_properties == {'a': 1}  # unchanged
    assert sent.annotations == {'x-b': 2}
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes['messaging.message.id'] == 'm-1'
    assert span.attributes['messaging.message.conversation_id'] == '01ff'
    (message,) = await read(client, stream, 1)
    assert (message.body, message.properties) == (b'body', properties)
    where = message.app_properties if propagate == 'properties' else message.annotations
    assert parent_of(message) == header(span)
    assert len(where) == 2


async def test_message_that_carries_a_context_keeps_it(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()
    carried = f'00-{1:032x}-{2:016x}-01'
    sent = rbs.Message(b'a', app_properties={'traceparent': carried})
    async with client.publisher(stream) as publisher:
        await publisher.send(sent)
        (received,) = await read(client, stream, 1)
        await publisher.send(received)  # forwarded
        publisher.batch(received)
        await publisher.flush()
        await publisher.send_many([received])
    for message in await read(client, stream, 4):
        assert message.app_properties == {'traceparent': carried}
    for span in exporter.get_finished_spans():
        assert linked(span) == [2]
    kinds = [span.kind for span in exporter.get_finished_spans()]
    assert kinds == [SpanKind.CLIENT, SpanKind.CLIENT, SpanKind.CLIENT, SpanKind.PRODUCER]


async def test_submit_is_a_span_until_the_confirm(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()
    async with client.publisher(stream) as publisher:
        confirmation = await publisher.submit(b'a')
        assert exporter.get_finished_spans() == ()
        await confirmation
        await asyncio.sleep(0)  # callbacks of the future run in turn
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == (f'send {stream}', SpanKind.PRODUCER)
    (message,) = await read(client, stream, 1)
    assert parent_of(message) == header(span)


async def numbers(count: int) -> AsyncIterator[bytes]:
    for i in range(count):
        yield b'%d' % i


@pytest.mark.parametrize('kind', ['list', 'iterator', 'keys', 'asynchronous iterator'])
async def test_send_many_is_one_span(
    traced: Traced, stream: str, exporter: InMemorySpanExporter, kind: str
) -> None:
    client, _ = traced()
    sent: Any = [b'%d' % i for i in range(300)]
    messages: dict[str, Any] = {
        'list': sent,
        'iterator': iter(sent),
        'keys': dict.fromkeys(sent).keys(),  # can be iterated over more than once
        'asynchronous iterator': numbers(300),
    }
    async with client.publisher(stream, max_unconfirmed=100) as publisher:
        assert await publisher.send_many(messages[kind]) == 300
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == (f'send {stream}', SpanKind.PRODUCER)
    assert span.attributes is not None
    assert span.attributes['messaging.batch.message_count'] == 300
    found = await read(client, stream, 300)
    assert [message.body for message in found] == sent
    assert {parent_of(message) for message in found} == {header(span)}


async def test_send_atomic_is_one_span(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()
    async with client.publisher(stream) as publisher:
        await publisher.send_atomic(b'%d' % i for i in range(30))
        with pytest.raises(ValueError, match='is not above'):
            await publisher.send_atomic([b'x'], publish_id=1)
    span, failed = exporter.get_finished_spans()
    assert (span.name, span.kind) == (f'send {stream}', SpanKind.PRODUCER)
    assert span.attributes is not None
    assert span.attributes['messaging.batch.message_count'] == 30
    assert failed.status.status_code is StatusCode.ERROR
    found = await read(client, stream, 30)
    assert [message.body for message in found] == [b'%d' % i for i in range(30)]
    assert {parent_of(message) for message in found} == {header(span)}


async def test_flush_is_one_span(
    traced: Traced, stream: str, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    client, _ = traced()
    async with client.publisher(stream) as publisher:
        publisher.batch(b'without a context')
        with provider.get_tracer('test').start_as_current_span('request'):
            for i in range(9):
                publisher.batch(b'%d' % i)
        await publisher.flush()
        await publisher.flush()  # nothing is queued: no span
    request, span = exporter.get_finished_spans()
    assert (span.name, span.kind) == (f'send {stream}', SpanKind.CLIENT)
    assert span.attributes is not None
    assert span.attributes['messaging.batch.message_count'] == 10
    first, *found = await read(client, stream, 10)
    assert first.app_properties == {}
    assert {parent_of(message) for message in found} == {header(request)}


async def test_create_spans(traced: Traced, stream: str, exporter: InMemorySpanExporter) -> None:
    client, _ = traced(create_spans=True)
    async with client.publisher(stream) as publisher:
        for i in range(3):
            publisher.batch(b'%d' % i)
        await publisher.flush()
        await publisher.send_many([b'3', b'4'])
    found = await read(client, stream, 5)
    *first, flush, fourth, fifth, many = exporter.get_finished_spans()
    created = [*first, fourth, fifth]
    assert {span.name for span in created} == {f'create {stream}'}
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    assert [parent_of(message) for message in found] == [header(span) for span in created]
    assert (flush.kind, many.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert linked(flush) == ids(first)
    assert linked(many) == ids([fourth, fifth])
    assert flush.parent is many.parent is None


async def test_bytes_carry_nothing(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send(b'a')
        await publisher.send_many([b'b'])
        publisher.batch(b'c')
        await publisher.flush()
    assert [span.kind for span in exporter.get_finished_spans()] == [SpanKind.CLIENT] * 3
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, amqp=False) as messages:
        assert [await anext(messages) for _ in range(3)] == [b'a', b'b', b'c']


async def test_failures(traced: Traced, stream: str, exporter: InMemorySpanExporter) -> None:
    client, _ = traced()
    async with client.publisher(stream) as publisher:
        with pytest.raises(rbs.AMQPEncoderError):
            await publisher.send(object())  # type: ignore[arg-type]
        with pytest.raises(rbs.AMQPEncoderError):
            await publisher.submit(object())  # type: ignore[arg-type]
        with pytest.raises(rbs.AMQPEncoderError):
            await publisher.send_many([b'a', object()])  # type: ignore[list-item]
        with pytest.raises(TypeError, match='not a single bytes'):
            await publisher.send_many(b'a')
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.send(b'a', timeout=0)
    *spans, single, late = exporter.get_finished_spans()
    for span in spans:
        assert span.attributes is not None
        assert span.attributes['error.type'] == 'AMQPEncoderTypeError'
        assert span.status.status_code is StatusCode.ERROR
        assert str(span.status.description).startswith('AMQPEncoderTypeError: ')
    assert spans[2].attributes is not None
    assert spans[2].attributes['messaging.batch.message_count'] == 2
    assert single.status.status_code is StatusCode.ERROR
    assert late.attributes is not None
    assert late.attributes['error.type'] == 'ConfirmTimeout'


async def test_failed_confirms(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A cancelled `send`, and a `submit` and a `flush` whose stream is deleted."""
    with StreamBroker() as broker:
        tracing = rbfly.otel.tracing(provider)
        async with rbs.streams_client(broker.uri, tracing=tracing) as client:
            await client.create_stream('orders')
            publisher = await client.publisher('orders')
            broker.withhold_confirms()
            task = asyncio.create_task(publisher.send(b'a'))
            await asyncio.sleep(0)  # it begins
            confirmation = await publisher.submit(b'b')
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            publisher.batch(b'c')
            flush = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            await client.delete_stream('orders')
            with pytest.raises(rbs.StreamDoesNotExist):
                await flush
            with pytest.raises(rbs.StreamDoesNotExist):
                await confirmation
            await asyncio.sleep(0)
    errors = [dict(span.attributes or {})['error.type'] for span in exporter.get_finished_spans()]
    assert errors[0] == 'CancelledError'
    assert errors[1:] == ['StreamDoesNotExist'] * 2


async def test_spans_that_are_not_sampled(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    """Consumers learn that the trace is not sampled."""
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    unsampled.add_span_processor(SimpleSpanProcessor(exporter))
    client, tracing = traced(tracer_provider=unsampled)
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
        await publisher.send_many([b'b'])
    assert exporter.get_finished_spans() == ()
    for message in await read(client, stream, 2):
        assert not int(parent_of(message)[-2:], 16) & TraceFlags.SAMPLED
        with tracing.process(message, continue_trace=True) as span:
            context = span.get_span_context()
        assert not span.is_recording()
        assert parent_of(message).split('-')[1] == f'{context.trace_id:032x}'


async def test_samplers_see_the_attributes(traced: Traced, stream: str) -> None:
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

    seen: list[Any] = []

    class Watch(Sampler):
        def should_sample(self, *args: Any) -> SamplingResult:
            seen.append(args)
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return 'watch'

    client, _ = traced(tracer_provider=TracerProvider(sampler=Watch(), shutdown_on_exit=False))
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
    ((_, _, name, kind, attributes, _),) = seen
    assert (name, kind) == (f'send {stream}', SpanKind.PRODUCER)
    assert attributes['messaging.destination.name'] == stream
    assert 'server.address' in attributes


async def test_send_again_joins_the_message_in_flight(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A context with an explicit id that is sent again is the same message as before."""
    with StreamBroker() as broker:
        tracing = rbfly.otel.tracing(provider)
        async with rbs.streams_client(broker.uri, tracing=tracing) as client:
            await client.create_stream('orders')
            async with client.publisher('orders', name='shop') as publisher:
                broker.withhold_confirms()
                message = rbs.Message(b'a', publish_id=5)
                with pytest.raises(rbs.ConfirmTimeout):
                    await publisher.send(message, timeout=0.01)
                with pytest.raises(ValueError, match='publishing id'):
                    await publisher.submit(message)  # joins no other call
                again = asyncio.create_task(publisher.send(message))
                await asyncio.sleep(0)
                broker.heal()
                await again
                await publisher.send(rbs.Message(b'b', publish_id=6))
            first, _, second, third = exporter.get_finished_spans()
            assert first.kind is SpanKind.PRODUCER
            assert (second.kind, linked(second)) == (SpanKind.CLIENT, ids([first]))
            assert third.kind is SpanKind.PRODUCER
            found = await read(client, 'orders', 2)
            assert [parent_of(item) for item in found] == [header(first), header(third)]
            assert publisher._spans._again == {}  # type: ignore[attr-defined]


async def test_malformed_message_is_forwarded(traced: Traced, stream: str) -> None:
    client, _ = traced()
    malformed = b'\x00\x53\x74\xc1\x02\x02\xa1' + b'\x00\x53\x75\xa0\x01a'
    async with client.publisher(stream) as publisher:
        await publisher.send(rbfly.amqp.decode_amqp(malformed))
        with pytest.raises(rbs.AMQPEncoderError):  # not of the tracing
            await publisher.send(rbs.Message(b'a', app_properties={1: 'a'}))  # type: ignore[dict-item]
    (message,) = await read(client, stream, 1)
    assert message.raw is not None
    assert message.raw.tobytes() == malformed


async def test_subclasses_are_traced_once(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()

    class Twice(rbs.Publisher):
        async def send(self, message: Any, timeout: float | None = None) -> None:
            await super().send({'first': message}, timeout)
            await super().send({'second': message}, timeout)

    async with client.publisher(stream, cls=Twice) as publisher:
        assert isinstance(publisher, Twice)
        assert repr(publisher).startswith('<Twice ')
        await publisher.send('a')
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [f'send {stream}'] * 2
    found = await read(client, stream, 2)
    assert [message.body for message in found] == [{'first': 'a'}, {'second': 'a'}]
    assert [parent_of(message) for message in found] == [header(span) for span in spans]


async def test_publishers_of_rbfly_010(
    traced: Traced, stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced(create_spans=True)
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
        await publisher.batch(rbs.Message(b'second', publish_id=2), max_len=10)
        await publisher.batch(rbs.Message(b'first', publish_id=1), max_len=10)
        await publisher.flush()
    async with client.publisher(stream, cls=rbs.PublisherBin) as raw:
        await raw.send(b'raw')
    found = await read(client, stream, 2)
    assert [message.body for message in found] == [b'first', b'second']
    first, second, flush, sent = exporter.get_finished_spans()
    assert [parent_of(message) for message in found] == [header(first), header(second)]
    assert linked(flush) == ids([first, second])
    assert sent.kind is SpanKind.CLIENT


# -- super streams


def customer(message: Any) -> str:
    """The key of a message as it was passed: a body."""
    assert isinstance(message, dict)
    return str(message['customer'])


def first_of_body(message: Any, names: Any) -> Any:
    return names[int(customer(message)) % len(names)]


ROUTES: dict[str, Any] = {'by_hash': rbs.by_hash(customer), 'function': first_of_body}


@BOTH
@pytest.mark.parametrize('route', ROUTES)
async def test_super_stream(
    traced: Traced,
    super_stream: str,
    exporter: InMemorySpanExporter,
    route: str,
    propagate: str,
) -> None:
    client, tracing = traced(propagate=propagate)
    stream = client.super_stream(super_stream)
    async with stream.publisher(route=ROUTES[route]) as publisher:
        await publisher.send({'customer': 1})
        await (await publisher.submit({'customer': 2}))
        await asyncio.sleep(0)
        assert await publisher.send_many([{'customer': i} for i in range(10)]) == 10
        assert await publisher.send_many({'customer': i} for i in range(10)) == 10
        with provider_span(tracing):
            publisher.batch({'customer': 3})
        await publisher.flush()
    single, submitted, many, iterated, flush = exporter.get_finished_spans()
    assert {span.name for span in (single, submitted, many, iterated, flush)} == {
        f'send {super_stream}'
    }
    counts = [dict(span.attributes or {}).get(COUNT) for span in (many, iterated, flush)]
    assert counts == [10, 10, 1]
    found: dict[str, rbs.Message] = {}
    async with stream.subscribe(offset=rbs.Offset.FIRST, timeout=20) as messages:
        count = 0
        async for message in messages.messages():
            found.setdefault(parent_of(message), message)
            with tracing.process(message):
                last = message.stream
            count += 1
            if count == 23:
                break
    assert {*found} >= {header(span) for span in (single, submitted, many, iterated)}
    for span in (single, submitted):
        message = found[header(span)]
        assert span.attributes is not None
        assert span.attributes['messaging.destination.name'] == super_stream
        assert span.attributes['messaging.destination.partition.id'] == message.stream
    processed = exporter.get_finished_spans()[-1]
    assert processed.name == f'process {super_stream}'
    assert processed.attributes is not None
    assert processed.attributes['messaging.destination.partition.id'] == last


COUNT = 'messaging.batch.message_count'


def provider_span(tracing: Any) -> Any:
    return tracing.process(
        rbs.Message(b'', app_properties={'traceparent': f'00-{5:032x}-{6:016x}-00'}),
        continue_trace=True,
    )


async def test_message_without_a_route(
    traced: Traced, super_stream: str, exporter: InMemorySpanExporter
) -> None:
    client, _ = traced()
    stream = client.super_stream(super_stream)
    async with stream.publisher(route=lambda message, names: []) as publisher:
        with pytest.raises(rbs.NoRouteError):
            await publisher.send(b'a')
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes['error.type'] == 'NoRouteError'


class Failing(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise ZeroDivisionError


async def test_failing_processor_of_spans(
    traced: Traced, stream: str, provider: TracerProvider
) -> None:
    """Calls report what became of the messages."""
    provider.add_span_processor(Failing())
    problems: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context['exception']))
    client, tracing = traced(create_spans=True)
    async with client.publisher(stream) as publisher:
        await publisher.send(b'a')
        await (await publisher.submit(b'b'))
        assert await publisher.send_many([b'c', b'd']) == 2
        await publisher.send_atomic([b'e'])
        publisher.batch(b'f')
        await publisher.flush()
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.send(b'g', timeout=0)
    with pytest.raises(LookupError), tracing.process(rbs.Message(b'')):
        raise LookupError
    created = 4  # spans of single messages: c, d, e and f
    assert [type(problem) for problem in problems] == [ZeroDivisionError] * (7 + created)


def test_failing_processor_of_spans_outside_an_event_loop(
    provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.add_span_processor(Failing())
    tracing = rbfly.otel.tracing(provider)
    with tracing.process(rbs.Message(b'')):
        pass
    (record,) = caplog.records
    assert record.getMessage() == 'a processor of spans has failed'
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_publishing_ids_of_partitions(
    traced: Traced, super_stream: str, exporter: InMemorySpanExporter
) -> None:
    """Messages with equal ids in two partitions are two messages."""
    client, _ = traced()
    stream = client.super_stream(super_stream)
    async with stream.publisher(route=lambda message, names: names[message.body]) as publisher:
        for confirmation in [
            await publisher.submit(rbs.Message(number, publish_id=1)) for number in (0, 1)
        ]:
            await confirmation
        await asyncio.sleep(0)
    first, second = exporter.get_finished_spans()
    assert [first.kind, second.kind] == [SpanKind.PRODUCER] * 2
    async with stream.subscribe(offset=rbs.Offset.FIRST, until='now') as messages:
        carried = {parent_of(message) async for message in messages.messages()}
    assert carried == {header(first), header(second)}


async def test_arguments(broker_uri: str) -> None:
    with pytest.raises(TypeError, match=r'tracing must be what rbfly\.otel\.tracing\(\) returns'):
        rbs.streams_client(broker_uri, tracing=rbfly.otel.tracing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='propagate must be'):
        rbfly.otel.tracing(propagate='headers')  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='tracer_provider must be TracerProvider, not int'):
        rbfly.otel.tracing(1)  # type: ignore[arg-type]
