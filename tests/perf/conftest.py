"""What tests of lanes share."""

from collections.abc import Iterator

import pytest

from brokers import RabbitMQ
from perf.store import RabbitStore


@pytest.fixture
def store(broker: RabbitMQ, stream_name: str) -> Iterator[RabbitStore]:
    """Counts what is in the stream, which it has made."""
    store = RabbitStore(broker.uri)
    store.create(stream_name)
    yield store
    store.connection.close()
