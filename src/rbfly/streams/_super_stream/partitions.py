"""The partitions that a publisher of a super stream sends to, taken together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, MutableSet, Sequence
from typing import Any, TypeVar

from ...error import ConfirmTimeout, RbFlyError
from ...net.cluster import Cluster
from ...net.observer import call_each
from .._publish.confirmation import or_refusal
from .._publish.publisher import Publisher
from .._publish.session import PublisherSession
from .._waiting import NOW
from ..types import AMQPBody, MessageCtx
from ._routing import PublishTarget

# Messages in flight of all partitions together.  The broker stops reading from a connection that
# has 50,000 unconfirmed messages; windows that shrink may still be full.
IN_FLIGHT = 30_000
ON_CONNECTION = 256  # publishers

T = TypeVar('T')
Message = AMQPBody | MessageCtx
Targets = Sequence[PublishTarget]


def share_windows(sessions: MutableSet[PublisherSession]) -> None:
    """Divide the messages in flight among the partitions of all publishers of a client."""
    limit = IN_FLIGHT // max(1, min(ON_CONNECTION, len(sessions)))
    for session in sessions:
        session.resize(limit)


def left(until: float | None) -> float | None:
    """Return the seconds left until a time of the event loop; None for no limit.

    They are whole milliseconds, because errors contain them.
    """
    if until is None or until == NOW:
        return until
    return max(round(until - asyncio.get_running_loop().time(), 3), 0.001)


async def settle_each(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | Exception]:
    """Make calls concurrently; return the result or the error of each."""
    found = await asyncio.gather(*[call() for call in calls], return_exceptions=True)
    results: list[T | Exception] = []
    for item in found:
        if isinstance(item, BaseException) and not isinstance(item, Exception):
            raise item
        results.append(item)
    return results


class PublishPartitions:
    """The publishers of all partitions.

    :param windows: sessions of the partitions of all publishers of the client.
    :ivar first: session of the first partition; it is closed if the publisher is.
    :ivar receiving: calls that wait for an asynchronous iterator, with what ends the wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        publishers: Sequence[Publisher],
        windows: MutableSet[PublisherSession],
    ) -> None:
        self.first: PublisherSession = publishers[0]._session
        self.receiving: dict[object, asyncio.Timeout] = {}
        self._cluster = cluster
        self._stream = stream
        self._publishers = publishers
        self._windows = windows
        for item in publishers[1:]:
            item._core.wake_with(self.first.core)
        windows |= {item._session for item in publishers}
        share_windows(windows)

    def check_open(self) -> None:
        """Check that the publisher takes messages; a partition may have failed."""
        self.first.core.check_loop()
        if self.first.is_closed:
            self.first.check()

    def timed_out(self, waited: Sequence[PublisherSession], text: str) -> ConfirmTimeout:
        """Return the error of a call that has waited for the confirms of partitions."""
        problems = [item for item in waited if item.registration.problem is not None]
        session = [*problems, *waited, self.first][0]
        error = session.timed_out(text, stream=self._stream)
        error.stream = session.stream if problems else None
        return error

    def or_refusal(self, late: ConfirmTimeout) -> RbFlyError:
        """Return the error of a call whose time is up, or why the broker refuses the client."""
        return or_refusal(late, None if self._cluster.connected else self._cluster.refusal.error)

    def abort(self, error: Exception) -> None:
        """Close all partitions without waiting for confirms; the windows of others may grow."""
        call_each([item._abort for item in self._publishers], error)
        for item in self._publishers:
            self._windows.discard(item._session)
        share_windows(self._windows)
        for stop in self.receiving.values():
            if not stop.expired():
                stop.reschedule(self.first.core.loop.time())
