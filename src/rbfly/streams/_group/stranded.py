"""Detects that a consumer group has no active member, though the broker should have chosen one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import time
from weakref import WeakSet

from ...error import RbFlyError, StreamConnectionError
from ...net.connection import Connection
from ...net.handshake import broker_version
from ...net.observer import facts
from ...net.registration import Registration
from .._offsets.queries import end_of_messages, next_offset, stored_offset
from .._waiting import cancel

logger: logging.Logger = logging.getLogger('rbfly.streams')

PAUSE = 600.0  # seconds between two attempts of one member
POLLS = 4  # in the time of `stranded_after`
FIRST_MENDING = (4, 2)  # first broker version that activates a member when one joins or leaves


class StrandedCheck:
    """Makes a member join its group again while the group makes no progress.

    RabbitMQ before 4.3.4 can leave a stream without an active member.  That is assumed if the
    stream has had more messages for some time, and the offset stored under the group's name has not
    moved.  Then a member that is not active subscribes again, because the broker may take it for
    the active one (rabbitmq-server #16975).  Every second time, it also closes the connections that
    it has used, because RabbitMQ 4.0 may still count a subscription that has ended.

    An old broker knows that no member of a partition is active, but activates only one that joins
    an empty group (#14070).  Members leave it for so long that all are away for a moment.  All must
    count from the same time, so the active member counts too.

    :param seconds: time without progress.
    :param is_standby: returns whether the member is not active.
    """

    def __init__(
        self,
        registration: Registration,
        stream: str,
        group: str,
        seconds: float,
        is_standby: Callable[[], bool],
    ) -> None:
        self._cluster = registration.cluster
        self._registration = registration
        self._stream = stream
        self._group = group
        self._seconds = seconds
        self._is_standby = is_standby
        self._stored: int | None = None
        self._since: float | None = None  # when a message after the stored offset was first seen
        self._attempts = 0  # since it has moved
        self._pause_until = self._away_until = 0.0
        self._used: WeakSet[Connection] = WeakSet()  # connections of the member so far
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check: the member has subscribed."""
        self.stop()
        connection = self._registration.connection
        if connection is not None:
            self._used.add(connection)
        self._task = asyncio.create_task(self._run())

    async def wait_before_rejoining(self) -> None:
        """Wait until the member may subscribe again."""
        await asyncio.sleep(self._away_until - asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Stop checking: the member has left its connection."""
        task, self._task = self._task, None
        cancel(task)

    async def _run(self) -> None:
        from random import uniform  # members do not act at the same time

        while True:
            await asyncio.sleep(self._seconds / POLLS * uniform(0.5, 1.5))
            connection = self._registration.connection
            if connection is None:
                return
            try:
                stranded = await self._is_stranded(connection)
            except RbFlyError:
                continue  # the registration handles a lost connection
            if stranded and self._is_standby():
                self._act(connection)
                return

    async def _is_stranded(self, connection: Connection) -> bool:
        now = asyncio.get_running_loop().time()
        stored = await stored_offset(connection, self._stream, self._group)
        if self._since is None or stored != self._stored:
            self._stored, self._since, self._attempts = stored, None, 0
            if await end_of_messages(self._cluster, self._stream) <= next_offset(stored):
                return False
            self._since = now
        return now >= max(self._since + self._seconds, self._pause_until)

    def _act(self, current: Connection) -> None:
        self._task = None
        self._attempts += 1
        now = asyncio.get_running_loop().time()
        self._pause_until = now + PAUSE
        closes = self._attempts % 2 == 0
        what = 'closing its connections and subscribing again' if closes else 'subscribing again'
        if broker_version(current.server_properties) < FIRST_MENDING:
            away = self._seconds  # all members act within three quarters of this time
            if limit := self._cluster.settings.reconnect_timeout:
                away = min(away, limit / 2)
            self._away_until = now + away
            # From the second attempt on, all members act at the same multiple of PAUSE, plus up to
            # half of `seconds`.
            pause = PAUSE - min(self._seconds, PAUSE / 2)
            self._pause_until = now + pause + -(time() + pause) % PAUSE
            what = f'{what} after {away:g} s'
        prefix = self._cluster.settings.log_prefix
        logger.warning(
            '%sgroup %r of stream %r has made no progress for %g s: %s',
            prefix,
            self._group,
            self._stream,
            self._seconds,
            what,
            extra=facts(
                prefix,
                'group_stranded',
                self._registration.owner,
                group=self._group,
                seconds=self._seconds,
            ),
        )
        self._registration.reset()
        if closes:
            for connection in [*self._used]:
                text = f'closed because group {self._group!r} made no progress'
                connection.abort(StreamConnectionError(f'{connection.address}: {text}'))
        self._registration.ensure_open()
