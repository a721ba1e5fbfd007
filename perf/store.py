"""The brokers as the runner sees them: streams made, messages in them counted, streams deleted.

Messages are counted with :mod:`perf.wire` and :mod:`perf.kafka`, not with the libraries measured.
"""

from abc import ABC, abstractmethod

from . import kafka, wire
from .lanes import Stored
from .lanes.base import numbered
from .lanes.codec import APP_PROPERTIES, PROPERTIES

__all__ = ['KafkaStore', 'RabbitStore', 'Store', 'StoreError']

StoreError = (wire.WireError, kafka.KafkaError, OSError)

# What a run leaves behind is bounded; one round of the largest kind is far below.
RETENTION = {
    'max-length-bytes': '1000000000',
    'stream-max-segment-size-bytes': '100000000',
}


class Store(ABC):
    """Streams, or topics, of one broker."""

    def __init__(self, address: str) -> None:
        self.address = address

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
    def delete(self, stream: str) -> None:
        """Delete a stream; it may be missing."""


class RabbitStore(Store):
    """Counts by reading chunk headers from where the last count ended."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.counted: dict[str, tuple[int, int]] = {}  # next offset, messages before it
        self.chunks: dict[str, int] = {}
        self.connection = wire.Connection(address, 'perf-count')

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
        """Publish messages for the lanes that consume."""
        head = wire.properties_sections(PROPERTIES, APP_PROPERTIES) if stored.properties else b''
        publisher = wire.Connection(self.address, 'perf-fill')
        try:
            publisher.declare_publisher(stream)
            for first in range(0, count, stored.frame):
                bodies = [numbered(i, stored.size) for i in range(first, first + stored.frame)]
                if stored.sub_entry:
                    entries = stored.frame // stored.sub_entry
                    frames = wire.sub_entry_frames(bodies, stored.sub_entry, entries)
                else:
                    entries = stored.frame
                    messages = [head + wire.data_section(data) for data in bodies]
                    frames = [wire.publish_frame(0, first, messages)]
                publisher.publish(frames, entries, entries)
        finally:
            publisher.close()

    def delete(self, stream: str) -> None:
        # on a connection of its own: one that had used the stream would be told of its end
        connection = wire.Connection(self.address, 'perf-delete')
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

    def count(self, stream: str) -> int:
        with kafka.Connection(self.address) as connection:
            return connection.count(stream)

    def delete(self, stream: str) -> None:
        with kafka.Connection(self.address) as connection:
            connection.delete_topic(stream)
