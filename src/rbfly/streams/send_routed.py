"""Sends many messages to the partitions of a super stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from ..error import copy_error
from ._routing import Partition, RoutedMessages, Router
from .confirmation import of_message, publish_error, set_attribute
from .publishing import PublisherSession
from .send_many import ManyMessages, Message


class RoutedMany(ManyMessages):
    """One call of `send_many` of a super stream.

    :param session: of the first partition.
    :param route: returns the partitions of a message from what the router has found.
    :param check: checks that the publisher takes messages.
    """

    def __init__(
        self,
        session: PublisherSession,
        router: Router,
        route: Callable[..., Awaitable[Sequence[Partition]]],
        check: Callable[[], None],
    ) -> None:
        super().__init__(session)
        self._stream = None  # each partition's errors name it
        self._router = router
        self._route = route
        self._check_open = check
        self._targets: Sequence[Partition] = ()  # of the last message in hand
        self._routed = RoutedMessages(router, session.core.loop)
        self._skipped: list[int] = []  # indexes of messages that were taken but not sent

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
        unknown = set[int]()
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
                item.publisher._require_session().on_raised(error)

    # -- sending

    def _check(self) -> None:
        self._check_open()

    async def _send_iter(
        self, messages: Iterator[Message], source: Sequence[Message] = ()
    ) -> Exception | None:
        routed = self._routed
        more = True
        try:
            while more and not routed.has_failed:
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
        finally:
            routed.write()  # the message that `_place` put last: `fill` may not run again
        return None

    async def _place(self, found: Partition | tuple[Partition, ...] | str) -> Exception | None:
        """Send the message in hand to its partitions; return the error that ends the call."""
        routed, self._targets = self._routed, ()
        sent = False
        try:
            self._targets = targets = await self._route(found)
            waited = set[Partition]()  # it is this call's turn to use their capacity
            full = True
            while full:
                full = False
                for item in targets:
                    session, core = item.publisher._require_session(), item.core
                    session.check()
                    if not core.has_capacity(1) or (core.capacity.waiting and item not in waited):
                        full = True
                        for other in waited:  # this call does not use their capacity for now
                            other.core.capacity.grant()
                        await session.wait_capacity(core.window.frame_entries)
                        waited.add(item)
            if routed.has_failed:
                return None
            routed.put(targets)
            sent = True
        except Exception as ex:
            return self._of_last(ex)
        finally:
            if not sent:  # else writing the message wakes the tasks that wait
                self._skip()
                for item in self._targets:
                    item.core.write()  # the message, if `put` failed later; wakes tasks that wait
        return None

    def _skip(self) -> bool:
        if self._routed.skip():
            self._skipped.append(self._routed.taken - 1)
            return True
        return False

    def _of_last(self, error: Exception) -> Exception:
        """Attribute an error to the message in hand, or to the next if the iterator failed."""
        in_hand = self._skip()
        return of_message(error, self._routed.taken - in_hand)

    async def _send_aiter(self, messages: AsyncIterator[Message]) -> Exception | None:
        routed = self._routed
        stop = self._session.receiving[self._waiter]
        watched: list[Partition] = []
        try:
            while not routed.has_failed:
                try:
                    message = await anext(messages)
                except StopAsyncIteration:
                    return None
                except Exception as ex:
                    return self._of_last(ex)
                routed.take(message)
                try:
                    found = self._router.find(message)
                except Exception as ex:
                    return self._of_last(ex)
                if error := await self._place(found):
                    return error
                for item in self._targets:
                    receiving = item.publisher._require_session().receiving
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
                del item.publisher._require_session().receiving[routed.used[item]]

    async def _check_ids(self, messages: Sequence[Message]) -> None:
        await self._check_in_turns(messages, self._router.check_ids)
