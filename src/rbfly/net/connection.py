"""One connection to one node.

Handshake, requests and responses, heartbeats, flow control and close; bytes are made and read
below, in :mod:`rbfly.protocol.commands` and in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import rbfly

from ..error import (
    AuthenticationError,
    ChunkError,
    FrameError,
    RequestTimeout,
    StreamConnectionError,
    TLSError,
    copy_error,
    protocol_error,
)
from ..protocol import commands
from ..protocol._engine import FRAME_CAP, Engine
from ..protocol.commands import Broker, Command, ServerClose, Tune
from ..protocol.const import RESPONSE, Key, ResponseCode
from .uri import AuthMechanism, ConnectionInfo
from .waiting import settled

__all__ = ['Connection', 'Role', 'call_each', 'disconnected']

T = TypeVar('T')
P = ParamSpec('P')

logger = logging.getLogger(__name__)

HANDSHAKE_CAP = 2**16  # bytes; the longest frame before the client is authenticated
WRITE_HIGH = 2**20  # bytes the transport may hold before writing pauses
WRITE_LOW = 2**18
CLOSE_TIMEOUT = 5.0  # seconds for the broker to answer a Close
GRACE = 0.1  # seconds for an answer that is here, but was not read yet
UNKNOWN_MAX = 100  # kinds of unknown frames that are logged
IDS = 256  # publishers, and subscriptions, of one connection
FIRST_OPTIONAL = (3, 11)  # broker version that brought ExchangeCommandVersions, StreamStats

PROPERTIES = {
    'product': 'RbFly',
    'version': rbfly.__version__,
    'platform': 'Python',
    'copyright': 'Apache-2.0',
}


class Role(Enum):
    """What a connection is for."""

    PUBLISH = 'publish'
    CONSUME = 'consume'
    MANAGE = 'manage'  # creating and deleting streams: may take long, and nothing waits behind it


class Attached(Protocol):
    """What is told of what happens to a connection."""

    def on_lost(self, error: StreamConnectionError) -> None:
        """It has ended."""

    def on_resume(self) -> None:
        """It takes more again."""

    def on_metadata_update(self, stream: str) -> None:
        """The broker has removed its publishers and subscriptions of a stream."""


class Connection(Engine, asyncio.BufferedProtocol):
    """An open connection; made by :meth:`Connection.open`.

    :ivar request_timeout: seconds for the broker to answer once it is open; None or 0 for no limit.
    :ivar frame_max: negotiated limit of a frame in bytes, 0 for none.
    :ivar heartbeat: negotiated interval in seconds, 0 for none.
    :ivar advertised: the node's advertised address, None if it does not tell.
    :ivar requests_sent: how many requests were sent (int).
    :ivar registrations: what is declared here, or about to be.
    :ivar error: why the connection ended; None while it is open.
    :ivar paused: the transport has enough to write for now.
    """

    _on_step: Callable[[str], None]  # while it is being opened

    def __init__(self, info: ConnectionInfo, request_timeout: float | None = None) -> None:
        super().__init__(HANDSHAKE_CAP)
        self.info = info
        self.request_timeout = request_timeout
        self.frame_max = 0
        self.heartbeat = 0
        self.advertised: Broker | None = None
        self.server_properties: dict[str, str] = {}
        self.error: StreamConnectionError | None = None
        self.paused = False
        self._writable = asyncio.Event()  # set unless paused; set once ended
        self._writable.set()
        self.publisher_ids = set(range(IDS))
        self.subscription_ids = set(range(IDS))
        self.registrations: dict[Attached, None] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self.requests_sent = 0
        self._leased: dict[int, tuple[Role, int]] = {}  # ids, by the request that frees each
        self._answered = (0, 0.0)  # correlation id of the last answer, and when it came
        self._tune: asyncio.Future[Tune] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._leaving = False  # a Close was sent: nothing is written behind it
        self._step = 'connecting'
        self._timer: asyncio.TimerHandle | None = None
        self._wrote = False
        self._seen = 0
        self._silent = 0
        self._unknown: set[tuple[int, int]] = set()

    # -- opening and closing

    @classmethod
    async def open(
        cls,
        info: ConnectionInfo,
        auth_mechanism: AuthMechanism = AuthMechanism.PLAIN,
        name: str = '',
        tune: Tune = Tune(0, 60),  # noqa: B008 - immutable
        on_step: Callable[[str], None] = lambda step: None,
        request_timeout: float | None = None,
    ) -> Connection:
        """Connect to a node, authenticate and open the virtual host.

        :param on_step: told of each step that is waited for; they have no limit of their own.
        :param request_timeout: seconds for the broker to answer a request once it is open.

        :raises AuthenticationError: wrong user or password, or no mechanism in common.
        :raises VirtualHostError: unknown virtual host, or the user may not enter it.
        :raises TLSError: the node's certificate does not hold, or it speaks no TLS.
        :raises FrameError: the peer does not speak the stream protocol.
        :raises StreamConnectionError: no connection, or it ended during the handshake.
        """
        loop = asyncio.get_running_loop()
        on_step('connecting')
        try:
            if not isinstance(loop, asyncio.BaseEventLoop):
                # uvloop's create_connection leaves a failure behind, if it is cancelled meanwhile
                await loop.getaddrinfo(info.host, info.port)
            _, connection = await loop.create_connection(
                lambda: cls(info, request_timeout), info.host, info.port, ssl=info.ssl
            )
        except (ssl_module.SSLError, ssl_module.CertificateError) as ex:
            raise TLSError(f'{info}: {ex}') from ex
        except (ConnectionResetError, ConnectionAbortedError) as ex:
            if info.ssl is None:
                raise StreamConnectionError(f'{info}: {ex}') from ex
            raise TLSError(f'{info}: closed during the TLS handshake; is it a TLS port?') from ex
        except (OSError, ValueError, OverflowError) as ex:
            raise StreamConnectionError(f'{info}: {ex}') from ex
        connection._on_step = on_step
        try:
            await connection._handshake(auth_mechanism, name, tune)
        except BaseException:
            connection.abort(StreamConnectionError('the handshake failed'))
            await connection._closed
            raise
        finally:
            del connection._on_step  # it keeps the client
        return connection

    async def _handshake(self, auth: AuthMechanism, name: str, tune: Tune) -> None:
        # One frame at a time, each in one write: brokers before 4.2.5 accept nothing else.
        self._enter('exchanging peer properties')
        properties = PROPERTIES | ({'connection_name': name} if name else {})
        self.server_properties = await self.request(commands.PeerProperties(properties))
        self._enter('negotiating the SASL mechanism')
        offered = await self.request(commands.SaslHandshake())
        if auth.value not in offered:
            raise AuthenticationError(
                ResponseCode.SASL_MECHANISM_NOT_SUPPORTED,
                f'{self.info} offers {", ".join(offered) or "none"}, not {auth.value}',
            )
        self._enter('authenticating')
        data = b''
        if auth is AuthMechanism.PLAIN:
            data = f'\0{self.info.username}\0{self.info.password}'.encode()
        await self.request(commands.SaslAuthenticate(auth.value, data))
        self._enter('waiting for the broker to tune')
        agreed = tune.agree(await self._tune)
        self.frame_max, self.heartbeat = agreed.frame_max, agreed.heartbeat
        self.frame_cap = FRAME_CAP
        self.write(agreed.encode())
        self._enter('opening the virtual host')
        opened = await self.request(commands.Open(self.info.virtual_host))
        host, port = opened.get('advertised_host', ''), opened.get('advertised_port', '')
        if host and len(port) <= 5 and port.isdecimal():
            self.advertised = Broker(host, int(port))
        if self.knows_optional:
            self._enter('exchanging command versions')
            await self.request(commands.ExchangeCommandVersions({Key.DELIVER: (1, 2)}))
        if self.error is not None:  # in the turn of the answer
            raise copy_error(self.error)
        self._step = 'open'
        if self.heartbeat:
            self._timer = self._loop.call_later(self.heartbeat / 2, self._beat)

    def _enter(self, step: str) -> None:
        self._step = step
        self._on_step(step)

    @property
    def knows_optional(self) -> bool:
        """True if the broker knows ExchangeCommandVersions and StreamStats."""
        return broker_version(self.server_properties) >= FIRST_OPTIONAL

    def leads_to(self, node: Broker) -> bool:
        """True if that node answered; if it does not tell, if it was dialled."""
        return node == (self.advertised or Broker(self.info.host, self.info.port))

    def ids(self, role: Role) -> set[int]:
        """Free ids: of publishers, or of subscriptions."""
        return self.publisher_ids if role is Role.PUBLISH else self.subscription_ids

    @property
    def is_unused(self) -> bool:
        """True if it has no publisher, no subscription and no request that is not answered."""
        return not self._requests and len(self.publisher_ids) == len(self.subscription_ids) == IDS

    @property
    def is_open(self) -> bool:
        """True until the connection is closed or lost, or its event loop has ended."""
        return self.error is None and not self._leaving and not self._loop.is_closed()

    async def close(self, timeout: float | None = CLOSE_TIMEOUT) -> None:
        """Say goodbye and close; silent if the connection is gone already.

        :param timeout: seconds for the broker to answer; 0 for no waiting, None for no limit.
        """
        if self._loop is not asyncio.get_running_loop():
            return  # its socket went with its loop
        try:
            async with asyncio.timeout(timeout):
                await settled(self._say_goodbye())
        except TimeoutError:
            pass
        finally:
            self.abort(disconnected())
        await asyncio.shield(self._closed)

    def _say_goodbye(self) -> asyncio.Future[Any]:
        """Send a Close; what is done when the broker has answered."""
        if self.error is not None or self._leaving:
            return self._closed  # the answer to the broker's own Close may be on its way
        answer = self.send_request(commands.Close(), 0)
        self._leaving = self.paused = True
        return answer

    def abort(self, error: StreamConnectionError) -> None:
        """End the connection at once; whoever waits on it gets the error."""
        self._fail(error)
        if self._transport is None:
            if not self._closed.done():
                self._closed.set_result(None)
        elif not self._loop.is_closed():
            self._transport.abort()

    def abort_soon(self) -> None:
        """End the connection in the next turn of its event loop; from any thread."""
        self._loop.call_soon_threadsafe(self.abort, disconnected())

    def _fail(self, error: StreamConnectionError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._writable.set()
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._loop.is_closed():
            return  # nobody waits any more, and what was declared went with it
        waiting: list[asyncio.Future[Any]] = [*self._requests.values(), self._tune]
        for future in waiting:
            if not future.done():
                future.set_exception(copy_error(error))
                future.exception()  # retrieved: the caller may have stopped waiting
        call_each(self._loop, [registration.on_lost for registration in self.registrations], error)

    # -- asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        if self.error is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._leaving:
            error = disconnected()
        elif isinstance(exc, ssl_module.SSLError):
            error = TLSError(f'{self.info}: {exc}')
        else:
            detail = f': {exc}' if exc else ''
            state = '' if self._step == 'open' else f' while {self._step}'
            error = StreamConnectionError(f'{self.info}: connection lost{state}{detail}')
        error.__cause__ = exc
        try:
            self._fail(error)
        finally:
            if not self._closed.done():
                self._closed.set_result(None)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.paused = self._leaving
        self._writable.set()
        if not self.paused:
            call_each(self._loop, [registration.on_resume for registration in self.registrations])

    # -- frames

    def write(self, data: bytes) -> None:
        """Write whole frames; nothing happens on a connection that has ended, or is about to."""
        if self.error is None and self._transport is not None and not self._leaving:
            self._wrote = True
            self._transport.write(data)

    async def wait_writable(self) -> bool:
        """Wait until the transport accepts data; false if the connection has ended."""
        while self.paused and self.is_open:
            await self._writable.wait()
        return self.is_open

    async def request(self, command: Command[T], timeout: float | None = None) -> T:
        """Send a request and wait for its response.

        :param timeout: seconds to wait; None for `request_timeout`, 0 for no limit.
        :raises ProtocolError: the broker refused, with the code of the response.
        :raises RequestTimeout: there was none in time.
        :raises StreamConnectionError: the connection ended first.
        """
        return self.read(command, await self.send_request(command, timeout))

    def read(self, command: Command[T], answer: bytes) -> T:
        """What the future of :meth:`send_request` has got.

        :raises ProtocolError: the broker refused, with the code of the response.
        :raises StreamConnectionError: it is no response; the connection has ended.
        """
        reader = commands.Reader(answer)
        try:
            if command.key is not Key.METADATA:
                code = reader.u16()
                if code != ResponseCode.OK:
                    detail = '' if self._step == 'open' else f'{self.info}, while {self._step}'
                    stream = getattr(command, 'stream', '')
                    raise protocol_error(code, detail, stream, command.key)
            return command.parse(reader)
        except FrameError as ex:
            self.on_failure(ex)
            raise copy_error(self.error or ex) from ex.__cause__

    def send_request(
        self, command: Command[Any], timeout: float | None = None
    ) -> asyncio.Future[bytes]:
        """Send a request now; the future gets the bytes behind the correlation id."""
        if self.error is not None:
            raise type(self.error)(str(self.error)) from self.error
        if self._leaving:
            raise disconnected()
        self.requests_sent += 1
        correlation_id = self.requests_sent % 2**32
        data = command.encode(correlation_id)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._requests[correlation_id] = future
        if timeout is None and self._step == 'open':
            timeout = self.request_timeout
        timer = None
        if timeout:
            request = command, future, timeout, correlation_id
            # A loop that was blocked reads what has come meanwhile before it is said.
            timer = self._loop.call_later(
                timeout, self._loop.call_later, GRACE, self._on_silence, *request
            )

        def forget(_: object) -> None:
            del self._requests[correlation_id]
            if timer is not None:
                timer.cancel()

        future.add_done_callback(forget)
        self.write(data)
        return future

    def undeclare(self, role: Role, id: int, command: Command[Any]) -> asyncio.Future[bytes]:
        """Remove a publisher or a subscription; its id can be reused once the broker has answered.

        Until then, the broker may send frames with that id, even after the request timed out.
        """
        answer = self.send_request(command)
        self._leased[self.requests_sent % 2**32] = role, id
        return answer

    def _on_silence(
        self,
        command: Command[Any],
        future: asyncio.Future[bytes],
        timeout: float,
        correlation_id: int,
    ) -> None:
        """A request was not answered in time."""
        if future.done():
            return
        answered, when = self._answered
        left = when + timeout - self._loop.time()
        if left > 0 and answered < correlation_id:
            # The broker answers one after the other, and is busy with those before it.
            request = command, future, timeout, correlation_id
            self._loop.call_later(left + GRACE, self._on_silence, *request)
            return
        stream = getattr(command, 'stream', '')
        of_stream = f' of stream {stream!r}' if stream else ''
        name = type(command).__name__
        error = RequestTimeout(f'{self.info}: no answer to {name}{of_stream} within {timeout:g} s')
        if not self.has_unconfirmed:
            self.abort(error)
        else:
            future.set_exception(error)
            future.exception()  # retrieved: the caller may have stopped waiting

    @property
    def has_unconfirmed(self) -> bool:
        """True if messages are unconfirmed; where many are, the broker stops reading."""
        return any(window is not None and window.in_flight for window in self.publishers)

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        if key & RESPONSE and key != Key.CREDIT | RESPONSE:
            correlation_id = int.from_bytes(body[:4], 'big')
            future = self._requests.get(correlation_id)
            if future is not None and not future.done():
                future.set_result(body[4:])
                self._answered = (correlation_id, self._loop.time())
            if correlation_id in self._leased:
                role, leased = self._leased.pop(correlation_id)
                self.ids(role).add(leased)
        elif key == Key.HEARTBEAT:
            pass  # any received byte counts as a sign of life
        elif key == Key.TUNE:
            if not self._tune.done():
                self._tune.set_result(Tune.parse(body))
        elif key == Key.CLOSE:
            close = ServerClose.parse(body)
            self.write(commands.close_response(close.correlation_id))
            self._fail(
                StreamConnectionError(
                    f'{self.info}: closed by the broker: {close.reason} (code 0x{close.code:02x})'
                )
            )
            if self._transport is not None:
                self._transport.close()
        elif key == Key.METADATA_UPDATE:
            update = commands.MetadataUpdate.parse(body)
            call_each(
                self._loop,
                [registration.on_metadata_update for registration in self.registrations],
                update.stream,
            )
        elif key == Key.CREDIT | RESPONSE:
            logger.debug('%s: credit for a subscription that has ended', self.info)
        elif (key, version) not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add((key, version))
            logger.warning('%s: frame 0x%04x version %d skipped', self.info, key, version)

    def on_failure(self, error: Exception) -> None:
        if isinstance(error, FrameError | ChunkError):
            failure = FrameError(f'{self.info} does not speak the stream protocol: {error}')
            failure.__cause__ = error
            self.abort(failure)
            logger.error('%s', failure)
        else:
            failed = StreamConnectionError(f'{self.info}: closed, for a callback failed: {error!r}')
            failed.__cause__ = error
            self.abort(failed)
            self._loop.call_exception_handler(
                {'message': 'a callback of the connection failed', 'exception': error}
            )

    # -- heartbeats

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self.heartbeat / 2, self._beat)
        if not self._wrote:
            self.write(commands.HEARTBEAT)
        self._wrote = False
        self._silent = 0 if self.received != self._seen else self._silent + 1
        self._seen = self.received
        if self._silent >= 4:
            self.abort(
                StreamConnectionError(
                    f'{self.info}: nothing received for {2 * self.heartbeat} seconds'
                )
            )


def disconnected() -> StreamConnectionError:
    return StreamConnectionError('the client was disconnected')


def call_each(
    loop: asyncio.AbstractEventLoop,
    callbacks: Iterable[Callable[P, None]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Call all of them, whatever one raises: the event loop's exception handler is told of it."""
    for callback in callbacks:
        try:
            callback(*args, **kwargs)
        except Exception as ex:
            message = f'{callback!r} failed'
            loop.call_exception_handler({'message': message, 'exception': ex})


def broker_version(properties: dict[str, str]) -> tuple[int, int]:
    """Major and minor version from the broker's properties; (0, 0) if it does not tell."""
    major, _, rest = properties.get('version', '').partition('.')
    minor = rest.partition('.')[0]
    if len(major) > 9 or len(minor) > 9 or not (major.isdecimal() and minor.isdecimal()):
        return 0, 0
    return int(major), int(minor)
