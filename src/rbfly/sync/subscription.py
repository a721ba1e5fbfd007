"""Subscriptions for programs without asyncio."""

from __future__ import annotations

import operator
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..error import (
    OffsetNotStored,
    StreamDoesNotExist,
    SubscriptionClosed,
    SubscriptionError,
    counted,
)
from ..streams import MessageBatch, MessageCtx
from ..streams import Subscription as AsyncSubscription
from ..streams import SuperStreamSubscription as AsyncSuperStreamSubscription
from .thread import ClientThread

if TYPE_CHECKING:
    import typing_extensions  # `typing` has no `default` before Python 3.13

    Body = typing_extensions.TypeVar('Body', default=Any)
else:
    Body = TypeVar('Body')

RUN = 10_000  # messages that pass from the client's thread together, at most


class Subscription(Generic[Body]):
    """Iterates over the messages of a stream or a super stream; created by `client.subscribe(...)`.

    `for` yields bodies, `messages` contexts, `batches` many bodies at once; `fetch` returns the
    bodies that have arrived.  The methods block until what :class:`rbfly.streams.Subscription`
    awaits has happened, and have its arguments and errors.  Several threads may iterate over a
    subscription: each message goes to one of them.  It ends with `close`, or at the end of `with`.

    The iterations take up to 10,000 messages at a time from the client's thread.  These are
    finished when the program asks for the next ones: with `commit='auto'`, a program that leaves
    before receives all of them again.  `stop` ends the iteration after them.

    :ivar stream: name of the stream or of the super stream.
    """

    def __init__(
        self,
        client: object,
        thread: ClientThread,
        subscribe: Callable[[], AsyncSubscription[Body] | AsyncSuperStreamSubscription[Body]],
    ) -> None:
        self._client = client  # keeps the client open
        self._thread = thread
        self._subscription = thread.ask(subscribe)
        self.stream: str = self._subscription.stream
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._batch: MessageBatch[Body] | None = None  # None before the first, and at the end
        self._bodies: Iterator[Body] = iter(())  # those of the batch that are left
        self._kept = False  # the batch is for `batches` or `fetch`, and still has to leave them
        self._received: dict[str, int] = {}  # offset of the last message before the batch
        self._lost = 0  # messages of the batch that `commit` has reported as lost
        self._ended = False

    def __repr__(self) -> str:
        return f'<sync {self._subscription!r}>'

    def __enter__(self) -> Self:
        self._thread.call(self._subscription.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(self._subscription.__aexit__, kind, error, traceback)

    def open(self) -> None:
        """Wait until the broker has accepted the subscription."""
        self._thread.call(self._subscription.open)

    def close(self) -> None:
        """End the subscription and all iterations; the messages at hand are dropped."""
        self._end(self._subscription.close)

    def _end(self, close: Callable[..., Awaitable[None]], *args: object) -> None:
        async def end() -> None:
            try:
                await close(*args)
            finally:
                self._put(None, whole=False)
                self._ended = True

        self._thread.call(end)

    def stop(self) -> None:
        """End the iteration when the program has finished the messages at hand.

        A signal handler may call it.
        """
        self._thread.ask(self._subscription.stop)

    @property
    def active(self) -> bool | tuple[str, ...]:
        """Whether the broker delivers messages; of a super stream, the partitions that it does."""
        return self._thread.ask(lambda: self._subscription.active)

    @property
    def position(self) -> int | dict[str, int | None] | None:
        """Offset of the next message that the client's thread has not passed on, or a lower one; of
        a super stream, by partition."""
        return self._thread.ask(lambda: self._subscription.position)

    # -- messages

    def __iter__(self) -> Iterator[Body]:
        return self

    def __next__(self) -> Body:
        for body in self._bodies:
            return body
        self._thread.check()
        with self._lock:
            while self._fill():
                for body in self._bodies:
                    return body
        raise StopIteration

    def messages(self) -> Iterator[MessageCtx[Body]]:
        """Iterate over the contexts of messages, not only their bodies."""
        while (message := self._next_message()) is not None:
            yield message

    def batches(
        self, max_messages: int | None = None, *, max_wait: float | None = None
    ) -> Iterator[MessageBatch[Body]]:
        """Iterate over batches: one call for all messages of a chunk, or of several.

        :raises SubscriptionError: messages of another iteration are left.
        """
        source = self._subscription.batches(max_messages, max_wait=max_wait)
        while (batch := self._receive(lambda: anext(source, None))) is not None:
            yield batch

    def fetch(
        self, max_messages: int | None = None, timeout: float | None = None
    ) -> MessageBatch[Body]:
        """Return the messages that have arrived; wait if there are none.

        :raises SubscriptionError: messages of another iteration are left.
        """
        batch = self._receive(lambda: self._subscription.fetch(max_messages, timeout))
        if batch is None:  # closed by a signal handler or another thread
            raise SubscriptionClosed(f'the subscription to {self.stream!r} is closed')
        return batch

    def commit(self, offset: int | Mapping[str, int] | None = None) -> None:
        """Store how far the program has processed the stream, with `commit='manual'`.

        :param offset: offset of the last processed message; of a super stream, by partition.  None
            for everything that the iterations and `fetch` have returned to the program.  Another
            thread may wait for a message meanwhile.
        """
        if offset is None:
            self._thread.call(self._commit)
        else:
            self._thread.call(self._subscription.commit, offset)  # type: ignore[arg-type]

    async def _commit(self) -> None:
        """Commit what the program has received.

        In the client's thread, where `_pass` runs: a thread that waits there holds the lock.
        """
        found = {**self._received, **self._last()}
        if not found:
            return
        batch, taken, self._received = self._batch, self._taken, {}
        try:
            if isinstance(self._subscription, AsyncSuperStreamSubscription):
                await self._subscription.commit(found)
            else:
                await self._subscription.commit(*found.values())
        except BaseException as ex:
            if not isinstance(ex, OffsetNotStored) or self._subscription.group is None:
                self._received = {**found, **self._received}
            elif batch is self._batch:  # a member receives the messages again
                self._lost = taken
            raise

    def _next_message(self) -> MessageCtx[Body] | None:
        self._thread.check()
        with self._lock:
            while True:
                batch, bodies = self._batch, self._bodies  # a signal handler may close
                for _ in bodies:
                    assert batch is not None
                    return batch.context(len(batch) - operator.length_hint(bodies) - 1)
                if not self._fill():
                    return None

    @property
    def _taken(self) -> int:
        """Number of messages of the batch that the program has received."""
        if self._batch is None or self._kept:
            return 0
        return len(self._batch) - operator.length_hint(self._bodies)

    def _last(self) -> dict[str, int]:
        """Return the offset of the last message of the batch that the program has received; nothing
        if `commit` has reported it as lost."""
        batch, taken = self._batch, self._taken
        if batch is None or batch.stream is None or taken == self._lost:
            return {}
        return {batch.stream: batch.offsets[taken - 1]}

    def _fill(self) -> bool:
        """Wait for messages, if none are left; return False after the last one."""
        if operator.length_hint(self._bodies) or self._ended:
            return not self._ended
        batch = self._batch  # a signal handler may close
        if self._kept and batch is not None:
            self._bodies, self._kept = iter(batch), False
            return True
        self._thread.call(self._pass, lambda: anext(self._subscription.batches(RUN), None), False)
        return not self._ended

    def _receive(self, source: Callable[[], Any]) -> MessageBatch[Body] | None:
        """Wait for a batch, which the program receives as a whole; None after the last one."""
        self._thread.check()
        with self._lock:
            if left := operator.length_hint(self._bodies):
                raise SubscriptionError(
                    f'{counted(left, "message")} of an iteration over this subscription are left:'
                    ' receive them first'
                )
            if not self._kept:
                self._thread.call(self._pass, source, True)
            batch, self._kept = self._batch, False  # in this order: another thread may close
            return batch

    async def _pass(self, source: Callable[[], Any], whole: bool) -> None:
        """Keep a batch for the program, in the client's thread: an interrupt loses nothing."""
        try:
            batch = await source()
        except StreamDoesNotExist as ex:  # the program cannot commit its messages any more
            self._put(None, whole)
            if ex.stream in (None, self.stream):
                self._received.clear()
            else:
                self._received.pop(ex.stream, None)
            raise
        self._ended = self._ended or batch is None
        self._put(None if self._ended else batch, whole)

    def _put(self, batch: MessageBatch[Body] | None, whole: bool) -> None:
        self._received.update(self._last())
        self._batch, self._kept, self._lost = batch, whole and batch is not None, 0
        self._bodies = iter(()) if whole or batch is None else iter(batch)
