"""Find the brokers: those that the environment names, otherwise those of `python -m brokers`."""

import os

from brokers import BrokerError, kafka, rabbitmq
from brokers.install import KAFKA_VERSION

from . import CommandError

VARIABLES = {'rabbitmq': 'RBFLY_URI', 'amqp': 'RBFLY_AMQP_URI', 'kafka': 'RBFLY_KAFKA'}


def find(broker: str) -> str:
    """The address of a broker, which is started and left running if necessary."""
    variable = VARIABLES[broker]
    if found := os.environ.get(variable):
        return found
    if broker == 'amqp' and os.environ.get(VARIABLES['rabbitmq']):
        raise CommandError(f'RBFLY_URI is set, but {variable} is not; set it to the AMQP URI')
    try:
        if broker == 'kafka':
            return kafka.up().address
        node = rabbitmq.up()
        return str(node.amqp_uri) if broker == 'amqp' else node.uri
    except BrokerError as ex:
        raise CommandError(f'{ex}; or set {variable} to use a running broker') from None


def about(broker: str) -> dict[str, str]:
    """Facts about a broker that it does not report itself, such as Kafka's version."""
    if broker.endswith('-cluster'):
        return {'mode': 'cluster of three nodes on this machine'}
    if broker.endswith('-far'):
        return {'mode': 'separate node behind proxies that inject latency'}
    if broker == 'kafka' and VARIABLES[broker] not in os.environ:
        return {'version': KAFKA_VERSION, 'mode': 'KRaft, one node'}
    return {}
