"""A broker that processes have together."""

import os

from brokers import RabbitMQ
from brokers.state import run_folder


def test_broker_ends_with_the_last_that_uses_it() -> None:
    name = f'private-{os.getpid()}-joined'
    with RabbitMQ.joined(name) as first:
        with RabbitMQ.joined(name) as second:
            assert second.uri == first.uri
        assert first.alive()
    assert not run_folder(name).exists()
