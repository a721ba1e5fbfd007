"""Determines where a subscription ends, and that nothing before its end is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...error import SubscriptionError, about
from ...net.connection import Connection
from ...net.registration import Registration
from ...protocol import commands
from ...protocol._cursor import MessageCursor
from ...protocol.end import End
from .._offsets.queries import leader_stats, request_stats


class Until:
    """The end of a subscription.

    The last chunks before the end may not be delivered: they contain stored offsets, or a filter
    skips them.  The broker handles the frames of a connection in order: it answers a request after
    it has delivered all committed chunks that the credit for earlier frames permits.  If all credit
    was returned before the request, and no chunk arrives before the answer, then nothing is left.

    :param on_end: called when nothing is left.
    :ivar is_complete: when the subscription was declared, the node had everything before the end.
    """

    def __init__(
        self,
        end: End,
        registration: Registration,
        cursor: MessageCursor,
        on_end: Callable[[], None],
    ) -> None:
        self.is_complete: bool = False
        self._end = end
        self._registration = registration
        self._cursor = cursor
        self._on_end = on_end
        self._answer: asyncio.Future[bytes] | None = None  # None once a chunk has arrived

    async def prepare(self, connection: Connection, stream: str) -> None:
        """Determine the end, and whether the node has everything before it.

        :raises SubscriptionError: the broker is too old.
        """
        if not connection.knows_optional:
            error = SubscriptionError(
                f'cannot determine the end of stream {stream!r}: `until` requires RabbitMQ 3.11'
            )
            raise about(error, stream)
        end = self._end
        if end.last is None:
            stats = await leader_stats(self._registration.cluster, stream)
            end.on_committed(stats.get('committed_chunk_id', -1))
        if end.is_now:
            self.is_complete = True  # see `missing`
            return
        stats = await connection.request(commands.StreamStats(stream))
        committed = max(stats.get(f'committed_{key}', -1) for key in ('chunk_id', 'offset'))
        self.is_complete = end.last is not None and committed >= end.last

    def missing(self, committed: int | None) -> int | None:
        """Return the last chunk before the end, if a replica lacks it; else None.

        :param committed: id of its last committed chunk.
        """
        last = self._end.last if self._end.is_now else None
        return last if last is not None and committed is not None and committed < last else None

    def check(self) -> bool:
        """Return True if nothing is left; if that is not known, ask the broker.

        The program has received all messages that have arrived.
        """
        connection = self._registration.connection
        if self._end.is_reached(self._cursor):
            return True
        if (
            self.is_complete
            and self._answer is None
            and self._registration.is_open
            and connection is not None
            and connection.is_open
        ):
            self._answer = request_stats(connection, self._cursor.stream or '', self._on_answer)
        return False

    def on_arrival(self) -> None:
        """A chunk has arrived."""
        self._answer = None

    def on_detach(self) -> None:
        """The subscription has left its connection."""
        self._answer = None

    def start_over(self) -> None:
        """The stream was deleted."""
        self._end.start_over()

    def _on_answer(self, answer: asyncio.Future[bytes], _: dict[str, int]) -> None:
        if answer is self._answer:
            self._answer = None
            self._on_end()
