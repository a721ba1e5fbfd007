"""Stores the progress of a program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from ...checks import check_integer, check_timeout, check_type
from ...error import (
    ArgumentError,
    OffsetNotStored,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionError,
    about,
    copy_error,
)
from ...net.cluster import Cluster
from ...net.connection import Connection
from ...protocol import commands
from ...protocol._cursor import MessageCursor
from ...record import CheckedRecord
from .queries import check_chunk, check_stored

logger: logging.Logger = logging.getLogger('rbfly.streams')


class OffsetTracking(CheckedRecord):
    """How a subscription stores the offset of the last finished message: see `commit`.

    A message is finished when the program asks for the next one.  The stored offset is never that
    of an unfinished message: a program that restarts with :meth:`Offset.reference` misses no
    message, and receives again at most the messages since the offset was last stored.  Closing the
    subscription also stores the offset, and raises :class:`.OffsetNotStored` if that fails.

    A program that collects messages to process them later asks for the next one too early for this;
    with `manual`, it stores the offset itself.  `commit='auto'` is `OffsetTracking()`, and
    `commit='manual'` is `OffsetTracking(manual=True)`.

    :param reference: name of the stored offset, at most 255 bytes of UTF-8; None for the
        group's name, or that of `Offset.reference(name)`; in a group, no other is allowed.
    :param every: store the offset after this many messages; 0 not to count messages.
    :param interval: store the offset after this many seconds; 0 for no timer.
    :param manual: store the offset when the program calls :meth:`Subscription.commit`, and at no
        other time, not even when the subscription is closed.
    :raises ValueError: an argument is out of range, or `every` or `interval` was passed with
        `manual`.
    """

    reference: str | None = None
    every: int = 10_000
    interval: float = 5.0
    manual: bool = False

    def __post_init__(self) -> None:
        check_type('reference', self.reference, str, None)
        commands.reference(self.reference or '', 'offset reference')
        check_integer('every', self.every, 0, 2**63 - 1)
        check_type('interval', self.interval, int, float)
        check_timeout('interval', self.interval)
        check_type('manual', self.manual, bool)
        cls = type(self)
        if self.manual and (self.every, self.interval) != (cls.every, cls.interval):
            raise ArgumentError('every and interval have no effect with manual=True: omit them')


def manual_tracking(tracking: OffsetTracking | None, subscription: object) -> OffsetTracking:
    """Return how `commit` stores offsets.

    :raises SubscriptionError: the subscription does not allow `commit`.
    """
    if tracking is None or not tracking.manual:
        raise SubscriptionError(
            f"the {subscription} does not allow commit: pass commit='manual' to subscribe"
        )
    return tracking


class Tracker:
    """Stores the offset of the last message that a cursor has finished.

    :param write: writes a frame on the cursor's connection; returns false if it cannot do so now.
        Its second argument is true for the last frame.
    """

    def __init__(
        self,
        tracking: OffsetTracking,
        stream: str,
        cursor: MessageCursor,
        write: Callable[[bytes, bool], bool],
    ) -> None:
        assert tracking.reference is not None
        self.tracking = tracking
        self.reference: str = tracking.reference
        self.stream = stream
        self._write = write
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
        if self.tracking.interval and self._loop is not loop:
            self._loop = loop
            self._arm(loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.tracking.interval, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.store()
        self._arm(loop)

    def store(self, *, last: bool = False) -> None:
        """Store the offset of the last finished message, if the connection can take the frame.

        :param last: write it even if the connection is paused, because the subscription ends.
        """
        cursor = self._cursor
        data = self.pending()
        lost = data is not None and not self._write(data, last)
        if not lost:
            self._stored = cursor.finished
        unfinished = cursor.unfinished
        if self.tracking.every and unfinished is not None:
            left = 1 if lost else self.tracking.every
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
        if self.tracking.every:
            self._cursor.notify_at(-1)

    def pending(self) -> bytes | None:
        """Return the frame that stores the last finished message; None if it is stored."""
        finished = self._cursor.finished
        if finished is None or finished == self._stored:
            return None
        return commands.store_offset(self.reference, self.stream, finished)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self, cluster: Cluster) -> None:
        """Store the offset of the last finished message, if there is a connection."""
        self.stop()
        if (data := self.pending()) is not None and not self._write(data, True):
            self._log(cluster, 'no connection')

    async def close(
        self, cluster: Cluster, connection: Connection | None, *, verify: bool, in_group: bool
    ) -> None:
        """Store the offset of the last finished message, and wait for that if necessary.

        Without a connection, connects within the client's `close_timeout`, unless the subscription
        is in a group.

        :param connection: the cursor's.
        :param verify: read the stored offset back.
        :raises OffsetNotStored: this has failed, and the stream exists.
        """
        self.stop()
        finished = self._cursor.finished
        self.store(last=True)
        failure: RbFlyError
        try:
            if verify and connection is not None and self.pending() is None:
                with suppress(StreamConnectionError):  # then it is stored again
                    async with cluster.closing.limit():
                        await self.verify(connection)
                        return
            if in_group and finished is not None:
                raise StreamConnectionError('the member has lost its connection')
            data = self.pending()
            if data is None:
                return
            async with cluster.closing.limit() as on_progress:
                connection = await cluster.locator()
                on_progress()
                last = self._cursor.last_chunk.id
                await check_chunk(cluster, connection, self.stream, last)
                connection.write(data)
                connection.require_answer()
                if verify:
                    await self.verify(connection)
                return
        except StreamDoesNotExist as ex:  # no subscription misses the offset
            self._log(cluster, ex)
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
            f'offset {finished} of stream {self.stream!r} may not be stored under'
            f' {self.reference!r}: {failure}'
        )
        raise about(error, self.stream, self.reference) from failure

    def _log(self, cluster: Cluster, reason: object) -> None:
        prefix = cluster.settings.log_prefix
        text = '%scannot store offset %r of stream %r: %s'
        logger.warning(text, prefix, self.reference, self.stream, reason)

    async def verify(self, connection: Connection) -> None:
        """Check that the broker has stored the offset of the last finished message.

        :raises OffsetNotStored: it has not.
        """
        finished = self._cursor.finished
        if finished is not None:
            await check_stored(connection, self.stream, self.reference, finished)
