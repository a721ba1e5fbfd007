"""Detects that another publisher uses the same name.

RabbitMQ does not refuse it: of two messages with the same name and publishing id, it stores the
first, and confirms both.  But it reports the highest publishing id of a name.  If that is above all
ids that this publisher has sent, another publisher has sent it.
"""

from __future__ import annotations

import asyncio

from ...error import PublisherNameInUse, RbFlyError, copy_error
from ...net.connection import Connection
from ...net.registration import Registration
from ...protocol import commands
from ._core import PublisherCore

INTERVAL = 10.0  # seconds between two queries while the publisher publishes


class NameCheck:
    """Queries the highest publishing id of a publisher's name, without making the publisher wait.

    There is a timer only while the publisher publishes: the first confirm after an idle time
    starts it, and it ends when nothing was sent between two queries.

    :param registration: of the publisher; it fails when another publisher uses the name.
    :ivar error: why the publisher takes no more messages, for good; None if it does.
    """

    def __init__(self, registration: Registration, stream: str, name: str) -> None:
        self.error: PublisherNameInUse | None = None
        self._registration = registration
        self._query = commands.QueryPublisherSequence(name, stream)
        self._opened = 0  # the answer when the publisher opened
        self._sent = 0  # highest id sent before the last query
        self._due = 0.0  # when the next query is due, by the clock of the loop
        self._answer: asyncio.Future[bytes] | None = None  # to the last query
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, connection: Connection) -> int:
        """Return the last publishing id of the name, 0 for none, when the publisher opens.

        :raises RbFlyError: the query failed.
        """
        self._opened = await connection.request(self._query)
        self._due = asyncio.get_running_loop().time() + INTERVAL
        return self._opened

    def ask(self, core: PublisherCore) -> None:
        """Send a query.  The broker answers it after all that this publisher sent before."""
        connection = self._registration.connection
        sent = self._begin_interval(core)
        if connection is None or not connection.is_open:
            return
        if self._answer is not None:
            self._answer.cancel()
        answer: asyncio.Future[bytes]
        # No timeout, because it would end the connection.  The answer is read before the frames
        # behind it, which may confirm messages that are not stored.
        answer = self._answer = connection.send_request(
            self._query, 0, lambda: self._compare(connection, answer, sent)
        )

    def _compare(self, connection: Connection, answer: asyncio.Future[bytes], sent: int) -> None:
        try:
            last_id = connection.read(self._query, answer.result())
        except (RbFlyError, asyncio.CancelledError):
            return
        if last_id <= max(self._opened, sent) or self.error is not None:
            return
        query = self._query
        self.error = PublisherNameInUse(
            f'another publisher of stream {query.stream!r} uses the name {query.reference!r}: the'
            f' broker has publishing id {last_id}, but this publisher has sent none above {sent};'
            ' messages may be lost: give each process its own name'
        )
        self._registration.fail(copy_error(self.error))

    def start(self, core: PublisherCore) -> None:
        """Start the timer, because the broker has confirmed a message."""
        if self._timer is None:
            self._timer = core.loop.call_at(self._due, self._tick, core)

    def _tick(self, core: PublisherCore) -> None:
        self._timer = None
        if core.window.last_sent == self._sent:
            core.watch()  # the next confirm starts the timer
            return
        if self._answer is None or self._answer.done():
            self.ask(core)
        else:  # the broker has not answered the last query
            self._begin_interval(core)
        self.start(core)

    def _begin_interval(self, core: PublisherCore) -> int:
        """Note the highest id sent so far, and when the next query is due; return the id."""
        self._sent, self._due = core.window.last_sent, core.loop.time() + INTERVAL
        return self._sent

    def stop(self) -> None:
        """Stop the timer, because the publisher has left its connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self, core: PublisherCore) -> None:
        """Ignore an answer that has not arrived, because the publisher is closed."""
        self.stop()
        if self._answer is not None and not core.loop.is_closed():
            self._answer.cancel()
