"""
Real brokers on loopback for tests and benchmarks, and a proxy that injects network faults.

    python -m brokers up rabbitmq --nodes 3
    python -m brokers up rabbitmq --version 4.3
    python -m brokers status
    python -m brokers down

From Python, `rabbitmq.up()` and `kafka.up()` return the shared broker and start it if necessary.
`RabbitMQ.private(nodes=3)` creates a broker for the calling process only. The RabbitMQ functions
take a `version`; the default is the RBFLY_RABBITMQ environment variable.
"""

from .kafka import Kafka
from .node import Node
from .rabbitmq import RabbitMQ
from .state import BrokerError, Progress

__all__ = ['BrokerError', 'Kafka', 'Node', 'Progress', 'RabbitMQ']
