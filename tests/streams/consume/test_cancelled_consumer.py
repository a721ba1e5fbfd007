"""A consumer that is cancelled or times out unsubscribes with its last reference."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import MessageTimeout, StreamConnectionError
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream


@pytest.fixture
async def reading() -> AsyncIterator[tuple[rbs.StreamsClient, FakeStream]]:
    stream = FakeStream()
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        gc.disable()
        try:
            yield client, stream
        finally:
            gc.enable()


async def consume(client: rbs.StreamsClient, how: str, timeout: float | None) -> None:
    subscription = client.subscribe('stream', timeout=timeout or 0)
    if how == 'batches':
        async for _ in subscription.batches():
            pass
    elif how == 'joined batches':
        async for _ in subscription.batches(max_wait=1):
            pass
    elif how == 'fetch':
        await subscription.fetch()
    elif how == 'open':
        await subscription.open()
        await anext(subscription)
    elif how == 'anext with a default':
        await anext(subscription, None)
    else:
        async for _ in subscription:
            pass


@pytest.mark.parametrize(
    'how', ['bodies', 'batches', 'joined batches', 'fetch', 'open', 'anext with a default']
)
@pytest.mark.parametrize('timeout', [None, 3600], ids=['no timeout', 'timeout'])
async def test_cancelled_consumer_unsubscribes(
    reading: tuple[rbs.StreamsClient, FakeStream], how: str, timeout: float | None
) -> None:
    client, stream = reading
    task = asyncio.create_task(consume(client, how, timeout))
    await until(lambda: bool(stream.readers), 'the client has subscribed')
    assert stream.reader.live
    task.cancel()
    await asyncio.wait([task])  # does not retrieve its outcome
    assert task.cancelled()
    del task
    await until(lambda: not stream.reader.live, 'the client has unsubscribed')


@pytest.mark.own_clock
async def test_consumer_that_timed_out_unsubscribes(
    reading: tuple[rbs.StreamsClient, FakeStream],
) -> None:
    client, stream = reading
    task = asyncio.create_task(consume(client, 'bodies', 0.01))
    with pytest.raises(MessageTimeout):
        await task
    del task
    await until(lambda: not stream.reader.live, 'the client has unsubscribed')


async def test_failed_consumer_leaves_no_reference_cycle(
    reading: tuple[rbs.StreamsClient, FakeStream],
) -> None:
    client, stream = reading
    gc.collect()  # what other tests have left
    task = asyncio.create_task(consume(client, 'bodies', None))
    await until(lambda: bool(stream.readers), 'the client has subscribed')
    await client.disconnect()
    with pytest.raises(StreamConnectionError):
        await task
    del task
    assert not [item for item in gc.get_objects() if isinstance(item, rbs.Subscription)]
