"""
Real brokers on loopback, for tests and benchmarks.

    python -m perf brokers up rabbitmq --nodes 3
    python -m perf brokers status
    python -m perf brokers down

In Python: `up('rabbitmq')` for the shared one, which is started if it does not run, and
`RabbitMQ.private(nodes=3)` for one of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from . import kafka, rabbitmq
from .kafka import Kafka
from .node import Node
from .rabbitmq import RabbitMQ
from .state import BrokerError, Progress

__all__ = [
    'KINDS',
    'BrokerError',
    'Kafka',
    'Node',
    'Progress',
    'RabbitMQ',
    'down',
    'status',
    'up',
]

KINDS = ('rabbitmq', 'kafka')


@overload
def up(
    kind: Literal['rabbitmq'] = 'rabbitmq',
    nodes: int | None = None,
    *,
    plugins: Sequence[str] = (),
    config: Sequence[str] = (),
    progress: Progress | None = None,
) -> RabbitMQ: ...
@overload
def up(kind: Literal['kafka'], *, progress: Progress | None = None) -> Kafka: ...
def up(
    kind: str = 'rabbitmq',
    nodes: int | None = None,
    *,
    plugins: Sequence[str] = (),
    config: Sequence[str] = (),
    progress: Progress | None = None,
) -> RabbitMQ | Kafka:
    """
    The broker that RBFLY_URI or RBFLY_KAFKA names; otherwise the shared one, which is started
    if it does not run, and goes on running until `down`.
    """
    if kind == 'rabbitmq':
        return rabbitmq.up(nodes, plugins=plugins, config=config, progress=progress)
    if kind == 'kafka':
        return kafka.up(progress=progress)
    raise ValueError(f'{kind!r} is no kind of broker: {", ".join(KINDS)}')


def down(kind: str = 'rabbitmq', *, progress: Progress | None = None) -> bool:
    """Stop the shared broker and remove its data; `False` if there was none."""
    if kind == 'rabbitmq':
        return rabbitmq.down(progress)
    if kind == 'kafka':
        return kafka.down(progress)
    raise ValueError(f'{kind!r} is no kind of broker: {", ".join(KINDS)}')


def status() -> list[dict[str, Any]]:
    """What runs, one entry for each kind."""
    return [rabbitmq.status(), kafka.status()]
