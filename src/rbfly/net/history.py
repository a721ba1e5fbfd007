"""The last errors of a client, and how many connections it has lost."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from ..error import CallbackError, CredentialsError, RbFlyError
from .observer import Life, Role, State
from .recovery import Recovery, node
from .uri import Address

if TYPE_CHECKING:
    from .registration import Registration

KEPT = 16  # errors with different texts


class Happened:
    """An error that has happened once or several times.

    :ivar where: the publisher, subscription or connection, most recently.
    :ivar text: the text of the error.
    :ivar count: how often.
    :ivar at: when, most recently, in seconds since 1970.
    """

    def __init__(self, where: str, text: str, count: int) -> None:
        self.where = where
        self.text = text
        self.count = count
        self.at: float = time()


class History(Recovery):
    """Keeps the last errors; those with the same text count as one.

    :ivar lost: number of connections that have ended, and that the client did not close.
    """

    def __init__(self) -> None:
        self.lost: int = 0
        self._errors: dict[str, Happened] = {}

    @property
    def errors(self) -> list[Happened]:
        """The errors, the most recent one last."""
        return [*self._errors.values()]

    def _add(self, where: str, error: Exception) -> None:
        text = harmless(error)
        before = self._errors.pop(text, None)
        if before is None and len(self._errors) >= KEPT:
            del self._errors[next(iter(self._errors))]
        self._errors[text] = Happened(where, text, 1 if before is None else before.count + 1)

    def on_lost(
        self, registration: Registration, before: State | Life, after: State, error: Exception
    ) -> None:
        self._add(repr(registration.owner), error)

    def on_gave_up(self, registration: Registration, error: Exception, is_deleted: bool) -> None:
        self._add(repr(registration.owner), error)

    def on_call_waiting(self, error: Exception, retry_at: float) -> None:
        self._add('a call', error)

    def on_renewal_failed(self, error: Exception, retry_at: float) -> None:
        self._add('renewal of the credentials', error)

    def on_connection_lost(self, address: Address, role: Role, error: Exception) -> None:
        self.lost += 1
        self._add(f'connection to {node(address)} ({role.value})', error)


def harmless(error: BaseException) -> str:
    """Return the text of an error, without what the program or its functions may have put there."""
    if isinstance(error, CallbackError):
        error = error.error
    link: BaseException | None = error
    while link is not None:
        foreign = not isinstance(link, RbFlyError | OSError)
        if foreign or isinstance(link, CredentialsError):  # which repeats the text of its cause
            names = [type(item).__name__ for item in (error, link.__cause__ or link)]
            return ' because of '.join(dict.fromkeys(names))
        link = link.__cause__
    return str(error)
