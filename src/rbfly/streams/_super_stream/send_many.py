"""Sends many messages to the partitions of a super stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...error import ConfirmTimeout
from .._publish.send_many import SendManyCall
from .._publish.session import PublisherSession
from ._routing import PublishTarget, RoutedMessages, Router

if TYPE_CHECKING:
    from .._publish.send_many import Message, Messages


class RoutedCall(SendManyCall):
    """One call of `send_many` of a super stream.

    :param session: of the first partition.
    :param route: returns the partitions of a message from what the router has found.
    :param before: puts the messages that `batch` has queued into their windows.
    :param check: checks that the publisher takes messages.
    :param timed_out: returns the error of a call that has waited for partitions.
    """

    _waits_first = False  # its partition is not known yet

    def __init__(
        self,
        session: PublisherSession,
        router: Router,
        route: Callable[..., Awaitable[Sequence[PublishTarget]]],
        before: Callable[[], Awaitable[None]],
        check: Callable[[], None],
        timed_out: Callable[[Sequence[PublisherSession], str], ConfirmTimeout],
    ) -> None:
        super().__init__(session)
        self._stream = None  # each partition's errors name it
        self._route = route
        self._before = before
        self._check_open = check
        self._timed_out_of = timed_out
        self._targets: Sequence[PublishTarget] = ()  # of the last message in hand
        self._routed = routed = RoutedMessages(router)
        self._groups = routed.groups
        self._skipped, self._partial = routed.skipped, routed.partial

    @property
    def _taken(self) -> int:
        return self._routed.taken

    @property
    def _in_hand(self) -> bool:  # type: ignore[override]
        return self._routed.in_hand

    def _check(self) -> None:
        self._check_open()

    def _timed_out(self, text: str) -> ConfirmTimeout:
        busy = [session for session, group in self._groups.items() if group.remaining]
        return self._timed_out_of([*busy, *(item.session for item in self._targets)], text)

    async def _begin(self, messages: Messages) -> None:
        await self._before()  # each partition checks the publishing ids of its own messages

    async def _ready(self) -> bool:
        return not self._has_failed()

    def _has_failed(self) -> bool:
        """Return whether a message was refused while this call waited."""
        waited, self._has_waited = self._has_waited, False
        return waited and self._routed.has_failed(self._groups)

    def _fill(self, messages: Iterator[Message]) -> bool:
        return self._routed.fill(messages, self._turn)

    def _write(self) -> None:
        self._routed.write()

    def _take(self, message: Message) -> bool:
        self._routed.take(message)
        if self._stop is not None and self._stop.when() is not None:
            self._routed.skip()  # the call has failed meanwhile
            return False
        self._routed.find()
        return True

    async def _place(self) -> Exception | None:
        """Send the message in hand to its partitions; return the error that ends the call.

        Each partition takes the message as soon as it has capacity: to reserve that of one while
        waiting for another would delay other messages, and not to reserve it could last for ever.
        """
        routed, self._targets = self._routed, ()
        sent = False
        try:
            self._has_waited |= isinstance(routed.target, str)
            self._targets = targets = await self._route(routed.target)
            for item in targets:
                item.session.check()
            if routed.has_failed([item.session for item in targets]):
                return None
            for item in targets:
                core = item.core
                if core.capacity.waiting or not core.has_capacity(1):
                    routed.write()  # for the other partitions
                    self._has_waited = True
                    await item.session.wait_capacity(core.window.frame_entries)
                if self._has_failed():
                    return None
                item.session.check()  # it may have given up while another partition was full
                routed.put(item)
            routed.finish()
            sent = True
        except Exception as ex:
            return self._of_last(ex)
        finally:
            if routed.in_hand:
                routed.skip()
            for item in self._targets:
                if not sent:
                    item.core.write()  # wakes the tasks that wait for capacity
                if self._stop is not None and item.session in self._groups:
                    self._watch(item, self._stop)
        return None

    def _watch(self, item: PublishTarget, stop: asyncio.Timeout) -> None:
        """Send a message of an asynchronous iterator, and end the wait for the next if it fails."""
        item.session.receiving[self._groups[item.session]] = stop
        item.core.watch()
        if not item.core.scheduled:
            item.core.schedule()

    def _failed(self) -> int | None:
        index = self._routed.taken
        if not self._routed.in_hand:
            return None
        self._routed.skip()
        return index
