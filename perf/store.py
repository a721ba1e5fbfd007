"""The brokers as the runner sees them: streams made, messages in them counted, streams deleted.

Messages are counted with :mod:`perf.wire` and :mod:`perf.kafka`, not with the libraries measured.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache

from brokers import BrokerError

from . import kafka, target, wire
from .far import Far
from .lanes import Stored
from .lanes.base import numbered
from .lanes.codec import APP_PROPERTIES, PROPERTIES

__all__ = ['KafkaStore', 'RabbitStore', 'Store', 'StoreError', 'opened']

StoreError = (wire.WireError, kafka.KafkaError, OSError)

# What a run leaves behind is bounded; one round of the largest kind is below.
RETENTION = {
    'max-length-bytes': '4000000000',
    'stream-max-segment-size-bytes': '100000000',
}


def stay(milliseconds: float) -> None:
    """A broker that is near is not moved away."""
    assert not milliseconds


class Store(ABC):
    """Streams, or topics, of one broker.

    :ivar address: where lanes connect.
    :ivar chunks: chunks that were counted, by stream, where there are chunks.
    :ivar far: lets a round trip to it take so many milliseconds longer.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.chunks: dict[str, int] = {}
        self.far: Callable[[float], None] = stay

    @abstractmethod
    def about(self) -> dict[str, str]:
        """Product and version, where the broker tells."""

    @abstractmethod
    def create(self, stream: str) -> None:
        """Make a stream."""

    @abstractmethod
    def count(self, stream: str) -> int:
        """Number of messages that the stream was given since it was made."""

    @abstractmethod
    def fill(self, stream: str, count: int, stored: Stored) -> None:
        """Publish messages for the lanes that consume."""

    @abstractmethod
    def delete(self, stream: str) -> None:
        """Delete a stream; it may be missing."""


class RabbitStore(Store):
    """Counts by reading chunk headers from where the last count ended.

    :param uri: stream URI by which it is counted.
    :param address: where lanes connect, if that is elsewhere.
    """

    def __init__(self, uri: str, address: str = '') -> None:
        super().__init__(address or uri)
        self.uri = uri
        self.counted: dict[str, tuple[int, int]] = {}  # next offset, messages before it
        self.connection = wire.Connection(uri, 'perf-count')

    def about(self) -> dict[str, str]:
        properties = self.connection.properties
        names = ('product', 'version', 'platform')
        return {name: properties[name] for name in names if name in properties}

    def create(self, stream: str) -> None:
        self.connection.create_stream(stream, RETENTION)
        self.counted[stream] = (0, 0)
        self.chunks[stream] = 0

    def count(self, stream: str) -> int:
        connection = self.connection
        position, total = self.counted[stream]
        # every message that was confirmed is in a committed chunk
        last = connection.stats(stream)['committed_chunk_id']
        if last >= position:
            connection.subscribe(stream, position)
            chunks = connection.chunks()
            for chunk_id, records in chunks:
                if chunk_id >= position:
                    total += records
                    self.chunks[stream] += 1
                    position = chunk_id + records
                if chunk_id >= last:
                    break
            chunks.close()
            connection.unsubscribe()
            self.counted[stream] = (position, total)
        return total

    def fill(self, stream: str, count: int, stored: Stored) -> None:
        head = wire.properties_sections(PROPERTIES, APP_PROPERTIES) if stored.properties else b''
        value = b''
        if stored.value:
            from .lanes.values import encoded  # needs this client, which the rest does not

            value = encoded(stored.value)
        publisher = wire.Connection(self.uri, 'perf-fill')
        try:
            publisher.declare_publisher(stream)
            for first in range(0, count, stored.frame):
                bodies = [numbered(i, stored.size) for i in range(first, first + stored.frame)]
                if stored.sub_entry:
                    entries = stored.frame // stored.sub_entry
                    frames = wire.sub_entry_frames(bodies, stored.sub_entry, entries)
                else:
                    entries = stored.frame
                    messages = [value or head + wire.data_section(data) for data in bodies]
                    frames = [wire.publish_frame(0, first, messages)]
                publisher.publish(frames, entries, entries)
        finally:
            publisher.close()

    def delete(self, stream: str) -> None:
        # on a connection of its own: one that had used the stream would be told of its end
        connection = wire.Connection(self.uri, 'perf-delete')
        try:
            connection.delete_stream(stream)
        finally:
            connection.close()


class KafkaStore(Store):
    def about(self) -> dict[str, str]:
        with kafka.Connection(self.address):
            return {'product': 'Kafka'}

    def create(self, stream: str) -> None:
        with kafka.Connection(self.address) as connection:
            connection.create_topic(stream)
            connection.count(stream)  # until it has a leader
        self.chunks[stream] = 0

    def fill(self, stream: str, count: int, stored: Stored) -> None:
        from .lanes.aiokafka_consume import fill  # the client that reads it, and is checked

        asyncio.run(fill(self.address, stream, count, stored))

    def count(self, stream: str) -> int:
        with kafka.Connection(self.address) as connection:
            return connection.count(stream)

    def delete(self, stream: str) -> None:
        with kafka.Connection(self.address) as connection:
            connection.delete_topic(stream)


@contextmanager
def opened(brokers: Sequence[str]) -> Iterator[tuple[dict[str, Store], dict[str, str]]]:
    """Connect to brokers; also say which there are not, and why."""
    stores: dict[str, Store] = {}
    errors: dict[str, str] = {}
    with ExitStack() as stack:

        @cache
        def far() -> Far:
            return stack.enter_context(Far())

        for broker in brokers:
            try:
                store = connect(broker, far)
                store.about()
            except (target.TargetError, BrokerError, *StoreError) as ex:
                errors[broker] = str(ex)
            else:
                stores[broker] = store
        yield stores, errors


def connect(broker: str, far: Callable[[], Far]) -> Store:
    """The store of a broker."""
    if broker == 'kafka':
        return KafkaStore(target.address(broker))
    protocol, _, away = broker.partition('-')
    if not away:
        uri = target.address('rabbitmq')
        return RabbitStore(uri, '' if protocol == 'rabbitmq' else target.address(protocol))
    place = far()
    store = RabbitStore(place.direct, place.uri if protocol == 'rabbitmq' else place.amqp_uri)
    store.far = place.delay
    return store
