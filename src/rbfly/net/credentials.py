"""Credentials that a function of the program returns, renewed before they expire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from math import inf
from weakref import WeakKeyDictionary

from ..error import (
    ArgumentError,
    ArgumentTypeError,
    CredentialsError,
    ProtocolError,
    StreamConnectionError,
    without_frames,
)
from ..time_limits import time_limit
from .connection import Connection
from .login import AuthMechanism, Credentials, Login, Requests
from .observer import ConnectionState, Observer
from .retry import Delays, backoff
from .waiting import outcome

Provider = Callable[[], Awaitable[Credentials]]

RENEW_AT = 0.8  # of the time until credentials expire, their renewal begins
SHORTEST = 1.0  # seconds between two renewals, at least
LONGEST = 86400.0  # seconds until the timer looks again


class ProvidedLogin(Login):
    """Asks the program for credentials at each connect, and before they expire.

    Calls that overlap share one call of the program's function.  A renewal authenticates all open
    connections again.  It runs while any connection is open.

    :param provider: the function of the program.
    """

    __slots__ = (
        '_asking',
        '_delays',
        '_due_by',
        '_limit',
        '_mechanism',
        '_notify',
        '_provider',
        '_renewal',
        '_timer',
        '_waiting',
    )
    renews = True

    def __init__(self, provider: Provider) -> None:
        super().__init__(None)
        self._provider = provider
        self._asking: asyncio.Task[Credentials] | None = None
        self._waiting = 0  # calls that share `_asking`
        self._mechanism = AuthMechanism.PLAIN
        # time of the event loop at which a connection needs other credentials
        self._due_by: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._notify: Callable[..., None] | None = None
        self._delays: Delays = ()
        self._limit: float | None = None  # seconds of a call

    def use(self, notify: Callable[..., None], delays: Delays, limit: float | None) -> None:
        self._notify, self._delays, self._limit = notify, delays, limit

    # -- asking the program

    async def credentials(self) -> Credentials:
        """Return new credentials; those before, if there are no new ones and they still hold.

        :raises CredentialsError: the function of the program has failed.
        """
        try:
            self._credentials = await self._ask()
        except CredentialsError:
            if self._credentials is None or seconds_left(self._credentials) <= 0:
                raise
        return self._credentials

    async def _ask(self) -> Credentials:
        loop, task = asyncio.get_running_loop(), self._asking
        if task is None or task.done() or task.get_loop() is not loop:
            self._waiting = 0
            task = self._asking = loop.create_task(call(self._provider, self._limit))
            task.add_done_callback(retrieve)
        self._waiting += 1
        try:
            found = await outcome(task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                task.cancel()  # nothing waits for it; has no effect if it is done
        if found is None:
            raise CredentialsError('asking for credentials was cancelled')
        return found

    # -- connections

    async def sign_on(
        self, connection: Requests, mechanism: AuthMechanism, credentials: Credentials
    ) -> None:
        assert isinstance(connection, Connection)
        self._mechanism = mechanism
        await super().sign_on(connection, mechanism, credentials)
        self._set_due(connection, credentials)
        self._schedule()

    def _set_due(self, connection: Connection, credentials: Credentials) -> None:
        left = seconds_left(credentials)
        self._due_by[connection] = asyncio.get_running_loop().time() + max(
            SHORTEST, RENEW_AT * left
        )

    def _schedule(self) -> None:
        """Renew when the first of the open connections needs it."""
        loop = asyncio.get_running_loop()
        if self._renewal is not None and not self._renewal.done():
            if self._renewal.get_loop() is loop:
                return  # it ends by scheduling the next one
            self._renewal = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        due = self._next_due()
        if due < inf:
            self._timer = loop.call_at(min(due, loop.time() + LONGEST), self._on_due)

    def _next_due(self) -> float:
        return min((when for item, when in self._due_by.items() if item.is_open), default=inf)

    def _on_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._next_due() <= loop.time():
            self._renewal = loop.create_task(self._renew())
        else:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        self._timer = self._renewal = None

    async def _renew(self) -> None:
        """Ask until there are new credentials; then authenticate all open connections again."""
        delays, loop = backoff(*self._delays), asyncio.get_running_loop()
        while True:
            if not any(item.is_open for item in self._due_by):
                return
            try:
                credentials = self._credentials = await self._ask()
                break
            except Exception as ex:
                error = without_frames(ex)
            delay = next(delays)
            if self._notify is not None:
                self._notify(Observer.on_renewal_failed, error, loop.time() + delay)
            await asyncio.sleep(delay)
        opened = [item for item in self._due_by if item.state is ConnectionState.OPEN]
        for item in opened:  # the broker may not read one of them for as long as an alarm lasts
            del self._due_by[item]  # until it is authenticated
            task = loop.create_task(self._authenticate(item, credentials))
            task.add_done_callback(lambda _: self._schedule())
        for item, due in list(self._due_by.items()):  # in their handshakes, or closed
            self._due_by[item] = max(due, loop.time() + SHORTEST)
        self._renewal = None
        self._schedule()

    async def _authenticate(self, connection: Connection, credentials: Credentials) -> None:
        try:
            await connection.request(credentials.request(self._mechanism))
        except (ProtocolError, ArgumentError) as ex:  # or too long for a frame
            refused = 'the broker refused' if isinstance(ex, ProtocolError) else 'cannot send'
            text = f'{connection.address}: {refused} the renewed credentials: {ex}'
            connection.on_renewal_refused(StreamConnectionError(text))
        except (StreamConnectionError, asyncio.CancelledError):  # the program may cancel all tasks
            if connection.is_open:  # it is too busy: the broker may not have them
                self._due_by[connection] = asyncio.get_running_loop().time() + SHORTEST
        else:
            self._set_due(connection, credentials)


async def call(provider: Provider, limit: float | None) -> Credentials:
    """Return the credentials of the program.

    :param limit: seconds to wait for them; None for no limit.
    :raises CredentialsError: the program has none now; another try may succeed.
    :raises ArgumentTypeError: it returned something else.
    """
    scope = time_limit(limit)
    try:
        async with scope:
            found = await provider()
    except Exception as ex:
        if scope.expired():
            raise CredentialsError(f'no credentials within {limit:g} s') from ex
        raise CredentialsError(f'no credentials: {type(ex).__name__}: {ex}') from ex
    if not isinstance(found, Credentials):
        raise ArgumentTypeError(
            'the function passed as credentials must return Credentials, not'
            f' {type(found).__name__}'
        )
    if seconds_left(found) <= 0:
        raise CredentialsError(f'no credentials: they expired at {found.expires}')
    return found


def retrieve(task: asyncio.Task[Credentials]) -> None:
    """Keep asyncio from logging an error for which no call waited to the end."""
    if not task.cancelled():
        task.exception()


def seconds_left(credentials: Credentials) -> float:
    """Return how long the broker accepts credentials."""
    if credentials.expires is None:
        return inf
    return (credentials.expires - datetime.now(UTC)).total_seconds()
