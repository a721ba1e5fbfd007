"""Detects that a consumer group has no active member, though the broker should have chosen one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import uniform

from ..error import RbFlyError, StreamConnectionError
from ..net.cluster import Cluster
from ..net.connection import Connection
from ..net.registration import Registration
from .offsets import end_of_messages, offset_after, stored_offset

logger = logging.getLogger(__name__)

PAUSE = 600.0  # seconds between two attempts of one member
POLLS = 4  # in the time after which a group counts as stranded


class StrandedCheck:
    """Makes a member join its group again while the group makes no progress.

    RabbitMQ 4.1.2 to 4.3.2 can leave a stream without an active member (rabbitmq-server #16975).
    That is assumed if the offset stored under the group's name has not moved for some time, and the
    stream has more messages.  Then a member that is not active subscribes again; next time, it
    closes the connection of its subscription, because the broker may take this member for the
    active one.

    :param seconds: time without progress.
    :param is_standby: returns whether the member is not active.
    """

    def __init__(
        self,
        cluster: Cluster,
        registration: Registration,
        stream: str,
        group: str,
        seconds: float,
        is_standby: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._registration = registration
        self._stream = stream
        self._group = group
        self._seconds = seconds
        self._is_standby = is_standby
        self._stored: int | None = None
        self._since: float | None = None  # when the stored offset was first seen
        self._attempts = 0  # since it has moved
        self._pause_until = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check: the member has subscribed."""
        self.stop()
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop checking: the member has left its connection."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()

    async def _run(self) -> None:
        # Members do not act at the same time.
        while True:
            await asyncio.sleep(self._seconds / POLLS * uniform(0.5, 1.5))
            connection = self._registration.connection
            if connection is None:
                return
            if not self._is_standby():
                self._since = None
                continue
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
            self._stored, self._since, self._attempts = stored, now, 0
        if now < max(self._since + self._seconds, self._pause_until):
            return False
        end = await end_of_messages(self._cluster, self._stream)
        return end > offset_after(stored)

    def _act(self, connection: Connection) -> None:
        self._task = None
        self._attempts += 1
        self._pause_until = asyncio.get_running_loop().time() + PAUSE
        again = self._attempts % 2 == 1
        prefix = self._cluster.settings.log_prefix
        logger.warning(
            '%sgroup %r of stream %r has made no progress for %g s: %s',
            prefix,
            self._group,
            self._stream,
            self._seconds,
            'subscribing again' if again else 'closing the connection of its member',
        )
        if again:
            self._registration.reset()
            self._registration.ensure_open()
        else:
            text = f'closed because group {self._group!r} made no progress'
            connection.abort(StreamConnectionError(f'{connection.address}: {text}'))
