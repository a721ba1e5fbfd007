"""RbFly: read each message and publish a result, in a loop and with `pipe`."""

from collections.abc import Iterator
from typing import Any

import rbfly.streams as rbs
from rbfly.processing import Stream, pipe

from ..lanes import Kind
from .base import Target, Work
from .rbfly import Consume


def result_of(body: bytes) -> bytes:
    return body


class Relay(Consume):
    """Publishes the results of a batch, and waits for their confirms, before it reads the next."""

    async def open(self) -> None:
        """Copy the stream of the benchmark, in which a pipe must not store its position."""
        await super().open()
        name = f'{self.target.stream}-{type(self).__name__}'
        self.source, self.copy = f'{name}-source', f'{name}-results'
        await self.client.create_stream(self.source)
        stored = self.client.subscribe(self.target.stream, offset=rbs.Offset.FIRST, until='now')
        async with self.client.publisher(self.source) as publisher:
            async for batch in stored.batches():
                await publisher.send_many(batch)

    async def close(self) -> None:
        await self.client.delete_stream(self.source)
        await super().close()

    async def prepare(self, count: int) -> None:
        self.count = count
        await self.client.create_stream(self.copy)
        options: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'until': rbs.Offset.offset(count)}
        self.subscriptions = [self.client.subscribe(self.source, **options)]
        self.publisher = await self.client.publisher(self.copy, name='results')

    async def run(self) -> int:
        done = 0
        async for batch in self.subscriptions[0].batches():
            done += await self.publisher.send_many(self.results(batch))
        return done

    def results(self, bodies: rbs.MessageBatch[bytes]) -> Iterator[bytes]:
        return map(result_of, bodies)

    async def finish(self) -> None:
        await self.publisher.close()
        await self.subscriptions[0].aclose()
        bodies = self.client.subscribe(self.copy, offset=rbs.Offset.FIRST, until='now')
        found = [body async for body in bodies]
        await self.client.delete_stream(self.copy)
        if len(found) != self.count or found[-1] != self.body(self.count - 1):
            raise ValueError(f'{len(found)} results instead of {self.count}')


class Piped(Relay):
    """Does the same with `pipe`."""

    turns = 0

    async def run(self) -> int:
        self.turns += 1  # a job of its own: the source is read from its first message
        ends = Stream(self.client, self.source), Stream(self.client, self.copy)
        until = rbs.Offset.offset(self.count)
        done = await pipe(*ends, result_of, name=f'job-{self.turns}', until=until)
        return done.published


def make(kind: Kind, target: Target, with_pipe: bool = False) -> Work:
    return Piped(kind, target) if with_pipe else Relay(kind, target)
