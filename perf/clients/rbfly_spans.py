"""RbFly without its instrumentation, in a program that begins and ends a span for each call: what
OpenTelemetry itself costs."""

from typing import Any

import rbfly.streams as rbs

from ..lanes import Kind
from .base import Target, Work
from .rbfly import Batch, Single, unsampled_provider


class Spanned:
    """The calls of a publisher, each in a span of the program."""

    def __init__(self, publisher: rbs.Publisher) -> None:
        self.batch = publisher.batch
        self._publisher = publisher
        self._start_span = unsampled_provider().get_tracer('perf').start_span

    async def send(self, message: Any) -> None:
        span = self._start_span('send')
        await self._publisher.send(message)
        span.end()

    async def flush(self) -> None:
        span = self._start_span('send')
        await self._publisher.flush()
        span.end()


class SingleSpans(Single):
    async def open(self) -> None:
        await super().open()
        self.publisher: Any = Spanned(self.publisher)


class BatchSpans(Batch):
    async def open(self) -> None:
        await super().open()
        self.publisher: Any = Spanned(self.publisher)


def make(kind: Kind, target: Target) -> Work:
    return BatchSpans(kind, target) if kind.name == 'batch' else SingleSpans(kind, target)
