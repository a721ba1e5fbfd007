"""Open a connection: socket, TLS, authentication, limits, virtual host."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable

import rbfly

from ..error import AuthenticationError, StreamConnectionError, TLSError
from ..protocol import commands
from ..protocol._engine import Counters
from ..protocol.commands import NodeAddress
from ..protocol.const import Key, ResponseCode
from .connection import FIRST_STEP, Connection
from .login import Credentials
from .uri import Endpoint, Settings

FIRST_OPTIONAL = (3, 11)  # first broker version with ExchangeCommandVersions and StreamStats

PROPERTIES = {
    'product': 'RbFly',
    'version': rbfly.__version__,
    'platform': 'Python',
    'copyright': 'Apache-2.0',
}


async def connect(
    endpoint: Endpoint,
    host: str,
    credentials: Credentials,
    settings: Settings,
    on_step: Callable[[str], None],
    counters: Counters,
) -> Connection:
    """Connect to a node, authenticate and open the virtual host.

    :param host: IP address of the node.
    :param credentials: those of the endpoint's login.
    :param on_step: called with a description of each step; steps have no timeout of their own.
    :raises StreamConnectionError: the node cannot be reached, or the connection was lost.
    :raises ProtocolError: the broker refused the user, the mechanism or the virtual host.
    """
    loop, address = asyncio.get_running_loop(), endpoint.address
    on_step('connecting')
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(address, settings, counters),
            host,
            address.port,
            ssl=address.ssl,
            server_hostname=(settings.server_hostname or address.host) if address.ssl else None,
        )
    except (ssl_module.SSLError, ssl_module.CertificateError) as ex:
        raise TLSError(f'{address}: {ex}') from ex
    except (ConnectionResetError, ConnectionAbortedError) as ex:
        if address.ssl is None:
            raise StreamConnectionError(f'{address}: {ex}') from ex
        raise TLSError(f'{address}: closed during the TLS handshake; is it a TLS port?') from ex
    except (OSError, ValueError, OverflowError) as ex:
        raise StreamConnectionError(f'{address}: {ex}') from ex
    try:
        await handshake(connection, endpoint, credentials, settings, on_step)
    except BaseException:
        connection.abort(StreamConnectionError(f'{address}: the handshake failed'))
        await connection.closed
        raise
    return connection


async def handshake(
    connection: Connection,
    endpoint: Endpoint,
    credentials: Credentials,
    settings: Settings,
    on_step: Callable[[str], None],
) -> None:
    def enter(step: str) -> None:
        connection.enter(step)
        on_step(step)

    # One frame at a time, each in one write: brokers before 4.2.5 accept nothing else.
    enter(FIRST_STEP)
    name, mechanism = settings.connection_name, settings.auth_mechanism
    properties = {**PROPERTIES, **settings.client_properties}
    if name:
        properties['connection_name'] = name
    server = await connection.request(commands.PeerProperties(properties))
    enter('negotiating the SASL mechanism')
    offered = await connection.request(commands.SaslHandshake())
    if mechanism.value not in offered:
        raise AuthenticationError(
            ResponseCode.SASL_MECHANISM_NOT_SUPPORTED,
            f'{connection.address} offers {", ".join(offered) or "none"}, not {mechanism.value}',
        )
    enter('authenticating')
    await endpoint.login.sign_on(connection, mechanism, credentials)
    enter('waiting for the broker to tune')
    agreed = settings.tune.agree(await connection.tune)
    connection.write(agreed.encode())
    enter('opening the virtual host')
    opened = await connection.request(commands.Open(endpoint.virtual_host))
    host, port = opened.get('advertised_host', ''), opened.get('advertised_port', '')
    supported = None
    if broker_version(server) >= FIRST_OPTIONAL:
        enter('exchanging command versions')
        versions = await connection.request(commands.ExchangeCommandVersions({Key.DELIVER: (1, 2)}))
        supported = versions.keys()
    is_address = host and len(port) <= 5 and port.isdecimal()
    advertised = NodeAddress(host, int(port)) if is_address else None
    connection.start(agreed, server, advertised, supported)


def broker_version(properties: dict[str, str]) -> tuple[int, int]:
    """Return the broker's major and minor version; (0, 0) if its properties do not state them."""
    major, _, rest = properties.get('version', '').partition('.')
    minor = rest.partition('.')[0]
    if len(major) > 9 or len(minor) > 9 or not (major.isdecimal() and minor.isdecimal()):
        return 0, 0
    return int(major), int(minor)
