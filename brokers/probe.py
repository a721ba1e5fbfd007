"""
Check whether a broker answers at an address, using the broker's own protocol.

The checks use blocking sockets and exchange a few bytes, independently of the client under test.
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
import struct
from urllib.parse import quote, unquote, urlsplit

from .state import BrokerError

PEER_PROPERTIES = 0x11
SCHEMES = {'rabbitmq-stream': 5552, 'rabbitmq-stream+tls': 5551}


@dataclasses.dataclass(frozen=True)
class Address:
    """The parts of a stream URI."""

    host: str
    port: int
    tls: bool = False
    user: str = 'guest'
    password: str = dataclasses.field(default='guest', repr=False)
    vhost: str = '/'

    def __str__(self) -> str:
        name = f'[{self.host}]' if ':' in self.host else self.host
        return f'{name}:{self.port}'


def parse_uri(uri: str) -> Address:
    """Parse a stream URI."""
    # Errors quote nothing: any part of a malformed URI may contain the password.
    form = 'rabbitmq-stream://USER:PASSWORD@HOST:PORT/VHOST, each part percent-encoded'
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise BrokerError(f'not a stream URI; use {form}') from None
    if parts.scheme not in SCHEMES or not parts.hostname or '@' in parts.path:
        raise BrokerError(f'not a stream URI; use {form}')
    return Address(
        host=unquote(parts.hostname),
        port=SCHEMES[parts.scheme] if port is None else port,
        tls=parts.scheme.endswith('+tls'),
        user=unquote(parts.username) if parts.username else 'guest',
        password=unquote(parts.password) if parts.password is not None else 'guest',
        vhost=unquote(parts.path[1:]) or '/',
    )


def stream_uri(
    host: str,
    port: int,
    *,
    tls: bool = False,
    user: str = 'guest',
    password: str = 'guest',
    vhost: str = '/',
) -> str:
    """Build a stream URI."""
    scheme = 'rabbitmq-stream+tls' if tls else 'rabbitmq-stream'
    name = f'[{host}]' if ':' in host else host
    path = '' if vhost == '/' else quote(vhost, safe='')
    return f'{scheme}://{quote(user, safe="")}:{quote(password, safe="")}@{name}:{port}/{path}'


def parse_kafka(address: str) -> tuple[str, int]:
    """Parse HOST:PORT; only the first entry of a comma-separated list is used."""
    parts = urlsplit('//' + address.split(',')[0].strip())
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        raise BrokerError(f'{address!r} is not HOST:PORT')
    return host, 9092 if port is None else port


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes."""
    data = b''
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise OSError('connection closed')
        data += more
    return data


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """Send a request frame and read the response; both are prefixed with a four-byte length."""
    sock.sendall(struct.pack('>I', len(request)) + request)
    (length,) = struct.unpack('>I', read_exactly(sock, 4))
    if length > 1 << 20:
        raise OSError('not a broker')
    return read_exactly(sock, length)


def peer_properties(address: Address, timeout: float = 5) -> dict[str, str]:
    """Return the peer properties of a stream port; raise `OSError` if it does not answer."""
    with socket.create_connection((address.host, address.port), timeout) as tcp:
        if not address.tls:
            return parse_peer_properties(exchange(tcp, struct.pack('>HHII', 0x11, 1, 1, 0)))
        # no secrets are sent, so there is no need to verify the certificate
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(tcp, server_hostname=address.host) as sock:
            return parse_peer_properties(exchange(sock, struct.pack('>HHII', 0x11, 1, 1, 0)))


def parse_peer_properties(frame: bytes) -> dict[str, str]:
    """Parse a PeerProperties response."""
    try:
        key, _version, _correlation, code, count = struct.unpack_from('>HHIHI', frame)
        if key != 0x8000 | PEER_PROPERTIES or code != 1:
            raise OSError(f'not a stream port: answer {key:#x}, code {code}')
        offset, texts = 14, []
        for _ in range(2 * count):
            (size,) = struct.unpack_from('>h', frame, offset)
            texts.append(frame[offset + 2 : offset + 2 + size].decode())
            offset += 2 + size
    except (struct.error, UnicodeDecodeError) as error:
        raise OSError(f'not a stream port: {error}') from None
    return dict(zip(texts[::2], texts[1::2], strict=True))


def kafka_answers(host: str, port: int, timeout: float = 5) -> bool:
    """Whether a Kafka broker answers an ApiVersions request and lists a cluster member."""
    client = b'\x00\x05rbfly'
    try:
        with socket.create_connection((host, port), timeout) as sock:
            versions = exchange(sock, struct.pack('>hhi', 18, 0, 1) + client)
            if versions[:6] != b'\x00\x00\x00\x01\x00\x00':
                return False
            # request metadata without topics; the response starts with the correlation id and
            # the number of brokers
            metadata = exchange(sock, struct.pack('>hhi', 3, 1, 2) + client + b'\x00' * 4)
            correlation, brokers = struct.unpack_from('>ii', metadata)
            return bool(correlation == 2 and brokers > 0)
    except (OSError, struct.error):
        return False
