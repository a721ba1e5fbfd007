"""What is on its way to a client: sent at once, or later and in pieces, as the faults say."""

import asyncio
from collections import deque
from collections.abc import Callable

from .faults import Faults


class Outgoing:
    """Bytes to be sent, in their order.

    :param send: sends bytes.
    :param end: called when everything before :meth:`close` has been sent.
    """

    def __init__(
        self, faults: Faults, send: Callable[[bytes], object], end: Callable[[], object]
    ) -> None:
        self._faults = faults
        self._send = send
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes]] = deque()  # each with its time
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._queue and not self._faults.holding:
            self._send(data)
            return
        when = self._loop.time() + self._faults.delay
        self._queue += ((when, piece) for piece in self._faults.pieces(data))
        self.go_on()

    def close(self) -> None:
        """End behind what was written."""
        self._closing = True
        if not self._queue:
            self._end()

    def drop(self) -> None:
        """Nothing of it is sent any more."""
        self._closing = True
        self._queue.clear()
        self._stop_timer()

    def hurry(self) -> None:
        """Nothing is late any more."""
        self._stop_timer()
        self._queue = deque((0.0, data) for _, data in self._queue)
        self.go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """The next one is sent when its time has come, one each turn of the loop."""
        if self._timer is None and self._queue and not self._faults.stalled:
            self._timer = self._loop.call_at(self._queue[0][0], self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._faults.stalled:
            return
        self._send(self._queue.popleft()[1])
        if self._closing and not self._queue:
            self._end()
        self.go_on()
