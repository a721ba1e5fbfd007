"""`send_many` sends every message that it takes, and takes no message that it does not send."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import ConfirmTimeout, PublishError
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.streams.test_publish import stored

FOREVER = 10**9
WINDOWS = pytest.mark.parametrize('window', [1, 5, 100])


class Source:
    """An asynchronous iterator of numbers that continues after a cancelled `anext`.

    :param pauses: how many turns of the loop each message takes.
    :ivar taken: the messages that left it.
    """

    def __init__(self, count: int = FOREVER, pauses: int = 0) -> None:
        self.count = count
        self.pauses = pauses
        self.taken: list[bytes] = []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for _ in range(self.pauses):
            await asyncio.sleep(0)
        if len(self.taken) == self.count:
            raise StopAsyncIteration
        self.taken.append(b'%d' % len(self.taken))
        return self.taken[-1]


@pytest.mark.parametrize('pauses', [0, 1, 3])
@WINDOWS
async def test_cancelled(client: rbs.StreamsClient, stream: str, window: int, pauses: int) -> None:
    async with client.publisher(stream, amqp=False, max_unconfirmed=window) as publisher:
        source = Source(pauses=pauses)
        for turns in range(30):
            task = asyncio.create_task(publisher.send_many(source))
            begin = len(source.taken)
            await until(lambda: len(source.taken) > begin, 'it sends')  # noqa: B023
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert await stored(client, stream) == source.taken


@WINDOWS
async def test_timeout(window: int) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('s')
        async with client.publisher('s', amqp=False, max_unconfirmed=window) as publisher:
            source = Source()
            broker.withhold_confirms()
            with pytest.raises(ConfirmTimeout):
                await publisher.send_many(source, timeout=0.01)
            broker.heal()
        assert broker.messages('s', raw=True) == source.taken


@WINDOWS
async def test_another_message_is_refused(window: int) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('s')
        async with client.publisher('s', amqp=False, max_unconfirmed=window) as publisher:
            source = Source()
            broker.publish_error(0x11)
            with pytest.raises(PublishError):
                await publisher.send_many(source)
        assert broker.messages('s', raw=True) == source.taken[1:]


async def test_window_is_full_of_the_messages_of_others() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('s')
        async with client.publisher('s', amqp=False, max_unconfirmed=5) as publisher:
            broker.withhold_confirms()
            others = [await publisher.submit(b'other') for _ in range(5)]
            source = Source()
            with pytest.raises(ConfirmTimeout):
                await publisher.send_many(source, timeout=0.01)
            assert source.taken == []
            broker.heal()
            await asyncio.gather(*others)
