"""A broker that several processes share."""

import os

import pytest

from brokers import RabbitMQ
from brokers.state import run_folder, wait_until


@pytest.mark.rabbitmq
def test_broker_stops_with_its_last_user() -> None:
    name = f'private-{os.getpid()}-joined'
    with RabbitMQ.joined(name) as first:
        with RabbitMQ.joined(name) as second:
            assert second.uri == first.uri
        assert first.alive()
        version = f'{RabbitMQ.chosen()}.'
        # A busy node may not answer within the two seconds of `release`.
        assert wait_until(lambda: first.release.startswith(version), 30)
    assert not run_folder(name).exists()


@pytest.mark.parametrize('command', ['set_disk_free_limit', 'stop_app'])
def test_shared_broker_cannot_be_disturbed(broker: RabbitMQ, command: str) -> None:
    for disturb in (broker.restart_node, broker.kill_node, lambda: broker.ctl(command)):
        with pytest.raises(pytest.fail.Exception, match='private_broker'):
            disturb()
