"""What the runner needs of a broker: create, fill and delete streams, and count their messages.

Messages are counted with :mod:`brokers.wire` and :mod:`perf.kafka`, not with a measured library.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache

from brokers import BrokerError, RabbitMQ, wire
from brokers.output import run_coroutine
from brokers.probe import parse_uri, peer_properties

from . import CommandError, broker_address, kafka, super_stream_wire
from .clients.base import numbered
from .delayed_broker import DelayedBroker
from .lanes import Stored

StoreError = (wire.WireError, kafka.KafkaError, OSError)

# Bounds the disk space of a run, with room for one round of the largest kind of work.
RETENTION = {'max-length-bytes': '4000000000', 'stream-max-segment-size-bytes': '100000000'}

NODES = 3  # of a cluster


def no_delay(milliseconds: float) -> None:
    """Accept no delay: there is no proxy to inject it."""
    assert not milliseconds


def plain(stored: Stored, number: int) -> bytes:
    """Encode the message of a stream with this number."""
    return wire.data_section(numbered(number, stored.size))


class Store(ABC):
    """Streams, or topics, of one broker.

    :ivar address: where lanes connect.
    :ivar ca_file: certificate of the authority that lanes trust; empty without TLS.
    :ivar chunks: number of chunks counted, by stream; 0 if the broker has no chunks.
    :ivar far: sets the latency added to each round trip, in milliseconds.
    """

    def __init__(self, address: str, ca_file: str = '') -> None:
        self.address = address
        self.ca_file = ca_file
        self.chunks: dict[str, int] = {}
        self.far: Callable[[float], None] = no_delay

    @abstractmethod
    def about(self) -> dict[str, str]:
        """Product and version, as far as the broker reports them."""

    @abstractmethod
    def create(self, stream: str) -> None:
        """Create a stream."""

    def create_super(self, stream: str, partitions: Sequence[str], nodes: int = 0) -> None:
        """Create a super stream.

        :param nodes: number of nodes that lead equally many partitions; 0 for any.
        """
        raise NotImplementedError

    @abstractmethod
    def count(self, stream: str) -> int:
        """Count the messages stored in the stream since it was created."""

    @abstractmethod
    def fill(self, stream: str, count: int, stored: Stored) -> None:
        """Publish messages for the lanes that consume."""

    @abstractmethod
    def delete(self, stream: str) -> None:
        """Delete a stream; it may be missing."""

    def delete_super(self, stream: str) -> None:
        """Delete a super stream; it may be missing."""
        raise NotImplementedError


class RabbitStore(Store):
    """Counts by reading chunk headers, starting where the previous count ended.

    :param uri: stream URI for counting.
    :param address: where lanes connect, if different.
    """

    def __init__(self, uri: str, address: str = '', ca_file: str = '') -> None:
        super().__init__(address or uri, ca_file)
        self.uri = uri
        self.counted: dict[str, tuple[int, int]] = {}  # next offset, messages before it
        self.leaders: dict[str, str] = {}  # URIs of nodes, by partition; only in a cluster
        self.connection = wire.Connection(uri, 'perf-count')
        self.connections = {uri: self.connection}

    def about(self) -> dict[str, str]:
        properties = peer_properties(parse_uri(self.uri))
        names = ('product', 'version', 'platform')
        return {name: properties[name] for name in names if name in properties}

    def create(self, stream: str) -> None:
        self.connection.create_stream(stream, RETENTION)
        self.counted[stream] = (0, 0)
        self.chunks[stream] = 0

    def create_super(self, stream: str, partitions: Sequence[str], nodes: int = 0) -> None:
        locator = {'queue-leader-locator': 'client-local' if nodes == 1 else 'balanced'}
        super_stream_wire.create(self.connection, stream, partitions, RETENTION | locator)
        if nodes:
            found = super_stream_wire.leaders(self.uri, partitions)
            self.leaders.update(zip(partitions, found, strict=True))
            if sorted(Counter(found).values()) != [len(partitions) // nodes] * nodes:
                raise wire.WireError(f'{stream} is led by {found}, not by {nodes} nodes')
        for name in partitions:
            self.counted[name] = (0, 0)
            self.chunks[name] = 0

    def count(self, stream: str) -> int:
        uri = self.leaders.get(stream, self.uri)  # other replicas may lag behind
        if uri not in self.connections:
            self.connections[uri] = wire.Connection(uri, 'perf-count')
        connection = self.connections[uri]
        position, total = self.counted[stream]
        # committed chunks contain every confirmed message
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
        encode = plain
        if stored.properties or stored.value:
            from .clients.values import encoded as encode  # nothing else here needs RbFly
        leader = self.leaders.get(stream, self.uri)
        with closing(wire.Connection(leader, 'perf-fill')) as publisher:
            publisher.declare_publisher(stream)
            for first in range(0, count, stored.frame):
                numbers = range(first, first + stored.frame)
                entries = size = stored.frame // max(stored.sub_entry, 1)
                bodies = [numbered(i, stored.size) for i in numbers]
                if stored.sub_entry:
                    frames = wire.sub_entry_frames(bodies, stored.sub_entry, entries)
                else:
                    messages = [encode(stored, i) for i in numbers]
                    while size * (len(messages[0]) + wire.ENTRY_HEAD.size) > wire.FRAME_MAX:
                        size //= 2
                    frames = [
                        wire.publish_frame(0, first + i, messages[i : i + size])
                        for i in range(0, entries, size)
                    ]
                publisher.publish(frames, size, entries)

    def delete(self, stream: str) -> None:
        # RabbitMQ notifies connections that used the stream of its deletion, so use a new one
        with closing(wire.Connection(self.uri, 'perf-delete')) as connection:
            connection.delete_stream(stream)

    def delete_super(self, stream: str) -> None:
        with closing(wire.Connection(self.uri, 'perf-delete')) as connection:
            super_stream_wire.delete(connection, stream)


class KafkaStore(Store):
    """Counts by reading offsets.

    :param direct: address for counting, without TLS.
    :param address: where lanes connect, if different.
    """

    def __init__(self, direct: str, address: str = '', ca_file: str = '') -> None:
        super().__init__(address or direct, ca_file)
        self.direct = direct

    def about(self) -> dict[str, str]:
        kafka.connect(self.direct).close()
        return {'product': 'Kafka'}

    def create(self, stream: str) -> None:
        kafka.create_topic(self.direct, stream)
        kafka.count(self.direct, stream)  # waits until the topic has a leader
        self.chunks[stream] = 0

    def fill(self, stream: str, count: int, stored: Stored) -> None:
        from .clients.aiokafka import fill  # the consuming lanes check the messages

        run_coroutine(fill(self.direct, stream, count, stored))

    def count(self, stream: str) -> int:
        return kafka.count(self.direct, stream)

    def delete(self, stream: str) -> None:
        kafka.delete_topic(self.direct, stream)


@contextmanager
def opened(brokers: Sequence[str]) -> Iterator[tuple[dict[str, Store], dict[str, str]]]:
    """Connect to brokers; yield their stores, and the errors of those that are unavailable."""
    stores: dict[str, Store] = {}
    errors: dict[str, str] = {}
    with ExitStack() as stack:

        @cache
        def far() -> DelayedBroker:
            return stack.enter_context(DelayedBroker())

        @cache
        def cluster() -> RabbitMQ:
            return stack.enter_context(RabbitMQ.private(NODES))

        for broker in brokers:
            try:
                store = connect(broker, far, cluster)
                store.about()
            except (CommandError, BrokerError, *StoreError) as ex:
                errors[broker] = str(ex)
            else:
                stores[broker] = store
        yield stores, errors


def connect(
    broker: str, far: Callable[[], DelayedBroker], cluster: Callable[[], RabbitMQ]
) -> Store:
    """Connect to a broker; start those that runs do not share."""
    protocol, _, suffix = broker.partition('-')
    if protocol == 'kafka' or suffix == 'tls':
        direct = broker_address.find(protocol)
        secure = broker_address.find_tls(protocol) if suffix else ()
        return (KafkaStore if protocol == 'kafka' else RabbitStore)(direct, *secure)
    if not suffix:
        uri = broker_address.find('rabbitmq')
        return RabbitStore(uri, '' if protocol == 'rabbitmq' else broker_address.find(protocol))
    if suffix == 'cluster':
        return RabbitStore(cluster().uri)
    node = far()
    store = RabbitStore(node.direct, node.uri if protocol == 'rabbitmq' else node.amqp_uri)
    store.far = node.delay
    return store
