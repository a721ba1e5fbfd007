"""What happens to a client, as an asynchronous iterator of events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal

from ..error import CallbackError, copy_error
from ..net.cluster import Cluster
from ..net.observer import Life, Role, State
from ..net.recovery import Kind, Recovery, describe, node
from ..net.registration import Registration
from ..net.uri import Address
from ..record import Record
from ._waiting import WaitingTasks

__all__ = [
    'Activated',
    'ConfirmsOverdue',
    'ConfirmsResumed',
    'ConnectionEvent',
    'ConnectionLost',
    'ConnectionOpened',
    'Deactivated',
    'DeliveryResumed',
    'DeliveryStalled',
    'Event',
    'Events',
    'EventsDropped',
    'GroupEvent',
    'HandoverLate',
    'OffsetGap',
    'PartitionAdded',
    'PartitionEvent',
    'PartitionGone',
    'Recovered',
    'RecoveryFailed',
    'RecoveryScheduled',
    'RegistrationEvent',
    'RenewalFailed',
    'RenewalRefused',
    'StreamDeleted',
    'StreamMoved',
]


class Event(Record):
    """Base of all events."""


class EventsDropped(Event):
    """The program was too slow: the oldest events were dropped.

    :ivar count: number of dropped events.
    """

    count: int


class ConnectionEvent(Event):
    """Base of the events of a connection.

    :ivar node: host and port of the broker.
    :ivar role: `'publish'`, `'consume'` or `'manage'` (create and delete streams).
    """

    node: str
    role: Literal['publish', 'consume', 'manage']


class ConnectionOpened(ConnectionEvent):
    """The client opened a connection."""


class ConnectionLost(ConnectionEvent):
    """A connection ended, and the client did not close it.

    :ivar error: the reason.
    """

    error: Exception


class RenewalRefused(ConnectionEvent):
    """The broker refused new credentials on an open connection, or they exceed its `frame_max`; the
    client reconnects.

    :ivar error: the reason.
    """

    error: Exception


class RenewalFailed(Event):
    """The function passed as `credentials` failed when the client asked for new ones in time.

    The connections stay open until the credentials before expire.

    :ivar error: the reason.
    :ivar delay: seconds until the client asks again.
    """

    error: Exception
    delay: float


class RegistrationEvent(Event):
    """Base of the events of a publisher or a subscription.

    :ivar kind: `'publisher'` or `'subscription'`.
    :ivar stream: name of the stream; of the partition, if it belongs to a super stream.
    :ivar name: name of the publisher; '' for none.
    """

    kind: Kind
    stream: str
    name: str


class StreamMoved(RegistrationEvent):
    """The broker closed the publisher or subscription.

    The stream has another leader, has lost this replica, or was deleted.
    """


class RecoveryScheduled(RegistrationEvent):
    """The client cannot open the publisher or subscription now, and tries again.

    :ivar attempt: number of the next attempt since it was open, from 1 on.
    :ivar delay: seconds until that attempt.
    :ivar error: why it was lost, or why the last attempt failed.
    """

    attempt: int
    delay: float
    error: Exception


class Recovered(RegistrationEvent):
    """The publisher or subscription is open again, after `RecoveryScheduled` or `StreamMoved`.

    :ivar node: host and port of the broker.
    """

    node: str


class RecoveryFailed(RegistrationEvent):
    """The client tries no more: calls of the publisher or subscription raise the error.

    :ivar error: the reason, e.g. that `reconnect_timeout` is over.
    """

    error: Exception


class StreamDeleted(RegistrationEvent):
    """The stream of an open publisher or subscription was deleted."""


class ConfirmsOverdue(RegistrationEvent):
    """Messages of a publisher have waited 30 seconds for confirms, although it is connected.

    :ivar count: number of these messages.
    :ivar seconds: how long they have waited, at least.
    :ivar broker: what the broker does: it answers requests (`'answers'`); or it accepts new
        connections, but does not read from the publisher's (`'blocked'`), as during a disk alarm;
        or it does not answer (`'silent'`).
    """

    count: int
    seconds: float
    broker: Literal['answers', 'blocked', 'silent']


class ConfirmsResumed(RegistrationEvent):
    """All messages of `ConfirmsOverdue` are confirmed, or refused.

    Not emitted if the publisher is closed before, or fails (`RecoveryFailed`).

    :ivar seconds: how long they have waited, at least.
    """

    seconds: float


class DeliveryStalled(RegistrationEvent):
    """A subscription receives nothing, although its stream has more messages.

    The client subscribes again.

    :ivar seconds: for how long, about.
    """

    seconds: float


class DeliveryResumed(RegistrationEvent):
    """A subscription receives messages again, after `DeliveryStalled`.

    :ivar seconds: for how long it received nothing, about.
    """

    seconds: float


class OffsetGap(Event):
    """Retention removed messages before a subscription could read them.

    If `first_missing` is higher than `next`, the subscription starts after the end of the stream.

    :ivar stream: name of the stream.
    :ivar first_missing: offset of the first of them; or where the subscription starts.
    :ivar next: offset of the first message that is left; or that of the message published next.
    """

    stream: str
    first_missing: int
    next: int


class PartitionEvent(Event):
    """Base of the events of a subscription that reads a super stream.

    :ivar super_stream: name of the super stream.
    :ivar partition: name of the partition.
    """

    super_stream: str
    partition: str


class PartitionAdded(PartitionEvent):
    """A subscription reads another partition, which was added to its super stream."""


class PartitionGone(PartitionEvent):
    """A partition no longer belongs to a super stream; a subscription reads the others."""


class GroupEvent(Event):
    """Base of the events of a member of a consumer group.

    :ivar stream: name of the stream; of the partition, if the group reads a super stream.
    :ivar group: name of the group.
    """

    stream: str
    group: str


class Activated(GroupEvent):
    """A member of a consumer group receives the messages of a stream from now on."""


class Deactivated(GroupEvent):
    """A member of a consumer group receives no more messages of a stream.

    It has handed over to another member, was closed, or has lost the stream.

    :ivar lost: the member could not hand over: it lost its connection, or was dropped without
        `close`: `on_revoke` was not called, or was cancelled, and messages that were not committed
        are delivered again.
    """

    lost: bool = False


class HandoverLate(GroupEvent):
    """The program has not finished its messages, or `on_revoke`, within `handover_timeout`.

    Another member may receive them again.
    """


class EventQueue(Recovery):
    """Collects the events of a client until the program asks for them.

    :param limit: number of events to keep.
    :ivar ended: the client has disconnected; nothing is added.
    """

    def __init__(self, limit: int) -> None:
        self._events = deque[Event](maxlen=limit)
        self._dropped = 0
        self._attempts: dict[object, int] = {}  # by registration that is not open
        self._waiting = WaitingTasks()
        self.ended: bool = False

    def take(self) -> Event | None:
        """Return the oldest event; None if there is none."""
        if self._dropped:
            count, self._dropped = self._dropped, 0
            return EventsDropped(count)
        return self._events.popleft() if self._events else None

    async def wait(self) -> None:
        """Wait for an event, or for the end."""
        await self._waiting.wait()

    def end(self) -> None:
        """Add nothing any more."""
        self.ended = True
        self._attempts.clear()
        self._waiting.wake()

    def _add(self, event: Event) -> None:
        if self.ended:
            return
        self._dropped += len(self._events) == self._events.maxlen
        self._events.append(event)
        self._waiting.wake()

    # -- the observer

    def on_lost(
        self, registration: Registration, before: State | Life, after: State, error: Exception
    ) -> None:
        if after is State.LOST:
            self._attempts[registration] = 0
            if registration.moved:
                self._add(StreamMoved(*describe(registration)))

    def on_open(self, registration: Registration) -> None:
        if self._attempts.pop(registration, None) is not None:
            assert registration.connection is not None
            address = node(registration.connection.address)
            self._add(Recovered(*describe(registration), address))

    def on_closed(self, registration: Registration, by_owner: bool) -> None:
        self._attempts.pop(registration, None)

    def on_gave_up(self, registration: Registration, error: Exception, is_deleted: bool) -> None:
        self._attempts.pop(registration, None)
        if is_deleted:
            self._add(StreamDeleted(*describe(registration)))
        else:
            own = error.error if isinstance(error, CallbackError) else None
            reason = own if isinstance(own, Exception) else copy_error(error)
            self._add(RecoveryFailed(*describe(registration), reason))

    def on_back_off(self, registration: Any, error: Exception, retry_at: float) -> None:
        attempt = self._attempts[registration] = self._attempts.get(registration, 0) + 1
        delay = max(0.0, retry_at - asyncio.get_running_loop().time())
        self._add(RecoveryScheduled(*describe(registration), attempt, delay, copy_error(error)))

    def on_disconnect(self) -> None:
        self.end()

    def on_gap(self, stream: str, wanted: int, first: int) -> None:
        self._add(OffsetGap(stream, wanted, first))

    def on_confirms_overdue(
        self, registration: Any, count: int, seconds: float, broker: Any
    ) -> None:
        self._add(ConfirmsOverdue(*describe(registration), count, seconds, broker))

    def on_confirms_resumed(self, registration: Any, seconds: float) -> None:
        self._add(ConfirmsResumed(*describe(registration), seconds))

    def on_delivery_stalled(self, registration: Any, seconds: float) -> None:
        self._add(DeliveryStalled(*describe(registration), seconds))

    def on_delivery_resumed(self, registration: Any, seconds: float) -> None:
        self._add(DeliveryResumed(*describe(registration), seconds))

    def on_partition_added(self, super_stream: str, partition: str) -> None:
        self._add(PartitionAdded(super_stream, partition))

    def on_partition_gone(self, super_stream: str, partition: str) -> None:
        self._add(PartitionGone(super_stream, partition))

    def on_activated(self, stream: str, group: str) -> None:
        self._add(Activated(stream, group))

    def on_deactivated(self, stream: str, group: str, lost: bool) -> None:
        self._add(Deactivated(stream, group, lost))

    def on_handover_late(self, stream: str, group: str) -> None:
        self._add(HandoverLate(stream, group))

    def on_renewal_failed(self, error: Exception, retry_at: float) -> None:
        delay = max(0.0, retry_at - asyncio.get_running_loop().time())
        self._add(RenewalFailed(copy_error(error), delay))

    def on_renewal_refused(self, address: Address, role: Role, error: Exception) -> None:
        self._add(RenewalRefused(node(address), role.value, copy_error(error)))

    def on_connection_opened(self, address: Address, role: Role) -> None:
        self._add(ConnectionOpened(node(address), role.value))

    def on_connection_lost(self, address: Address, role: Role, error: Exception) -> None:
        self._add(ConnectionLost(node(address), role.value, copy_error(error)))


class Events(AsyncIterator[Event]):
    """Iterates over the events of a client; created by :meth:`.StreamsClient.events`.

    It collects events from the call on.  The iteration ends when the client disconnects, after the
    events until then.  If the program does not read them, it keeps the latest ones, and the next
    event is :class:`EventsDropped`.  Several tasks may iterate: each event goes to one of them.
    """

    def __init__(self, cluster: Cluster, limit: int) -> None:
        self._cluster = cluster
        self._queue = EventQueue(limit)
        cluster.observers.add(self._queue)

    async def __anext__(self) -> Event:
        self._cluster.check_loop()
        while (event := self._queue.take()) is None:
            if self._queue.ended:
                self._leave()
                raise StopAsyncIteration
            await self._queue.wait()
        return event

    async def close(self) -> None:
        """Collect no more events, and end the iteration.

        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._cluster.check_loop()
        self._leave()
        self._queue.end()

    async def aclose(self) -> None:
        """Do the same as `close`, as an asynchronous generator does."""
        await self.close()

    def _leave(self) -> None:
        self._cluster.observers.remove(self._queue)

    def __del__(self) -> None:
        self._leave()
