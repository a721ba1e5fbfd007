"""Checks for `rbfly doctor` whether a node can be reached: step by step, each with a time limit."""

from __future__ import annotations

import asyncio
import shlex
import ssl as ssl_module
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

import rbfly.streams as rbs

from ..error import (
    AuthenticationError,
    RbFlyError,
    ResponseCode,
    VirtualHostError,
    counted,
)
from ..net.uri import ConnectionInfo
from ..time_limits import time_limit
from .certificate import Certificate, read_certificate

NAME_LIMIT = 5.0  # seconds to resolve a name
PORT_LIMIT = 3.0  # seconds until a port accepts a connection
TLS_LIMIT = 10.0  # seconds for a TLS handshake; RabbitMQ 4.0 may accept no connection for 5
SIGN_ON_LIMIT = 10.0  # seconds, for the same reason; it takes 3 to refuse a virtual host
CLOSE_LIMIT = 1.0
SOON = 30  # days before a certificate expires to warn

EXPIRED, NOT_YET_VALID = 10, 9  # codes of OpenSSL
OTHER_NAME = 62, 64
SELF_SIGNED = 18, 19

Result = Literal['ok', 'warning', 'failed']


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    :ivar check: name of the check.
    :ivar detail: what it has found.
    :ivar advice: what to do about it; empty for nothing.
    """

    check: str
    result: Result
    detail: str
    advice: str = ''


class Node:
    """A node at an address.

    :ivar info: the address, and the user.
    :ivar reached: the client has signed on.
    :ivar version: version of the broker, as it reports itself.
    :ivar advertised: address that the node advertises.
    """

    def __init__(self, info: ConnectionInfo) -> None:
        self.info = info
        self.reached: bool = False
        self.version: str = ''
        self.advertised: tuple[str, int] | None = None

    async def check(self) -> AsyncIterator[Finding]:
        """Yield what each step finds; the first one that fails is the last one."""
        hosts: list[str] = []
        for step in (self._name(hosts), self._port(hosts), self._tls(hosts), self._sign_on()):
            async for finding in step:
                yield finding
                if finding.result == 'failed':
                    return

    async def _name(self, hosts: list[str]) -> AsyncIterator[Finding]:
        """Resolve the name, and add its addresses to a list."""
        host, check = self.info.host, 'name'
        loop = asyncio.get_running_loop()
        try:
            async with time_limit(NAME_LIMIT):
                found = await loop.getaddrinfo(host, self.info.port, type=1)
        except TimeoutError:
            text = f'{host}: no name server has answered within {NAME_LIMIT:g} s'
            yield Finding(check, 'failed', text, 'check the name servers of this machine')
            return
        except (OSError, ValueError) as ex:
            text = f'{host} has no address: {getattr(ex, "strerror", None) or ex}'
            advice = 'check the spelling, and the name servers or /etc/hosts of this machine'
            yield Finding(check, 'failed', text, advice)
            return
        hosts += dict.fromkeys(str(address[0]) for *_, address in found)
        if hosts != [host]:
            yield Finding(check, 'ok', f'{host} is {", ".join(hosts)}')

    async def _port(self, hosts: list[str]) -> AsyncIterator[Finding]:
        """Connect to each address of the name; remove those that refuse from the list."""
        port = self.info.port
        errors = await asyncio.gather(*(try_port(host, port) for host in hosts))
        failed = {host: error for host, error in zip(hosts, errors, strict=True) if error}
        text = '; '.join(f'{host}: {error}' for host, error in failed.items())
        if len(failed) < len(hosts):
            hosts[:] = [host for host in hosts if host not in failed]
            good = ', '.join(hosts)
            text = f'{good} accepts connections at port {port}' + (f'; {text}' if text else '')
            yield Finding('port', 'ok', text)
            return
        if any('timed out' in error for error in failed.values()):
            advice = f'a firewall may drop what this machine sends to port {port}'
        else:
            advice = (
                'is the broker running, with its plugin? `rabbitmq-plugins enable rabbitmq_stream`;'
                ' its port is 5552, with TLS 5551, unless stream.listeners says otherwise'
            )
        yield Finding('port', 'failed', f'port {port}: {text}', advice)

    async def _tls(self, hosts: list[str]) -> AsyncIterator[Finding]:
        """Do a TLS handshake, and look at the certificate."""
        context = self.info.ssl
        if context is None:
            return
        try:
            certificate = await get_certificate(hosts[0], self.info, context)
        except ssl_module.SSLCertVerificationError as ex:
            unknown: Certificate | None = None
            with suppress(OSError, ValueError, TimeoutError):
                unknown = await get_certificate(hosts[0], self.info, unverified(context))
            yield distrusted(ex, self.info, unknown)
            return
        except TimeoutError:
            text = f'no answer to a TLS handshake within {TLS_LIMIT:g} s'
            yield Finding('TLS', 'failed', text, 'is this the port for TLS? Its default is 5551')
            return
        except (OSError, ValueError) as ex:
            text = f'the handshake failed: {str(ex) or "the node has closed the connection"}'
            advice = 'is this the port for TLS? Its default is 5551; without TLS, the URI begins'
            yield Finding('TLS', 'failed', text, f'{advice} with rabbitmq-stream://')
            return
        yield trusted(certificate, context)

    async def _sign_on(self) -> AsyncIterator[Finding]:
        """Sign on, and open the virtual host."""
        info = self.info
        client = rbs.streams_client(
            uri_of(info),
            ssl=info.ssl,
            connection_name='rbfly doctor',
            connect_timeout=SIGN_ON_LIMIT,
            reconnect_timeout=0,
            request_timeout=SIGN_ON_LIMIT,
            close_timeout=CLOSE_LIMIT,
        )
        user, vhost = info.username, info.virtual_host
        async with client:
            try:
                connection = await client.get_protocol()
            except AuthenticationError as ex:
                yield refused(ex, user)
                return
            except VirtualHostError as ex:
                yield Finding('user', 'ok', f'{user!r} has signed on')
                advice = (
                    '`rabbitmqctl list_vhosts` shows whether it exists, and `rabbitmqctl'
                    f' list_user_permissions {shlex.quote(user)}` whether it admits the user'
                )
                yield Finding('virtual host', 'failed', f'{vhost!r}: {ex}', advice)
                return
            except RbFlyError as ex:
                advice = (
                    'is this the port of the stream plugin? Its default is 5552, with TLS 5551;'
                    ' see also the log of the broker'
                )
                yield Finding('user', 'failed', f'{user!r} has not signed on: {ex}', advice)
                return
            self.reached = True
            properties = connection.server_properties
            self.version = f'{properties.get("product", "?")} {properties.get("version", "?")}'
            if connection.advertised is not None:
                self.advertised = connection.advertised.host, connection.advertised.port
        yield Finding('user', 'ok', f'{user!r} has signed on to {self.version}')
        yield Finding('virtual host', 'ok', f'{vhost!r} is open')


def uri_of(info: ConnectionInfo) -> str:
    """Return the URI of an address, with the user and the password."""
    host = f'[{info.host}]' if ':' in info.host else info.host
    user, password, vhost = (
        quote(text, safe='') for text in (info.username, info.password, info.virtual_host)
    )
    return f'{info.scheme.value}://{user}:{password}@{host}:{info.port}/{vhost}'


async def try_port(host: str, port: int) -> str:
    """Return why a connection fails; empty if it does not."""
    try:
        async with time_limit(PORT_LIMIT):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f'timed out after {PORT_LIMIT:g} s'
    except OSError as ex:
        return 'refused' if isinstance(ex, ConnectionRefusedError) else ex.strerror or str(ex)
    writer.transport.abort()
    return ''


async def get_certificate(
    host: str, info: ConnectionInfo, context: ssl_module.SSLContext
) -> Certificate:
    """Return the certificate of a node.

    :param host: one of its addresses.
    :raises TimeoutError: it does not answer.
    :raises OSError: the handshake failed.
    :raises ValueError: the certificate cannot be read.
    """
    async with time_limit(TLS_LIMIT):
        _, writer = await asyncio.open_connection(
            host, info.port, ssl=context, server_hostname=info.host
        )
    try:
        der = writer.get_extra_info('ssl_object').getpeercert(binary_form=True)
        return read_certificate(der or b'')
    finally:
        writer.transport.abort()


def unverified(context: ssl_module.SSLContext) -> ssl_module.SSLContext:
    """Return a context that accepts any certificate, to look at it."""
    found = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_CLIENT)
    found.minimum_version = context.minimum_version
    found.check_hostname = False
    found.verify_mode = ssl_module.CERT_NONE
    return found


def day(when: datetime) -> str:
    """Return a day, and how far away it is."""
    seconds = (when - datetime.now(UTC)).total_seconds()
    hours = int(abs(seconds) // 3600)
    distance = counted(hours // 24, 'day') if hours >= 48 else counted(hours, 'hour')
    return f'on {when:%Y-%m-%d}, ' + (f'in {distance}' if seconds >= 0 else f'{distance} ago')


def trusted(certificate: Certificate, context: ssl_module.SSLContext) -> Finding:
    """Return the finding for a certificate that the context accepts."""
    names = ', '.join(certificate.names) or 'no name'
    left = certificate.ends - datetime.now(UTC)
    text = f'certificate for {names}, of {certificate.issuer!r}, which expires '
    text += day(certificate.ends)
    if context.verify_mode == ssl_module.CERT_NONE:
        advice = 'without --tls-insecure, a program would verify it'
        return Finding('TLS', 'warning', f'the certificate is not verified; {text}', advice)
    if left.days < SOON:
        return Finding('TLS', 'warning', text, 'renew the certificate of the broker')
    return Finding('TLS', 'ok', text)


def distrusted(
    error: ssl_module.SSLCertVerificationError,
    info: ConnectionInfo,
    certificate: Certificate | None,
) -> Finding:
    """Return the finding for a certificate that Python refuses."""
    code = error.verify_code
    text, advice = f'the certificate is not trusted: {error.verify_message}', ''
    if certificate is None:
        return Finding('TLS', 'failed', text, 'see the certificate of the broker')
    if code == EXPIRED and certificate.ends < datetime.now(UTC):
        text = f'the certificate expired {day(certificate.ends)}'
        advice = 'renew the certificate of the broker'
    elif code == EXPIRED:
        text = f'a certificate of the authority {certificate.issuer!r} has expired'
        advice = 'renew the certificates of the authority, and what --tls-ca names'
    elif code == NOT_YET_VALID:
        text = f'the certificate is valid from {certificate.begins:%Y-%m-%d %H:%M} UTC on'
        advice = 'compare the clocks of this machine and of the broker'
    elif code in OTHER_NAME and info.host in certificate.names:
        text = f'the certificate names {info.host} as a host, not as an address'
        advice = f'get a certificate with the alternative name IP:{info.host}'
    elif code in OTHER_NAME:
        names = ', '.join(certificate.names) or 'no name'
        text = f'the certificate is for {names}, not for {info.host}'
        advice = 'connect to one of these names, or get a certificate with the other name'
    elif code in SELF_SIGNED:
        text = f'the certificate is of an authority that is not trusted: {certificate.issuer!r}'
        advice = 'pass the certificate of the authority with --tls-ca'
    else:
        text += f'; it is of {certificate.issuer!r}'
        advice = (
            'pass the certificate of the authority with --tls-ca; if it is an intermediate one,'
            ' the broker must send its certificate too'
        )
    return Finding('TLS', 'failed', text, advice)


def refused(error: AuthenticationError, user: str) -> Finding:
    """Return the finding for a user whom the broker refuses."""
    if error.code == ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK:
        advice = (
            f'{user!r} may connect only from the machine of the broker:'
            ' create another user with `rabbitmqctl add_user`'
        )
    elif error.code == ResponseCode.SASL_MECHANISM_NOT_SUPPORTED:
        advice = 'see auth_mechanisms in the configuration of the broker'
    else:
        advice = (
            f'check the password: `rabbitmqctl authenticate_user {shlex.quote(user)}`;'
            ' in a URI, special characters are percent-encoded'
        )
    return Finding('user', 'failed', f'{user!r}: {error}', advice)
