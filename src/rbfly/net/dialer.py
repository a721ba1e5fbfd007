"""Connects to addresses, and remembers which of them work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from math import inf

from ..checks import check_integer, check_type
from ..error import (
    AuthenticationError,
    ConnectTimeout,
    CredentialsError,
    FrameError,
    ProtocolError,
    RbFlyError,
    StreamConnectionError,
    TLSError,
    VirtualHostError,
    add_text,
    of_callback,
    without_frames,
)
from ..protocol._engine import Counters
from ..protocol.commands import NodeAddress
from ..record import replace
from ..time_limits import time_limit
from .connection import Connection
from .handshake import connect
from .login import Credentials
from .resolving import Recent, Resolver
from .retry import Progress, Refusal, is_cut
from .uri import Address, Endpoint, Settings, at
from .waiting import CloseTimeout

ADDRESS_TIMEOUT = 10.0  # seconds for one address
UNREACHABLE = 10.0  # seconds to avoid a node after a failed connect, if another node will do
MISMATCHES = 62, 64  # OpenSSL: the certificate is for another host name, or IP address


class Dialer:
    """Connects to the addresses of one client, and keeps what it learns about them.

    :param closing: what limits a close; it has its full time again when a broker answers.
    :ivar last_error: the last error of any connection.
    :ivar refusal: why the broker refused the last connect for good.
    :ivar server_properties: those of the node that the client last connected to.
    """

    def __init__(
        self, settings: Settings, counters: Counters, closing: Sequence[CloseTimeout]
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._closing = closing
        self._resolver = Resolver()
        self._reached = Recent[NodeAddress, Endpoint]()
        self._unreachable = Recent[NodeAddress, float]()  # time until which to avoid the node
        self._failed = Recent[Endpoint, float]()  # time of the last failure
        self._probes: dict[Connection, asyncio.Task[None]] = {}
        self._established = False
        self.last_error: RbFlyError | None = None
        self.refusal: Refusal = Refusal()
        self.server_properties: dict[str, str] = {}

    @property
    def limit(self) -> float | None:
        """Seconds to connect: `connect_timeout`, later `reconnect_timeout` unless that is 0."""
        settings = self._settings
        if self._established and settings.reconnect_timeout != 0:
            return settings.reconnect_timeout
        return settings.connect_timeout

    def stop(self) -> None:
        """Note that the client is closed."""
        for probe in self._probes.values():
            probe.cancel()
        for endpoint in self._settings.endpoints:
            endpoint.login.stop()
        self._established = False

    def leave_loop(self) -> None:
        """Forget what belongs to an event loop that has ended."""
        self._probes.clear()

    def forget_errors(self) -> None:
        """Note that the client has been closed."""
        self.last_error = None
        self.refusal.clear()

    def on_end(self, error: StreamConnectionError | None) -> None:
        """Note why a connection ended."""
        self.last_error = error or self.last_error

    def routes(self, node: NodeAddress | None) -> tuple[list[Endpoint], list[Endpoint]]:
        """Return the addresses of a node, and those that may lead to other nodes.

        First comes the address that led to the node before, then its advertised address.  Behind
        NAT or a proxy, both may be unreachable; the addresses in the URIs lead to some node.
        """
        # Addresses that have failed come last, so that they do not delay the next connect.
        infos = dict.fromkeys(self._settings.endpoints)
        known = sorted(infos, key=lambda info: self._failed.get(info, 0.0))
        if node is None or self._settings.load_balancer:
            return known, []
        advertised = at(self._resolved(node), known)
        own = list(dict.fromkeys([self._reached.get(node, advertised), advertised]))
        return own, [info for info in known if info not in own]

    def _resolved(self, node: NodeAddress) -> NodeAddress:
        """Return where a node that advertises an address can be reached.

        :raises Exception: the program's function has failed.
        """
        resolve = self._settings.resolve
        if resolve is None:
            return node
        try:
            host, port = resolve(node.host, node.port)
            check_type('the host that `resolve` returns', host, str)
            check_integer('the port that `resolve` returns', port, 1, 0xFFFF)
        except Exception as ex:
            raise of_callback(ex, f'`resolve` for {node}') from None
        return NodeAddress(host, port)

    def is_reachable(self, node: NodeAddress) -> bool:
        """False if no address of the node has worked recently."""
        return self._unreachable.get(node, 0.0) <= asyncio.get_running_loop().time()

    def avoid(self, node: NodeAddress) -> None:
        """Note that no address of a node works."""
        self._unreachable[node] = asyncio.get_running_loop().time() + UNREACHABLE

    def have_failed(self, infos: Iterable[Endpoint]) -> bool:
        """True if the last connect to any of the addresses has failed."""
        return not self._failed.keys().isdisjoint(infos)

    def on_failed(self, info: Endpoint) -> None:
        """Note that an address did not lead to its node: try it last."""
        self._failed[info] = asyncio.get_running_loop().time()

    async def dial(self, info: Endpoint, limit: float, progress: Progress) -> Connection | None:
        """Connect to an address of a host; each one has its share of the time.

        The client asks for credentials once for all addresses.

        If all fail, and another try may succeed, set `progress.error` and return None.
        """
        loop = asyncio.get_running_loop()
        hosts: list[str] = []
        share = limit
        try:
            progress.on_step('asking for credentials')
            async with time_limit(None if share == inf else share):
                credentials = await info.login.credentials()
            end = loop.time() + limit
            progress.on_step('resolving the host name')
            async with time_limit(share := min(ADDRESS_TIMEOUT, limit)):
                hosts = await self._resolver.resolve(info.host, info.port, limit)
        except CredentialsError as ex:
            self._on_failure(ex, progress)
        except TimeoutError:
            self._on_timeout(info, share, progress)
        except (OSError, ValueError, OverflowError) as ex:
            error = StreamConnectionError(f'{info}: {ex}')
            error.__cause__ = ex
            self._on_failure(error, progress)
        for index, host in enumerate(hosts):
            left = max(0.0, end - loop.time())
            share = min(ADDRESS_TIMEOUT, left / (len(hosts) - index))
            self._resolver.on_try(host, info.port)
            if connection := await self._dial_host(info, host, credentials, share, progress):
                return connection
        if hosts:
            self._resolver.on_try(hosts[0], info.port)  # the next attempt begins with another one
        self.on_failed(info)
        return None

    async def _dial_host(
        self, info: Endpoint, host: str, credentials: Credentials, limit: float, progress: Progress
    ) -> Connection | None:
        """Connect to an IP address; if that fails, do as :meth:`dial`."""
        try:
            async with time_limit(limit):
                connection = await connect(
                    info, host, credentials, self._settings, progress.on_step, self._counters
                )
        except TimeoutError:
            self._on_timeout(info, limit, progress)
            return None
        except ProtocolError as ex:
            self.refusal.set(ex, progress.step)
            renews = isinstance(ex, AuthenticationError) and info.login.renews
            full = isinstance(ex, VirtualHostError)  # perhaps, and only this node
            if not (self._established and (renews or full)):
                raise  # no retry helps
            ex.retriable = True
            self._on_error(without_frames(ex), progress)
            return None
        except FrameError:
            self.refusal.clear()
            raise  # no retry helps
        except StreamConnectionError as ex:
            if is_cut(ex):
                ex.retriable = self._established  # else it may be the wrong port
            elif isinstance(ex, TLSError):
                self.refusal.clear()
                if info not in self._settings.endpoints:
                    explain_mismatch(ex)
                raise
            self._on_failure(ex, progress)
            return None
        self._on_error(None, progress)
        self.refusal.clear()
        self._established = True
        self.server_properties = connection.server_properties
        for closing in self._closing:
            closing.restore()
        self._failed.pop(info, None)
        if not self._settings.load_balancer:  # else the next attempt is to reach another node
            self._resolver.on_success(host, info.port)
        if connection.advertised is not None:
            self._reached[connection.advertised] = info
            self._unreachable.pop(connection.advertised, None)
        return connection

    def _on_timeout(self, info: Endpoint, limit: float, progress: Progress) -> None:
        text = f'{info}: no answer within {limit:.3g} s, while {progress.step}'
        self._on_error(ConnectTimeout(text), progress)
        self.refusal.on_timeout(progress.step)

    def _on_failure(self, error: StreamConnectionError, progress: Progress) -> None:
        self._on_error(without_frames(error), progress)
        self.refusal.clear()

    def _on_error(self, error: RbFlyError | None, progress: Progress) -> None:
        self.last_error = error
        progress.on_error(error)

    def probe(self, connection: Connection) -> None:
        """Abort an unresponsive connection if its node does not accept a new one either."""
        if connection.is_open and connection not in self._probes:
            probe = asyncio.get_running_loop().create_task(self._probe(connection))
            self._probes[connection] = probe
            probe.add_done_callback(lambda _: self._probes.pop(connection, None))

    async def _probe(self, connection: Connection) -> None:
        problem = await self.problem_of(connection.address)
        if problem is not None and connection.is_open:
            connection.abort(StreamConnectionError(f'the node does not respond: {problem}'))

    async def problem_of(self, address: Address) -> RbFlyError | None:
        """Return why an address does not accept another connection; None if it does."""
        progress = Progress(str(address))
        info = replace(at(address, self._settings.endpoints), ssl=address.ssl)
        try:
            found = await self.dial(info, ADDRESS_TIMEOUT, progress)
        except RbFlyError:
            return None  # the node answers
        if found is not None:
            await found.close(0)
        return progress.error if found is None else None


def explain_mismatch(error: TLSError) -> None:
    """Say what to do if a certificate does not have the name that the broker advertises."""
    if getattr(error.__cause__, 'verify_code', None) in MISMATCHES:
        text = (
            '; the broker advertises this address: pass load_balancer=True to use only the'
            ' addresses of the URIs, or configure the advertised host of the broker'
        )
        add_text(error, after=text)
