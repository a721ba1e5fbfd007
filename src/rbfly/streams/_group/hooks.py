"""Functions that a subscription calls while a part of the program reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...error import ArgumentTypeError, SubscriptionError
from ...net.observer import call_each
from .handover import OnRevoke

OnLost = Callable[[str], object]
OnStop = Callable[[], object]


class Hooks:
    """The functions of one subscription; the members of all its partitions share them.

    :ivar on_revoke: awaited when a member hands over; None for none.
    :ivar is_used: a `with` block has set the functions.
    """

    __slots__ = ('_on_lost', '_on_stop', 'is_used', 'on_revoke')

    def __init__(self) -> None:
        self.on_revoke: OnRevoke | None = None
        self._on_lost: OnLost | None = None
        self._on_stop: OnStop | None = None
        self.is_used: bool = False

    @contextmanager
    def use(
        self, on_revoke: OnRevoke | None, on_lost: OnLost | None, on_stop: OnStop | None
    ) -> Iterator[None]:
        """Call functions until the `with` block ends.

        :raises SubscriptionError: another block has set functions.
        """
        for name, value in (('on_revoke', on_revoke), ('on_lost', on_lost), ('on_stop', on_stop)):
            if not (value is None or callable(value)):
                kind = 'an async function' if name == 'on_revoke' else 'a function'
                raise ArgumentTypeError(f'{name} must be {kind}, not {type(value).__name__}')
        if self.is_used:
            raise SubscriptionError('another `with` block has set hooks of this subscription')
        self.is_used = True
        self.on_revoke, self._on_lost, self._on_stop = on_revoke, on_lost, on_stop
        try:
            yield
        finally:
            self.is_used = False
            self.on_revoke = self._on_lost = self._on_stop = None

    def lost(self, stream: str) -> None:
        """A member has become inactive without handing over."""
        if self._on_lost is not None:
            call_each([self._on_lost], stream)

    def stopped(self) -> None:
        """The program stops or closes the subscription."""
        if self._on_stop is not None:
            call_each([self._on_stop])
