"""Publishers for programs without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..checks import check_timeout
from ..error import ConfirmTimeout
from ..streams import BasePublisher, MessageCtx, SendProgress
from ..streams import Confirmation as AsyncConfirmation
from .thread import WAKE, ClientThread

if TYPE_CHECKING:
    from ..types import AMQPBody

    Message = AMQPBody | MessageCtx

MOST = 65_536  # messages of a batch, and one more, which is refused
RUN = 1_000  # messages of an iterator that pass to the client's thread together


class Publisher:
    """Sends messages to a stream or a super stream; created by `client.publisher(...)`.

    The methods block until what :class:`rbfly.streams.Publisher` awaits has happened, and have its
    arguments and errors.  Several threads may use a publisher at the same time; their messages
    share frames.  It ends with `close`, or at the end of `with`.

    :ivar name: name for deduplication, empty for none.
    :ivar stream: name of the stream or of the super stream.
    """

    def __init__(
        self,
        client: object,
        thread: ClientThread,
        context: AbstractAsyncContextManager[BasePublisher],
    ) -> None:
        self._client = client  # keeps the client open
        self._thread = thread
        self._context = context
        self._publisher: BasePublisher = thread.call(context.__aenter__)
        self.name: str = self._publisher.name
        self.stream: str = self._publisher.stream

    def __repr__(self) -> str:
        return f'<sync {self._publisher!r}>'

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self._context.__aexit__, kind, error, traceback)

    def close(self) -> None:
        """Send all queued messages, and wait until all messages are confirmed."""
        self._thread.call(self._publisher.close)

    @property
    def next_publish_id(self) -> int:
        """Publishing id of the next message."""
        return self._publisher.next_publish_id

    @property
    def unconfirmed(self) -> int:
        """Number of messages that the broker has neither confirmed nor refused."""
        return self._publisher.unconfirmed

    @property
    def capacity(self) -> int:
        """Number of messages that can be sent now without waiting for confirms."""
        return self._publisher.capacity

    def send(self, message: Message, timeout: float | None = None) -> None:
        """Send a message and wait until the broker has confirmed it."""
        self._thread.call(self._publisher.send, message, timeout)

    def submit(self, message: Message, timeout: float | None = None) -> Confirmation:
        """Send a message without waiting for its confirm; wait only until there is capacity."""
        found = self._thread.call(self._publisher.submit, message, timeout)
        return Confirmation(self, found)

    def send_many(
        self,
        messages: Iterable[Message],
        timeout: float | None = None,
        *,
        progress: SendProgress | None = None,
    ) -> int:
        """Send messages as fast as the window permits, and wait until all are confirmed.

        A list or tuple is the fastest.  The calling thread takes messages from an iterator by the
        thousand, up to 2,000 before it sends them: if the call fails, messages that it has taken
        and not sent are lost to the program.  If the iterator waits for messages, the ones before
        are not sent until it has returned a thousand, and the call notices an error or its timeout
        no earlier.  Pass such messages to `send` or `submit`.

        :returns: number of messages sent.
        """
        send_many = self._publisher.send_many
        if not is_lazy(messages):
            return self._thread.call(send_many, messages, timeout, progress=progress)
        feed = Feed(iter(messages))
        call = self._thread.start(send_many, feed, timeout, progress=progress)
        call.then(lambda: feed.wanted.put(None))
        try:
            feed.fill()
        except BaseException:  # an interrupt
            call.cancel()
            raise
        return call.wait()

    def send_atomic(
        self,
        messages: Iterable[Message],
        timeout: float | None = None,
        *,
        publish_id: int | None = None,
    ) -> None:
        """Send messages to one partition, of which the broker stores all or none."""
        if is_lazy(messages):
            messages = tuple(islice(messages, MOST))
        self._thread.call(self._publisher.send_atomic, messages, timeout, publish_id=publish_id)

    def batch(self, message: Message) -> None:
        """Encode a message and queue it; `flush` sends it.

        Each call passes to the client's thread: a list for `send_many` is much faster.
        """
        self._thread.ask(self._publisher.batch, message)

    def flush(self, timeout: float | None = None) -> None:
        """Send the messages that `batch` has queued, and wait until all of them are confirmed."""
        self._thread.call(self._publisher.flush, timeout)


class Confirmation:
    """The confirm of a message, which `submit` returns."""

    def __init__(self, publisher: Publisher, confirmation: AsyncConfirmation) -> None:
        self._publisher = publisher  # keeps it and the client open
        self._confirmation = confirmation

    def done(self) -> bool:
        """Return whether the broker has confirmed or refused the message."""
        return self._confirmation.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait for the confirm; raise the errors of `send`.

        :param timeout: seconds to wait; None for no limit.
        :raises TimeoutError: the time is up; the message may still be stored.
        """
        if self._confirmation.get_loop().is_closed():  # the client was closed, which settled it
            check_timeout('timeout', timeout)
            self._confirmation.result()
        else:
            self._publisher._thread.call(confirmed, self._confirmation, timeout)


async def confirmed(confirmation: AsyncConfirmation, timeout: float | None) -> None:
    """Wait for a confirm; neither the time nor an interrupt cancels the confirmation."""
    check_timeout('timeout', timeout)
    if not (confirmation.done() or (await asyncio.wait([confirmation], timeout=timeout))[0]):
        error = ConfirmTimeout(
            f'the broker did not confirm the message within {timeout} s; it may still be stored'
        )
        error.outcome = 'unknown'
        raise error
    await confirmation


def is_lazy(messages: object) -> bool:
    """Return whether iterating may run code of the program, which belongs to its own thread."""
    return isinstance(messages, Iterable) and not isinstance(
        messages, list | tuple | range | str | bytes | bytearray | memoryview | dict | MessageCtx
    )


class Feed(AsyncIterator[Any]):
    """Passes messages of an iterator from the calling thread to the thread of the client.

    :ivar wanted: a future for each chunk of messages that the client's thread asks for; None at the
        end.
    """

    def __init__(self, messages: Iterator[Any]) -> None:
        self.wanted: SimpleQueue[asyncio.Future[Chunk] | None] = SimpleQueue()
        self._messages = messages
        self._ahead: asyncio.Future[Chunk] | None = None
        self._chunk: Iterator[Any] = iter(())
        self._error: Exception | None = None

    def fill(self) -> None:
        """Take messages in the calling thread as long as the client's thread wants them."""
        while (wanted := self._next_wanted()) is not None:
            chunk: list[Any] = []
            error: Exception | None = None
            try:
                chunk.extend(islice(self._messages, RUN))  # keeps those before an error
                if len(chunk) < RUN:
                    error = StopAsyncIteration()
            except Exception as ex:
                error = ex
            with suppress(RuntimeError):  # the loop is closed: the call has ended
                wanted.get_loop().call_soon_threadsafe(give, wanted, (chunk, error))

    def _next_wanted(self) -> asyncio.Future[Chunk] | None:
        while True:
            with suppress(Empty):
                return self.wanted.get(timeout=WAKE)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while True:
            for message in self._chunk:
                return message
            if self._error is not None:
                raise self._error
            chunk, self._error = await (self._ahead or self._request())
            self._chunk = iter(chunk)
            self._ahead = None if self._error is not None else self._request()

    def _request(self) -> asyncio.Future[Chunk]:
        future: asyncio.Future[Chunk] = asyncio.get_running_loop().create_future()
        self.wanted.put(future)
        return future


Chunk = tuple[list[Any], Exception | None]  # messages, and what ends them


def give(wanted: asyncio.Future[Chunk], chunk: Chunk) -> None:
    if not wanted.done():
        wanted.set_result(chunk)
