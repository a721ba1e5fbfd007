"""Settings of a client, and the URIs that name its brokers and users."""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from ..checks import check_type
from ..error import URIError
from ..protocol.commands import NodeAddress, Tune
from ..protocol.const import DEFAULT_PORT, DEFAULT_TLS_PORT
from ..record import Record, replace, restore
from .login import AuthMechanism, Credentials, Login

Resolve = Callable[[str, int], tuple[str, int]]


class Scheme(Enum):
    """URI scheme."""

    PLAIN = 'rabbitmq-stream'
    TLS = 'rabbitmq-stream+tls'


DEFAULT_PORTS = {Scheme.PLAIN: DEFAULT_PORT, Scheme.TLS: DEFAULT_TLS_PORT}


class Address(Record):
    """Where a broker listens.

    :ivar ssl: context for TLS, None for no TLS.
    """

    host: str
    port: int
    ssl: ssl_module.SSLContext | None = None

    def __str__(self) -> str:
        scheme = Scheme.PLAIN if self.ssl is None else Scheme.TLS
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{scheme.value}://{host}:{self.port}'


class ConnectionInfo(Record):
    """Address of a broker and the credentials for it.

    `repr`, comparisons and pickles omit the password; it is '' in a copy that was pickled.
    """

    scheme: Scheme
    host: str
    port: int
    virtual_host: str
    username: str
    password: str
    ssl: ssl_module.SSLContext | None = None

    def __str__(self) -> str:
        return str(self.address)

    def __repr__(self) -> str:  # without the password
        return f'ConnectionInfo({self.address}, {self.virtual_host!r}, {self.username!r})'

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, self.ssl)

    def _shown(self) -> tuple[Any, ...]:
        return self.scheme, self.host, self.port, self.virtual_host, self.username, self.ssl

    def __eq__(self, other: object) -> bool:
        if type(self) is type(other):
            return self._shown() == other._shown()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._shown())

    def __reduce__(self) -> tuple[Any, ...]:
        *shown, ssl = self._shown()
        return restore, (type(self), *shown, '', ssl)


class Endpoint(Record):
    """Where and how a client connects.

    :ivar login: user and password.
    """

    scheme: Scheme
    host: str
    port: int
    virtual_host: str
    login: Login
    ssl: ssl_module.SSLContext | None = None

    def __str__(self) -> str:
        return str(self.address)

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, self.ssl)


def endpoint(info: ConnectionInfo, login: Login | None = None) -> Endpoint:
    """Return where a client connects.

    :param login: None for the user and password of `info`.
    """
    login = login or Login(Credentials(info.username, info.password))
    return Endpoint(info.scheme, info.host, info.port, info.virtual_host, login, info.ssl)


class Settings(Record):
    """Settings of a client, see :func:`rbfly.streams.streams_client`.

    :param endpoints: tried in turn.
    """

    endpoints: Sequence[Endpoint]
    auth_mechanism: AuthMechanism = AuthMechanism.PLAIN
    connection_name: str = ''
    connect_timeout: float | None = 30.0
    reconnect_timeout: float | None = None
    frame_max: int | None = None
    heartbeat: int | None = 60
    load_balancer: bool = False
    request_timeout: float | None = 10.0
    close_timeout: float | None = 10.0
    busy_poll: float | None = None
    server_hostname: str | None = None
    resolve: Resolve | None = None
    backoff: tuple[()] | tuple[float, float] = ()
    publishers_per_connection: int = 256
    subscriptions_per_connection: int = 256
    client_properties: Mapping[str, str] = {}

    @property
    def tune(self) -> Tune:
        """The limits to propose to the broker."""
        return Tune(self.frame_max or 0, self.heartbeat or 0)

    @property
    def log_prefix(self) -> str:
        """What lines in the log begin with, to tell clients apart."""
        return f'[{self.connection_name}] ' if self.connection_name else ''


def parse_uri(uri: str, ssl: ssl_module.SSLContext | None = None) -> ConnectionInfo:
    """Parse `scheme://[user[:password]@][host][:port][/vhost]`, percent-decoding each part.

    Defaults: user and password `guest`, host `localhost`, port 5552 (5551 for TLS), vhost `/`.

    :param ssl: context for TLS; by default Python's, which verifies the broker's certificate.
    :raises URIError: the URI is malformed, or `ssl` was passed with the scheme without TLS.
    :raises ArgumentTypeError: the URI is not a str.
    """
    from urllib.parse import urlsplit

    check_type('URI', uri, str)
    if any(character <= ' ' for character in uri):
        raise URIError('malformed URI: it contains white space or control characters')
    # Errors quote only the scheme: any other part of a malformed URI may contain the password.
    problem = ''
    try:
        parts = urlsplit(uri)
        hostname = parts.hostname
    except ValueError:
        problem = 'user, password, host and port cannot be separated'
    else:
        try:
            port = parts.port
        except ValueError:
            problem = 'the port is not a number from 1 to 65535'
    if problem:
        raise URIError(f'malformed URI: {problem}; are special characters percent-encoded?')
    scheme = next((item for item in Scheme if item.value == parts.scheme), None)
    if scheme is None:
        known = ' or '.join(item.value for item in Scheme)
        found = uri.partition('://')[0] if '://' in uri else ''
        raise URIError(
            f'scheme must be {known}, not {found!r}: for example'
            f' {Scheme.PLAIN.value}://guest:guest@127.0.0.1:{DEFAULT_PORT}/'
        )
    if not uri[len(parts.scheme) :].startswith('://'):
        raise URIError('malformed URI: no // after the scheme')
    if parts.fragment or uri.endswith('#'):
        raise URIError('malformed URI: write a # in a password or vhost as %23')
    if '@' in parts.query:
        raise URIError('malformed URI: write a ? in a password or vhost as %3F')
    if '@' in parts.path:  # the host that was parsed may be a part of the password
        raise URIError(
            'malformed URI: write a / in a password as %2F and an @ as %40; also an @ in a vhost'
        )
    if parts.query or uri.endswith('?'):
        pairs = [item.partition('=') for item in parts.query.split('&')]
        names = [name for name, equals, _ in pairs if equals and name.isidentifier()]
        raise URIError(
            f'a URI has no parameters: pass {" and ".join(map(repr, names)) or "them"} to'
            ' streams_client, or write a ? in a vhost as %3F'
        )
    if port == 0:
        raise URIError('malformed URI: the port is 0')
    if scheme is Scheme.PLAIN and ssl is not None:
        raise URIError(f'an SSL context requires the scheme {Scheme.TLS.value}')
    if scheme is Scheme.TLS and ssl is None:
        ssl = ssl_module.create_default_context()
    path = parts.path[1:]
    vhost = decode(path, 'virtual host') if path not in ('', '/') else '/'
    return ConnectionInfo(
        scheme,
        decode(hostname or 'localhost', 'host'),
        port or DEFAULT_PORTS[scheme],
        vhost,
        decode('guest' if parts.username is None else parts.username, 'user'),
        decode('guest' if parts.password is None else parts.password, 'password'),
        ssl,
    )


def decode(text: str, what: str) -> str:
    from urllib.parse import unquote

    result = None
    with suppress(UnicodeError):
        # Encoding finds lone surrogates here; later, the error would contain the password.
        result = unquote(text, errors='strict').encode().decode()
    if result is None:
        raise URIError(f'malformed URI: the {what} is not percent-encoded UTF-8')
    if '\0' in result:
        raise URIError(f'malformed URI: the {what} contains a NUL')
    return result


def at(where: NodeAddress | Address, endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the first endpoint with that address; if none has it, the first one, moved there."""
    for item in endpoints:
        if (item.host, item.port) == (where.host, where.port):
            return item
    return replace(endpoints[0], host=where.host, port=where.port)
