"""Names of RbFly 0.10 that new programs do not need: publishers, and the decorator."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

from ..checks import check_integer
from ..error import RbFlyError
from ..protocol._publish import PublishWindow
from . import types
from ._publish.publisher import Publisher
from ._publish.semaphore import WindowSemaphore
from ._publish.session import PublisherSession
from .client import StreamsClient
from .types import MessageCtx

F = TypeVar('F', bound=Callable[..., Any])

MAX_LEN = 2**63 - 1
USER = 5  # stack level of `client.publisher(...)` being awaited or entered, from `warn`


class PublisherBatchFast(Publisher):
    """A :class:`Publisher` whose `batch` queues any number of messages."""

    _bounded = False


class PublisherBatchLimit(PublisherBatchFast):
    """A :class:`Publisher` whose `batch` waits while too many messages are queued."""

    def __init__(self, session: PublisherSession, client: object) -> None:
        super().__init__(session, client)
        core = self._core  # the session must not refer to the publisher
        contexts: list[MessageCtx] = []

        def fits(max_len: int) -> bool:
            return core.filling.remaining + len(contexts) + queue.reserved < max_len

        self._contexts = contexts  # with explicit publishing ids, in any order
        self._errors: list[Exception] = []  # of contexts, until a call raises the first one
        self._queue = queue = WindowSemaphore(fits)
        session.queues.append(queue)

    async def batch(  # type: ignore[override]
        self, message: types.AMQPBody | MessageCtx, *, max_len: int
    ) -> None:
        """Queue a message; wait while `max_len` messages are queued, until a task calls `flush`.

        Explicit publishing ids may come in any order.  For the errors see :meth:`Publisher.batch`.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :param max_len: maximum number of queued messages, at least 1.
        """
        check_integer('max_len', max_len, 1, MAX_LEN)
        session, queue, window = self._session, self._queue, self._core.window
        session.check()
        if queue.waiting or not queue.has_capacity(max_len):
            await queue.wait(max_len, 1)
        try:
            session.check()
            if not isinstance(message, MessageCtx) or not message.is_set_stream_publish_id:
                super().batch(message)
            elif session.core.undeclared:
                raise session.batch_full()
            else:  # raise the error of a message that cannot be encoded
                one = PublishWindow(
                    0, window.frame_max, 1, 0, None, window.amqp, None, window.encode
                )
                one.put(message, None)
                self._contexts.append(message)
        except BaseException:
            queue.grant()  # the capacity that this message does not need
            raise

    async def flush(self, timeout: float | None = None) -> None:
        """Like :meth:`Publisher.flush`."""
        self._core.check_loop()
        self._sort()
        self._core.release()
        self._queue.grant()
        await super().flush(timeout)
        self._raise_first()

    async def close(self) -> None:
        """Like :meth:`Publisher.close`."""
        self._sort()
        await super().close()
        self._raise_first()

    def _abort(self, error: Exception) -> None:
        self._sort()
        super()._abort(error)

    def __del__(self) -> None:
        if self._core is not None:  # else only `__new__` was called
            self._sort()
        super().__del__()

    def _sort(self) -> None:
        """Queue the contexts, ascending by publishing id; keep the errors of those that fail."""
        for context in sorted(self._contexts, key=lambda item: item.stream_publish_id):
            try:
                super().batch(context)
            except Exception as ex:
                self._errors.append(ex)
        self._contexts.clear()

    def _raise_first(self) -> None:
        """Raise the error of a context that was not sent, if any."""
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]


class PublisherBin(Publisher):
    """A :class:`Publisher` that sends raw bytes, regardless of the argument `amqp`."""

    _amqp = False


class PublisherBinBatch(PublisherBatchFast):
    """A :class:`PublisherBatchFast` that sends raw bytes, regardless of the argument `amqp`."""

    _amqp = False


class PublisherBatch(PublisherBatchFast):
    """Deprecated name of :class:`PublisherBatchFast`."""

    def __init__(self, *args: Any) -> None:
        warn('PublisherBatch', 'PublisherBatchFast')
        super().__init__(*args)


class PublisherBatchMem(PublisherBatchLimit):
    """Deprecated name of :class:`PublisherBatchLimit`."""

    def __init__(self, *args: Any) -> None:
        warn('PublisherBatchMem', 'PublisherBatchLimit')
        super().__init__(*args)


def warn(old: str, new: str) -> None:
    """Warn about a deprecated class; its constructor calls this."""
    warnings.warn(f'{old} is deprecated: use {new}', DeprecationWarning, stacklevel=USER)


def connection(coro: F) -> F:
    """Decorator: close a client's connections when a coroutine or asynchronous generator ends.

    The client is the first argument that is a :class:`StreamsClient`.  If nested or parallel calls
    use the same client, the last one to end closes its connections.

    :raises RbFlyError: `coro` is not a coroutine or asynchronous generator function, or it was
        called without a client.
    """
    function: Any = coro
    while isinstance(function, functools.partial):
        function = function.func

    def client_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamsClient:
        if isinstance(coro, functools.partial):
            args, kwargs = coro.args + args, coro.keywords | kwargs
        for value in (*args, *kwargs.values()):
            if isinstance(value, StreamsClient):
                return value
        raise RbFlyError(f'{function.__name__} was called without a StreamsClient')

    if inspect.iscoroutinefunction(function):

        async def run(*args: Any, **kwargs: Any) -> Any:
            async with client_of(args, kwargs):
                return await coro(*args, **kwargs)

        wrapper: Any = run
    elif inspect.isasyncgenfunction(function):

        async def iterate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with client_of(args, kwargs):
                generator = coro(*args, **kwargs)
                try:
                    async for value in generator:
                        yield value
                finally:
                    await generator.aclose()

        wrapper = iterate
    else:
        raise RbFlyError(f'{coro!r} is not a coroutine function or asynchronous generator function')
    return cast(F, functools.update_wrapper(wrapper, function))
