"""Messages of `batch` that wait until the broker reports the partitions of a key."""

from __future__ import annotations

import asyncio
from collections import deque

from ...error import RbFlyError, WindowTimeout
from ...net.waiting import CloseTimeout
from ...protocol._publish import PublishWindow
from ..types import PublisherInfo
from ._routing import PublishTarget, Router
from .joint_messages import note_partial
from .key_routes import KeyRoutes
from .partitions import Message, PublishPartitions, Targets

Found = PublishTarget | tuple[PublishTarget, ...] | str  # str: the key to ask the broker for


def as_targets(found: PublishTarget | tuple[PublishTarget, ...]) -> Targets:
    return found if isinstance(found, tuple) else (found,)


def put_batched(targets: Targets, message: Message) -> None:
    """Queue a message for its partitions, which have capacity."""
    queued = 0
    try:
        for item in targets:
            item.publisher.batch(message)
            queued += 1
    except RbFlyError as ex:
        if queued:  # a publishing id that only later partitions have used
            note_partial(ex, targets[queued])
        raise


class HeldMessages:
    """The messages from the first one whose partitions are unknown on; the router holds them.

    :ivar errors: of messages that could not be sent, until a call raises them.
    """

    def __init__(
        self, info: PublisherInfo, router: Router, routes: KeyRoutes, partitions: PublishPartitions
    ) -> None:
        self.errors: list[Exception] = []
        self._info = info
        self._router = router
        self._routes = routes
        self._partitions = partitions
        self._messages: deque[tuple[Found, Message]] = deque()
        self._lock = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, found: Found, message: Message) -> None:
        """Hold a message.

        :raises RbFlyError: the message cannot be encoded, or too many are held.
        """
        self._partitions.check_open()
        if len(self) >= self._info.max_unconfirmed:
            raise self._partitions.first.batch_full()
        encode = None if self._info.codec is None else self._info.codec.encode
        PublishWindow(0, 0, 1, 0, None, self._info.amqp, None, encode).put(message, None)
        self._messages.append((found, message))
        self._router.hold(True)

    async def release(self) -> None:
        """Queue the messages for their partitions, in order.

        :raises RbFlyError: the broker did not report a route; the messages stay.
        """
        if not self._router.holds:
            return
        async with self._lock:
            keys = {found for found, _ in self._messages if isinstance(found, str)}
            if len(keys) > 1:  # ask for all routes at once; the answers are cached
                await asyncio.gather(*map(self._routes.ask, keys), return_exceptions=True)
            while self._messages:
                try:
                    await self._release(*self._messages[0])
                except Exception as ex:
                    if isinstance(ex, RbFlyError) and ex.retriable:
                        raise
                    self.errors.append(ex)
                if self._messages:  # else closed meanwhile
                    self._messages.popleft()
            self._router.hold(False)

    async def _release(self, found: Found, message: Message) -> None:
        if isinstance(found, str):
            found = self._router.cache.get(found) or await self._routes.ask(found)
        targets = as_targets(found)
        while full := [item for item in targets if item.core.room() <= 0]:
            await full[0].session.wait_capacity()
            if any(item.core.room() <= 0 for item in targets):
                full[0].core.capacity.grant()  # others may use it meanwhile
        try:
            put_batched(targets, message)
        finally:  # capacity that the message does not need
            for item in targets:
                item.core.capacity.grant()

    async def end(self, closing: CloseTimeout) -> None:
        """Release the messages before the publisher closes; keep the error."""
        if not self:
            return
        try:
            async with closing.limit():  # the partitions then wait less
                await self.release()
        except TimeoutError:
            self.drop(f'within {closing.timeout} s')
        except RbFlyError as ex:
            self.errors.append(ex)

    def take_errors(self) -> list[Exception]:
        """Return the errors, and forget them."""
        errors, self.errors = self.errors, []
        return errors

    def drop(self, when: str) -> None:
        """Drop the messages; `close` raises an error that says so."""
        if count := len(self):
            self._messages.clear()
            error = WindowTimeout(
                f'the broker did not report the partitions of keys {when}; messages that were not'
                f' sent: {count}'
            )
            error.unsent = count
            self.errors.append(error)
