"""Groups of subscriptions with one active member, which RabbitMQ calls single active consumers."""

import asyncio
import itertools
from collections.abc import MutableMapping
from typing import NamedTuple

from ..protocol import commands
from ..protocol.const import ResponseCode
from ..protocol.offset import Offset
from .connection import Wire
from .stream import Stream, Subscription

ACTIVE, DEACTIVATING, WAITING = 'active', 'deactivating', 'waiting'  # states of a member

Key = tuple[Stream, str]  # the stream and the name of a group


class Update(NamedTuple):
    """A ConsumerUpdate that the client has not answered."""

    subscription_id: int
    active: bool
    timer: asyncio.TimerHandle | None


class Updates:
    """The ConsumerUpdate requests of a connection.

    :param timeout: seconds to answer a request, then the connection is closed; None or 0 for no
        limit.
    """

    def __init__(self, wire: Wire, timeout: float | None) -> None:
        self._wire = wire
        self._timeout = timeout
        self._numbers = itertools.count()
        self._unanswered: dict[int, Update] = {}
        self.groups: dict[Group, None] = {}  # with members of the connection

    def send(self, subscription_id: int, active: bool) -> None:
        number = next(self._numbers)
        timer = None
        if self._timeout:
            timer = asyncio.get_running_loop().call_later(self._timeout, self._wire.close)
        self._unanswered[number] = Update(subscription_id, active, timer)
        self._wire.write(commands.ConsumerUpdate(subscription_id, active).encode(number))

    def take(self, number: int) -> Update | None:
        """Return the request that a client has answered, or None if there is no such request."""
        update = self._unanswered.pop(number, None)
        if update is not None and update.timer is not None:
            update.timer.cancel()
        return update

    def drop_deactivations(self, subscription_id: int) -> bool:
        """Forget the requests to deactivate a subscription; return whether there were any."""
        found = [
            number
            for number, item in self._unanswered.items()
            if item.subscription_id == subscription_id and not item.active
        ]
        for number in found:
            self.take(number)
        return bool(found)

    def close(self) -> None:
        """Forget all requests, and leave each group with all members at once."""
        for number in [*self._unanswered]:
            self.take(number)
        for group in self.groups:
            group.leave([item for item in group.members if item.wire is self._wire])
        self.groups.clear()


class Group:
    """The subscriptions with the same name on a stream, in the order in which they were made.

    :param partition: number of the stream in its super stream; -1 for another stream.
    :param version: version of RabbitMQ.
    :ivar stranded: whether a fault prevents that a member is activated.
    """

    def __init__(
        self, groups: MutableMapping[Key, 'Group'], key: Key, partition: int, version: str
    ) -> None:
        self.partition = partition
        self.members: list[Member] = []
        self.stranded: bool = False
        self._groups = groups
        self._key = key
        # It activates a partition's member only in an empty group or instead of the active one, and
        # does not repeat a deactivation without an answer.
        self._is_old = version == '4.0'

    def _chosen(self) -> 'Member':
        return self.members[max(self.partition, 0) % len(self.members)]

    def _active(self) -> 'Member | None':
        return next((item for item in self.members if item.state != WAITING), None)

    def join(self, member: 'Member') -> None:
        self._groups[self._key] = self
        self.members.append(member)
        active = self._active()
        if active is not None:
            self._rebalance(active)
        elif self.partition < 0:
            self._activate(member)
        elif not self.stranded or not self._is_old or len(self.members) == 1:
            self._activate(self._chosen())

    def leave(self, members: 'list[Member]') -> None:
        active = self._active()
        self.members = [item for item in self.members if item not in members]
        if not self.members:
            if self._groups.get(self._key) is self:  # else a later group has the name
                del self._groups[self._key]
        elif active in members:
            self._activate(self._chosen())
        elif active is not None and members:
            self._rebalance(active)

    def _rebalance(self, active: 'Member') -> None:
        """Deactivate the active member if another one is to be active."""
        if self.partition < 0 or self._chosen() is active or self.stranded:
            return
        if active.state == ACTIVE or not self._is_old:
            active.state = DEACTIVATING
            active.notify(False)

    def hand_over(self) -> None:
        """Activate a member after another one has answered its deactivation."""
        if self.stranded:
            return
        chosen = self._chosen()
        again = chosen.state == ACTIVE
        for member in self.members:
            member.state = WAITING
        if again:
            chosen.state = ACTIVE
        else:
            self._activate(chosen)

    def strand(self, stubborn: bool) -> None:
        """Deactivate the active member, and activate no other one.

        :param stubborn: count that member as active, until its connection is closed.
        """
        active = self._active() or self._chosen()
        if active.state == ACTIVE and not self.stranded:
            active.notify(False)
        active.state = ACTIVE if stubborn else WAITING
        self.stranded = True

    def heal(self) -> None:
        if self.stranded:
            self.leave([item for item in self.members if not item.subscribed])
        if self.stranded and self.members:
            for member in self.members:
                member.state = WAITING
            self._activate(self._chosen())

    def _activate(self, member: 'Member') -> None:
        self.stranded = False
        member.state = ACTIVE
        member.notify(True)


class Member(Subscription):
    """A subscription that receives messages only while it is the active member of its group.

    :ivar state: in the group; the client learns it from the next ConsumerUpdate.
    """

    def __init__(
        self,
        wire: Wire,
        declared: dict[int, Subscription],
        stream: Stream,
        command: commands.Subscribe,
        node: int,
        updates: Updates,
        group: Group,
    ) -> None:
        super().__init__(wire, declared, stream, command, node)
        self.state = WAITING
        self._active = False  # in the last ConsumerUpdate
        self._group = group
        self._updates = updates
        self._offset = command.offset
        self._delivering = False
        updates.groups[group] = None
        group.join(self)

    @property
    def subscribed(self) -> bool:
        return self in self.stream.clients

    def remove(self) -> None:
        super().remove()
        group = self._group
        if self not in group.members or (group.stranded and self.state == ACTIVE):
            return  # its connection is closed, or only that will remove it
        if self._updates.drop_deactivations(self.id):
            group.hand_over()
        group.leave([self])

    def notify(self, active: bool) -> None:
        """Notify the client, after the response to the current request."""
        self.stream.call_soon(lambda: self._notify(active))

    def _notify(self, active: bool) -> None:
        if self.subscribed:
            self._active, self._delivering = active, False
            self._updates.send(self.id, active)

    def on_answer(self, update: Update, offset: Offset | None) -> None:
        if self._active:
            self._next = self.stream.find(offset or self._offset)
            self._delivering = True
            self.resume()
        elif not update.active:
            self._group.hand_over()

    def grant(self, chunks: int) -> None:
        super().grant(chunks)
        if not self._delivering:
            code = ResponseCode.PRECONDITION_FAILED
            self.wire.write(commands.CreditError(code, self.id).encode())

    def resume(self, *, wait: bool = True) -> None:
        if self._delivering:
            super().resume(wait=wait)
