"""Events of a client, and the observers that are notified of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Concatenate, ParamSpec, TypeVar

from .uri import Address

P = ParamSpec('P')
S = TypeVar('S', bound=Enum)

logger: logging.Logger = logging.getLogger('rbfly.net')


class State(Enum):
    """State of a declaration, see :mod:`rbfly.net.registration`."""

    IDLE = 'idle'
    OPENING = 'opening'
    BACKING_OFF = 'backing off'
    OPEN = 'open'
    LOST = 'lost'


class Life(Enum):
    """Whether a registration is in use, see :mod:`rbfly.net.registration`."""

    ACTIVE = 'active'
    CLOSING = 'closing'
    CLOSED = 'closed'


class ConnectionState(Enum):
    """State of a connection, see :mod:`rbfly.net.connection`."""

    CONNECTING = 'connecting'
    HANDSHAKE = 'handshake'
    OPEN = 'open'
    CLOSING = 'closing'
    CLOSED = 'closed'


class Role(Enum):
    """The purpose of a connection."""

    PUBLISH = 'publish'
    CONSUME = 'consume'
    MANAGE = 'manage'  # create and delete streams: slow, so nothing may queue behind them


def check_transition(owner: object, before: S, after: S, table: Mapping[S, Sequence[S]]) -> S:
    """Return the state that follows another one.

    :raises AssertionError: the table does not allow it.
    """
    if after not in table[before]:  # no assert statement: this holds in optimized mode, too
        raise AssertionError(f'{owner!r}: illegal transition {before.name} -> {after.name}')
    return after


def facts(prefix: str, event: str, owner: Any = None, **values: object) -> dict[str, object]:
    """Return the fields of a line in the log; they begin with `rbfly_`.

    :param prefix: what the line begins with, see :attr:`.Settings.log_prefix`.
    :param event: what has happened.
    :param owner: the publisher or subscription that the line is about, or the first of them.
    :param values: other fields; those that are None are left out.
    """
    found: dict[str, object] = {'event': event, 'client': prefix[1:-2]}
    if owner is not None:
        kind = 'publisher' if owner.role is Role.PUBLISH else 'subscription'
        found |= {'kind': kind, 'stream': owner.stream, 'name': getattr(owner, 'name', '')}
    found |= values
    return {f'rbfly_{key}': value for key, value in found.items() if value is not None}


class Observer:
    """Receives the events of a client; ignores all of them unless overridden.

    Frames and chunks are counted, see :class:`rbfly.net.totals.Totals`.
    """

    def on_transition(
        self,
        registration: object,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        """A registration entered another state, or another phase of its life.

        :param error: why it backs off, was lost, or failed to open; else None.
        """

    def on_back_off(self, registration: object, error: Exception, retry_at: float) -> None:
        """A registration waits for another try.

        :param error: why it was lost, or why the last try failed.
        :param retry_at: time of the event loop at which the next try begins.
        """

    def on_call_waiting(self, error: Exception, retry_at: float) -> None:
        """A call that concerns no registration waits for another try.

        :param error: why the last try failed.
        :param retry_at: time of the event loop at which the next try begins.
        """

    def on_disconnect(self) -> None:
        """The client disconnects; its registrations were notified."""

    def on_gap(self, stream: str, wanted: int, first: int) -> None:
        """Messages that a subscription was to read are missing.

        :param wanted: offset of the next message to read; it is missing.
        :param first: first offset of the stream, if retention has removed those before it; or, if
            it is lower than `wanted`, the offset after the end of the stream.
        """

    def on_confirms_overdue(
        self, registration: object, count: int, seconds: float, broker: str
    ) -> None:
        """The broker has confirmed none of a publisher's oldest messages for long.

        :param count: number of those messages.
        :param seconds: how long they have waited, at least.
        :param broker: `'answers'`, `'blocked'` or `'silent'`.
        """

    def on_confirms_resumed(self, registration: object, seconds: float) -> None:
        """Those messages are settled; only after `on_confirms_overdue`."""

    def on_delivery_stalled(self, registration: object, seconds: float) -> None:
        """The broker delivers nothing to a subscription, although the stream has more messages.

        :param seconds: how long a task has waited for a message, about.
        """

    def on_delivery_resumed(self, registration: object, seconds: float) -> None:
        """The broker delivers again; only after `on_delivery_stalled`."""

    def on_partition_added(self, super_stream: str, partition: str) -> None:
        """A subscription of a super stream has found another partition, and reads it."""

    def on_partition_gone(self, super_stream: str, partition: str) -> None:
        """A partition no longer belongs to the super stream; its subscription reads the others."""

    def on_activated(self, stream: str, group: str) -> None:
        """A member of a group receives the messages of a stream from now on."""

    def on_deactivated(self, stream: str, group: str, lost: bool) -> None:
        """A member of a group receives no more messages of a stream.

        :param lost: it has not handed over.
        """

    def on_handover_late(self, stream: str, group: str) -> None:
        """A member leaves messages to the next one that the program has not finished."""

    def on_renewal_failed(self, error: Exception, retry_at: float) -> None:
        """The program had no new credentials for the open connections.

        :param retry_at: time of the event loop at which the client asks again.
        """

    def on_renewal_refused(self, address: Address, role: Role, error: Exception) -> None:
        """An open connection cannot have new credentials; the client ends it."""

    def on_connection_opened(self, address: Address, role: Role) -> None:
        """The client opened a connection."""

    def on_connection_lost(self, address: Address, role: Role, error: Exception) -> None:
        """A connection ended without being closed by the client."""

    def on_connection_closed(self, address: Address, role: Role) -> None:
        """The client closed a connection."""


class Observers:
    """The observers of one client; each can be added and removed at any time."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Notify an observer of every event from now on."""
        self._observers += (observer,)

    def remove(self, observer: Observer) -> None:
        """Stop notifying an observer."""
        self._observers = tuple(item for item in self._observers if item is not observer)

    def notify(
        self, event: Callable[Concatenate[Any, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call the method of the same name on every observer.

        :param event: the method of :class:`Observer`.
        """
        if observers := self._observers:
            name = event.__name__
            call_each(
                # removing an observer takes effect at once, even here
                (getattr(item, name) for item in observers if item in self._observers),
                *args,
                **kwargs,
            )


def call_each(callbacks: Iterable[Callable[P, object]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call all callbacks; the event loop's exception handler gets the exceptions they raise."""
    for callback in callbacks:
        try:
            callback(*args, **kwargs)
        except Exception as ex:
            message = f'{callback!r} failed'
            loop = asyncio._get_running_loop()
            if loop is None:  # the last reference was dropped elsewhere
                logger.error(message, exc_info=ex, extra=facts('', 'callback_failed'))
            else:
                loop.call_exception_handler({'message': message, 'exception': ex})
