"""Fixtures for the tests of lanes."""

from collections.abc import Iterator

import pytest

from brokers import RabbitMQ
from perf.store import RabbitStore


@pytest.fixture
def store(broker: RabbitMQ, stream_name: str) -> Iterator[RabbitStore]:
    """A store that has created the stream and counts its messages."""
    store = RabbitStore(broker.uri)
    store.create(stream_name)
    yield store
    store.connection.close()
