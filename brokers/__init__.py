"""
Real brokers on loopback, for tests and benchmarks; before one of them, a proxy that cuts.

    python -m brokers up rabbitmq --nodes 3
    python -m brokers up rabbitmq --version 4.3
    python -m brokers status
    python -m brokers down

In Python: `rabbitmq.up()` or `kafka.up()` for the shared one, which is started if it does not run,
and `RabbitMQ.private(nodes=3)` for one of your own; both take a `version`, and RBFLY_RABBITMQ names
the one that is taken without it.
"""

from .kafka import Kafka
from .node import Node
from .rabbitmq import RabbitMQ
from .state import BrokerError, Progress

__all__ = ['BrokerError', 'Kafka', 'Node', 'Progress', 'RabbitMQ']
