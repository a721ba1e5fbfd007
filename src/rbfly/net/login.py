"""Users and passwords, and how a connection authenticates with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, Protocol

from ..checks import check_type
from ..error import ArgumentError, ArgumentTypeError
from ..later import datetime
from ..protocol.commands import Command, SaslAuthenticate


class AuthMechanism(Enum):
    """SASL mechanism: a user and a password, the client certificate of the TLS connection, or the
    user that the broker has configured for anonymous clients."""

    PLAIN = 'PLAIN'
    EXTERNAL = 'EXTERNAL'
    ANONYMOUS = 'ANONYMOUS'


class Credentials:
    """A user and a password, for example an OAuth 2 token.

    `repr` and errors omit the password; it cannot be pickled.

    :param username: name of the user; RabbitMQ ignores it if the password is an OAuth 2 token.
    :param password: password or token.
    :param expires: aware datetime from which the broker no longer accepts the password; None if it
        does not expire.
    :raises TypeError: an argument has the wrong type.
    :raises ValueError: an argument contains a NUL or a lone surrogate, or the datetime is naive.
    """

    __slots__ = ('expires', 'password', 'username')

    def __init__(
        self, username: str, password: str, expires: datetime.datetime | None = None
    ) -> None:
        check_type('username', username, str)
        if not isinstance(password, str):  # no error shows it
            raise ArgumentTypeError(f'password must be str, not {type(password).__name__}')
        check_type('expires', expires, datetime.datetime, None)
        # Encoding finds lone surrogates too, but later, and its error contains the password.
        if re.search('[\0\ud800-\udfff]', username + password):
            raise ArgumentError(
                'neither username nor password may contain a NUL or a lone surrogate'
            )
        if expires is not None and expires.utcoffset() is None:
            raise ArgumentError('expires must be an aware datetime: pass one with a tzinfo')
        self.username: str = username
        self.password: str = password
        self.expires: datetime.datetime | None = expires

    def __repr__(self) -> str:  # without the password
        until = '' if self.expires is None else f', expires={self.expires.isoformat()}'
        return f'Credentials({self.username!r}{until})'

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ArgumentTypeError('credentials cannot be copied or pickled: they hold a password')

    def request(self, mechanism: AuthMechanism) -> SaslAuthenticate:
        """Return the request that authenticates the user."""
        if mechanism is not AuthMechanism.PLAIN:
            return SaslAuthenticate(mechanism.value, b'')
        # in one expression: a local variable would show the password in a traceback
        return SaslAuthenticate(mechanism.value, f'\0{self.username}\0{self.password}'.encode())


class Requests(Protocol):
    """A connection in its handshake."""

    async def request(self, command: Command[Any], /) -> Any:
        """Send a request and wait for its response."""


class Login:
    """The user and the password of a URI.

    :cvar renews: the password may change, so that another try may succeed after a refusal.
    """

    __slots__ = ('__weakref__', '_credentials')
    renews: bool = False

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self._credentials!r})'

    def hide(self, text: str) -> str:
        """Replace the password in a text."""
        # A short one, or `guest`, is a part of other words: replacing it would reveal it.
        known = self._credentials
        if known is None or len(known.password) < 4 or known.password == known.username:
            return text
        return text.replace(known.password, '***')

    def use(
        self,
        notify: Callable[..., None],
        delays: tuple[()] | tuple[float, float],
        limit: float | None,
    ) -> None:
        """Take what belongs to the client.

        :param notify: notifies its observers, see :meth:`.Observers.notify`.
        :param delays: limits of the delays between tries.
        :param limit: seconds that one call for credentials may take; None for no limit.
        """

    def stop(self) -> None:
        """Stop renewing: the client is closed."""

    async def credentials(self) -> Credentials:
        """Return the credentials for a connect."""
        assert self._credentials is not None
        return self._credentials

    async def sign_on(
        self, connection: Requests, mechanism: AuthMechanism, credentials: Credentials
    ) -> None:
        """Authenticate a connection in its handshake.

        :raises ProtocolError: the broker refused the user.
        """
        await connection.request(credentials.request(mechanism))
