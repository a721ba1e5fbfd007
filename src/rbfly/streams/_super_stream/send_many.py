"""Sends many messages to the partitions of a super stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from ...error import ConfirmTimeout
from .._publish.send_many import Destination
from ._routing import PublishTarget, RoutedMessages, Router
from .partitions import PublishPartitions, Targets

if TYPE_CHECKING:
    from .._publish.send_many import Message, Messages


class RoutedDestination(Destination):
    """The partitions of a publisher, each with a group of messages.

    :param route: returns the partitions of a message from what the router has found.
    :param before: puts the messages that `batch` has queued into their windows.
    """

    def __init__(
        self,
        router: Router,
        route: Callable[..., Awaitable[Targets]],
        before: Callable[[], Awaitable[None]],
        partitions: PublishPartitions,
    ) -> None:
        super().__init__(partitions.first, None)
        self._route = route
        self._before = before
        self._partitions = partitions
        self._targets: Targets = ()  # of the last message in hand
        self._routed = routed = RoutedMessages(router)
        self.groups = routed.groups
        self.skipped, self.partial = routed.skipped, routed.partial
        self._stop: asyncio.Timeout | None = None  # ends the wait for an asynchronous iterator

    @property
    def taken(self) -> int:
        return self._routed.taken

    def check(self) -> None:
        self._partitions.check_open()

    def timed_out(self, text: str) -> ConfirmTimeout:
        busy = [session for session, group in self.groups.items() if group.remaining]
        return self._partitions.timed_out([*busy, *(item.session for item in self._targets)], text)

    async def begin(self, messages: Messages) -> None:
        await self._before()  # each partition checks the publishing ids of its own messages

    async def ready(self) -> bool:
        return not self._has_failed()

    def _has_failed(self) -> bool:
        """Return whether a message was refused while this call waited."""
        self._has_waited = self._has_waited and self._routed.has_failed(self.groups)
        return self._has_waited

    def fill(self, messages: Iterator[Message]) -> bool:
        return self._routed.fill(messages, self.turn)

    def write(self) -> None:
        self._routed.write()

    def receive(self, stop: asyncio.Timeout) -> None:
        self._stop = self._partitions.receiving[self] = stop

    def end_receive(self) -> None:
        super().end_receive()
        self._stop = None
        del self._partitions.receiving[self]

    def take(self, message: Message) -> bool:
        self._routed.take(message)
        if self._stop is not None and self._stop.when() is not None:
            self._routed.skip()  # the call has failed meanwhile
            return False
        self._routed.find()
        return True

    async def place(self) -> None:
        """Each partition takes the message as soon as it has capacity: to reserve that of one while
        waiting for another would delay other messages, and not to reserve it could last for ever.
        """
        routed, self._targets = self._routed, ()
        if not routed.in_hand:
            return
        sent = False
        try:
            self._has_waited |= isinstance(routed.target, str)
            self._targets = targets = await self._route(routed.target)
            for item in targets:
                item.session.check()
            if routed.has_failed([item.session for item in targets]):
                self._has_waited = True
                return
            for item in targets:
                core = item.core
                if core.capacity.waiting or not core.has_capacity(1):
                    routed.write()  # for the other partitions
                    self._has_waited = True
                    await item.session.wait_capacity(core.window.frame_entries)
                    self.turn.begin()  # other tasks have run
                if self._has_failed():
                    return
                item.session.check()  # it may have given up while another partition was full
                routed.put(item)
            routed.finish()
            sent = True
        finally:
            if routed.in_hand:
                routed.skip()
            for item in self._targets:
                if not sent:
                    item.core.write()  # wakes the tasks that wait for capacity
                if self._stop is not None and item.session in self.groups:
                    self._watch(item, self._stop)

    def _watch(self, item: PublishTarget, stop: asyncio.Timeout) -> None:
        """Send a message of an asynchronous iterator, and end the wait for the next if it fails."""
        item.session.receiving[self.groups[item.session]] = stop
        item.core.watch()
        if not item.core.scheduled:
            item.core.schedule()

    def failed(self) -> int | None:
        if self._routed.in_hand:
            self._routed.skip()
        last = self.taken - 1
        return last if [last] in (self.skipped[-1:], self.partial[-1:]) else None
