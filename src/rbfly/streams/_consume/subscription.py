"""The public class of subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableSet
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ...checks import check_integer, check_timeout
from ...error import SubscriptionClosed, about
from ...net.cluster import Cluster
from ...net.waiting import can_wait
from ...protocol._batch import MessageBatch, empty_batch
from ...protocol._cursor import KINDS
from .._group.handover import Group, OnRevoke
from .._group.hooks import OnLost, OnStop
from .._misuse import AsyncFor
from .._offsets.store import OffsetStore
from .._offsets.tracking import OffsetTracking
from ..types import MessageCtx
from ._iteration import FastSubscription, MessageIterator
from .options import ReadSettings
from .session import SubscriptionSession
from .waiter import Ended, JoinedBatches, MessageWaiter, own_errors

if TYPE_CHECKING:
    import typing_extensions  # `typing` has no `default` before Python 3.13

    Body = typing_extensions.TypeVar('Body', covariant=True, default=Any)
else:
    Body = TypeVar('Body')

MAX_MESSAGES = 2**31 - 1  # of a batch


def check_limit(max_messages: int | None) -> int:
    if max_messages is None:
        return MAX_MESSAGES
    check_integer('max_messages', max_messages, 1, MAX_MESSAGES)
    return max_messages


class BaseSubscription(FastSubscription[Body], AsyncFor):
    """Base of :class:`Subscription` and :class:`SuperStreamSubscription`, for functions of either.

    It has their methods `open`, `messages`, `batches`, `fetch`, `hooks`, `stop` and `close`.

    :ivar offset_tracking: how it stores offsets; None with `commit='off'`.
    :ivar group: its consumer group; None for none.
    :ivar connection_name: of its client.
    """

    _session: Any  # a SubscriptionSession or a MergedSession

    def __init__(
        self,
        session: Any,
        waiter: MessageWaiter,
        settings: ReadSettings,
        connection_name: str,
    ) -> None:
        super().__init__(session.cursor, waiter, session.turns)
        self.stream: str = session.stream
        self.offset_tracking: OffsetTracking | None = settings.tracking
        self.group: Group | None = settings.group
        self.connection_name: str = connection_name
        self._offset = settings.offset
        self._hooks = settings.hooks
        self._session = session
        self._waiter = waiter

    def __repr__(self) -> str:
        session = self._session
        return (
            f'<{type(self).__name__} stream={self.stream!r} offset={self._offset!r}'
            f' state={session.status!r} position={session.position}'
            f' reconnects={session.reconnects}>'
        )

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self._session.close(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._call_on_stop()
        try:
            await own_errors(self._session.close(wait=can_wait(kind), reader=self._reader()))
        except Exception as ex:
            if error is None or isinstance(error, GeneratorExit):
                raise
            error.add_note(f'closing the subscription also failed: {ex!r}')

    async def close(self) -> None:
        """End the subscription, and the iteration of any task that waits for a message.

        After `stop`, if another task has received the last message, `close` first waits until that
        task asks for the next message, or ends.  It gives up waiting for the task and for the
        broker after the client's `close_timeout`.  If it is cancelled, it closes the subscription
        without waiting.

        :raises OffsetNotStored: the offset of the last finished message (`commit='auto'`) could not
            be stored, or `on_revoke` has not ended in time; the subscription is closed.  Errors of
            `on_revoke` are raised too, also those of earlier handovers.
        """
        self._call_on_stop()
        await own_errors(self._session.close(wait=True, reader=self._reader()))

    async def aclose(self) -> None:
        """Do the same as `close`, as an asynchronous generator does."""
        await self.close()

    def stop(self) -> None:
        """End the iteration when the program asks for the next message.

        The subscription delivers no more messages, not even those that have arrived.  When the
        program asks for the next message, it has finished the last one; then the iteration stores
        the offset (`commit='auto'`), reads it back, unsubscribes and ends.  If a task waits for a
        message, this happens at once.  If an error follows the last batch, it is raised first; if
        the offset cannot be stored, :class:`.OffsetNotStored` is.

        Call it in the loop body or in another task, or pass it to the event loop's
        `add_signal_handler`.  It may be called before the first message, and more than once.

        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._session.stop()
        self._call_on_stop()

    def hooks(
        self,
        *,
        on_revoke: OnRevoke | None = None,
        on_lost: OnLost | None = None,
        on_stop: OnStop | None = None,
    ) -> AbstractContextManager[None]:
        """Call functions while a `with` block runs, for code that works on messages in other tasks.

        At a handover, RbFly calls `on_revoke` as soon as it delivers no more messages of the
        stream.  Only afterwards does it wait for the program's current message or batch, and call
        `on_revoke` of :class:`Group`, whose documentation otherwise holds for both functions.

        :param on_revoke: async function of the name of the stream or partition, awaited before a
            member of a group hands it over, also by `stop` and `close`.
        :param on_lost: function of the name of the stream or partition, called when a member is no
            longer active and has not handed over, because its connection is lost: another member
            receives the messages after the stored offset.
        :param on_stop: function without arguments, called by `stop` and `close`.
        :raises SubscriptionError: another `with` block has set hooks of the subscription.
        :raises TypeError: an argument is not a function.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._waiter.check_loop()
        return self._hooks.use(on_revoke, on_lost, on_stop)

    def _call_on_stop(self) -> None:
        if self._hooks.is_used:
            self._waiter.check_loop()
            self._hooks.stopped()

    async def open(self) -> None:
        """Wait until the broker has accepted the subscription.

        `async with` does the same.  Without either, the subscription opens when the program asks
        for the first message.  Once it is open, a subscription that starts at `Offset.NEXT`
        receives every message that is published from then on.  A member of a group need not be
        active: it is open when the broker has registered it.

        Returns at once if the subscription is open, has messages to deliver, or has nothing to read
        before `until` or after `stop`.  During an outage, `open` waits until the subscription is
        open again.  It leaves an :class:`.OffsetGapError` to the iteration.  The subscription's
        `timeout` does not limit it.  Other tasks may call it, or wait for messages, at the same
        time.  Cancelling it has no effect on the subscription.

        :raises SubscriptionClosed: the subscription is closed.
        :raises StreamDoesNotExist: the stream does not exist, or was deleted.
        :raises StreamConnectionError: the client could not connect within its `connect_timeout` or
            `reconnect_timeout`, or was disconnected.
        :raises ProtocolError: the broker refused the subscription.
        :raises SubscriptionError: the broker is too old for `until` or `group`.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        await own_errors(self._session.open())

    def __del__(self) -> None:
        session = getattr(self, '_session', None)
        if session is not None:
            session.release()

    def messages(self) -> AsyncIterator[MessageCtx[Body]]:
        """Iterate over the contexts of messages, not only their bodies.

        RbFly decodes the sections other than the body when the program first reads them.
        """
        return MessageIterator(self, KINDS['context'])

    def batches(
        self, max_messages: int | None = None, *, max_wait: float | None = None
    ) -> AsyncIterator[MessageBatch[Body]]:
        """Iterate over batches: one await for all messages of a chunk, or of several.

        The messages of a batch are finished when the program asks for the next batch.  A batch ends
        before a message that is not AMQP 1.0, unless `on_decode_error` is `'raw'`.  It also ends
        after each sub-entry that completes 16 MiB of decompressed sub-entries of its chunk.

        With `max_wait`, a batch also contains the messages of the chunks that follow, and it ends
        early when it keeps 16 MiB alive, or after a reconnect.  If the task is cancelled while it
        waits, the messages that have arrived begin the next batch of `batches` or `fetch`, even if
        there are more of them than its `max_messages`.

        :param max_messages: limit of messages per batch; longer chunks are split.
        :param max_wait: seconds after which a batch ends, counted from its first message; 0 to wait
            only for the first message; None for batches of one chunk.
        :raises ValueError: `max_messages` is not from 1 to 2**31 - 1, or `max_wait` is negative.
        """
        limit = check_limit(max_messages)
        if max_wait is not None:
            check_timeout('max_wait', max_wait)
            return JoinedBatches(self, self._waiter, limit, max_wait)
        return MessageIterator(self, KINDS['batch'], limit)

    async def fetch(
        self, max_messages: int | None = None, timeout: float | None = None
    ) -> MessageBatch[Body]:
        """Return the messages that have arrived; wait if there are none.

        The messages of a batch are finished when the program asks for more.  The batch contains
        messages of all chunks that have arrived, and ends once it keeps 16 MiB alive.  It also ends
        before a message that is not AMQP 1.0, unless `on_decode_error` is `'raw'`.

        `fetch` raises the errors of the iteration, but no :class:`.MessageTimeout`.  A cancelled
        `fetch` loses no message.

        :param max_messages: limit of messages in the batch; None for no limit.
        :param timeout: seconds to wait for messages, instead of the subscription's `timeout`; then
            `fetch` returns an empty batch.  With None, it waits without a limit; with 0, it returns
            the messages that have arrived.
        :raises SubscriptionClosed: the subscription has ended, or has reached `until`.
        :raises SubscriptionError: another task iterates over the subscription.
        :raises ValueError: an argument is out of range.
        """
        limit = check_limit(max_messages)
        check_timeout('timeout', timeout)
        try:
            batch = await self._waiter.wait_joined(limit, 0, timeout, self)
        except Ended:
            error = SubscriptionClosed(f'the {self._session!r} has ended')
            raise about(error, self.stream) from None
        return empty_batch() if batch is None else batch


class Subscription(BaseSubscription[Body]):
    """Iterates over the messages of a stream; created by :meth:`StreamsClient.subscribe`.

    `async for` yields bodies; `messages` yields contexts, and `batches` many bodies at once.
    `fetch` returns the bodies that have arrived.  The type of bodies is `Any`; with `amqp=False`,
    it is `bytes`: `Subscription[bytes]`.

    `async with` opens and closes the subscription.  It raises the errors of `open`, and then closes
    it, as when the task is cancelled meanwhile.  If the connection is lost, or the stream moves to
    another node, the subscription reconnects and resumes after the last message that it delivered.
    It ends with `stop` or `close`, at the end of `async with`, or when the program drops its last
    reference.

    Waiting for a message raises:

    * :class:`StopAsyncIteration`: the subscription is closed, was stopped, or has reached `until`;
    * :class:`.MessageTimeout`: no message arrived within the subscription's `timeout`;
    * :class:`.StreamDoesNotExist`: the stream does not exist, or was deleted; if a new stream has
      its name, the next message is the first one of that stream.  Before its first message, the
      subscription may not notice that the stream was replaced, see :meth:`Offset.offset`;
    * :class:`.StreamConnectionError`: the client could not connect within its `connect_timeout` or
      `reconnect_timeout`, or was disconnected;
    * :class:`.ProtocolError`: the broker refused the request, e.g. for lack of permission;
    * :class:`.SubscriptionError`: the broker is too old for `until` or `group`;
    * :class:`.OffsetGapError`: retention has removed the next message, and `on_gap` is `'raise'`;
    * :class:`.ChunkError`: a chunk is damaged;
    * :class:`.AMQPDecoderError`: a message is not AMQP 1.0;
    * any error of the async functions that were passed as `offset` and `on_revoke`; a RuntimeError
      if something that they awaited was cancelled.

    The iteration can continue after all of these except the first.
    """

    _session: SubscriptionSession

    @property
    def active(self) -> bool:
        """True if the broker delivers messages: in a group, to this member."""
        return self._session.active

    @property
    def position(self) -> int | None:
        """Offset of the next message, or a lower one: that after the last message received.

        None before the first message.  Stored offsets take up offsets, so the next message may have
        a higher one.  With a filter, messages that it dropped count as received.  A member of a
        group keeps the value until its next message, also while another member is active: a
        program that keeps offsets stores the `next_offset` of its message or batch instead.
        """
        return self._session.position

    async def commit(self, offset: int | None = None) -> None:
        """Store how far the program has processed the stream, with `commit='manual'`.

        Returns when the broker has stored the offset.  Reconnects if the connection is lost, and
        then sends the offset again.  A program may also call it after the subscription has ended;
        not in a group, in which only the active member stores offsets.

        :param offset: offset of the last processed message, which must have been received; it may
            be lower than a stored one.  None for everything received so far, with the current
            message or batch; before the first message, this does nothing.
        :raises SubscriptionError: the subscription has no `commit='manual'`.
        :raises ValueError: the message with this offset was not received.
        :raises OffsetNotStored: the broker has another offset, or none; or the member of a group
            has lost its activity since it received the message, even if it is active again.
            Without an offset, this is raised once for messages that a member has delivered and the
            program had not committed: a member receives them again.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the client could not connect within `reconnect_timeout`, or
            was disconnected.
        :raises ProtocolError: the broker refused the request.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        await self._session.offsets.commit(offset)


Subscriber = Subscription  # the name in RbFly 0.10


def subscribe(
    cluster: Cluster, members: MutableSet[OffsetStore], stream: str, settings: ReadSettings
) -> Subscription[Any]:
    """Create a subscription of a stream."""
    waiter = MessageWaiter(cluster.check_loop, settings.timeout)
    session = SubscriptionSession(cluster, members, waiter, stream, settings.offset, settings)
    waiter.attach(session)
    return Subscription(session, waiter, settings, cluster.settings.connection_name)
