"""Publishers of super streams: one ordinary publisher for each partition."""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections import deque
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    MutableSet,
    Sequence,
)
from typing import Any, TypeVar

from ...error import (
    ConfirmTimeout,
    NoRouteError,
    PublisherError,
    RbFlyError,
    SendProgress,
    WindowTimeout,
    add_text,
    raise_any,
    set_fields,
)
from ...net.cluster import Cluster
from ...net.observer import call_each
from ...net.waiting import outcome
from ...protocol._publish import PublishWindow
from .._admin.partitions import query_route
from .._publish._confirm import ConfirmFuture, ConfirmGroup
from .._publish.base import BasePublisher
from .._publish.confirmation import (
    KEPT,
    Confirmation,
    Failures,
    JoinedConfirmation,
    or_refusal,
    summary,
)
from .._publish.publisher import Publisher
from .._publish.session import PublisherSession
from .._waiting import NOW, end_of, in_time
from ..types import AMQPBody, MessageCtx, PublisherInfo
from ._routing import FastRoutedPublisher, PublishTarget, Router
from .routing import Route
from .send_many import RoutedCall

# Messages in flight of all partitions together.  The broker stops reading from a connection that
# has 50,000 unconfirmed messages; windows that shrink may still be full.
IN_FLIGHT = 30_000
ON_CONNECTION = 256  # publishers
# Seconds for which a publisher remembers that a key has no partition, and how many keys at most:
# a program may send any number of messages with such a key, and use any number of them.
NO_ROUTE = 1.0
NO_ROUTE_KEYS = 1000

logger: logging.Logger = logging.getLogger('rbfly.streams')

T = TypeVar('T')
Message = AMQPBody | MessageCtx
Targets = Sequence[PublishTarget]
Found = PublishTarget | tuple[PublishTarget, ...] | str
# Confirms of the partitions that have taken a message, by its explicit publishing id and its
# partitions, if not all of them have taken and confirmed it.
PartsKey = tuple[Any, ...]
Parts = dict[PartsKey, dict[PublishTarget, Confirmation]]


async def retried(
    cluster: Cluster, query: Callable[[], Awaitable[T]], limit: float | None = None
) -> T:
    """Return the result of a query about a super stream; repeat it if the connection is lost.

    :param limit: seconds, infinity for no limit; None for the client's own.
    """
    async with cluster.deadline(limit) as deadline:
        return await cluster.retry(deadline, query)


def share_windows(sessions: MutableSet[PublisherSession]) -> int:
    """Divide the messages in flight among the partitions of all publishers of a client.

    Returns the limit of each partition.
    """
    limit = IN_FLIGHT // max(1, min(ON_CONNECTION, len(sessions)))
    for session in sessions:
        session.resize(limit)
    return limit


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
        for item in publishers[1:]:
            item._core.wake_with(publishers[0]._core)
        parts = [PublishTarget(i, item) for i, item in enumerate(publishers)]
        by_name = {item.publisher.stream: item for item in parts}
        self._router = Router(route, names, by_name)
        self._publishers = publishers
        self._cluster = cluster
        self._info = info
        self._windows = windows
        self._failures = Failures()
        self._asking: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        # By key without a partition: the broker's answer, and the time until which it is valid.
        self._no_route: dict[str, tuple[tuple[str, ...], float]] = {}
        self._closed: asyncio.Event | None = None  # set when closing has ended
        self._parts: Parts = {}
        # Messages of `batch` that wait for the route of the first one, and errors of such messages.
        self._held: deque[tuple[Found, Message]] = deque()
        self._held_errors: list[Exception] = []
        self._routing = asyncio.Lock()
        self._sending: asyncio.Task[None] | None = None  # sends them after the program's last call

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
        self._publishers[0]._core.check_loop()
        if self._closed is None:
            self._closed = asyncio.Event()
            try:
                unexpected = await self._close_each()
                self._held_errors += unexpected
                del unexpected  # the traceback of an error must not refer to it
            finally:  # a cancelled task has not closed them
                self._abort_now(PublisherError(f'{self!r} was closed before the confirm'))
                self._closed.set()
        else:  # another task closes it, or it was closed
            await self._closed.wait()
        raise_any(self._end_error())

    def _end_error(self) -> Exception | None:
        """Return the error that `close` raises, and forget what it stands for."""
        errors = [error for item in self._publishers if (error := item._end_error())]
        errors += self._held_errors + self._failures.errors()
        self._held_errors, self._failures = [], Failures()
        return summary(errors)

    async def _close_each(self) -> list[Exception]:
        """Close all partitions; return unexpected errors, and leave those of messages there."""
        if self._held:
            closing = self._publishers[0]._session.closing
            try:
                async with closing.limit():  # the partitions then wait less
                    await self._route_held()
            except TimeoutError:
                self._drop_held(f'within {closing.timeout} s')
            except RbFlyError as ex:
                self._held_errors.append(ex)
        results = await self._each([item._end for item in self._publishers])
        return [item for item in results if item is not None]

    def __del__(self) -> None:
        if not getattr(self, '_held', None):  # or only `__new__` was called
            return
        loop = self._publishers[0]._core.loop
        if loop.is_closed():
            self._log_lost()
        else:  # as PublisherSession.abandon
            text = f'{self!r} was closed because the program dropped its last reference'
            loop.call_soon_threadsafe(self._abort, PublisherError(text))

    def _abort(self, error: Exception) -> None:
        """Send all queued messages, and close without waiting for confirms.

        Messages whose routes are unknown are sent later, in the background.
        """
        loop = self._publishers[0]._core.loop
        if self._held and self._closed is None and loop.is_running():
            self._sending = loop.create_task(self._send_held(error))
        else:
            self._abort_now(error)

    async def _send_held(self, error: Exception) -> None:
        try:
            async with self._publishers[0]._session.closing.limit():
                await self._route_held()
        except (TimeoutError, RbFlyError):
            pass  # logged
        finally:
            if self._closed is None:  # else `close` is waiting for the confirms
                self._log_lost()
                self._abort_now(error)
            self._sending = None  # it refers to this

    def _log_lost(self) -> None:
        """Log that messages whose routes are unknown are lost; no call raises this."""
        count = len(self._held) + len(self._held_errors)
        if count:
            prefix = self._cluster.settings.log_prefix
            text = '%ssuper stream %r: messages whose partitions are unknown were not sent: %d'
            logger.warning(text, prefix, self.stream, count)

    def _abort_now(self, error: Exception) -> None:
        call_each([item._abort for item in self._publishers], error)
        self._end()

    def _end(self) -> None:
        for task in self._asking.values():
            task.cancel()
        for item in self._publishers:
            self._windows.discard(item._session)
        share_windows(self._windows)
        if self._held:
            self._drop_held('before it was closed')

    def _drop_held(self, when: str) -> None:
        """Drop the messages whose routes are unknown; `close` raises an error that says so."""
        count = len(self._held)
        self._held.clear()
        error = WindowTimeout(
            f'the broker did not report the partitions of keys {when}; messages that were not'
            f' sent: {count}'
        )
        error.unsent = count
        self._failures.add(error)

    def _check_open(self) -> None:
        """Check that the publisher takes messages; a partition may have failed."""
        session = self._publishers[0]._session
        session.core.check_loop()
        if session.is_closed:
            session.check()

    def _timed_out(self, waited: Sequence[PublisherSession], text: str) -> ConfirmTimeout:
        """Return the error of a call that has waited for the confirms of partitions."""
        problems = [item for item in waited if item.registration.problem is not None]
        session = [*problems, *waited, self._publishers[0]._session][0]
        error = session.timed_out(text, stream=self.stream)
        error.stream = session.stream if problems else None
        return error

    def _or_refusal(self, late: ConfirmTimeout) -> RbFlyError:
        """Return the error of a call whose time is up, or why the broker refuses the client."""
        return or_refusal(late, None if self._cluster.connected else self._cluster.refusal.error)

    async def _each(
        self, calls: Iterable[Callable[[], Coroutine[Any, Any, T]]]
    ) -> list[T | Exception]:
        """Make calls concurrently; return the result or the error of each."""
        found = await asyncio.gather(*[call() for call in calls], return_exceptions=True)
        results: list[T | Exception] = []
        for item in found:
            if isinstance(item, BaseException) and not isinstance(item, Exception):
                raise item
            results.append(item)
        return results

    async def _targets(
        self,
        found: Found,
        until: float | None = None,
        timeout: float | None = None,
    ) -> Targets:
        """Return the partitions of a message from what the router has found.

        First, queue the messages of `batch` before it.
        """
        if self._router.holds:
            await self._in_time(self._route_held(), until, timeout, 'the messages queued before')
        if not isinstance(found, str):
            return as_targets(found)
        return as_targets(await self._in_time(self._ask(found), until, timeout, f'key {found!r}'))

    async def _in_time(
        self,
        call: Coroutine[Any, Any, T],
        until: float | None,
        timeout: float | None,
        what: str,
        end: str = 'the message was not sent',
        kind: type[ConfirmTimeout] = WindowTimeout,
    ) -> T:
        """Return the result of a call that asks the broker for partitions, if it ends in time.

        :param what: what the partitions are asked for.
        :param end: what becomes of the messages if the time is up.
        :param kind: the error if the time is up.
        """
        limit = asyncio.timeout_at(until)
        try:
            async with limit:
                return await call
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            del limit  # it refers to the task
        # not in the handler: the TimeoutError refers to the task
        text = f'the broker did not report the partitions of {what} within {timeout} s; {end}'
        raise self._or_refusal(kind(text))

    async def _ask(self, key: str) -> PublishTarget | tuple[PublishTarget, ...]:
        """Return the partitions of a key; ask the broker, and cache the answer.

        If the key has no partition, do not ask again for `NO_ROUTE` seconds.
        """
        self._check_open()
        names, until = self._no_route.get(key, ((), 0.0))
        if asyncio.get_running_loop().time() >= until:
            names = await self._query(key)
        return self._router.targets(names, key)

    def _keep(self, key: str, names: tuple[str, ...]) -> None:
        """Cache the broker's answer."""
        kept = self._no_route
        kept.pop(key, None)
        try:
            self._router.cache[key] = self._router.targets(names, key)
        except NoRouteError:
            kept[key] = names, asyncio.get_running_loop().time() + NO_ROUTE
            if len(kept) > NO_ROUTE_KEYS:
                del kept[next(iter(kept))]

    async def _query(self, key: str) -> tuple[str, ...]:
        """Ask the broker for the partitions of a key; calls that overlap share one request.

        The request goes on, and its answer is cached, if the time of the call is up.
        """
        task, asking = self._asking.get(key), self._asking
        if task is None:
            cluster, stream = self._cluster, self.stream  # the task must not keep the publisher
            query = retried(cluster, lambda: query_route(cluster, stream, key))
            task = asking[key] = asyncio.ensure_future(query)
            task.add_done_callback(functools.partial(on_answer, weakref.ref(self), asking, key))
        try:
            names = await outcome(task)
        except RbFlyError as ex:  # a copy
            ex.outcome = 'not_sent'
            raise
        if names is None:  # `_end` has cancelled it
            self._check_open()
            raise PublisherError(f'the query for the partitions of key {key!r} was cancelled')
        return names

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

    async def _send(
        self,
        found: Found,
        message: Message,
        timeout: float | None,
    ) -> None:
        """Send a message that does not have just one partition that is known."""
        until = end_of(timeout)
        if until == NOW:
            self._check_open()
            raise self._publishers[0]._session.no_time()
        targets = await self._targets(found, until, timeout)
        if len(targets) == 1:
            await targets[0].publisher.send(message, left(until))
            return
        parts = await self._submit(targets, message, until, can_withdraw=True)
        waiting: list[PublisherSession] = []
        confirmed = False
        try:
            confirmed = await in_time(JoinedConfirmation([*parts.values()], self._failures), until)
        finally:
            if not confirmed:
                waiting = [item.session for item, part in parts.items() if not part.done()]
                give_up(parts)
                keep_parts(self._parts, key_of(targets, message), parts)
        if confirmed:
            return
        raise self._or_refusal(self._late(waiting, timeout, is_sent=bool(parts)))

    def _late(
        self, waited: Sequence[PublisherSession], timeout: float | None, is_sent: bool
    ) -> ConfirmTimeout:
        """Return the error of a message that several partitions have not confirmed in time."""
        if is_sent:
            return self._timed_out(
                waited,
                f'the broker did not confirm the message on all partitions within {timeout} s;'
                ' it may still be stored',
            )
        late = self._timed_out(
            waited, f'it could not send the message within {timeout} s, and withdrew it'
        )
        late.outcome, late.retriable = 'not_sent', True
        return late

    async def _submit(
        self,
        targets: Targets,
        message: Message,
        until: float | None,
        *,
        can_withdraw: bool = False,
    ) -> dict[PublishTarget, Confirmation]:
        """Put a message into the window of each of its partitions.

        If an earlier call did so for some of them, put it into those of the others.

        :param can_withdraw: if the call is cancelled or times out, give the message up.
        """
        used = key_of(targets, message)
        kept = {} if used is None else self._parts.pop(used, {})
        parts = {
            item: part
            for item, part in kept.items()
            if part.done() or item.core.window.resume(part.publish_id, part)
        }
        try:
            for item in targets:
                if item not in parts:
                    parts[item] = await item.publisher.submit(message, left(until))
        except BaseException as ex:
            for confirmation in parts.values():  # this call reports the failure
                confirmation._see()
            if can_withdraw and isinstance(ex, asyncio.CancelledError | ConfirmTimeout):
                give_up(parts)
            if parts and isinstance(ex, RbFlyError):
                note_partial(ex, item)
            keep_parts(self._parts, used, parts)
            raise
        return parts

    def _join(
        self, targets: Targets, message: Message, parts: dict[PublishTarget, Confirmation]
    ) -> JoinedConfirmation:
        """Return a future of the confirms of a message's partitions."""
        joined = JoinedConfirmation([*parts.values()], self._failures)
        used = key_of(targets, message)
        if used is not None:
            joined.add_done_callback(functools.partial(keep_failed, self._parts, used, parts))
        return joined

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
        parts = await self._submit(targets, message, until)
        if len(parts) == 1:
            return parts[targets[0]]
        return self._join(targets, message, parts)

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
        before all of them had capacity.

        :param messages: list, iterator or asynchronous iterator of bodies or contexts.
        :param timeout: seconds until the last confirm; None for no limit, 0 as in
            :meth:`Publisher.send_many`.
        :param progress: filled in when the call ends, even if it is cancelled.
        :returns: number of messages sent.
        :raises NoRouteError: a message has no partition; the messages before it are sent.

        And the errors of :meth:`Publisher.send_many`; their attribute `stream` is the partition.
        """
        session = self._publishers[0]._session
        route, before = self._targets, self._route_held
        call = RoutedCall(session, self._router, route, before, self._check_open, self._timed_out)
        return await call.send(messages, timeout, progress)

    # -- batches

    def _batch(self, found: Found, message: Message) -> None:
        """Queue a message for several partitions, or until its route is known."""
        if self._router.holds or isinstance(found, str):
            self._check_open()
            if len(self._held) >= self._info.max_unconfirmed:
                raise self._publishers[0]._session.batch_full()
            # raises the error of a message that cannot be encoded
            PublishWindow(0, 0, 1, 0, None, self._info.amqp).put(message, None)
            self._held.append((found, message))
            self._router.holds = True
            return
        targets = as_targets(found)
        for item in targets:  # all or none
            session = item.session
            session.check()
            if session.core.room() <= 0:
                raise session.batch_full()
        self._put(targets, message)

    def _put(self, targets: Targets, message: Message) -> None:
        """Queue a message for its partitions, which have capacity."""
        queued = 0
        try:
            for item in targets:
                item.publisher.batch(message)
                queued += 1
        except RbFlyError as ex:
            if queued:  # a publishing id that only later partitions have used
                note_partial(ex, targets[queued])
            raise

    async def _route_held(self) -> None:
        """Queue the messages whose routes were unknown, in order.

        :raises RbFlyError: the broker did not report a route; the messages stay.
        """
        if not self._router.holds:
            return
        async with self._routing:
            keys = {found for found, _ in self._held if isinstance(found, str)}
            if len(keys) > 1:  # ask for all routes at once; the answers are cached
                await asyncio.gather(*map(self._ask, keys), return_exceptions=True)
            while self._held:
                found, message = self._held[0]
                try:
                    if isinstance(found, str):
                        found = self._router.cache.get(found) or await self._ask(found)
                    targets = as_targets(found)
                    while full := [item for item in targets if item.core.room() <= 0]:
                        await full[0].session.wait_capacity()
                        if any(item.core.room() <= 0 for item in targets):
                            full[0].core.capacity.grant()  # others may use it meanwhile
                    try:
                        self._put(targets, message)
                    finally:  # capacity that the message does not need
                        for item in targets:
                            item.core.capacity.grant()
                except Exception as ex:
                    if isinstance(ex, RbFlyError) and ex.retriable:
                        raise
                    self._held_errors.append(ex)
                if self._held:  # else closed meanwhile
                    self._held.popleft()
            self._router.holds = False

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
        self._publishers[0]._core.check_loop()
        until = end_of(timeout)
        if until == NOW and self._held:
            raise self._publishers[0]._session.no_time(queued=True)
        if self._router.holds:
            late = 'the queued messages', 'they stay queued', ConfirmTimeout
            await self._in_time(self._route_held(), until, timeout, *late)
        self._check_open()
        busy = [
            item
            for item in self._publishers
            if item._core.filling.count or item._core.flushed or item._session.full
        ]
        calls = [functools.partial(item._send_batches, left(until)) for item in busy]
        raise_any(self._flush_error(busy, await self._each(calls)))

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
            errors += self._held_errors
            self._held_errors = []
        return summary(errors)


def as_targets(found: PublishTarget | tuple[PublishTarget, ...]) -> tuple[PublishTarget, ...]:
    return found if isinstance(found, tuple) else (found,)


def on_answer(
    publisher: weakref.ref[SuperStreamPublisher],
    asking: dict[str, asyncio.Task[tuple[str, ...]]],
    key: str,
    task: asyncio.Task[tuple[str, ...]],
) -> None:
    """Cache the broker's answer to the request for the partitions of a key."""
    del asking[key]
    found = publisher()
    if not (task.cancelled() or task.exception() or found is None):
        found._keep(key, task.result())


def key_of(targets: Targets, message: Message) -> PartsKey | None:
    """Return the key of a message to several partitions in `Parts`; None without explicit id."""
    if isinstance(message, MessageCtx) and message.is_set_stream_publish_id:
        return message.stream_publish_id, *targets
    return None


def keep_parts(kept: Parts, id: PartsKey | None, parts: dict[PublishTarget, Confirmation]) -> None:
    """Keep the confirms of a message, so that a later call can complete it."""
    taken = {item: part for item, part in parts.items() if part.failure is None}
    if id is None or not taken:
        return
    kept[id] = taken
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


def give_up(parts: dict[PublishTarget, Confirmation]) -> None:
    """Give up a message, and remove the partitions that have withdrawn it."""
    for item, part in [*parts.items()]:
        if not part.done() and item.session.give_up(part):
            del parts[item]


def keep_failed(
    kept: Parts, id: PartsKey, parts: dict[PublishTarget, Confirmation], joined: Any
) -> None:
    """Keep the confirms of a message if it is not confirmed by all of its partitions."""
    if joined.cancelled() or joined.failure is not None:
        keep_parts(kept, id, parts)


def note_partial(error: RbFlyError, failed: PublishTarget) -> None:
    """Note in an error of one partition that other partitions have taken the message."""
    name = failed.session.stream
    add_text(error, after=f' (partition {name!r}); other partitions may store the message')
    set_fields(error, outcome='unknown', retriable=False)


def left(until: float | None) -> float | None:
    """Return the seconds left until a time of the event loop; None for no limit.

    They are whole milliseconds, because errors contain them.
    """
    if until is None or until == NOW:
        return until
    return max(round(until - asyncio.get_running_loop().time(), 3), 0.001)
