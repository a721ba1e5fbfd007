"""`rbfly.otel.metrics` exports what `client.metrics()` shows."""

import asyncio
import gc
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from prometheus_client import CollectorRegistry, generate_latest

import rbfly.otel
import rbfly.streams as rbs
from rbfly.otel import _metrics
from rbfly.testing import StreamBroker
from tests.examples import examples
from tests.streams.test_examples import ADDRESS

COUNTERS = {item.name: item.field for item in _metrics.COUNTERS}
GAUGES = {item.name: item.field for item in [*_metrics.GAUGES, *_metrics.MOMENTS]}
NAMES = COUNTERS | GAUGES


class Collector:
    """A meter provider whose metrics the test collects."""

    def __init__(self, **options: Any) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], **options)

    def collect(self) -> dict[str, list[Any]]:
        """Return the data points by the name of their metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        assert scope.schema_url == scope.scope.schema_url == _metrics.SCHEMA
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}

    def values(self, **attributes: str) -> dict[str, Any]:
        """Return the value of each counter and gauge with these attributes and no others."""
        wanted = {'messaging.system': 'rabbitmq'}
        wanted |= {name.replace('_', '.'): value for name, value in attributes.items()}
        found = {}
        for name, points in self.collect().items():
            for point in points:
                of_point = {
                    key: value
                    for key, value in point.attributes.items()
                    if not key.startswith('messaging.operation.')
                }
                if name in NAMES and of_point == wanted:
                    assert name not in found
                    found[name] = point.value
        return found


@pytest.fixture
def collector() -> Collector:
    return Collector()


async def exchange(client: rbs.StreamsClient, stream: str, count: int) -> None:
    """Publish messages to a new stream, and read them."""
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(count))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        for number in range(count):
            assert await anext(messages) == number


async def test_each_number_is_exported(broker_uri: str, stream: str, collector: Collector) -> None:
    metrics = rbfly.otel.metrics(collector.provider)
    async with (
        rbs.streams_client(broker_uri, metrics=metrics) as client,
        client.publisher(stream) as publisher,
        client.subscribe(stream, offset=rbs.Offset.FIRST) as messages,
    ):
        await publisher.send_many(range(100))
        assert await anext(messages) == 0
        found = client.metrics()
        assert found.published == 100
        shown = collector.values()
        assert shown == {name: getattr(found, field) for name, field in NAMES.items()}
    shown = collector.values()
    assert [shown[item.name] for item in _metrics.GAUGES] == [0, 0, 0, 0]


async def test_counters_are_monotonic_and_gauges_are_not(collector: Collector) -> None:
    metrics = rbfly.otel.metrics(collector.provider)
    async with StreamBroker() as broker:
        async with rbs.streams_client(broker.uri, metrics=metrics) as client:
            await exchange(client, 'orders', 10)
        data = collector._reader.get_metrics_data()
    assert data is not None
    found = {item.name: item.data for item in data.resource_metrics[0].scope_metrics[0].metrics}
    rising = {name for name, item in found.items() if getattr(item, 'is_monotonic', False)}
    assert rising == {*COUNTERS}
    assert {*NAMES} <= {*found}


async def test_clients_add_up_and_stay_in_the_sums(collector: Collector) -> None:
    metrics = rbfly.otel.metrics(collector.provider)
    async with StreamBroker() as broker:
        for count in (10, 20):
            async with rbs.streams_client(broker.uri, metrics=metrics) as client:
                await exchange(client, f'orders-{count}', count)
        assert collector.values()['rabbitmq.stream.published'] == 30
        del client
        gc.collect()
        instruments = metrics._instruments
        assert not instruments._found or len(instruments._sources) < 2
        shown = collector.values()
        assert instruments._sources == {}
    assert shown['rabbitmq.stream.published'] == shown['rabbitmq.stream.consumed'] == 30
    assert shown['rabbitmq.stream.connections'] == shown['rabbitmq.stream.publishers'] == 0


async def test_each_client_may_have_its_own_exporter(collector: Collector) -> None:
    async with StreamBroker() as broker:
        for streams in (False, False, True):
            metrics = rbfly.otel.metrics(collector.provider, streams=streams)
            async with rbs.streams_client(broker.uri, metrics=metrics) as client:
                await exchange(client, f'orders-{uuid4()}', 10)
        assert collector.values()['rabbitmq.stream.published'] == 20
        del client, metrics
        gc.collect()
        published = collector.collect()['rabbitmq.stream.published']
    assert sorted(point.value for point in published) == [10, 20]


async def test_named_clients_have_their_own_numbers(collector: Collector) -> None:
    metrics = rbfly.otel.metrics(collector.provider)
    async with StreamBroker() as broker:
        for name in ('shop', 'mill'):
            async with rbs.streams_client(
                broker.uri, connection_name=name, metrics=metrics
            ) as client:
                await exchange(client, f'orders-{name}', len(name) * (name == 'shop'))
    assert collector.values(messaging_client_id='shop')['rabbitmq.stream.published'] == 4
    assert collector.values(messaging_client_id='mill')['rabbitmq.stream.published'] == 0
    assert collector.values() == {}


async def test_streams_have_their_own_numbers_on_request(collector: Collector) -> None:
    metrics = rbfly.otel.metrics(collector.provider, streams=True)
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, metrics=metrics) as client,
    ):
        await exchange(client, 'orders', 10)
        await exchange(client, 'invoices', 3)
        orders = client.super_stream('returns')
        await orders.create(partitions=2)
        async with orders.publisher(route=rbs.by_hash(str)) as publisher:
            await publisher.send_many(range(100))
        shown = {
            name: collector.values(messaging_destination_name=name)
            for name in ('orders', 'invoices', 'returns-0', 'returns-1')
        }
        published = {name: item['rabbitmq.stream.published'] for name, item in shown.items()}
        assert published['orders'] == shown['orders']['rabbitmq.stream.consumed'] == 10
        assert published['invoices'] == 3
        assert published['returns-0'] + published['returns-1'] == 100
        assert published['returns-0'] > 0
        rest = collector.values()
        assert rest['rabbitmq.stream.written_bytes'] == client.metrics().bytes_written
        assert 'rabbitmq.stream.published' not in rest


async def test_histograms(collector: Collector) -> None:
    async with StreamBroker() as broker:
        metrics = rbfly.otel.metrics(collector.provider)
        async with rbs.streams_client(broker.uri, metrics=metrics) as client:
            await exchange(client, 'orders', 10)
            broker.delay(0.25)  # longer than the interval between two recorded values
            async with client.publisher('orders') as publisher:
                await publisher.send(b'')
    found = collector.collect()
    [latency] = found['rabbitmq.stream.confirm_latency']
    assert latency.count == 2
    assert 0.2 < latency.max < 60
    assert 0 < latency.min < latency.max
    assert latency.explicit_bounds[0] == 1e-5
    assert latency.explicit_bounds[-1] == 10
    [duration] = found['messaging.client.operation.duration']
    assert (duration.count, duration.sum) == (latency.count, latency.sum)
    assert duration.attributes['messaging.operation.name'] == 'send'
    assert list(duration.explicit_bounds) == _metrics.ADVISED
    [sizes] = found['rabbitmq.stream.chunk_size']
    assert sizes.count >= 1
    assert sizes.max <= 10


async def test_view_may_drop_any_metric() -> None:
    views = [View(instrument_name='rabbitmq.stream.published', aggregation=DropAggregation())]
    collector = Collector(views=views)
    metrics = rbfly.otel.metrics(collector.provider)
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, metrics=metrics) as client,
    ):
        await exchange(client, 'orders', 10)
        assert collector.values()['rabbitmq.stream.confirmed'] == 10
        await exchange(client, 'invoices', 5)
        shown = collector.values()
    assert shown['rabbitmq.stream.confirmed'] == 15
    assert 'rabbitmq.stream.published' not in shown


class Failing:
    """An exporter whose functions fail."""

    def attach(self, source: rbs.MetricsSource) -> None:
        self.source = source

    def detach(self, source: rbs.MetricsSource) -> None:
        raise AssertionError

    def on_confirm(self, source: rbs.MetricsSource, seconds: float) -> None:
        raise ValueError('on_confirm')

    def on_chunk(self, source: rbs.MetricsSource, entries: int) -> None:
        raise ValueError('on_chunk')


async def test_failing_exporter_disturbs_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda it: reported.append(str(it.exc_value)))
    exporter = Failing()
    async with StreamBroker() as broker:
        async with rbs.streams_client(broker.uri, metrics=exporter) as client:
            await exchange(client, 'orders', 10)
        assert exporter.source.read() == client.metrics()
        assert client.metrics().connections_lost == 0
    assert {*reported} == {'on_confirm', 'on_chunk'}


@pytest.mark.parametrize('wrong', [rbfly.otel.metrics, 'prometheus', True])
def test_wrong_exporter_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match='metrics must be a MetricsExporter, such as rbfly'):
        rbs.streams_client('rabbitmq-stream://localhost', metrics=wrong)


def test_wrong_provider_is_refused() -> None:
    wrong: Any = InMemoryMetricReader()
    with pytest.raises(TypeError, match='must be a MeterProvider, not InMemoryMetricReader'):
        rbfly.otel.metrics(wrong)


def test_missing_api_names_the_extra() -> None:
    program = """
import sys
sys.modules['opentelemetry'] = None
import rbfly.otel
try:
    rbfly.otel.metrics()
except ModuleNotFoundError as ex:
    print(ex)
"""
    printed = subprocess.check_output([sys.executable, '-c', program], text=True)
    assert printed == (
        "rbfly.otel needs the package opentelemetry-api: install RbFly's extra `otel`\n"
    )


# -- the documented program


(PROGRAM,) = [code for _, code in examples() if 'PrometheusMetricReader' in code]
# Where the program's server listens; it then runs the rest.
LISTEN = """
import prometheus_client
start = prometheus_client.start_http_server
def listen(port):
    assert port == 9464
    server, thread = start(0, addr='127.0.0.1')
    print(server.server_port, file=open('port', 'w'), flush=True)
prometheus_client.start_http_server = listen
"""
SAMPLE = re.compile(r'^(\w+)(?:\{.*\})? (\S+)$', re.M)


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=30) as answer:
        found = SAMPLE.findall(answer.read().decode())
    return {name: float(value) for name, value in found if name.startswith(('rabbit', 'messag'))}


async def test_documented_program_serves_prometheus(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(100))
    code = PROGRAM.replace(ADDRESS, broker_uri).replace("'orders'", repr(stream))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, '-W', 'error', '-c', LISTEN + code),
        cwd=tmp_path,
        env=os.environ | {'PYTHONUNBUFFERED': '1'},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        for number in range(100):
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b'%d\n' % number
        port = int((tmp_path / 'port').read_text())
        found = await asyncio.to_thread(scrape, port)
        assert found['rabbitmq_stream_consumed_total'] == 100
        assert found['messaging_client_consumed_messages_total'] == 100
        assert found['rabbitmq_stream_subscriptions'] == 1
        assert found['rabbitmq_stream_connections'] >= 1
        assert found['rabbitmq_stream_last_chunk_timestamp_seconds'] > 1.5e9
        assert found['rabbitmq_stream_read_bytes_total'] > 1000
    finally:
        process.kill()
        await process.wait()


async def test_alerts_name_metrics_that_exist() -> None:
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, metrics=rbfly.otel.metrics(provider)) as client,
    ):
        await exchange(client, 'orders', 10)
        shown = {name for name, _ in SAMPLE.findall(generate_latest(registry).decode())}
    page = (Path(__file__).parents[2] / 'doc' / 'operating' / 'monitoring.rst').read_text()
    named = {*re.findall(r'\brabbitmq_stream_\w+', page)}
    assert len(named) > 5
    assert named <= shown
