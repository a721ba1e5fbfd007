"""The public class of subscriptions to a super stream."""

from __future__ import annotations

from collections.abc import Mapping

from .._consume.subscription import BaseSubscription, Body
from .session import MergedSession


class SuperStreamSubscription(BaseSubscription[Body]):
    """Iterates over the messages of all partitions of a super stream.

    :meth:`SuperStream.subscribe` creates one.  Everything is as in :class:`Subscription`, in each
    partition, with the following differences.

    The partitions take turns, chunk by chunk: none waits until another one has no messages left.
    `stream` of a message context or of a batch names its partition; the messages of a batch are of
    one partition.  Messages arrive in order within their partition.  Each partition reconnects and
    resumes on its own.

    Every `refresh_interval`, the subscription asks for the partitions.  It reads a new one from its
    first message.  When a partition is deleted, it logs that and reads the others.  Errors of a
    partition name it, and the iteration can continue.  If the super stream is deleted, waiting for
    a message raises :class:`.StreamDoesNotExist`; if a new one has its name, the next message is
    one of that.
    """

    _session: MergedSession

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the partitions whose messages the broker delivers: in a group, to this member.

        A tuple, empty if there are none, where `Subscription.active` is a bool.
        """
        return self._session.active

    @property
    def position(self) -> dict[str, int | None]:
        """Offset of the next message of each partition, as `Subscription.position`.

        A partition that is deleted keeps its value.
        """
        return self._session.position

    async def commit(self, offsets: Mapping[str, int] | None = None) -> None:
        """Store how far the program has processed the partitions, see `Subscription.commit`.

        :param offsets: offset of the last processed message, by partition; None for everything
            received so far, with the current message or batch.  That of a partition that is deleted
            is not stored: all its offsets were deleted with it.
        :raises ValueError: the subscription does not read this partition, or has not received the
            message with this offset; nothing was stored.
        :raises OffsetNotStored: as `Subscription.commit`, after the offsets of all other partitions
            are stored; it names the partitions.
        :raises RbFlyError: as `Subscription.commit`; the offsets of other partitions may be stored.
        """
        await self._session.commit(offsets)
