"""Detects that the broker has stopped delivering, by polling StreamStats.

The statistics count chunks of stored offsets, which the broker never delivers.  So a missing chunk
proves nothing: the watchdog subscribes again, once for each chunk, but reports a stall only if the
stream has a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...error import RbFlyError
from ...net.observer import facts
from ...net.registration import Registration
from ...protocol._cursor import MessageCursor
from ...time_limits import time_limit
from .._offsets.queries import delivers_chunks, end_of_messages, request_stats
from .._waiting import cancel
from .stall import DeliveryStall
from .waiter import Waiter

logger: logging.Logger = logging.getLogger('rbfly.streams')

SILENCE = 30.0  # seconds without a chunk until the first poll; doubled after each poll
SILENCE_LAST = 3600.0
GRACE = 1.0  # seconds for a chunk to arrive that StreamStats has reported
LOOK = 10.0  # seconds to find out whether the stream has a message


class DeliveryWatchdog:
    """Resets a registration if a task waits for a chunk that the broker has but does not deliver.

    :param in_group: subscribing again leaves a consumer group, so look for a message first.
    :ivar timer: timer of the next poll, or of the grace period after one; None if stopped.
    :ivar stall: reports that messages are missing.
    """

    def __init__(
        self,
        stream: str,
        cursor: MessageCursor,
        registration: Registration,
        waiter: Waiter,
        in_group: bool,
    ) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._stream = stream
        self._cursor = cursor
        self._registration = registration
        self._waiter = waiter
        self._in_group = in_group
        self._task: asyncio.Task[None] | None = None  # looks for a message
        self._seconds = SILENCE
        self._last_id = -1  # of the last chunk when the timer was set
        self._is_time = False
        self._accepted: int | None = None  # missing chunk for which not to subscribe again
        self._silent_since = 0.0  # time of the event loop, about
        self.stall: DeliveryStall = DeliveryStall(registration, cursor)

    def start(self, *, is_time: bool) -> None:
        """Watch the registration, which is open.

        :param is_time: the subscription starts at a time, perhaps after the last chunk.
        """
        self._is_time = is_time
        self.stall.look()
        self._silent_since = asyncio.get_running_loop().time()
        self._set(self._seconds, self._poll)

    def stop(self) -> None:
        """Stop watching: the registration is not open any more."""
        self.stall.stop()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        task, self._task = self._task, None
        cancel(task)

    def start_over(self) -> None:
        """The stream was deleted."""
        self._accepted = None
        self.stall.clear()

    def _set(self, seconds: float, callback: Callable[..., None], *args: object) -> None:
        self._last_id = self._cursor.last_chunk.id
        self.timer = asyncio.get_running_loop().call_later(seconds, callback, *args)

    def _poll(self) -> None:
        connection = self._registration.connection
        if self._cursor.last_chunk.id != self._last_id:
            self._seconds = SILENCE
            self._silent_since = asyncio.get_running_loop().time()
        elif self._waiter.is_waiting() and connection is not None and connection.is_open:
            self._seconds = min(2 * self._seconds, SILENCE_LAST)
            request_stats(connection, self._stream, self._on_stats)
        self._set(self._seconds, self._poll)

    def _on_stats(self, _: asyncio.Future[bytes], stats: dict[str, int]) -> None:
        if self.timer is None:
            return
        committed = stats.get('committed_chunk_id', -1)
        if self._accepted is None and self._is_time:
            self._accepted = committed
        cursor = self._cursor
        last = cursor.last_chunk
        expected = max(last.id + 1, cursor.skip_through_chunk + 1, cursor.skip_before)
        if -1 < committed != self._accepted and (committed >= expected or last.unverified):
            self.timer.cancel()
            self._set(GRACE, self._on_grace, committed)

    def _on_grace(self, chunk_id: int) -> None:
        is_silent = self._is_silent()
        self._set(self._seconds, self._poll)
        if not is_silent or self._task is not None:
            return
        self._accepted = chunk_id
        self._task = asyncio.create_task(self._look_for_message(chunk_id))

    def _is_silent(self) -> bool:
        cursor = self._cursor
        return (
            self._waiter.is_waiting()
            and not cursor.queue.chunks
            and cursor.last_chunk.id == self._last_id
        )

    async def _look_for_message(self, chunk_id: int) -> None:
        is_stalled = await self._has_message()
        if is_stalled:
            await asyncio.sleep(GRACE)  # it may have been published just now
        self._task = None
        if not self._is_silent():
            return
        if is_stalled:
            self.stall.begin(self._silent_since)
        if is_stalled or not self._in_group:
            self._subscribe_again(chunk_id)

    async def _has_message(self) -> bool:
        cursor, cluster = self._cursor, self._registration.cluster
        try:
            async with time_limit(LOOK):
                end = await end_of_messages(cluster, self._stream)
                if end == 0 and cursor.position is None:  # only stored offsets, perhaps
                    return not await delivers_chunks(cluster, self._stream)
        except (RbFlyError, TimeoutError):
            return False  # the registration handles a lost connection
        # A stream that has had messages has a last one, unless the broker delivers none at all.
        return end == 0 or end > max(cursor.position or 0, cursor.skip_before)

    def _subscribe_again(self, chunk_id: int) -> None:
        self._registration.reset()
        self._waiter.wake()
        prefix = self._registration.cluster.settings.log_prefix
        logger.info(
            '%sstream %r: chunk %d was not delivered; subscribing again',
            prefix,
            self._stream,
            chunk_id,
            extra=facts(prefix, 'subscribing_again', self._registration.owner, chunk=chunk_id),
        )
