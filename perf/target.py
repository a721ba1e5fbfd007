"""Finds the brokers: those that the environment names, else those of `python -m brokers`."""

import os

from brokers import BrokerError, kafka, rabbitmq
from brokers.install import KAFKA_VERSION

__all__ = ['TargetError', 'about', 'address']

VARIABLES = {'rabbitmq': 'RBFLY_URI', 'amqp': 'RBFLY_AMQP_URI', 'kafka': 'RBFLY_KAFKA'}


class TargetError(Exception):
    """There is no broker, and why none could be started."""


def address(broker: str) -> str:
    """Address of a broker; it is started, and left running, if it does not run."""
    variable = VARIABLES[broker]
    if found := os.environ.get(variable):
        return found
    if broker == 'amqp' and os.environ.get(VARIABLES['rabbitmq']):
        raise TargetError(f'the AMQP address of the broker is to be named in {variable}')
    try:
        if broker == 'kafka':
            return kafka.up().address
        node = rabbitmq.up()
        return str(node.amqp_uri) if broker == 'amqp' else node.uri
    except BrokerError as ex:
        raise TargetError(f'{ex}; or name a running one in {variable}') from None


def about(broker: str) -> dict[str, str]:
    """What is known of a broker without asking it; Kafka does not tell its version."""
    if broker.endswith('-far'):
        return {'mode': 'a node of its own, behind proxies that delay'}
    if broker == 'kafka' and VARIABLES[broker] not in os.environ:
        return {'version': KAFKA_VERSION, 'mode': 'KRaft, one node'}
    return {}
