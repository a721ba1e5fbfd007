"""Publishers whose calls are spans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from opentelemetry.context import get_current

from ..error import SendProgress
from ..streams import Confirmation, MessageCtx, Publisher, StreamsClient, SuperStreamPublisher
from ..streams._publish.atomic import as_sequence
from ..streams._super_stream._routing import HashRoute, KeyRoute, PublishTarget
from ..streams._super_stream.partitions import left
from ..streams._super_stream.routing import Route
from ..streams._waiting import end_of
from ._carrier import as_passed
from ._spans import PublisherSpans, SendManySpan, TraceSettings


class TracedPublisher(Publisher):
    """A publisher of a stream; the class of the program stands before it in the order of methods,
    so that its own methods are not traced twice."""

    _trace_settings: ClassVar[TraceSettings]

    def __init__(self, session: Any, client: object) -> None:
        super().__init__(session, client)
        named = (
            client._cluster.settings.connection_name if isinstance(client, StreamsClient) else ''
        )
        carries: bool = self._core.window.amqp
        self._spans = PublisherSpans(self._trace_settings, self.stream, carries, named)

    async def send(self, message: Any, timeout: float | None = None) -> None:
        """Like :meth:`Publisher.send`."""
        spans = self._spans
        span, carried, sent = spans.begin(message, self._core)
        try:
            await super().send(carried, timeout)
        except BaseException as ex:
            spans.end(span, sent, ex)
            raise
        spans.end(span, sent)

    async def submit(self, message: Any, timeout: float | None = None) -> Confirmation:
        """Like :meth:`Publisher.submit`."""
        spans = self._spans
        span, carried, sent = spans.begin(message, self._core)
        try:
            confirmation = await super().submit(carried, timeout)
        except BaseException as ex:
            spans.end(span, sent, ex)
            raise
        confirmation.add_done_callback(functools.partial(spans.end_submitted, span, sent))
        return confirmation

    async def send_many(
        self, messages: Any, timeout: float | None = None, *, progress: SendProgress | None = None
    ) -> int:
        """Like :meth:`Publisher.send_many`."""
        span = SendManySpan(self._spans, self._core, messages)
        return await span.call(super().send_many, messages, timeout, progress)

    async def send_atomic(
        self, messages: Any, timeout: float | None = None, *, publish_id: int | None = None
    ) -> None:
        """Like :meth:`Publisher.send_atomic`."""
        batch = as_sequence(messages)
        span = SendManySpan(self._spans, self._core, batch)
        await span.call_atomic(super().send_atomic, batch, timeout, publish_id)

    def batch(self, message: Any) -> None:
        """Like :meth:`Publisher.batch`."""
        if get_current() is self._spans.bare and not isinstance(message, MessageCtx):
            Publisher.batch(self, message)
        else:
            self._spans.queue(message, super().batch)

    async def flush(self, timeout: float | None = None) -> None:
        """Like :meth:`Publisher.flush`."""
        await self._spans.flush(super().flush, timeout, queued(self), self._core)


def queued(publisher: Publisher) -> int:
    """Return the number of messages of `batch` whose outcome `flush` has not reported."""
    core = publisher._core
    return sum(batch.count for batch in (*core.flushed, core.filling))


class TracedSuperStreamPublisher(SuperStreamPublisher):
    """A publisher of a super stream."""

    _trace_settings: ClassVar[TraceSettings]

    def __init__(
        self,
        cluster: Any,
        info: Any,
        route: Route,
        names: tuple[str, ...],
        publishers: Sequence[Publisher],
        windows: Any,
    ) -> None:
        super().__init__(cluster, info, of_passed(route), names, publishers, windows)
        named = cluster.settings.connection_name
        self._spans = PublisherSpans(self._trace_settings, self.stream, info.amqp, named)

    def _begin_span(self, message: Any) -> tuple[Any, Any, Any, Any]:
        """Route a message and begin its span; return the destination and the result of `begin`."""
        spans = self._spans
        try:
            found = self._router.find(message)
        except Exception as ex:
            span, _, sent = spans.begin(message, None)
            spans.end(span, sent, ex)
            raise
        if isinstance(found, PublishTarget):
            return found, *spans.begin(message, found.core, found.session.stream)
        return found, *spans.begin(message, None)

    async def send(self, message: Any, timeout: float | None = None) -> None:
        """Like :meth:`SuperStreamPublisher.send`."""
        found, span, carried, sent = self._begin_span(message)
        try:
            if isinstance(found, PublishTarget) and not self._router.holds:
                await found.publisher.send(carried, timeout)
            else:
                await self._send(found, carried, timeout)
        except BaseException as ex:
            self._spans.end(span, sent, ex)
            raise
        self._spans.end(span, sent)

    async def submit(self, message: Any, timeout: float | None = None) -> Confirmation:
        """Like :meth:`SuperStreamPublisher.submit`."""
        found, span, carried, sent = self._begin_span(message)
        confirmation: Confirmation
        try:
            until = end_of(timeout)
            targets = await self._targets(found, until, timeout)
            if len(targets) == 1:
                confirmation = await targets[0].publisher.submit(carried, left(until))
            else:
                confirmation = await self._joint.submit(targets, carried, until)
        except BaseException as ex:
            self._spans.end(span, sent, ex)
            raise
        end = functools.partial(self._spans.end_submitted, span, sent)
        confirmation.add_done_callback(end)
        return confirmation

    async def send_many(
        self, messages: Any, timeout: float | None = None, *, progress: SendProgress | None = None
    ) -> int:
        """Like :meth:`SuperStreamPublisher.send_many`."""
        span = SendManySpan(self._spans, None, messages)
        return await span.call(super().send_many, messages, timeout, progress)

    async def send_atomic(
        self, messages: Any, timeout: float | None = None, *, publish_id: int | None = None
    ) -> None:
        """Like :meth:`SuperStreamPublisher.send_atomic`."""
        batch = as_sequence(messages)
        span = SendManySpan(self._spans, None, batch)
        await span.call_atomic(super().send_atomic, batch, timeout, publish_id)

    def batch(self, message: Any) -> None:
        """Like :meth:`SuperStreamPublisher.batch`."""
        found = self._router.find(message)
        if isinstance(found, PublishTarget) and not self._router.holds:
            self._spans.queue(message, found.publisher.batch)
        else:
            self._spans.queue(message, functools.partial(self._batch, found))

    async def flush(self, timeout: float | None = None) -> None:
        """Like :meth:`SuperStreamPublisher.flush`."""
        count = sum(map(queued, self._publishers)) + len(self._held)
        await self._spans.flush(super().flush, timeout, count, None)


def of_passed(route: Route) -> Route:
    """Return a route that passes messages to the program as the program has passed them."""
    if isinstance(route, HashRoute):
        return HashRoute(with_passed(route.key))
    if isinstance(route, KeyRoute):
        return KeyRoute(with_passed(route.key))
    return with_passed(route)


def with_passed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(message: Any, *others: Any) -> Any:
        return function(as_passed(message), *others)

    return call
