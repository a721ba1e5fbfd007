"""One connection of a client: bytes into frames, frames out, heartbeats."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

from ..protocol.commands import HEARTBEAT
from .faults import Faults
from .outgoing import Outgoing

WRITE_HIGH = 2**22  # bytes the transport may hold before nothing more is delivered
STEP_TIMEOUT = 10.0  # seconds for each step of the handshake, and for the answer to a Close
SILENT_MAX = 5  # half heartbeats without a byte of the client
HEAD = struct.Struct('>HH')


class Wire(asyncio.Protocol):
    """A connection.

    :ivar number: which connection of the broker it is, from 1.
    :ivar ended: nothing that comes is looked at any more.
    :ivar limit: most bytes of a frame; 0 for no limit.
    :ivar on_made: called when it is open.
    :ivar on_end: called when it is closed.
    """

    transport: asyncio.Transport

    def __init__(self, faults: Faults, cut: Callable[[], None]) -> None:
        self.faults = faults
        self.number = 0
        self.ended = False
        self.limit = 0
        self.paused = False
        self.on_made: Callable[[Wire], None] = lambda wire: None
        self.on_end: Callable[[Wire], None] = lambda wire: None
        self._cut = cut
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self._out = Outgoing(faults, self._send, self._close)
        self._timer: asyncio.TimerHandle | None = None
        self._wrote = self._heard = False
        self._silent = 0

    @property
    def certificate(self) -> dict[str, Any] | None:
        """That of the client, empty if it has none; None without TLS."""
        if self.transport.get_extra_info('sslcontext') is None:
            return None
        return self.transport.get_extra_info('peercert') or {}

    # -- for the session above

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        """A frame has come."""

    def on_read(self) -> None:
        """Called after the frames of one read were handled."""

    def on_too_large(self) -> None:
        """Called when a frame begins that is larger than the limit."""
        self.abort()

    def on_resume(self) -> None:
        """More can be delivered again."""

    def on_lost(self) -> None:
        """The connection is closed."""

    # -- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH)
        self.expect_step()
        if self.faults.stalled:
            self.transport.pause_reading()
        self.on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._stop_timer()
        self._out.drop()
        self.on_lost()
        self.on_end(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.on_resume()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self.ended:
            return
        data = self.faults.passing(data)
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have >= self._need:
                data = b''.join(self._parts)
                self._parts.clear()
                self._read(data)
        else:
            self._read(data)
        self.on_read()
        if self.faults.cutting:
            self._cut()

    def _read(self, data: bytes) -> None:
        at, n, end = 0, len(data), 0
        while n - at >= 4 and not self.ended:
            size = int.from_bytes(data[at : at + 4])
            if self.limit and size > self.limit:
                self.on_too_large()
                return
            end = at + 4 + size
            if end > n:
                break
            key, version = HEAD.unpack_from(data, at + 4) if size >= 4 else (0, 0)
            self.on_frame(key, version, data[at + 8 : end])
            at = end
        if at < n and not self.ended:
            self._parts.append(data[at:])
            self._have = n - at
            self._need = max(4, end - at)

    # -- writing

    def write(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._wrote = True
        self._out.write(data)

    def _send(self, data: bytes) -> None:
        self.transport.write(self.faults.passing(data))
        if self.faults.cutting:
            self._out.drop()
            self.close()
            self._close()  # the client gets the part of the frame
            self._cut()

    def stall(self) -> None:
        """Do as the broker's faults say."""
        if self.transport.is_closing():
            return
        if self.faults.stalled:
            self.transport.pause_reading()
            return
        self.transport.resume_reading()
        self._out.hurry()

    def close(self) -> None:
        """Close it when what was written has left, or in a while if the client does not read it."""
        self.ended = True
        self.expect_step()
        self._out.close()

    def _close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        """Close it without a word."""
        self.ended = True
        self._stop_timer()
        self._out.drop()
        self.transport.abort()

    def cut(self) -> None:
        """The same, but for what is closed already: that may still leave."""
        if not self.transport.is_closing():
            self.abort()

    # -- time

    def expect_step(self) -> None:
        """Wait for the next step of the handshake, or for the end, so long and no longer."""
        self._stop_timer()
        self._timer = self._loop.call_later(STEP_TIMEOUT, self.abort)

    def start_heartbeats(self, interval: int) -> None:
        self._stop_timer()
        if interval:
            self._timer = self._loop.call_later(interval / 2, self._beat, interval)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, interval: int) -> None:
        if self.faults.stalled:
            self._heard = True
        elif not self._wrote:
            self.write(HEARTBEAT)
        else:
            self._wrote = False
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent >= SILENT_MAX:
            self.abort()
        else:
            self.start_heartbeats(interval)
