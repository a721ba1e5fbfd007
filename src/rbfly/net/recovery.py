"""What the transitions of a registration mean: it is lost, open again, closed, or given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..error import StreamDoesNotExist
from .observer import Life, Observer, Role, State
from .uri import Address

if TYPE_CHECKING:
    from .registration import Registration

Kind = Literal['publisher', 'subscription']


class Recovery(Observer):
    """Base of observers that tell how registrations lose their declarations and get them back."""

    def on_transition(
        self,
        registration: Any,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        if after is State.OPEN:
            self.on_open(registration)
        elif after is State.IDLE:
            if error is None or registration.is_disconnected:
                self.on_closed(registration, by_owner=error is None)
            else:
                is_deleted = isinstance(error, StreamDoesNotExist) and registration.declared
                self.on_gave_up(registration, error, is_deleted)
        elif isinstance(after, State) and error is not None:
            self.on_lost(registration, before, after, error)

    def on_lost(
        self, registration: Registration, before: State | Life, after: State, error: Exception
    ) -> None:
        """A registration is not declared: it was lost (LOST), or an attempt has failed."""

    def on_open(self, registration: Registration) -> None:
        """A registration is declared, for the first time or again."""

    def on_closed(self, registration: Registration, by_owner: bool) -> None:
        """A registration ends because its owner closes it, or the client disconnects."""

    def on_gave_up(self, registration: Registration, error: Exception, is_deleted: bool) -> None:
        """The client tries no more to declare a registration.

        :param is_deleted: the stream was deleted while the registration used it.
        """


def describe(registration: Registration) -> tuple[Kind, str, str]:
    """Return kind, stream and name of a publisher or subscription; '' for no name."""
    owner = registration.owner
    kind: Kind = 'publisher' if owner.role is Role.PUBLISH else 'subscription'
    return kind, owner.stream, getattr(owner, 'name', None) or ''


def node(address: Address) -> str:
    """Return host and port of a broker."""
    return str(address).partition('://')[2]
