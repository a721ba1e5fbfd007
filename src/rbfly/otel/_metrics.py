"""The metrics of clients: what `metrics` returns.

Counters and gauges are asynchronous instruments, which read the clients only when they are asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from types import MappingProxyType
from typing import ClassVar, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
    get_meter_provider,
)

from .. import __version__
from ..error import ArgumentTypeError
from ..streams.metrics import MetricsSource, StreamMetrics

SCHEMA = 'https://opentelemetry.io/schemas/1.44.0'
SYSTEM = {'messaging.system': 'rabbitmq'}
SEND = {'messaging.operation.name': 'send', 'messaging.operation.type': 'send'}
NONE: Mapping[str, str] = MappingProxyType({})
RECEIVE = {'messaging.operation.name': 'receive', 'messaging.operation.type': 'receive'}


class Counted(NamedTuple):
    """An instrument that shows a field of `Metrics`."""

    name: str
    field: str
    unit: str
    description: str
    attributes: Mapping[str, str] = NONE


# The names are those of RabbitMQ's clients for Java and .NET; ours are marked.
COUNTERS = [
    Counted('rabbitmq.stream.published', 'published', '{message}', 'Messages sent'),
    Counted('rabbitmq.stream.confirmed', 'confirmed', '{message}', 'Messages confirmed'),
    Counted('rabbitmq.stream.errored', 'refused', '{message}', 'Messages refused'),
    Counted('rabbitmq.stream.resent', 'resent', '{message}', 'Messages sent again'),  # ours
    Counted('rabbitmq.stream.consumed', 'consumed', '{message}', 'Messages received'),
    Counted('rabbitmq.stream.chunk', 'chunks', '{chunk}', 'Chunks received'),
    Counted(
        'rabbitmq.stream.reconnects',  # ours
        'reconnects',
        '{reconnect}',
        'Publishers and subscriptions declared again after a loss',
    ),
    Counted('rabbitmq.stream.written_bytes', 'bytes_written', 'By', 'Bytes written'),
    Counted('rabbitmq.stream.read_bytes', 'bytes_read', 'By', 'Bytes read'),
    Counted(
        'rabbitmq.stream.connections_lost',  # ours
        'connections_lost',
        '{connection}',
        'Connections that ended without being closed by the client',
    ),
    Counted('messaging.client.sent.messages', 'published', '{message}', 'Messages sent', SEND),
    Counted(
        'messaging.client.consumed.messages', 'consumed', '{message}', 'Messages received', RECEIVE
    ),
]
GAUGES = [
    Counted('rabbitmq.stream.connections', 'connections', '{connection}', 'Open connections'),
    Counted('rabbitmq.stream.publishers', 'publishers', '{publisher}', 'Open publishers'),  # ours
    Counted(
        'rabbitmq.stream.subscriptions',  # ours
        'subscriptions',
        '{subscription}',
        'Open subscriptions',
    ),
    Counted(
        'rabbitmq.stream.outstanding_publish_confirm',
        'unconfirmed',
        '{message}',
        'Messages that the broker has not confirmed',
    ),
]
MOMENTS = [
    Counted(
        'rabbitmq.stream.last_confirm.timestamp',  # ours
        'last_confirm',
        's',
        'Time of the last confirm, since the epoch',
    ),
    Counted(
        'rabbitmq.stream.last_chunk.timestamp',  # ours
        'last_chunk',
        's',
        'Time of the last chunk, since the epoch',
    ),
]
OF_STREAMS = list(StreamMetrics.field_types)
OF_CONNECTIONS = ['connections', 'connections_lost', 'bytes_written', 'bytes_read']
RISING = {item.field for item in COUNTERS}
LATEST = {item.field for item in MOMENTS}

# From 10 us to 10 s; the buckets that the conventions advise begin at 5 ms.
FINE = [digit * 10**power for power in range(-5, 1) for digit in (1, 2.5, 5)] + [10.0]
ADVISED = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
SIZES = [digit * 10**power for power in range(5) for digit in (1, 2, 5)]

# Connection name, and stream; '' for all clients without a name, and for no stream.
Key = tuple[str, str]
Values = dict[str, float]


class ClientMetrics:
    """Exports the metrics of clients; :func:`rbfly.otel.metrics` creates one.

    It does not keep a client alive.  The counts of clients that are gone stay in the sums.
    """

    def __init__(self, meter_provider: MeterProvider | None, streams: bool) -> None:
        if meter_provider is not None and not hasattr(meter_provider, 'get_meter'):
            kind = type(meter_provider).__name__
            raise ArgumentTypeError(f'meter_provider must be a MeterProvider, not {kind}')
        self._streams = streams
        self._instruments = Instruments.of(meter_provider)

    def attach(self, source: MetricsSource) -> None:
        """A client was created."""
        self._instruments.attach(source, self._streams)

    def detach(self, source: MetricsSource) -> None:
        """The client is gone."""
        self._instruments.detach(source)

    def on_confirm(self, source: MetricsSource, seconds: float) -> None:
        """The broker has confirmed a frame of messages."""
        self._instruments.on_confirm(source, seconds)

    def on_chunk(self, source: MetricsSource, entries: int) -> None:
        """The broker has delivered a chunk."""
        self._instruments.on_chunk(source, entries)


class Instruments:
    """The instruments of a meter provider.

    It would ignore a second set with the same names, so all clients share one.
    """

    made: ClassVar[WeakKeyDictionary[object, ReferenceType[Instruments]]] = WeakKeyDictionary()
    making: ClassVar[Lock] = Lock()

    @classmethod
    def of(cls, meter_provider: MeterProvider | None) -> Instruments:
        """Return those of a meter provider; None for the global one."""
        is_global = meter_provider in (None, get_meter_provider())
        key: object = get_meter_provider if is_global else meter_provider
        with cls.making:
            known = cls.made.get(key)
            found = None if known is None else known()
            if found is None:
                found = cls(meter_provider)
                cls.made[key] = ref(found)  # the instruments keep it
        return found

    def __init__(self, meter_provider: MeterProvider | None) -> None:
        # each with whether to export numbers by stream
        self._sources: dict[MetricsSource, bool] = {}
        self._gone: deque[MetricsSource] = deque()  # of clients, until their counts are kept
        self._kept: dict[Key, Values] = {}
        self._lock = Lock()  # several readers may collect at once
        self._found: dict[Key, Values] = {}
        self._served: set[str] | None = None  # instruments that have shown what was found
        meter = get_meter('rbfly', __version__, meter_provider, SCHEMA)
        self._create_observed(meter)
        self._latency = meter.create_histogram(
            'rabbitmq.stream.confirm_latency',
            's',
            'Time from sending a frame to its confirm',
            explicit_bucket_boundaries_advisory=FINE,
        )
        self._duration = meter.create_histogram(
            'messaging.client.operation.duration',
            's',
            'Time from sending a frame to its confirm',
            explicit_bucket_boundaries_advisory=ADVISED,
        )
        self._chunk_size = meter.create_histogram(
            'rabbitmq.stream.chunk_size',
            '{entry}',
            'Entries of a chunk',
            explicit_bucket_boundaries_advisory=SIZES,
        )

    def _create_observed(self, meter: Meter) -> None:
        for item in COUNTERS:
            callbacks = [self._callback(item)]
            meter.create_observable_counter(item.name, callbacks, item.unit, item.description)
        for item in GAUGES:
            callbacks = [self._callback(item)]
            meter.create_observable_up_down_counter(
                item.name, callbacks, item.unit, item.description
            )
        for item in MOMENTS:
            callbacks = [self._callback(item)]
            meter.create_observable_gauge(item.name, callbacks, item.unit, item.description)

    # -- what clients call

    def attach(self, source: MetricsSource, streams: bool) -> None:
        self._sources[source] = streams

    def detach(self, source: MetricsSource) -> None:
        self._gone.append(source)  # the garbage collector may call this while the lock is held

    def on_confirm(self, source: MetricsSource, seconds: float) -> None:
        attributes = attributes_of((source.connection_name, ''))
        self._latency.record(seconds, attributes)
        self._duration.record(seconds, attributes | SEND)

    def on_chunk(self, source: MetricsSource, entries: int) -> None:
        self._chunk_size.record(entries, attributes_of((source.connection_name, '')))

    # -- what a reader calls

    def _callback(self, item: Counted) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(values[item.field], {**attributes_of(key), **item.attributes})
                for key, values in self._read(item.name).items()
                if item.field in values
            ]

        return observe

    def _read(self, name: str) -> dict[Key, Values]:
        """Return the values for an instrument; all instruments that are read together share them.

        An instrument that has shown them gets new ones.
        """
        with self._lock:
            if self._served is None or name in self._served:
                self._keep_gone()
                self._found, self._served = self._add_up(), set()
            self._served.add(name)
            return self._found

    def _keep_gone(self) -> None:
        """Keep the counts of clients that are gone."""
        while self._gone:
            source = self._gone.popleft()
            for key, values in values_of(source, self._sources.pop(source)):
                ended = {
                    field: value if field in RISING | LATEST else 0
                    for field, value in values.items()
                }
                add(self._kept.setdefault(key, {}), ended)

    def _add_up(self) -> dict[Key, Values]:
        total = {key: values.copy() for key, values in self._kept.items()}
        for source, streams in list(self._sources.items()):
            for key, values in values_of(source, streams):
                add(total.setdefault(key, {}), values)
        return total


def values_of(source: MetricsSource, streams: bool) -> Iterator[tuple[Key, Values]]:
    """Yield the values of a client, and those of each stream if that is wanted."""
    name, found = source.connection_name, source.read()
    of_client = {field: getattr(found, field) for field in OF_CONNECTIONS}
    if not streams:
        of_client |= stream_values(found)
    else:
        left = {field: getattr(found, field) for field in OF_STREAMS if field in RISING}
        for stream, numbers in found.streams.items():
            values = stream_values(numbers)
            yield (name, stream), values
            for field in left:
                left[field] -= values[field]
        of_client |= {field: count for field, count in left.items() if count}
    yield (name, ''), of_client


def stream_values(numbers: StreamMetrics) -> Values:
    """Return the values of a stream, or of all; without the times of what has not happened."""
    found = {field: getattr(numbers, field) for field in OF_STREAMS}
    return {field: value for field, value in found.items() if value is not None}


def add(total: Values, values: Values) -> None:
    """Add counts, and keep the latest times."""
    for field, value in values.items():
        if field in LATEST:
            total[field] = max(total.get(field, value), value)
        else:
            total[field] = total.get(field, 0) + value


def attributes_of(key: Key) -> dict[str, str]:
    name, stream = key
    found = SYSTEM.copy()
    if name:
        found['messaging.client.id'] = name
    if stream:
        found['messaging.destination.name'] = stream
    return found
