"""Publishers of super streams: one ordinary publisher for each partition."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterable, Iterable, MutableSet, Sequence

from ...error import (
    ArgumentError,
    ConfirmTimeout,
    PublisherError,
    RbFlyError,
    SendProgress,
    raise_any,
)
from ...net.cluster import Cluster
from ...net.locator import named
from ...net.observer import facts
from .._publish._confirm import ConfirmFuture, ConfirmGroup
from .._publish.atomic import as_sequence, check_publish_id
from .._publish.base import BasePublisher
from .._publish.confirmation import Confirmation, summary
from .._publish.publisher import Publisher
from .._publish.send_many import SendManyCall
from .._publish.session import PublisherSession
from .._waiting import NOW, counted_states, end_of
from ..types import PublisherInfo
from ._routing import FastRoutedPublisher, PublishTarget, Router
from .held_messages import Found, HeldMessages, as_targets, put_batched
from .joint_messages import JointMessages
from .key_routes import KeyRoutes
from .partitions import Message, PublishPartitions, Targets, left, settle_each
from .routing import Route
from .send_many import RoutedDestination

logger: logging.Logger = logging.getLogger('rbfly.streams')


class SuperStreamPublisher(FastRoutedPublisher, BasePublisher):
    """Sends messages to the partitions of a super stream; safe to use from many tasks at once.

    It has the methods of :class:`Publisher`.  A partition that is not available delays only its own
    messages.  A publisher with :func:`by_key` that loses its last reference, or whose task is
    cancelled, first asks the broker for the routes of the messages that `batch` has queued; it logs
    how many it could not send.

    :ivar name: name for deduplication, empty for none; each partition has its own sequence of
        publishing ids for it.
    :ivar stream: name of the super stream.
    :ivar partitions: names of the partitions, in the order that `by_hash` uses; they are fixed
        while the publisher is open.
    """

    def __init__(
        self,
        cluster: Cluster,
        info: PublisherInfo,
        route: Route,
        names: tuple[str, ...],
        publishers: Sequence[Publisher],
        windows: MutableSet[PublisherSession],
    ) -> None:
        self.name: str = info.name
        self.stream: str = info.stream
        self.partitions = names
        parts = [PublishTarget(i, item) for i, item in enumerate(publishers)]
        router = Router(route, names, {item.publisher.stream: item for item in parts})
        self._router = router
        self._publishers = publishers
        self._cluster = cluster
        self._partitions = PublishPartitions(cluster, info.stream, publishers, windows)
        self._joint = JointMessages(self._partitions)
        self._routes = KeyRoutes(cluster, info.stream, router, self._partitions)
        self._held = HeldMessages(info, router, self._routes, self._partitions)
        self._errors: list[Exception] = []  # of closing, until a call raises them
        self._closed: asyncio.Event | None = None  # set when closing has ended
        # Sends held messages after the program's last call.
        self._sending: asyncio.Task[None] | None = None

    @property
    def _who(self) -> str:
        return f'publisher of super stream {self.stream!r}'

    @property
    def _status(self) -> str:
        return counted_states([item._status for item in self._publishers])

    @property
    def _reconnects(self) -> int:
        return sum(item._reconnects for item in self._publishers)

    @property
    def next_publish_id(self) -> int:
        """The lowest next publishing id of a partition.

        A program that uses explicit publishing ids resumes here: partitions that have stored later
        messages discard them.

        :raises PublisherError: the publisher has a name, and the broker has not declared it for all
            partitions.
        """
        return min(item.next_publish_id for item in self._publishers)

    @property
    def next_publish_ids(self) -> dict[str, int]:
        """The next publishing id of each partition.

        :raises PublisherError: as `next_publish_id`.
        """
        return {item.stream: item.next_publish_id for item in self._publishers}

    @property
    def unconfirmed(self) -> int:
        """Number of messages of all partitions that the broker has neither confirmed nor refused,
        including queued messages of `batch`."""
        return sum(item.unconfirmed for item in self._publishers) + len(self._held)

    @property
    def capacity(self) -> int:
        """Number of messages that can be sent now without waiting, whatever their partitions."""
        return min(item.capacity for item in self._publishers)

    async def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed.

        Closes all partitions concurrently.  For the errors see :meth:`Publisher.close`; if several
        partitions fail, one error stands for all of them.
        """
        core = self._partitions.first.core
        if not core.loop.is_closed():  # in a closed loop, no call waits
            core.check_loop()
        if self._closed is None:
            self._closed = asyncio.Event()
            try:
                await self._held.end(self._partitions.first.closing)
                results = await settle_each([item._end for item in self._publishers])
                self._errors += filter(None, results)
                del results  # the traceback of an error must not refer to it
            finally:  # a cancelled task has not closed them
                self._abort_now(PublisherError(f'{self._who} was closed before the confirm'))
                self._closed.set()
        else:  # another task closes it, or it was closed
            await self._closed.wait()
        raise_any(self._end_error())

    def _end_error(self) -> Exception | None:
        """Return the error that `close` raises, and forget what it stands for."""
        errors = [error for item in self._publishers if (error := item._end_error())]
        errors += [*self._errors, *self._held.take_errors(), *self._joint.take_errors()]
        self._errors.clear()
        return summary(errors)

    def __del__(self) -> None:
        if not getattr(self, '_held', None):  # or only `__new__` was called
            return
        loop = self._partitions.first.core.loop
        if loop.is_closed():
            self._log_lost()
        else:  # as PublisherSession.abandon
            text = f'{self._who} was closed because the program dropped its last reference'
            loop.call_soon_threadsafe(self._abort, PublisherError(text))

    def _abort(self, error: Exception) -> None:
        """Send all queued messages, and close without waiting for confirms.

        Messages whose routes are unknown are sent later, in the background.
        """
        loop = self._partitions.first.core.loop
        if self._held and self._closed is None and loop.is_running():
            self._sending = loop.create_task(self._send_held(error))
        else:
            self._abort_now(error)

    async def _send_held(self, error: Exception) -> None:
        try:
            async with self._partitions.first.closing.limit():
                await self._held.release()
        except (TimeoutError, RbFlyError):
            pass  # logged
        finally:
            if self._closed is None:  # else `close` is waiting for the confirms
                self._log_lost()
                self._abort_now(error)
            self._sending = None  # it refers to this

    def _log_lost(self) -> None:
        """Log that messages whose routes are unknown are lost; no call raises this."""
        count = len(self._held) + len(self._held.errors)
        if count:
            prefix = self._cluster.settings.log_prefix
            text = '%ssuper stream %r: messages whose partitions are unknown were not sent: %d'
            extra = facts(
                prefix,
                'messages_not_sent',
                kind='publisher',
                stream=self.stream,
                name=self.name,
                messages=count,
            )
            logger.warning(text, prefix, self.stream, count, extra=extra)

    def _abort_now(self, error: Exception) -> None:
        self._partitions.abort(error)
        self._routes.close()
        self._held.drop('before it was closed')

    async def _targets(
        self, found: Found, until: float | None = None, timeout: float | None = None
    ) -> Targets:
        """Return the partitions of a message from what the router has found.

        First, queue the messages of `batch` before it.
        """
        routes = self._routes
        if self._router.holds:
            before = self._held.release()
            await routes.in_time(before, until, timeout, 'the messages queued before')
        if isinstance(found, str):
            found = await routes.in_time(routes.ask(found), until, timeout, f'key {found!r}')
        return as_targets(found)

    async def send(self, message: Message, timeout: float | None = None) -> None:
        """Send a message to its partition and wait until the broker has confirmed it.

        A message to several partitions is confirmed when all of them have confirmed it.  Waits only
        while the window of its own partition is full, or while the broker is asked for the route
        of a new key.  If the call is cancelled or times out, see :meth:`Publisher.send`.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for the confirm; None for no limit, 0 as in
            :meth:`Publisher.send`.
        :raises NoRouteError: the message has no partition.
        :raises ValueError: the explicit publishing id is not above the last one of its partition.

        And the errors of :meth:`Publisher.send`; their attribute `stream` is the partition.
        """
        wait = self._begin(message, timeout)
        try:
            await wait
        except asyncio.CancelledError:
            if isinstance(wait, ConfirmFuture):
                for item in self._publishers:  # the others do not know the message
                    item._session.give_up(wait)
            raise

    async def _send(self, found: Found, message: Message, timeout: float | None) -> None:
        """Send a message that does not have just one partition that is known."""
        until = end_of(timeout)
        if until == NOW:
            self._partitions.check_open()
            raise self._partitions.first.no_time()
        targets = await self._targets(found, until, timeout)
        if len(targets) == 1:
            await targets[0].publisher.send(message, left(until))
        else:
            await self._joint.send(targets, message, timeout, until)

    async def submit(self, message: Message, timeout: float | None = None) -> Confirmation:
        """Send a message without waiting for its confirm.

        Waits only until the window of its partition has capacity, or while the broker is asked for
        the route of a new key.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for capacity; None for no limit, 0 not to wait.
        :returns: a future of the confirm, for several partitions of all their confirms, which
            raises the errors of `send`.
        :raises NoRouteError: the message has no partition.

        And the errors of :meth:`Publisher.submit`; their attribute `stream` is the partition.
        """
        until = end_of(timeout)
        targets = await self._targets(self._router.find(message), until, timeout)
        if len(targets) == 1:
            confirmation: Confirmation = await targets[0].publisher.submit(message, left(until))
            return confirmation
        return await self._joint.submit(targets, message, until)

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        timeout: float | None = None,
        *,
        progress: SendProgress | None = None,
    ) -> int:
        """Send messages as fast as the windows permit, and wait until all are confirmed.

        Like :meth:`Publisher.send_many`, but takes each message before it knows whether the window
        of its partition has capacity, and waits for that.  If the call ends while it waits, this
        message is not sent, and `progress` counts it as refused.  A message to several partitions
        is sent to each of them as soon as its window has capacity.  It is confirmed when all of
        them have confirmed it, refused if any of them refused it, and unknown if the call ended
        before all of them had capacity.  Each partition checks the explicit publishing ids of its
        own messages; the messages before a wrong one are sent.

        :param messages: list, iterator or asynchronous iterator of bodies or contexts.
        :param timeout: seconds until the last confirm; None for no limit, 0 as in
            :meth:`Publisher.send_many`.
        :param progress: filled in when the call ends, even if it is cancelled.
        :returns: number of messages sent.
        :raises NoRouteError: a message has no partition; the messages before it are sent.

        And the errors of :meth:`Publisher.send_many`; their attribute `stream` is the partition.
        """
        destination = RoutedDestination(
            self._router, self._targets, self._held.release, self._partitions
        )
        return await SendManyCall(destination).send(messages, timeout, progress)

    async def send_atomic(
        self,
        messages: Iterable[Message],
        timeout: float | None = None,
        *,
        publish_id: int | None = None,
    ) -> None:
        """Send messages to one partition, which stores all or none of them.

        See :meth:`Publisher.send_atomic`; all messages must belong to the same single partition.

        :param messages: bodies or contexts without publishing ids, in any iterable.
        :param timeout: seconds to wait for the confirm; None for no limit, 0 as in
            :meth:`Publisher.send`.
        :param publish_id: publishing id of the batch, above the last one of its partition; None for
            the next one.
        :raises NoRouteError: a message has no partition.
        :raises ValueError: the messages belong to several partitions, which the error names.

        And the errors of :meth:`Publisher.send_atomic`; their attribute `stream` is the partition.
        """
        until = end_of(timeout)
        self._partitions.check_open()
        if until == NOW:
            raise self._partitions.first.no_time()
        check_publish_id(publish_id)
        batch = as_sequence(messages)
        targets: dict[PublishTarget, None] = {}
        for found in self._router.find_batch(batch, publish_id is not None):
            targets.update(dict.fromkeys(await self._targets(found, until, timeout)))
        if len(targets) > 1:
            names = named([item.session.stream for item in targets])
            raise ArgumentError(
                f'the messages of an atomic batch belong to one partition, not to {names}'
            )
        for item in targets:
            await item.publisher.send_atomic(batch, left(until), publish_id=publish_id)

    # -- batches

    def _batch(self, found: Found, message: Message) -> None:
        """Queue a message for several partitions, or until its route is known."""
        if self._router.holds or isinstance(found, str):
            self._held.add(found, message)
            return
        targets = as_targets(found)
        for item in targets:  # all or none
            session = item.session
            session.check()
            if session.core.room() <= 0:
                raise session.batch_full()
        put_batched(targets, message)

    async def flush(self, timeout: float | None = None) -> None:
        """Send the messages that `batch` has queued, and wait until all of them are confirmed.

        Flushes all partitions concurrently.  If the time is up for some of them, the next call
        raises the errors of the others.

        :param timeout: seconds to wait for the confirms; None for no limit, 0 as in
            :meth:`Publisher.flush`.
        :raises NoRouteError: no partition is bound to the key of a message; all other messages are
            sent.

        And the errors of :meth:`Publisher.flush`; their attribute `stream` is the partition, or
        None if several partitions failed.
        """
        partitions = self._partitions
        partitions.first.core.check_loop()
        until = end_of(timeout)
        if until == NOW and self._held:
            raise partitions.first.no_time(queued=True)
        if self._router.holds:
            late = 'the queued messages', 'they stay queued', ConfirmTimeout
            await self._routes.in_time(self._held.release(), until, timeout, *late)
        partitions.check_open()
        busy = [
            item
            for item in self._publishers
            if item._core.filling.count or item._core.flushed or item._session.full
        ]
        calls = [functools.partial(item._send_batches, left(until)) for item in busy]
        raise_any(self._flush_error(busy, await settle_each(calls)))

    def _flush_error(
        self, busy: Sequence[Publisher], results: Sequence[list[ConfirmGroup] | Exception]
    ) -> Exception | None:
        """Return the error that `flush` raises, and forget what it stands for."""
        errors = [item for item in results if isinstance(item, Exception)]
        sent = [
            (item, got) for item, got in zip(busy, results, strict=True) if isinstance(got, list)
        ]
        if errors:  # the next flush raises those of the other partitions again
            errors += [batch.error for _, got in sent for batch in got if batch.error is not None]
        else:
            errors += [error for item, got in sent if (error := item._batch_error(got))]
            errors += self._held.take_errors()
        return summary(errors)
