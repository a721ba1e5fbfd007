"""RbFly without its instrumentation, in a program that begins and ends a span for each call: what
OpenTelemetry itself costs."""

from ..lanes import Kind
from .base import Target, Work
from .rbfly import Batch, Single, unsampled_provider


class SingleSpans(Single):
    async def run(self) -> int:
        start_span = unsampled_provider().get_tracer('perf').start_span
        send = self.publisher.send
        count = 0
        for body in self.messages:
            span = start_span('send')
            await send(body)
            span.end()
            count += 1
        return count


class BatchSpans(Batch):
    async def run(self) -> int:
        start_span = unsampled_provider().get_tracer('perf').start_span
        batch = self.publisher.batch
        flush = self.publisher.flush
        count = 0
        for data in self.messages:
            for body in data:
                batch(body)
            span = start_span('send')
            await flush()
            span.end()
            count += len(data)
        return count


def make(kind: Kind, target: Target) -> Work:
    return BatchSpans(kind, target) if kind.name == 'batch' else SingleSpans(kind, target)
