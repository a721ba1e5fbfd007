"""Find the brokers: those that the environment names, otherwise those of `python -m brokers`."""

import os

from brokers import BrokerError, kafka, rabbitmq
from brokers.install import KAFKA_VERSION

from . import CommandError

TLS_VARIABLES = {
    'rabbitmq': ('RBFLY_TLS_URI', 'RBFLY_TLS_CA'),
    'kafka': ('RBFLY_KAFKA_TLS', 'RBFLY_KAFKA_CA'),
}
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


def find_tls(broker: str) -> tuple[str, str]:
    """The address of a broker's TLS listener, and the certificate of its authority."""
    address, authority = TLS_VARIABLES[broker]
    found: str | None
    try:
        if broker == 'kafka':
            server = kafka.up()
            found, ca_file = server.tls_address, server.ca_file
        else:
            node = rabbitmq.up()
            found, ca_file = node.tls_uri, node.ca_file
    except BrokerError as ex:
        raise CommandError(str(ex)) from None
    if not found or not ca_file:
        raise CommandError(
            f'the TLS listener of {broker} is unknown: set {address} and {authority}, or restart'
            f' the shared broker: python -m brokers down {broker}'
        )
    return found, str(ca_file)


def about(broker: str) -> dict[str, str]:
    """Facts about a broker that it does not report itself, such as Kafka's version."""
    if broker.endswith('-cluster'):
        return {'mode': 'cluster of three nodes on this machine'}
    if broker.endswith('-far'):
        return {'mode': 'separate node behind proxies that inject latency'}
    if broker.startswith('kafka') and VARIABLES['kafka'] not in os.environ:
        return {'version': KAFKA_VERSION, 'mode': 'KRaft, one node'}
    return {}
