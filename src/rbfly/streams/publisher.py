"""Publishers that send each message at once, the base of all publishers, and how one is opened.

A message gets its publishing id and is encoded when it enters the window, without an await between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..checks import check_type
from ..error import (
    ConfirmTimeout,
    PublisherError,
    PublishError,
    RbFlyError,
    SendProgress,
    WindowTimeout,
)
from ..net.cluster import Cluster
from ..protocol._entry import SubEntry
from ..protocol._publish import PublishWindow
from ..protocol.compression import compressor
from ._sending import PublisherBase, PublisherCore
from .confirmation import Confirmation, Failures, summary
from .publishing import PublisherSession
from .send_many import ManyMessages
from .types import AMQPBody, MessageCtx, PublisherInfo
from .waiting import WindowSemaphore, deadline, in_time

P = TypeVar('P')

ID_MAX = 2**64 - 1

UNDECLARED = 'the publisher is not open: use `async with client.publisher(...)`'


def window_full(timeout: float | None) -> str:
    return f'the window of unconfirmed messages was full for {timeout} s; the message was not sent'


class BasePublisher(PublisherBase):
    """Base of all publishers; created by :meth:`StreamsClient.publisher`.

    :ivar name: name for deduplication, empty for none.
    :ivar stream: name of the stream.
    """

    _amqp = True  # if false, messages are bytes, regardless of the argument `amqp`
    _batched = False  # messages wait for a flush

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        self.name = info.name
        self.stream = info.stream
        self._client = client  # keeps the client alive
        self._session: PublisherSession | None = None  # set by `_attach`
        sub_entry = None
        if info.sub_entry_size:
            compress = compressor(info.compression)
            sub_entry = SubEntry(info.sub_entry_size, info.compression.code, compress)
        window = PublishWindow(
            publisher_id,
            0,
            info.max_unconfirmed,
            message_id,
            info.filter_extract,
            info.amqp and self._amqp,
            self._batched,
            sub_entry,
        )
        loop = asyncio.get_running_loop()
        error = PublisherError(UNDECLARED)
        self._core = PublisherCore(error, loop, window, WindowSemaphore)
        self._failures = Failures()
        self._reported = False  # `close` has raised the failures

    @property
    def message_id(self) -> int:
        """Publishing id of the next message, or of the next sub-entry to begin."""
        return self._core.window.next_id

    def __repr__(self) -> str:
        return f'<{type(self).__name__} stream={self.stream!r} name={self.name!r}>'

    def _attach(self, session: PublisherSession) -> None:
        """Publish through a session whose registration is open."""
        self._session = session
        session.bind(self._core, repr(self))

    def _require_session(self) -> PublisherSession:
        if self._session is None:
            raise PublisherError(UNDECLARED)
        return self._session

    async def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed.

        Other calls that still wait for a confirm then raise :class:`.PublisherError`.

        :raises PublishError: the broker refused messages, and neither `flush` nor a result of
            `submit` has reported this to the program; `errors` lists them (at most 1,000 of
            `submit`), `total` counts all.
        :raises ConfirmTimeout: the publisher made no progress for the client's `close_timeout`;
            `unconfirmed` counts the messages that may be stored, `unsent` those that are not.
        :raises StreamConnectionError: the publisher could not reconnect to confirm messages whose
            outcome is unreported.
        """
        session, failures = self._require_session(), self._unreported()
        try:
            await session.close()
        except ConfirmTimeout as ex:
            self._reported = True
            raise ex from summary([e for e in failures() if isinstance(e, PublishError)])
        if not self._reported:  # also if an earlier call was cancelled
            self._reported = True
            if error := summary(failures(), self._failures.count):
                raise error

    def _unreported(self) -> Callable[[], list[Exception]]:
        """Return a function that returns the failures, as of then, for `close` to raise."""
        return self._failures.errors

    def _abort(self, error: Exception) -> None:
        """Send all queued messages, and close without waiting for confirms."""
        self._require_session().abort(error)


class Publisher(BasePublisher):
    """Sends messages and waits for their confirms; safe to use from many tasks at once."""

    async def send(self, message: AMQPBody | MessageCtx, timeout: float | None = None) -> None:
        """Send a message and wait until the broker has confirmed it.

        Messages that several tasks send in one turn of the event loop share frames.  If the wait is
        cancelled or times out, the broker may still store the message.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for the confirm; None or 0 for no limit.
        :raises PublishError: the broker did not store the message.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0.
        :raises ValueError: the timeout is negative, or the message's explicit publishing id is not
            above the last one used.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises ConfirmTimeout: the broker did not confirm the message in time;
            :class:`.WindowTimeout` if the publisher did not send it.
        :raises StreamDoesNotExist: the stream was deleted.
        :raises StreamConnectionError: the publisher could not reconnect within the client's
            `reconnect_timeout`.
        """
        until = None if timeout is None else deadline(timeout)
        wait = self._begin(message)
        if wait is None:
            if not await self._require_session().wait_capacity(1, until):
                raise WindowTimeout(window_full(timeout))
            try:
                wait = self._put(message)
            except BaseException:
                self._core.capacity.grant()  # the capacity that this message does not need
                raise
        if until is None:
            await wait
        elif not await in_time(wait, until):
            raise ConfirmTimeout(
                f'the broker did not confirm the message within {timeout} s; it may still be stored'
            )

    async def submit(
        self, message: AMQPBody | MessageCtx, timeout: float | None = None
    ) -> Confirmation:
        """Send a message without waiting for its confirm; wait only until the window has capacity.

        To wait for the confirm, await the result: `await (await publisher.submit(message))`.
        If the program never retrieves the result of a future that failed, `close` raises its error.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param timeout: seconds to wait for capacity; None or 0 for no limit.
        :returns: a future of the confirm, which raises the errors of `send`.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0.
        :raises ValueError: the timeout is negative, or the message's explicit publishing id is not
            above the last one used.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises WindowTimeout: the window had no capacity in time; the message was not sent.
        """
        until = None if timeout is None else deadline(timeout)
        session, core = self._require_session(), self._core
        session.check()
        if not await session.wait_capacity(1, until):
            raise WindowTimeout(window_full(timeout))
        try:
            confirmation = Confirmation(message, core, self._failures)
        except BaseException:
            core.capacity.grant()  # the capacity that this message does not need
            raise
        core.schedule()
        return confirmation

    async def send_many(
        self,
        messages: Iterable[AMQPBody | MessageCtx] | AsyncIterable[AMQPBody | MessageCtx],
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
        :param timeout: seconds until the last confirm; None or 0 for no limit.
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
        if progress is None:
            progress = SendProgress()
        else:
            check_type('progress', progress, SendProgress)
        return await ManyMessages(self._require_session()).send(messages, timeout, progress)


class PublisherBin(Publisher):
    """A :class:`Publisher` that sends raw bytes, regardless of the argument `amqp`."""

    _amqp = False


@dataclass(eq=False, repr=False)
class OpenPublisher(AbstractAsyncContextManager[P]):
    """Context manager of one publisher.

    :param client: kept alive by the publisher.
    :param names: stream and name of each named publisher that the client has open.
    :param make: class of the publisher.
    """

    client: object
    cluster: Cluster
    names: set[tuple[str, str]]
    make: Callable[[int, PublisherInfo, object, int], P]
    info: PublisherInfo
    _session: PublisherSession | None = field(default=None, init=False)
    _publisher: Any = field(default=None, init=False)

    async def __aenter__(self) -> P:
        stream, name = key = self.info.stream, self.info.name
        self.cluster.check_loop()
        if self._session is not None:
            raise PublisherError('this publisher is already open: call client.publisher() again')
        if key in self.names:
            raise RbFlyError(
                f'this client already has a publisher named {name!r} on stream {stream!r}:'
                ' close it, or choose another name'
            )
        self._session = session = PublisherSession(self.cluster, stream, name)
        if name:
            self.names.add(key)
        try:
            publisher_id = await session.registration.open()
            if session.last_id == ID_MAX:
                raise PublisherError(
                    f'publisher {name!r} on stream {stream!r} has already used the highest'
                    f' publishing id, {ID_MAX}: choose another name'
                )
            next_id = session.last_id + 1
            publisher = self.make(publisher_id, self.info, self.client, next_id)
            if isinstance(publisher, BasePublisher):
                publisher._attach(session)
        except BaseException:
            self._release()
            raise
        self._publisher = publisher
        return publisher

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        publisher, self._publisher = self._publisher, None
        try:
            if error is None:
                await publisher.close()
            elif isinstance(error, Exception) or not isinstance(publisher, BasePublisher):
                try:
                    await publisher.close()
                except RbFlyError as ex:
                    error.add_note(f'closing the publisher also failed: {ex!r}')
            else:  # a cancelled task does not wait
                publisher._abort(PublisherError(f'{publisher!r} was closed because of {error!r}'))
        finally:
            self._release()

    def __del__(self) -> None:
        loop = self.cluster.loop if self._session is not None else None
        if loop is not None and not loop.is_closed():  # the `async with` block never ended
            loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        publisher, self._publisher = self._publisher, None
        try:
            if isinstance(publisher, BasePublisher):
                text = f'{publisher!r} was closed because its context manager was dropped'
                publisher._abort(PublisherError(text))
        finally:
            self._release()

    def _release(self) -> None:
        session, self._session = self._session, None
        try:
            if session is not None:
                session.registration.close()
        finally:
            self.names.discard((self.info.stream, self.info.name))
