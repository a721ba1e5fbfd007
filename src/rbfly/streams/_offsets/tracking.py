"""How a subscription stores the offset of the last processed message."""

from __future__ import annotations

from ...checks import check_integer, check_timeout, check_type
from ...error import ArgumentError, SubscriptionError
from ...protocol import commands
from ...record import CheckedRecord


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


def check_manual(tracking: OffsetTracking | None, subscription: object) -> None:
    """Check that a subscription allows `commit`.

    :raises SubscriptionError: it does not.
    """
    if tracking is None or not tracking.manual:
        raise SubscriptionError(
            f"the {subscription} does not allow commit: pass commit='manual' to subscribe"
        )
