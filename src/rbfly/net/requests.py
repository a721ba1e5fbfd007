"""Requests that await their response, by correlation id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ..error import ArgumentError, RbFlyError, copy_error
from ..protocol.commands import Command
from .waiting import fail

GRACE = 0.1  # seconds for a blocked event loop to read a response that has already arrived

OnTimeout = Callable[[asyncio.Future[bytes], str], None]


class Requests:
    """The pending requests of one connection; its length is their number.

    :ivar sent: number of requests sent so far.
    :ivar last_response: correlation id of the last response, and when it arrived.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sent: int = 0
        self._loop = loop
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._on_response: dict[int, Callable[[], object]] = {}
        self.last_response: tuple[int, float] = (0, 0.0)

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self,
        command: Command[Any],
        timeout: float | None,
        on_timeout: OnTimeout,
        on_response: Callable[[], object] | None = None,
        frame_max: int = 0,
    ) -> tuple[bytes, asyncio.Future[bytes]]:
        """Assign a correlation id; return the frame to send, and a future of the response.

        The future's result is the part of the response after the correlation id.

        :param timeout: seconds to wait for the response; None or 0 for no limit.
        :param on_timeout: called with the future and the text of the error.
        :param on_response: called when the response arrives, however late.
        :param frame_max: maximum size of the frame in bytes; 0 for no limit.
        :raises ArgumentError: the frame is larger.
        """
        correlation_id = (self.sent + 1) % 2**32
        frame = command.encode(correlation_id)
        size = len(frame) - 4  # without the size itself
        if 0 < frame_max < size:  # the broker would close the connection
            raise ArgumentError(
                f'{type(command).__name__} needs a frame of {size} bytes, but the connection allows'
                f' only {frame_max}'
            )
        self.sent += 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._pending[correlation_id] = future
        if on_response is not None:
            self._on_response[correlation_id] = on_response
        timer = None
        if timeout:
            # A loop that was blocked reads the received data before the request times out.
            check = partial(self._check, command, correlation_id, future, timeout, on_timeout)
            timer = self._loop.call_later(timeout, self._loop.call_later, GRACE, check)

        def forget(_: object) -> None:
            del self._pending[correlation_id]
            if timer is not None:
                timer.cancel()

        future.add_done_callback(forget)
        return frame, future

    def _check(
        self,
        command: Command[Any],
        correlation_id: int,
        future: asyncio.Future[bytes],
        timeout: float,
        on_timeout: OnTimeout,
    ) -> None:
        if future.done():
            return
        last, when = self.last_response
        left = when + timeout - self._loop.time()
        if left > 0 and last < correlation_id:
            # The broker responds in order and is still busy with earlier requests.
            check = partial(self._check, command, correlation_id, future, timeout, on_timeout)
            self._loop.call_later(left + GRACE, check)
            return
        stream = getattr(command, 'stream', '')
        of_stream = f' of stream {stream!r}' if stream else ''
        name = type(command).__name__
        on_timeout(future, f'no answer to {name}{of_stream} within {timeout:g} s')

    def on_response(self, body: bytes) -> None:
        """Pass a response to its request, if the request is still pending."""
        correlation_id = int.from_bytes(body[:4], 'big')
        future = self._pending.get(correlation_id)
        if future is not None and not future.done():
            future.set_result(body[4:])
            self.last_response = (correlation_id, self._loop.time())
        if (on_response := self._on_response.pop(correlation_id, None)) is not None:
            on_response()

    def fail(self, error: RbFlyError) -> None:
        """End every pending request with a copy of an error."""
        for future in self._pending.values():
            fail(future, copy_error(error))
