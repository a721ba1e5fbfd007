"""One connection to one node: frames, requests, flow control, heartbeats and its end.

Its state changes only in these ways (:data:`TRANSITIONS`)::

    CONNECTING -> HANDSHAKE, CLOSED
    HANDSHAKE -> OPEN, CLOSING, CLOSED
    OPEN -> CLOSING, CLOSED
    CLOSING -> CLOSED

The client closes a connection through CLOSING; one that is CLOSED without it was lost.

:mod:`rbfly.protocol.commands` and the engine write and read the bytes;
:func:`rbfly.net.handshake.connect` opens the connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from socket import SHUT_RDWR
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast

from ..error import (
    ChunkError,
    FrameError,
    RequestTimeout,
    StreamConnectionError,
    TLSError,
    copy_error,
    protocol_error,
)
from ..protocol import commands
from ..protocol._engine import FRAME_CAP, Counters, Engine
from ..protocol.commands import Command, NodeAddress, Tune
from ..protocol.const import RESPONSE, Key, ResponseCode
from ..time_limits import time_limit
from .gathering import gather_to
from .observer import (
    ConnectionState,
    Observer,
    Observers,
    Role,
    call_each,
    check_transition,
    facts,
)
from .receiving import collect_in
from .requests import Requests
from .uri import Address, Settings
from .waiting import fail, outcome, settled

T = TypeVar('T')

logger: logging.Logger = logging.getLogger('rbfly.net')

HANDSHAKE_CAP = 2**16  # bytes; the longest frame accepted during the handshake
WRITE_HIGH = 2**20  # bytes buffered by the transport above which writing pauses
WRITE_LOW = 2**18
CLOSE_TIMEOUT = 5.0  # seconds for the broker to answer a Close
UNKNOWN_MAX = 100  # kinds of unknown frames that are logged
FIRST_STEP = 'exchanging peer properties'
TRANSITIONS: Mapping[ConnectionState, Sequence[ConnectionState]] = {
    ConnectionState.CONNECTING: [ConnectionState.HANDSHAKE, ConnectionState.CLOSED],
    ConnectionState.HANDSHAKE: [
        ConnectionState.OPEN,
        ConnectionState.CLOSING,
        ConnectionState.CLOSED,
    ],
    ConnectionState.OPEN: [ConnectionState.CLOSING, ConnectionState.CLOSED],
    ConnectionState.CLOSING: [ConnectionState.CLOSED],
    ConnectionState.CLOSED: [],
}
# While the client writes frames: after a Close, it writes nothing else.
WRITING = ConnectionState.OPEN, ConnectionState.HANDSHAKE
PING = commands.Metadata(())  # any broker answers it, at once


class Attached(Protocol):
    """A registration that uses a connection."""

    def on_lost(self, error: StreamConnectionError) -> None:
        """The connection has ended."""

    def on_resume(self) -> None:
        """The transport accepts data again."""

    def on_metadata_update(self, stream: str) -> None:
        """The broker has removed the publishers and subscriptions of a stream."""

    def on_disconnect(self) -> None:
        """The client disconnects: end the registration, or let it end with its connection."""

    def on_leave_loop(self) -> None:
        """The client moves to another event loop: be idle."""


class Connection(Engine, asyncio.BufferedProtocol):
    """A connection, opened by :func:`rbfly.net.handshake.connect`.

    :ivar address: the address that was dialled.
    :ivar request_timeout: seconds for the broker to answer once the connection is open; None for no
        limit.
    :ivar frame_max: negotiated maximum size of a frame in bytes, 0 for none.
    :ivar heartbeat: negotiated interval in seconds, 0 for none.
    :ivar server_properties: what the broker reports about itself.
    :ivar advertised: the node's advertised address, None if the broker does not report it.
    :ivar knows_optional: the broker supports ExchangeCommandVersions and StreamStats.
    :ivar commands: keys of the commands that it supports, by ExchangeCommandVersions.
    :ivar tune: future of the broker's Tune.
    :ivar registrations: registrations that use the connection.
    :ivar members: called with each ConsumerUpdate, by subscription id: its correlation id, and
        whether the subscription is active.
    :ivar confirm_check: looks for publishers whose confirms are late; None without publishers.
    :ivar state: state of the connection.
    :ivar error: why the connection ended; None while it has not.
    :ivar closed: future that is done when the socket is closed.
    :ivar paused: publishers do not write: the transport's write buffer is full, or the connection
        is `held`.
    :ivar held: the program is replacing this connection with a new one.
    """

    def __init__(
        self,
        address: Address,
        settings: Settings,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(HANDSHAKE_CAP, counters)
        self._log_prefix = settings.log_prefix
        self.address = address
        self.request_timeout: float | None = settings.request_timeout
        self.frame_max: int = 0
        self.heartbeat: int = 0
        self.server_properties: dict[str, str] = {}
        self.advertised: NodeAddress | None = None
        self.knows_optional: bool = False
        self.commands: Collection[int] = ()
        self.state: ConnectionState = ConnectionState.CONNECTING
        self.error: StreamConnectionError | None = None
        self.paused: bool = False
        self.held: bool = False
        self._full = False
        self.publisher_ids: set[int] = set(range(settings.publishers_per_connection))
        self.subscription_ids: set[int] = set(range(settings.subscriptions_per_connection))
        self._ids = len(self.publisher_ids) + len(self.subscription_ids)
        self.registrations: dict[Attached, None] = {}
        self.members: dict[int, Callable[[int, bool], None]] = {}
        self.confirm_check: object | None = None
        self._loop = asyncio.get_running_loop()
        self.tune: asyncio.Future[Tune] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()  # set unless paused; set once ended
        self._writable.set()
        self._requests = Requests(self._loop)
        self._ping: asyncio.Future[bytes] | None = None  # the response of the last ping
        self._pinged_at = 0.0  # by `perf_counter`: uvloop's clock counts milliseconds
        self._step = 'connecting'  # of the handshake; '' once that is complete
        self._role: Role | None = None
        self._observers: Observers | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._required = -1  # number of requests sent before the last `require_answer`
        self._silent = 0  # half heartbeat intervals without data
        self._unknown: set[tuple[int, int]] = set()

    def _enter(self, state: ConnectionState) -> None:
        before = self.state
        self.state = check_transition(self, before, state, TRANSITIONS)
        if state not in WRITING:
            self.send_to(None)
        if state is ConnectionState.OPEN:
            self.counters.on_open()
        elif before is ConnectionState.OPEN:
            self.counters.on_end(state is ConnectionState.CLOSED)

    # -- opening and closing

    def enter(self, step: str) -> None:
        """Note the current step of the handshake for error messages."""
        self._step = step

    def start(
        self,
        agreed: Tune,
        server_properties: dict[str, str],
        advertised: NodeAddress | None,
        supported: Collection[int] | None,
    ) -> None:
        """Complete the handshake: apply the negotiated limits and start heartbeats.

        :param supported: keys of the commands that the broker supports; None if it does not say.
        :raises StreamConnectionError: the connection was lost with the last response.
        """
        if self.error is not None:
            raise copy_error(self.error)
        self.frame_cap = FRAME_CAP
        self.frame_max, self.heartbeat = agreed.frame_max, agreed.heartbeat
        self.server_properties = server_properties
        self.advertised = advertised
        self.knows_optional, self.commands = supported is not None, supported or ()
        self._step = ''
        self._enter(ConnectionState.OPEN)
        if self.heartbeat:
            self._timer = self._loop.call_later(self.heartbeat / 2, self._beat)

    def use(self, role: Role, observers: Observers) -> None:
        """Report the connection, and later its end, to a client's observers."""
        self._role, self._observers = role, observers
        observers.notify(Observer.on_connection_opened, self.address, role)

    def leads_to(self, node: NodeAddress) -> bool:
        """True if the connection reached that node, as far as the broker reports its address."""
        return node == (self.advertised or NodeAddress(self.address.host, self.address.port))

    def ids(self, role: Role) -> set[int]:
        """Free publisher ids, or free subscription ids."""
        return self.publisher_ids if role is Role.PUBLISH else self.subscription_ids

    @property
    def pending_requests(self) -> int:
        """Number of requests that the broker has not answered."""
        return len(self._requests)

    def check_confirms(self, check: object | None) -> None:
        """Keep what looks for late confirms; None to forget it."""
        self.confirm_check = check

    @property
    def requests_sent(self) -> int:
        """Number of requests sent so far."""
        return self._requests.sent

    @property
    def is_unused(self) -> bool:
        """True if the connection has no publisher, no subscription and no pending request."""
        free = len(self.publisher_ids) + len(self.subscription_ids)
        return not self._requests and free == self._ids

    def require_answer(self) -> None:
        """Note that closing must wait until the broker has read the frames written so far."""
        self._required = self._requests.sent

    @property
    def is_idle(self) -> bool:
        """True if no call waits for a confirm, and the broker has read all that it must read."""
        return self._requests.last_response[0] > self._required and not any(
            window is not None and window.awaited for window in self.publishers
        )

    @property
    def is_open(self) -> bool:
        """True until the connection is closed or lost, or its event loop is closed."""
        return self.state in WRITING and not self._loop.is_closed()

    async def close(self, timeout: float | None = CLOSE_TIMEOUT) -> None:
        """Close the connection with a Close request; do nothing if it has already ended.

        :param timeout: seconds to wait for the broker's answer; 0 not to wait, None for no limit.
        """
        if self._loop is not asyncio.get_running_loop():
            return  # the socket was closed with its loop
        try:
            async with time_limit(timeout):
                await settled(self._request_close())
        except TimeoutError:
            pass
        finally:
            self.abort()
        await asyncio.shield(self.closed)

    def _request_close(self) -> asyncio.Future[Any]:
        """Send a Close; the future is done when the broker has answered."""
        if self.state not in WRITING:
            return self.closed  # the response to the broker's own Close may be on its way
        answer = self.send_request(commands.Close(), 0)
        self._enter(ConnectionState.CLOSING)
        self.paused = True
        return answer

    def abort(self, error: StreamConnectionError | None = None) -> None:
        """End the connection at once; pending requests raise the error.

        :param error: why; None if the client closes the connection.
        """
        if error is None and self.state in WRITING:
            self._enter(ConnectionState.CLOSING)
        self._end(error or disconnected())
        if self._transport is None:
            if not self.closed.done():
                self.closed.set_result(None)
        elif not self._loop.is_closed():
            self._transport.abort()
        elif (socket := self._transport.get_extra_info('socket')) is not None:
            with suppress(OSError, TypeError):  # TypeError: uvloop has closed it
                socket.shutdown(SHUT_RDWR)  # asyncio leaves it open: the broker would not notice

    def on_renewal_refused(self, error: StreamConnectionError) -> None:
        """End the connection: it cannot have new credentials."""
        if self._observers is not None and self._role is not None:
            address, role = self.address, self._role
            self._observers.notify(Observer.on_renewal_refused, address, role, error)
        self.abort(error)

    def abort_soon(self) -> None:
        """End the connection in the next turn of its event loop; from any thread."""
        self._loop.call_soon_threadsafe(self.abort)

    def _end(self, error: StreamConnectionError) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        was_closing = self.state is ConnectionState.CLOSING
        self._enter(ConnectionState.CLOSED)
        self.error = error
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._loop.is_closed():
            return  # no task runs any more, and the registrations are idle
        self._writable.set()
        self._requests.fail(error)
        fail(self.tune, copy_error(error))
        if self._observers is not None and self._role is not None:
            if was_closing:
                self._observers.notify(Observer.on_connection_closed, self.address, self._role)
            else:
                self._observers.notify(Observer.on_connection_lost, self.address, self._role, error)
        call_each([registration.on_lost for registration in self.registrations], error)

    # -- asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        if self.state is ConnectionState.CLOSED:
            transport.abort()
        else:
            self._enter(ConnectionState.HANDSHAKE)
            self.send_to(transport.write, gather_to(transport))
            self.collect_by(collect_in(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state is ConnectionState.CLOSING:
            error = disconnected()
        elif isinstance(exc, ssl_module.SSLError):
            error = TLSError(f'{self.address}: {exc}')
        else:
            detail = f': {exc}' if exc else ''
            state = f' while {self._step}' if self._step else ''
            if self._step == FIRST_STEP and self.address.ssl is None:
                detail += '; is it a TLS port?'
            error = StreamConnectionError(f'{self.address}: connection lost{state}{detail}')
        error.__cause__ = exc
        try:
            self._end(error)
        finally:
            if not self.closed.done():
                self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._full = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._full = False
        self._pause_or_resume()

    def hold(self, held: bool) -> None:
        """Pause publishers, also if the transport accepts data; or end that."""
        self.held = held
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        if self._full or self.held:
            self.paused = True
            self._writable.clear()
            return
        self.paused = self.state not in WRITING
        self._writable.set()
        if not self.paused:
            call_each([registration.on_resume for registration in self.registrations])

    # -- requests

    async def wait_writable(self) -> bool:
        """Wait until the transport accepts data; false if the connection has ended."""
        while self.paused and self.is_open:
            await self._writable.wait()
        return self.is_open

    async def request(self, command: Command[T], timeout: float | None = None) -> T:
        """Send a request and wait for its response.

        :param timeout: seconds to wait; None for `request_timeout`, 0 for no limit.
        :raises ProtocolError: the broker refused, with the code of the response.
        :raises RequestTimeout: the broker did not answer in time.
        :raises StreamConnectionError: the connection ended first.
        """
        return self.read(command, await self.send_request(command, timeout))

    def read(self, command: Command[T], answer: bytes) -> T:
        """Decode the result of a future of :meth:`send_request`; a malformed one is fatal."""
        reader = commands.Reader(answer)
        try:
            if command.key != Key.METADATA:
                code = reader.u16()
                if code != ResponseCode.OK:
                    detail = f'{self.address}, while {self._step}' if self._step else ''
                    stream = getattr(command, 'stream', '')
                    raise protocol_error(code, detail, stream, command.key)
            return command.parse(reader)
        except FrameError as ex:
            self.on_failure(ex)
            raise copy_error(self.error or ex) from ex.__cause__

    def send_request(
        self,
        command: Command[Any],
        timeout: float | None = None,
        on_response: Callable[[], object] | None = None,
    ) -> asyncio.Future[bytes]:
        """Send a request now; return a future of the response, without its correlation id.

        :raises ArgumentError: the request does not fit into a frame.
        """
        if self.error is not None:
            raise copy_error(self.error) from self.error
        if self.state is ConnectionState.CLOSING:
            raise disconnected()
        if timeout is None and self.state is ConnectionState.OPEN:
            timeout = self.request_timeout
        frame, future = self._requests.add(
            command, timeout, self._on_timeout, on_response, self.frame_max
        )
        self.write(frame)
        return future

    async def ping(self) -> float:
        """Return the seconds from a request to its response; calls that overlap share one.

        A caller that stops waiting leaves the request pending, so that a connection on which
        nothing answers ends after `request_timeout`.

        :raises StreamConnectionError: the connection ended first.
        """
        if self._ping is None or self._ping.done():
            self._ping, self._pinged_at = self.send_request(PING), perf_counter()
        sent = self._pinged_at
        answer = await outcome(self._ping)
        took = perf_counter() - sent
        assert answer is not None  # nothing cancels the future
        self.read(PING, answer)
        return took

    def undeclare(self, role: Role, id: int, command: Command[Any]) -> asyncio.Future[bytes]:
        """Send the request that removes a publisher or subscription; the response frees its id.

        Until then, the broker may send frames with that id, even after the request timed out.
        """
        return self.send_request(command, on_response=partial(self.ids(role).add, id))

    def _on_timeout(self, future: asyncio.Future[bytes], missing: str) -> None:
        error = RequestTimeout(f'{self.address}: {missing}')
        if self.has_unconfirmed:
            fail(future, error)
        else:
            self.abort(error)

    @property
    def has_unconfirmed(self) -> bool:
        """True if messages are unconfirmed; if many are, the broker stops reading requests."""
        return any(window is not None and window.in_flight for window in self.publishers)

    # -- frames from the broker

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        handler = HANDLERS.get(key)
        if handler is not None:
            handler(self, body)
        elif key & RESPONSE:
            self._requests.on_response(body)
        elif (key, version) not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add((key, version))
            text = '%s%s: skipped unknown frame 0x%04x version %d'
            extra = facts(self._log_prefix, 'unknown_frame', node=str(self.address), key=key)
            logger.warning(text, self._log_prefix, self.address, key, version, extra=extra)

    def _on_heartbeat(self, body: bytes) -> None:
        """Do nothing: any data shows that the broker is alive."""

    def _on_tune(self, body: bytes) -> None:
        if not self.tune.done():
            self.tune.set_result(Tune.read(commands.Reader(body)))

    def _on_close(self, body: bytes) -> None:
        reader = commands.Reader(body)
        correlation_id, close = reader.u32(), commands.Close.read(reader)
        self.write(commands.Close.respond(correlation_id))
        reason = f'closed by the broker: {close.reason} (code 0x{close.code:02x})'
        self._end(StreamConnectionError(f'{self.address}: {reason}'))
        if self._transport is not None:
            self._transport.close()

    def _on_metadata_update(self, body: bytes) -> None:
        stream = commands.MetadataUpdate.read(commands.Reader(body)).stream
        call_each([registration.on_metadata_update for registration in self.registrations], stream)

    def _on_credit_error(self, body: bytes) -> None:
        text = '%s%s: the broker refused credit for an ended subscription'
        extra = facts(self._log_prefix, 'credit_refused', node=str(self.address))
        logger.debug(text, self._log_prefix, self.address, extra=extra)

    def _on_consumer_update(self, body: bytes) -> None:
        reader = commands.Reader(body)
        correlation_id, update = reader.u32(), commands.ConsumerUpdate.read(reader)
        on_update = self.members.get(update.subscription_id)
        if on_update is not None:
            on_update(correlation_id, bool(update.active))
        else:  # it has left the group; without an answer, the broker closes the connection
            self.write(commands.ConsumerUpdate.respond(correlation_id))

    def on_failure(self, error: Exception) -> None:
        if isinstance(error, FrameError | ChunkError):
            failure = FrameError(f'{self.address} does not speak the stream protocol: {error}')
            failure.__cause__ = error
            self.abort(failure)
            extra = facts(
                self._log_prefix, 'not_a_broker', node=str(self.address), error=str(error)
            )
            logger.error('%s%s', self._log_prefix, failure, extra=extra)
        else:
            text = f'closed because a callback failed: {error!r}'
            failed = StreamConnectionError(f'{self.address}: {text}')
            failed.__cause__ = error
            self.abort(failed)
            self._loop.call_exception_handler(
                {'message': 'a callback of the connection failed', 'exception': error}
            )

    # -- heartbeats

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self.heartbeat / 2, self._beat)
        if not self.wrote:
            self.write(commands.HEARTBEAT)
        self._silent = 0 if self.heard else self._silent + 1
        self.wrote = self.heard = False
        if self._silent:  # on a slow network, bytes may have arrived, but fewer than awaited
            self.take_at_once()
        if self._silent >= 4:
            seconds = 2 * self.heartbeat
            self.abort(
                StreamConnectionError(f'{self.address}: nothing received for {seconds} seconds')
            )


HANDLERS: dict[int, Callable[[Connection, bytes], None]] = {
    Key.HEARTBEAT: Connection._on_heartbeat,
    Key.TUNE: Connection._on_tune,
    Key.CLOSE: Connection._on_close,
    Key.METADATA_UPDATE: Connection._on_metadata_update,
    Key.CREDIT | RESPONSE: Connection._on_credit_error,
    Key.CONSUMER_UPDATE: Connection._on_consumer_update,
}
"""Handlers of the frames that the broker sends by itself, by key."""


def disconnected() -> StreamConnectionError:
    return StreamConnectionError('the client was disconnected')
