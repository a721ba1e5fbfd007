"""Messages to several partitions: each of them takes and confirms a message on its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from ...error import ConfirmTimeout, RbFlyError, add_text
from .._publish.confirmation import KEPT, Confirmation, Failures, JoinedConfirmation
from .._publish.session import PublisherSession
from .._waiting import in_time
from ..types import MessageCtx
from ._routing import PublishTarget
from .partitions import Message, PublishPartitions, Targets, left

Parts = dict[PublishTarget, Confirmation]
PartsKey = tuple[Any, ...]  # an explicit publishing id, and partitions


class JointMessages:
    """The messages of one publisher to several partitions."""

    def __init__(self, partitions: PublishPartitions) -> None:
        self._partitions = partitions
        self._failures = Failures()
        # Confirms of the partitions that have taken a message with an explicit id, if not all of
        # them have taken and confirmed it.
        self._kept: dict[PartsKey, Parts] = {}

    async def send(
        self, targets: Targets, message: Message, timeout: float | None, until: float | None
    ) -> None:
        """Send a message, and wait until all of its partitions have confirmed it."""
        parts = await self._put(targets, message, until, can_withdraw=True)
        waiting: list[PublisherSession] = []
        confirmed = False
        try:
            confirmed = await in_time(JoinedConfirmation([*parts.values()], self._failures), until)
        finally:
            if not confirmed:
                waiting = [item.session for item, part in parts.items() if not part.done()]
                give_up(parts)
                self._keep(key_of(targets, message), parts)
        if not confirmed:  # no variable has the error: its traceback refers to this frame
            raise self._partitions.or_refusal(self._late(waiting, timeout, is_sent=bool(parts)))

    async def submit(
        self, targets: Targets, message: Message, until: float | None
    ) -> JoinedConfirmation:
        """Send a message; return a future of the confirms of its partitions."""
        parts = await self._put(targets, message, until)
        joined = JoinedConfirmation([*parts.values()], self._failures)
        if (used := key_of(targets, message)) is not None:
            joined.add_done_callback(functools.partial(self._keep_failed, used, parts))
        return joined

    async def _put(
        self, targets: Targets, message: Message, until: float | None, *, can_withdraw: bool = False
    ) -> Parts:
        """Put a message into the window of each of its partitions.

        If an earlier call did so for some of them, put it into those of the others.

        :param can_withdraw: if the call is cancelled or times out, give the message up.
        """
        used = key_of(targets, message)
        kept = {} if used is None else self._kept.pop(used, {})
        parts = {
            item: part
            for item, part in kept.items()
            if part.done() or item.core.window.resume(part.publish_id, part)
        }
        try:
            for item in targets:
                if item not in parts:
                    parts[item] = await item.publisher.submit(message, left(until))
        except BaseException as ex:
            for confirmation in parts.values():  # this call reports the failure
                confirmation._see()
            if can_withdraw and isinstance(ex, asyncio.CancelledError | ConfirmTimeout):
                give_up(parts)
            if parts and isinstance(ex, RbFlyError):
                note_partial(ex, item)
            self._keep(used, parts)
            raise
        return parts

    def _late(
        self, waited: Sequence[PublisherSession], timeout: float | None, is_sent: bool
    ) -> ConfirmTimeout:
        """Return the error of a message that several partitions have not confirmed in time."""
        text = f'it could not send the message within {timeout} s, and withdrew it'
        if is_sent:
            text = f'the broker did not confirm the message on all partitions within {timeout} s;'
            text += ' it may still be stored'
        late = self._partitions.timed_out(waited, text)
        if not is_sent:
            late.outcome, late.retriable = 'not_sent', True
        return late

    def take_errors(self) -> list[Exception]:
        """Return the errors of `submit` that the program has not retrieved, and forget them."""
        errors, self._failures = self._failures.errors(), Failures()
        return errors

    def _keep(self, id: PartsKey | None, parts: Parts) -> None:
        """Keep the confirms of a message, so that a later call can complete it."""
        taken = {item: part for item, part in parts.items() if part.failure is None}
        if id is None or not taken:
            return
        self._kept[id] = taken
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def _keep_failed(self, id: PartsKey, parts: Parts, joined: Any) -> None:
        """Keep the confirms of a message if it is not confirmed by all of its partitions."""
        if joined.cancelled() or joined.failure is not None:
            self._keep(id, parts)


def key_of(targets: Targets, message: Message) -> PartsKey | None:
    """Return the key of a message by which its confirms are kept; None without explicit id."""
    if isinstance(message, MessageCtx) and message.is_set_stream_publish_id:
        return message.stream_publish_id, *targets
    return None


def give_up(parts: Parts) -> None:
    """Give up a message, and remove the partitions that have withdrawn it."""
    for item, part in [*parts.items()]:
        if not part.done() and item.session.give_up(part):
            del parts[item]


def note_partial(error: RbFlyError, failed: PublishTarget) -> None:
    """Note in an error of one partition that other partitions have taken the message."""
    error.outcome, error.retriable = 'unknown', False
    name = failed.session.stream
    add_text(error, after=f' (partition {name!r}); other partitions may store the message')
