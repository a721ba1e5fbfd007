"""Sends many messages to the partitions of a super stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...error import ConfirmTimeout, copy_error
from .._publish.confirmation import of_iterator, of_message, publish_error, set_attribute
from .._publish.send_many import ManyMessages
from .._publish.session import PublisherSession
from ._routing import Partition, RoutedMessages, Router

if TYPE_CHECKING:
    from .._publish.send_many import Message, Messages


class RoutedMany(ManyMessages):
    """One call of `send_many` of a super stream.

    :param session: of the first partition.
    :param route: returns the partitions of a message from what the router has found.
    :param before: puts the messages that `batch` has queued into their windows.
    :param check: checks that the publisher takes messages.
    :param timed_out: returns the error of a call that has waited for partitions.
    """

    def __init__(
        self,
        session: PublisherSession,
        router: Router,
        route: Callable[..., Awaitable[Sequence[Partition]]],
        before: Callable[[], Awaitable[None]],
        check: Callable[[], None],
        timed_out: Callable[[Sequence[Partition], str], ConfirmTimeout],
    ) -> None:
        super().__init__(session)
        self._stream = None  # each partition's errors name it
        self._router = router
        self._route = route
        self._before = before
        self._check_open = check
        self._timed_out_of = timed_out
        self._targets: Sequence[Partition] = ()  # of the last message in hand
        self._routed = RoutedMessages(router, session.core.loop)
        self._skipped: list[int] = []  # indexes of messages that no partition has taken
        self._begun: list[int] = []  # the same, of those that only some of their partitions have
        self._has_waited = False  # since `_has_failed` last looked

    # -- the outcome

    @property
    def _taken(self) -> int:
        return self._routed.taken

    @property
    def _remaining(self) -> int:
        return sum(group.remaining for group in self._routed.used.values())

    @property
    def _refused(self) -> list[int]:
        refused = set(self._skipped)
        for group in self._routed.used.values():
            if group.missed is not None:
                refused.update(group.missed[0], group.missed[1])
        return sorted(refused.difference(self._unknown))

    @property
    def _unknown(self) -> list[int]:
        unknown = set(self._begun)
        for partition, group in self._routed.used.items():
            if group.missed is not None:
                unknown.update(group.missed[2])
            if group.remaining:
                unknown.update(partition.core.window.unsettled_of(group))
        return sorted(unknown)

    async def _settle(self) -> None:
        for group in self._routed.used.values():
            if not group.seal():
                await group.wait()

    def _mark_reported(self) -> None:
        for group in self._routed.used.values():
            group.reported = True

    def _failure(self) -> Exception | None:
        found: list[Exception] = []
        for partition, group in self._routed.used.items():
            error: Exception | None = None
            if group.errors:
                error = of_message(publish_error(group), group.first_refused)
            elif group.error is not None:
                error = copy_error(group.error)
            if error is not None:
                set_attribute(error, 'stream', partition.publisher.stream)
                found.append(error)
        return min(found, key=lambda item: getattr(item, 'index', None) is None, default=None)

    def _on_raised(self, error: Exception) -> None:
        for item in self._routed.used:
            if item.publisher.stream == getattr(error, 'stream', None):
                item.publisher._session.on_raised(error)

    def _timed_out(self, text: str) -> ConfirmTimeout:
        busy = [item for item, group in self._routed.used.items() if group.remaining]
        waited = [*busy, *self._targets]
        return self._timed_out_of(waited, text)

    # -- sending

    def _check(self) -> None:
        self._check_open()

    async def _send(self, messages: Messages) -> Exception | None:
        await self._before()
        return await super()._send(messages)

    async def _send_iter(
        self, messages: Iterator[Message], source: Sequence[Message] = ()
    ) -> Exception | None:
        routed = self._routed
        more = True
        try:
            while more and not self._has_failed():
                try:
                    more = routed.fill(messages, self._turn)
                except Exception as ex:
                    return self._of_last(ex)
                finally:
                    routed.write()
                if more and routed.in_hand and (error := await self._place(routed.target)):
                    return error
                if source and routed.taken == len(source):
                    break
                if more and self._turn.is_over:
                    await self._yield()
                    self._has_waited = True
        finally:
            routed.write()  # the message that `_place` put last: `fill` may not run again
        return None

    def _has_failed(self) -> bool:
        """Return whether a message was refused while this call waited."""
        waited, self._has_waited = self._has_waited, False
        return waited and self._routed.has_failed(self._routed.used)

    async def _place(self, found: Partition | tuple[Partition, ...] | str) -> Exception | None:
        """Send the message in hand to its partitions; return the error that ends the call.

        Each partition takes the message as soon as it has capacity: to reserve that of one while
        waiting for another would delay other messages, and not to reserve it could last for ever.
        """
        routed, self._targets = self._routed, ()
        sent = False
        try:
            self._has_waited |= isinstance(found, str)
            self._targets = targets = await self._route(found)
            for item in targets:
                item.publisher._session.check()
            if routed.has_failed(targets):
                return None
            for item in targets:
                core = item.core
                if core.capacity.waiting or not core.has_capacity(1):
                    routed.write()  # for the other partitions
                    self._has_waited = True
                    session = item.publisher._session
                    await session.wait_capacity(core.window.frame_entries)
                if self._has_failed():
                    return None
                routed.put(item)
            routed.finish()
            sent = True
        except Exception as ex:
            return self._of_last(ex)
        finally:
            if routed.in_hand:
                self._skip()
            if not sent:
                for item in self._targets:
                    item.core.write()  # wakes the tasks that wait for capacity
        return None

    def _skip(self) -> None:
        """Count the message in hand as not sent, at least not to all its partitions."""
        (self._begun if self._routed.begun else self._skipped).append(self._routed.taken)
        self._routed.skip()

    def _of_last(self, error: Exception) -> Exception:
        """Attribute an error to the message in hand, or to the iterator."""
        index = self._routed.taken
        if not self._routed.in_hand:
            return of_iterator(error, self._iterator, index)
        self._skip()
        return of_message(error, index)

    async def _send_aiter(self, messages: AsyncIterator[Message]) -> Exception | None:
        routed = self._routed
        stop = self._session.receiving[self._waiter]  # rescheduled when a message is refused
        watched: list[Partition] = []
        try:
            while stop.when() is None:
                try:
                    message = await anext(messages)
                except StopAsyncIteration:
                    return None
                except Exception as ex:
                    return self._of_last(ex)
                routed.take(message)
                if stop.when() is not None:
                    self._skip()
                    break
                try:
                    found = self._router.find(message)
                except Exception as ex:
                    return self._of_last(ex)
                if error := await self._place(found):
                    return error
                for item in self._targets:
                    receiving = item.publisher._session.receiving
                    if item in routed.used and routed.used[item] not in receiving:
                        receiving[routed.used[item]] = stop
                        watched.append(item)
                    item.core.watched = True
                    if not item.core.scheduled:
                        item.core.schedule()
                if self._turn.is_over:  # the iterator may never have suspended
                    await self._yield()
            return None
        finally:
            for item in watched:
                del item.publisher._session.receiving[routed.used[item]]

    async def _check_ids(self, messages: Sequence[Message]) -> None:
        pass  # each partition checks its own
