"""Opens publishers of super streams."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import MutableSet
from math import inf
from typing import Any

from ...error import set_fields
from ...net.connection import disconnected
from ...net.observer import Life, Observer, State
from ...net.waiting import fail, outcome
from .._admin.partitions import AT_ONCE, PACE, query_partitions, retried
from .._publish.opening import PublisherContext
from .._publish.publisher import Publisher
from .._publish.session import PublisherSession
from .publisher import SuperStreamPublisher
from .routing import Route


class SuperStreamPublisherContext(PublisherContext[SuperStreamPublisher]):
    """Opens a publisher of a super stream.

    :param route: chooses the partitions of a message.
    :param windows: sessions of the partitions of all publishers of the client.
    :ivar kind: class of the publisher.
    """

    kind: type[SuperStreamPublisher] = SuperStreamPublisher

    route: Route
    windows: MutableSet[PublisherSession]

    def __init__(self, *args: Any) -> None:
        *common, self.route, self.windows = args
        super().__init__(*common)

    async def _open(self, sessions: list[PublisherSession]) -> SuperStreamPublisher:
        info = self.info
        query = functools.partial(query_partitions, self.cluster, info.stream)
        names = await retried(self.cluster, info.stream, query, None if self.wait else inf)
        for name in dict.fromkeys(names):
            self._new_session(name, sessions)
        declared = PartitionsReady(sessions)
        self.cluster.observers.add(declared)
        try:
            for count, session in enumerate(sessions, 1):
                session.registration.ensure_open()
                if self.wait and count % AT_ONCE == 0 and count < len(sessions):
                    await asyncio.sleep(PACE)
                    if declared.first.done():  # failed
                        break
            if self.wait:
                await outcome(declared.first)  # its copy of the error forms no cycle
        finally:
            self.cluster.observers.remove(declared)
        publishers = [Publisher(session, self.client) for session in sessions]
        return self.kind(self.cluster, info, self.route, names, publishers, self.windows)


class PartitionsReady(Observer):
    """Waits until partitions are declared.

    A partition that is not available does not delay the others: once every partition was tried, one
    that is declared is enough.

    :ivar first: a future that is then done; it fails with the error of a partition that gives up.
    """

    def __init__(self, sessions: list[PublisherSession]) -> None:
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams = {session.registration: session.stream for session in sessions}
        self._untried: set[object] = set(self._streams)
        self._any = False

    def on_transition(
        self,
        registration: object,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        if registration not in self._streams or self.first.done():
            return
        if after is State.IDLE:
            failure = error or disconnected()
            set_fields(failure, stream=self._streams[registration])
            fail(self.first, failure)
            return
        self._any |= after is State.OPEN
        if after in (State.OPEN, State.BACKING_OFF):
            self._untried.discard(registration)
        if self._any and not self._untried:
            self.first.set_result(None)
