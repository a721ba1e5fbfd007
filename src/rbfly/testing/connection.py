"""One connection of a client: bytes into frames, frames out, heartbeats."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from ..protocol.commands import HEARTBEAT
from .faults import Faults

WRITE_HIGH = 2**22  # bytes that the transport may buffer before delivery pauses
STEP_TIMEOUT = 10.0  # seconds for each step of the handshake, and for the answer to a Close
SILENT_MAX = 5  # half heartbeat intervals in which the client may send nothing
HEAD = struct.Struct('>HH')


class Wire(asyncio.Protocol):
    """A connection.

    :param cut: cuts all connections of the broker.
    :ivar ended: whether the connection ignores further input.
    :ivar paused: whether the client reads more slowly than the broker writes.
    :ivar limit: maximum size of a frame in bytes; 0 for no limit.
    :ivar deliver_version: version of the Deliver frames.
    """

    transport: asyncio.Transport
    # Implemented by the session.
    on_frame: Callable[[int, int, bytes], None]
    on_too_large: Callable[[], None]  # handles the start of a frame that exceeds the limit
    on_read: Callable[[], None]  # handles the end of a read, after its frames
    send_close: Callable[[int, str], None]  # asks the client to close the connection

    def __init__(self, faults: Faults, cut: Callable[[], None]) -> None:
        self.faults = faults
        self.ended: bool = False
        self.paused: bool = False
        self.limit = 0
        self.deliver_version = 1
        self._cut = cut
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []  # of a frame that has not arrived completely
        self._have = 0
        self._need = 0
        self._output: deque[tuple[float, bytes]] = deque()  # delayed data, with the time to send it
        self._output_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._wrote = self._heard = False
        self._silent = 0

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate, empty if it sent none; None without TLS."""
        if self.transport.get_extra_info('sslcontext') is None:
            return None
        return self.transport.get_extra_info('peercert') or {}

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH)
        self.expect_step()
        if self.faults.stalled:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self.ended:
            return
        data = self.faults.before_cut(data)
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
        if self.faults.cut_due:
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
        if self._closing or self.transport.is_closing():
            return
        self._wrote = True
        if not self._output and not self.faults.buffering:
            self._send(data)
            return
        when = self._loop.time() + self.faults.delay
        self._output += ((when, piece) for piece in self.faults.pieces(data))
        self._schedule()

    def _schedule(self) -> None:
        """Send the next delayed piece when it is due, one in each turn of the loop."""
        if self._output_timer is None and self._output and not self.faults.stalled:
            self._output_timer = self._loop.call_at(self._output[0][0], self._send_next)

    def _send_next(self) -> None:
        self._output_timer = None
        if self.faults.stalled:
            return
        self._send(self._output.popleft()[1])
        if self._closing and not self._output:
            self.transport.close()
        self._schedule()

    def _send(self, data: bytes) -> None:
        self.transport.write(self.faults.before_cut(data))
        if self.faults.cut_due:
            self._drop_output()
            self.close()  # orderly: the client receives the first part of the frame
            self._cut()

    def _drop_output(self) -> None:
        self._closing = True
        self._output.clear()
        self._stop_output()

    def _stop_output(self) -> None:
        if self._output_timer is not None:
            self._output_timer.cancel()
            self._output_timer = None

    def apply_stall(self) -> None:
        """Stop or resume reading and writing, as the faults require."""
        if self.transport.is_closing():
            return
        if self.faults.stalled:
            self.transport.pause_reading()
            return
        self.transport.resume_reading()
        self._stop_output()
        self._output = deque((0.0, data) for _, data in self._output)
        self._schedule()

    # -- the end

    def close(self) -> None:
        """Close after all data was sent, or after a timeout if the client does not read it."""
        self.ended = self._closing = True
        self.expect_step()
        if not self._output:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, and send nothing more."""
        self._end()
        self.transport.abort()

    def cut(self) -> None:
        """Abort, unless the connection is closing: its last data may still leave."""
        if not self.transport.is_closing():
            self.abort()

    def _end(self) -> None:
        self.ended = True
        self._stop_timer()
        self.restart_expiry(None)
        self._drop_output()

    # -- time

    def expect_step(self) -> None:
        """Abort unless the next step of the handshake, or the end, follows in time."""
        self._stop_timer()
        self._timer = self._loop.call_later(STEP_TIMEOUT, self.abort)

    def restart_expiry(self, seconds: float | None) -> None:
        """Close when the credentials expire, unless the client renews them."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_later(seconds, self.cut) if seconds else None

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
