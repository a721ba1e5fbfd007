"""Publishers of streams.

A message gets its publishing id and is encoded when it enters the window, without an await between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from ...error import (
    ArgumentError,
    ConfirmTimeout,
    PublisherError,
    PublisherNameInUse,
    PublishError,
    RbFlyError,
    SendProgress,
    raise_any,
)
from ...protocol._entry import SubEntry
from ...protocol._publish import PublishWindow
from ...protocol.compression import compressor
from .. import types
from .._waiting import NOW, end_of, in_time
from ..types import MessageCtx, PublisherInfo
from ._confirm import ConfirmFuture, ConfirmGroup
from ._core import FastPublisher, PublisherCore
from .atomic import confirmed, send_atomic
from .base import BasePublisher
from .confirmation import Confirmation, Failures, summary
from .semaphore import WindowSemaphore
from .send_many import SendManyCall, StreamDestination
from .session import PublisherSession


class Publisher(FastPublisher, BasePublisher):
    """Sends messages to a stream; safe to use from many tasks at once.

    `send`, `submit` and `send_many` send messages; `batch` queues them for `flush`.
    Messages of a task leave in the order of its calls.  :meth:`StreamsClient.publisher` creates a
    publisher.

    It ends with `close`, or at the end of `async with client.publisher(...)`.  A publisher that
    loses its last reference before that also ends: it sends all queued messages, but does not wait
    for their confirms.

    :ivar name: name for deduplication, empty for none; no other publisher may use it, see
        :ref:`publisher-names`.
    :ivar stream: name of the stream.
    """

    _amqp = True  # if false, messages are bytes, regardless of the argument `amqp`
    _bounded = True  # `batch` queues at most `max_unconfirmed` messages

    def __init__(self, session: PublisherSession, client: object) -> None:
        self.name: str = session.name
        self.stream: str = session.stream
        self._client = client  # keeps the client alive
        self._session = session
        self._core = session.core
        self._failures = Failures()
        self._end_failure: RbFlyError | None = None  # of closing, until `close` raises it

    @classmethod
    def _new_core(cls, info: PublisherInfo) -> PublisherCore:
        """Return the window of a publisher, and the tasks that wait for it."""
        encode = None if info.codec is None else info.codec.encode
        sub_entry = None
        if info.sub_entry_size:
            compress = compressor(info.compression)
            code = info.compression.code
            sub_entry = SubEntry(info.sub_entry_size, code, compress, encode)
        amqp = info.amqp and cls._amqp
        window = PublishWindow(
            0, None, info.max_unconfirmed, 1, info.filter_extract, amqp, sub_entry, encode
        )
        window.set_named(bool(info.name))
        loop = asyncio.get_running_loop()
        return PublisherCore(loop, window, WindowSemaphore, cls._bounded, bool(info.name))

    @property
    def _status(self) -> str:
        return self._session.status

    @property
    def _reconnects(self) -> int:
        return max(0, self._session.registration.opened - 1)

    @property
    def next_publish_id(self) -> int:
        """Publishing id of the next message, or of the next sub-entry to begin.

        The first id is 1.  A publisher with a name continues after the last id that the broker has
        stored for the name.

        :raises PublisherError: `wait=False` was passed for a publisher with a name, and the broker
            has not declared it.
        """
        if self._core.undeclared:
            raise PublisherError(self._session.not_declared)
        return self._core.window.next_id

    @property
    def unconfirmed(self) -> int:
        """Number of messages that the broker has neither confirmed nor refused, including queued
        messages of `batch`."""
        return self._core.window.unsettled

    @property
    def capacity(self) -> int:
        """Number of messages that can be sent now without waiting for confirms: free places of
        `max_unconfirmed`.  0 if other messages wait for a place, if the write buffer of the
        connection is full, while a publisher with a name waits to be declared, and once the
        publisher takes no more messages: it is closed, its client was disconnected, or another
        publisher uses its name."""
        session, core = self._session, self._core
        if session.is_over or core.capacity.waiting:
            return 0
        return core.free()

    def __del__(self) -> None:
        if self._core is not None:  # else only `__new__` was called
            self._session.abandon()

    async def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed.

        Does not wait for messages whose calls of `send` have timed out or were cancelled.  Other
        calls that still wait for a confirm then raise :class:`.PublisherError`.

        :raises PublishError: the broker refused messages, and neither `flush` nor a result of
            `submit` has reported this to the program; `errors` lists them (at most 1,000 of
            `submit`), `total` counts all.
        :raises PublisherNameInUse: another publisher uses the same name, and no other call has
            raised this error.
        :raises ConfirmTimeout: the publisher made no progress for the client's `close_timeout`;
            `unconfirmed` counts the messages that may be stored, `unsent` those that are not.  Not
            raised if other calls have already reported all of them.
        :raises StreamConnectionError: the publisher could not reconnect to confirm messages whose
            outcome is unreported.
        """
        await self._end()
        raise_any(self._end_error())

    async def _end(self) -> None:
        """Close the publisher; `_end_error` then returns the error of this."""
        try:
            await self._session.close()
        except (ConfirmTimeout, PublisherNameInUse) as ex:
            self._end_failure = ex

    def _end_error(self) -> Exception | None:
        """Return the error that `close` raises, and forget it: the caller must not await before it
        raises the error."""
        # `PublisherSession.close` raises PublisherNameInUse, if no call has raised it.
        errors = self._core.report([*self._core.flushed, self._core.filling])
        found = [ex for ex in errors if not isinstance(ex, PublisherNameInUse)]
        found += self._failures.errors()
        count, self._failures = self._failures.count, Failures()
        error, self._end_failure = self._end_failure, None
        if error is not None:
            refused = summary([ex for ex in found if isinstance(ex, PublishError)])
            error.__cause__ = refused or error.__cause__
            return error
        return summary(found, count)

    def _abort(self, error: Exception) -> None:
        """Send all queued messages, and close without waiting for confirms."""
        self._session.abort(error)

    async def send(
        self, message: types.AMQPBody | MessageCtx, timeout: float | None = None
    ) -> None:
        """Send a message and wait until the broker has confirmed it.

        Messages that several tasks send in one turn of the event loop share frames.

        If the call is cancelled or times out, the caller has given up.  If the publisher has not
        sent the message, it withdraws it and never sends it.  Otherwise the broker may still store
        it; without a name, the publisher does not send it again after a reconnect.  Messages in
        sub-entries are not withdrawn.

        A context with an explicit publishing id may be sent again while it is unconfirmed: both
        calls wait for the same confirm, but not in sub-entries, where it raises ValueError.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for the confirm; None for no limit.  0 raises ConfirmTimeout
            before anything is sent: use `submit` to send without waiting.
        :raises PublishError: the broker did not store the message.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0.
        :raises ValueError: the timeout is negative, or the message's explicit publishing id is not
            above the last one used.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises ConfirmTimeout: the broker did not confirm the message in time; `outcome` says
            whether it may still be stored.  :class:`.WindowTimeout` if the window stayed full.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        until: float | None = None
        if timeout is not None:
            until = end_of(timeout)
            if until == NOW:
                self._session.check()
                raise self._session.no_time()
        wait: ConfirmFuture | None
        try:
            wait = self._begin(message)
        except ArgumentError:
            wait = self._core.join(message)
            if wait is None:
                raise
        if wait is None:
            wait = self._core.join(message) or await self._wait_and_put(message, timeout, until)
        if until is not None:
            await confirmed(self._session, wait, timeout, until, 'the message')
            return
        try:
            await wait
        except asyncio.CancelledError:
            self._session.give_up(wait)
            raise

    async def _wait_and_put(
        self, message: types.AMQPBody | MessageCtx, timeout: float | None, until: float | None
    ) -> ConfirmFuture:
        """Wait for capacity, then put a message into the window; return what to await."""
        if not await self._session.wait_capacity(1, until):
            raise self._session.window_timeout(timeout)
        try:
            return self._put(message)
        except BaseException as ex:
            self._core.capacity.grant()  # the capacity that this message does not need
            wait = self._core.join(message) if isinstance(ex, ArgumentError) else None
            if wait is None:
                raise
            return wait

    async def submit(
        self, message: types.AMQPBody | MessageCtx, timeout: float | None = None
    ) -> Confirmation:
        """Send a message without waiting for its confirm; wait only until the window has capacity.

        To wait for the confirm, await the result: `await (await publisher.submit(message))`.
        Messages that are submitted in one turn of the event loop share frames.  An idle publisher
        writes the frame at the end of the turn, or once a task awaits one of the confirms.
        If the program never retrieves the result of a future that failed, `close` raises its error.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for capacity; None for no limit, 0 not to wait.
        :returns: a future of the confirm, which raises the errors of `send`.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0.
        :raises ValueError: the timeout is negative, or the message's explicit publishing id is not
            above the last one used.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises WindowTimeout: the window had no capacity in time; the message was not sent.
        """
        if timeout is not None or not self._is_ready():
            until = end_of(timeout)
            self._session.check()
            if not await self._session.wait_capacity(1, until):
                raise self._session.window_timeout(timeout)
        core = self._core
        try:
            confirmation = Confirmation(message, core, self._failures)
        except BaseException:
            core.capacity.grant()  # the capacity that this message does not need
            raise
        core.defer()
        return confirmation

    async def send_many(
        self,
        messages: Iterable[types.AMQPBody | MessageCtx]
        | AsyncIterable[types.AMQPBody | MessageCtx],
        timeout: float | None = None,
        *,
        progress: SendProgress | None = None,
    ) -> int:
        """Send messages as fast as the window permits, and wait until all are confirmed.

        Takes a message only when the window has capacity for it, and sends every message that it
        takes, however the call ends.  Stops at the first error, waits for the confirms of the
        messages sent, and raises the error.  If the broker refused a message, that error takes
        precedence.  The error's `index` is the number of the message that caused it, or None if no
        single message did; its `progress` says how many messages were taken, and which of them are
        confirmed, refused or unknown.  After a timeout or a cancellation, the call does not wait
        for confirms: messages in flight are unknown, and may still be stored.

        If the call ends while it waits for `__anext__`, it cancels that wait.  This finishes an
        asynchronous generator.  An iterator that survives a cancellation, such as
        :class:`Subscription`, can be passed to another call.

        :param messages: list, iterator or asynchronous iterator of bodies or contexts.
        :param timeout: seconds until the last confirm; None for no limit.  0 raises ConfirmTimeout
            before anything is sent.
        :param progress: filled in when the call ends, even if it is cancelled.
        :returns: number of messages sent.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises AMQPEncoderError: a message cannot be encoded as AMQP 1.0.
        :raises ValueError: the timeout is negative, or an explicit publishing id is not above the
            one before it.  In the latter case, no message of a list or tuple is sent.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: a message does not fit into a frame.
        :raises ConfirmTimeout: the broker did not confirm all messages in time.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        return await SendManyCall(StreamDestination(self._session)).send(
            messages, timeout, progress
        )

    async def send_atomic(
        self,
        messages: Iterable[types.AMQPBody | MessageCtx],
        timeout: float | None = None,
        *,
        publish_id: int | None = None,
    ) -> None:
        """Send messages of which the broker stores all or none; wait until it has confirmed them.

        They travel as one sub-entry with one publishing id, compressed if the publisher has a
        `compression`.  If the call is cancelled or times out, see :meth:`send`: the whole batch is
        withdrawn, or stored, or not.  A batch counts its messages in `max_unconfirmed`; one with
        more messages than that is sent when nothing else is in flight.  Without messages, the call
        does nothing.

        :param messages: up to 65,535 bodies or contexts without publishing ids, in any iterable;
            together they must fit into a frame.
        :param timeout: seconds to wait for the confirm; None for no limit, 0 as in :meth:`send`.
        :param publish_id: publishing id of the batch, 0 to 2**64 - 1, above the last one used; None
            for the next one.
        :raises PublishError: the broker did not store the batch.
        :raises AMQPEncoderError: a message cannot be encoded as AMQP 1.0; `index` is its number.
        :raises MessageTooLarge: the batch does not fit into a frame.
        :raises ValueError: the timeout is negative, the publishing id is not above the last one
            used, there are too many messages, a message has its own publishing id, or the publisher
            has a `filter_extract`.
        :raises PublisherError: the publisher is closed.
        :raises ConfirmTimeout: the broker did not confirm the batch in time; `outcome` says whether
            it may still be stored.  :class:`.WindowTimeout` if the window stayed full.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        await send_atomic(self._session, messages, timeout, publish_id)

    async def flush(self, timeout: float | None = None) -> None:
        """Send the messages that `batch` has queued, and wait until all of them are confirmed.

        Also reports messages of `batch` that another call has sent, and those of an earlier call of
        `flush` that timed out.  If other messages fill the window, so that `batch` has refused one,
        waits until there is capacity.  With `wait=False` and a name, waits until the publisher is
        declared.

        If the time is up, the publisher continues to send the messages, and the next call waits for
        them: do not queue them again.

        :param timeout: seconds to wait for the confirms; None for no limit.  0 raises
            ConfirmTimeout, unless all messages are confirmed, and sends nothing: the messages stay
            queued.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises ConfirmTimeout: the broker did not confirm all messages in time.
            :class:`.WindowTimeout` if the window stayed full of other messages.
        :raises ValueError: the timeout is negative.
        :raises PublisherError: the publisher is closed.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        batches = await self._send_batches(timeout)
        raise_any(self._batch_error(batches))

    async def _send_batches(self, timeout: float | None) -> list[ConfirmGroup]:
        """Send the queued messages, and wait until all of `batch` are settled.

        Returns their groups; the errors remain until `_batch_error` returns them.
        """
        until = end_of(timeout)
        session, core = self._session, self._core
        if core.undeclared and (until == NOW or not await session.wait_declared(until)):
            raise session.window_timeout(timeout)
        if until == NOW and any(item.remaining for item in (*core.flushed, core.filling)):
            raise session.no_time(queued=True)
        # Includes batches of a flush that timed out, or that runs concurrently.
        batches = core.flush()
        full = session.full and not batches and core.room() <= 0  # of other messages
        if full and not await core.capacity.wait(1, 0, until):
            raise session.window_timeout(timeout)
        session.on_flush()
        for batch in batches:
            if batch.settled:
                continue
            if until is None:
                await batch.wait(core.loop)
            elif not await in_time(batch.wait(core.loop), until):
                for late in batches:
                    late.reported = True  # for `close`
                raise session.late(
                    f'the broker did not confirm all messages within {timeout} s;'
                    ' the others may still be stored'
                )
        return batches

    def _batch_error(self, batches: list[ConfirmGroup]) -> Exception | None:
        """Return the error of groups, and forget it: the caller must not await before it raises
        the error."""
        error = summary(self._core.report(batches))
        if error is not None:
            self._session.on_raised(error)
        return error
