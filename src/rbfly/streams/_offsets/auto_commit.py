"""Stores the offset of the last finished message by itself: `commit='auto'`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ...error import (
    OffsetNotStored,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    about,
    copy_error,
)
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...protocol._cursor import MessageCursor
from .queries import check_stored
from .store import OffsetStore
from .tracking import OffsetTracking

logger: logging.Logger = logging.getLogger('rbfly.streams')


class AutoCommit:
    """Stores the offset of the last message that a cursor has finished.

    :param offsets: where it is stored.
    """

    def __init__(
        self,
        cluster: Cluster,
        tracking: OffsetTracking,
        stream: str,
        cursor: MessageCursor,
        offsets: OffsetStore,
    ) -> None:
        assert tracking.reference is not None
        self._cluster = cluster
        self._tracking = tracking
        self._reference: str = tracking.reference
        self._stream = stream
        self._offsets = offsets
        self._cursor = cursor
        self._stored: int | None = None
        self._due = 0  # number of finished messages at which to store the next offset
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if tracking.every:
            cursor.notify_at(-1)  # the count starts at the first message

    def start(self) -> None:
        """Start the timer in the running event loop."""
        loop = asyncio.get_running_loop()
        if self._tracking.interval and self._loop is not loop:
            self._loop = loop
            self._arm(loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._tracking.interval, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.store()
        self._arm(loop)

    def store(self, *, last: bool = False) -> None:
        """Store the offset of the last finished message, if the connection can take the frame.

        :param last: write it even if the connection is paused, because the subscription ends.
        """
        cursor = self._cursor
        pending = self.pending
        lost = pending is not None and not self._write(pending, last=last)
        if not lost:
            self._stored = cursor.finished
        unfinished = cursor.unfinished
        if self._tracking.every and unfinished is not None:
            left = 1 if lost else self._tracking.every
            self._due = left + (cursor.finished_count or 0)
            cursor.notify_at(unfinished - 1 + left)

    def on_progress(self) -> None:
        """Store the offset if enough of the messages that a filter selects are finished."""
        cursor = self._cursor
        count, unfinished = cursor.finished_count, cursor.unfinished
        if count is None or unfinished is None or count >= self._due:
            self.store()
        else:
            cursor.notify_at(unfinished - 1 + self._due - count)

    def on_lost(self) -> None:
        """The connection was lost, perhaps before the broker has stored the last offset."""
        self._stored = None
        self._due = 0
        if self._tracking.every:
            self._cursor.notify_at(-1)

    def _write(self, offset: int, *, last: bool) -> bool:
        return self._offsets.write(self._reference, offset, last=last)

    @property
    def pending(self) -> int | None:
        """Offset of the last finished message; None if there is none, or it is stored."""
        finished = self._cursor.finished
        return None if finished == self._stored else finished

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Store the offset of the last finished message, if there is a connection."""
        self.stop()
        if (pending := self.pending) is not None and not self._write(pending, last=True):
            self._log('no connection')

    async def close(self, connection: Connection | None, *, verify: bool) -> None:
        """Store the offset of the last finished message, and wait for that if necessary.

        Without a connection, connects within the client's `close_timeout`, unless the subscription
        is in a group.

        :param connection: the cursor's.
        :param verify: read the stored offset back.
        :raises OffsetNotStored: this has failed, and the stream exists.
        """
        self.stop()
        cluster, finished = self._cluster, self._cursor.finished
        self.store(last=True)
        failure: RbFlyError
        try:
            if verify and connection is not None and self.pending is None:
                with suppress(StreamConnectionError):  # then it is stored again
                    async with cluster.closing.limit():
                        await self.verify(connection)
                        return
            if self._offsets.in_group and finished is not None:
                raise StreamConnectionError('the member has lost its connection')
            if (pending := self.pending) is None:
                return
            async with cluster.closing.limit() as on_progress:
                await self._offsets.store_elsewhere(
                    self._reference, pending, verify=verify, on_connected=on_progress
                )
                return
        except StreamDoesNotExist as ex:  # no subscription misses the offset
            self._log(ex)
            return
        except OffsetNotStored:
            raise
        except RbFlyError as ex:
            failure = copy_error(ex)
        except TimeoutError:
            text = f'no answer within {cluster.closing.timeout:g} s'
            failure = StreamConnectionError(text)
        # not in the handlers: the errors refer to the task
        error = OffsetNotStored(
            f'offset {finished} of stream {self._stream!r} may not be stored under'
            f' {self._reference!r}: {failure}'
        )
        raise about(error, self._stream, self._reference) from failure

    def _log(self, reason: object) -> None:
        prefix = self._cluster.settings.log_prefix
        text = '%scannot store offset %r of stream %r: %s'
        logger.warning(text, prefix, self._reference, self._stream, reason)

    async def verify(self, connection: Connection) -> None:
        """Check that the broker has stored the offset of the last finished message.

        :raises OffsetNotStored: it has not.
        """
        finished = self._cursor.finished
        if finished is not None:
            await check_stored(connection, self._stream, self._reference, finished)
