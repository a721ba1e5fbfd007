"""Connections of a pipe are lost, and every output is stored once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.processing.piping import until_event


def same(body: Any) -> Any:
    return body


class Clusters:
    """A job between two clusters, of which one may fail while the other works.

    :ivar source: has the stream `orders`.
    :ivar target: has the stream `bills`.
    :ivar reader: client of the source.
    :ivar writer: client of the target.
    """

    def __init__(self, source: StreamBroker, target: StreamBroker) -> None:
        self.source = source
        self.target = target
        self.reader = rbs.streams_client(source.uri)
        self.writer = rbs.streams_client(target.uri)
        self._progress = PipeProgress()
        self._job: asyncio.Task[PipeProgress] | None = None

    def start(self, transform: Any = same, **options: Any) -> None:
        ends = Stream(self.reader, 'orders'), Stream(self.writer, 'bills')
        job = pipe(*ends, transform, name='job', progress=self._progress, **options)
        self._job = asyncio.create_task(job)

    async def publish(self, body: int) -> None:
        """Publish a message to the source, and wait until the pipe has published its output."""
        read = self._progress.read
        self.source.publish('orders', body)
        await until(lambda: self._progress.read > read, 'the message is read')

    async def lose_target(self) -> None:
        self.target.refuse()
        self.target.cut()
        await until(lambda: self.writer.metrics().connections_lost > 0, 'the target is away')

    async def lose_source(self) -> None:
        """Cut the connection to the source, and wait until the pipe has received messages again."""
        consumed = self.reader.metrics().consumed
        self.source.cut()
        await until(lambda: self.reader.metrics().consumed > consumed, 'messages are read again')

    async def outputs(self, count: int) -> list[Any]:
        """Stop the job when the target has that many outputs; return all.

        :raises Exception: the job has failed.
        """
        job = self._job
        assert job is not None
        await until(
            lambda: job.done() or len(self.target.messages('bills')) >= count,
            f'{count} outputs are stored',
        )
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
        return self.target.messages('bills')


@pytest_asyncio.fixture
async def clusters() -> AsyncIterator[Clusters]:
    async with StreamBroker() as source, StreamBroker() as target:
        source.create_stream('orders')
        target.create_stream('bills')
        found = Clusters(source, target)
        yield found
        await found.reader.disconnect()
        await found.writer.disconnect()


async def test_source_is_lost_while_many_outputs_are_unconfirmed(clusters: Clusters) -> None:
    clusters.start()
    clusters.target.withhold_confirms()
    for number in range(10):  # more than there are waits for confirms
        await clusters.publish(number)
    await clusters.lose_source()
    clusters.target.heal()
    clusters.source.publish('orders', 10)
    assert await clusters.outputs(11) == [*range(11)]


async def test_source_is_lost_while_the_target_is_away(clusters: Clusters) -> None:
    clusters.writer = rbs.streams_client(clusters.target.uri, close_timeout=0)
    clusters.start()
    await clusters.publish(0)
    await clusters.lose_target()
    await clusters.publish(1)
    await clusters.lose_source()
    clusters.target.heal()
    clusters.source.publish('orders', 2)
    assert await clusters.outputs(3) == [0, 1, 2]


@pytest.mark.own_clock
async def test_pipe_fails_while_the_target_is_away(clusters: Clusters) -> None:
    """The next run finds no output missing, also of a message that has several."""
    is_broken = True

    async def transform(number: int) -> Any:
        if number == 1 and is_broken:
            await clusters.lose_target()
        if number == 3 and is_broken:
            raise LookupError('no price')
        return [number] * 2 if number == 1 else number

    def closing() -> bool:
        return any(item.state == 'closing' for item in clusters.writer.describe().publishers)

    clusters.source.publish('orders', *range(4))
    clusters.start(transform, until='now')
    await until(closing, 'the pipe closes its publisher')
    clusters.target.heal()
    with pytest.raises(LookupError, match='no price'):
        await clusters.outputs(5)
    is_broken = False
    clusters.start(transform, until='now')
    assert await clusters.outputs(5) == [0, 1, 1, 2, 3]


@pytest.mark.parametrize('lost', ['connection', 'process'])
async def test_job_that_starts_at_the_end_is_lost_before_its_first_message(
    clusters: Clusters, lost: str
) -> None:
    clusters.source.publish('orders', 0)
    events = clusters.reader.events()
    clusters.start(offset=rbs.Offset.NEXT)
    await until_event(events, rbs.Activated)
    if lost == 'connection':
        clusters.source.cut()
        clusters.source.publish('orders', 1)
    else:
        await until(lambda: 'job' in clusters.source.offsets('orders'), 'the start is stored')
        await clusters.outputs(0)
        clusters.source.publish('orders', 1)
        clusters.start(offset=rbs.Offset.NEXT)
    await until_event(events, rbs.Activated)
    clusters.source.publish('orders', 2)
    assert (await clusters.outputs(1))[0] == 1
