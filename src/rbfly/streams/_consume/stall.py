"""Reports that the broker does not deliver messages that it has, and when it does again."""

from __future__ import annotations

import asyncio
import logging

from ...net.observer import Observer, facts
from ...net.registration import Registration
from ...protocol._cursor import MessageCursor

logger: logging.Logger = logging.getLogger('rbfly.streams')

INTERVAL = 1.0  # seconds between two looks at a subscription that is stalled

Place = tuple[int, int | None]


def place_of(cursor: MessageCursor) -> Place:
    """Return how far a subscription has come: it changes with each chunk that arrives."""
    return cursor.last_chunk.id, cursor.position


class DeliveryStall:
    """Whether a subscription receives nothing, although the stream has more messages.

    There is a timer only while it is stalled.

    :ivar since: time of the event loop since which it receives nothing, about; None if it does.
    """

    def __init__(self, registration: Registration, cursor: MessageCursor) -> None:
        self.since: float | None = None
        self._registration = registration
        self._cursor = cursor
        self._place: Place | None = None  # of the cursor since then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _seconds(self) -> float:
        return 0.0 if self.since is None else asyncio.get_running_loop().time() - self.since

    def begin(self, since: float) -> None:
        """The subscription has received nothing since that time of the event loop."""
        if self.since is not None:
            return
        self.since, self._place = since, place_of(self._cursor)
        registration, seconds = self._registration, self._seconds
        registration.cluster.observers.notify(Observer.on_delivery_stalled, registration, seconds)
        owner, prefix = registration.owner, registration.cluster.settings.log_prefix
        logger.warning(
            '%ssubscription of %r has received nothing for %.0f s, although the stream has more',
            prefix,
            owner.stream,
            seconds,
            extra=facts(prefix, 'delivery_stalled', owner, seconds=round(seconds, 3)),
        )
        self.look()

    def look(self) -> None:
        """Look for a chunk, until one has arrived."""
        self.stop()
        if self.since is None:
            return
        if place_of(self._cursor) == self._place:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self.look)
            return
        registration, seconds = self._registration, self._seconds
        self.since = None
        registration.cluster.observers.notify(Observer.on_delivery_resumed, registration, seconds)
        owner, prefix = registration.owner, registration.cluster.settings.log_prefix
        logger.info(
            '%ssubscription of %r receives messages again, after %.0f s',
            prefix,
            owner.stream,
            seconds,
            extra=facts(prefix, 'delivery_resumed', owner, seconds=round(seconds, 3)),
        )

    def stop(self) -> None:
        """Stop looking: the registration is not open any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """The stream was deleted."""
        self.stop()
        self.since = None
