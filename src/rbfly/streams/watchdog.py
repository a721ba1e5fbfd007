"""A broker that has lost its reader without knowing: asked, now and then, what it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..error import RbFlyError
from ..protocol import commands
from ..protocol._cursor import MessageCursor

if TYPE_CHECKING:
    from ..net.connection import Connection

__all__ = ['DeliveryWatchdog']

logger = logging.getLogger(__name__)

SILENCE = 30.0  # seconds without a chunk until the broker is asked; each time twice as many
SILENCE_LAST = 3600.0
GRACE = 1.0  # seconds; what the broker says it has may be on its way


class DeliveryWatchdog:
    """Hears whether chunks come while a task waits for one.

    :param wake: called when its time is over; who waits goes on to `listen`.
    :ivar timer: for `listen`, which is to be called if there is none.
    """

    def __init__(self, stream: str, cursor: MessageCursor, wake: Callable[[], None]) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._stream = stream
        self._cursor = cursor
        self._wake = wake
        self._seconds = SILENCE
        self._heard = -1  # id of the last chunk when the timer was set
        self._over = False  # its time is
        self._lacking: int | None = None  # chunk that the broker has, and that does not come
        self._settled: int | None = None  # the one that it was subscribed anew for

    def start_over(self) -> None:
        """The stream is gone."""
        self._settled = None

    def stop(self) -> None:
        """Nobody waits."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._over, self._lacking = False, None

    def listen(self, connection: Connection, *, may_begin_later: bool) -> bool:
        """A task waits for a chunk; false if it would wait in vain, and is to subscribe anew.

        :param may_begin_later: the last chunk that there is may lie before what was asked for.
        """
        heard = self._cursor.last_chunk.id
        if heard != self._heard:
            self._heard, self._seconds, self._over = heard, SILENCE, False
        elif self._lacking is not None:
            self._settled = self._lacking
            # A chunk of stored offsets alone is never given: the broker may well be right.
            logger.info(
                'stream %r: chunk %d was not given; subscribing anew to be sure',
                self._stream,
                self._settled,
            )
            return False
        elif self._over:
            self._seconds, self._over = min(2 * self._seconds, SILENCE_LAST), False
            command = commands.StreamStats(self._stream)
            connection.send_request(command).add_done_callback(
                lambda future: self._on_stats(connection, command, future, may_begin_later)
            )
        self._lacking = None
        self.timer = asyncio.get_running_loop().call_later(self._seconds, self._on_silence)
        return True

    def _on_silence(self) -> None:
        self.timer = None
        self._over = True
        self._wake()

    def _on_stats(
        self,
        connection: Connection,
        command: commands.StreamStats,
        future: asyncio.Future[bytes],
        may_begin_later: bool,
    ) -> None:
        if self.timer is None or future.cancelled() or future.exception() is not None:
            return
        try:
            stats = connection.read(command, future.result())
        except RbFlyError:
            return  # whoever waits is told of a connection that has ended
        committed = stats.get('committed_chunk_id', -1)
        if self._settled is None and may_begin_later:
            self._settled = committed
        cursor = self._cursor
        last = cursor.last_chunk
        wanted = max(last.id + 1, cursor.skip_through_chunk + 1, cursor.skip_before)
        if -1 < committed != self._settled and (committed >= wanted or last.unverified):
            self._lacking = committed
            self.timer.cancel()
            self.timer = asyncio.get_running_loop().call_later(GRACE, self._on_silence)
