"""`send_many` sends every message that it takes, and takes no message that it does not send."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import ConfirmTimeout, PublisherError, PublishError
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.inside import core_of, session_of, window_of
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_send_many import refusing

FOREVER = 10**9
WINDOWS = pytest.mark.parametrize('window', [1, 5, 100])


class Source:
    """An asynchronous iterator of numbers that continues after a cancelled `anext`.

    :param pauses: number of turns of the event loop before each message.
    :ivar taken: the messages it has yielded.
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
async def test_cancelled_call_sends_every_message_taken(
    client: rbs.StreamsClient, stream: str, window: int, pauses: int
) -> None:
    async with client.publisher(stream, amqp=False, max_unconfirmed=window) as publisher:
        source = Source(pauses=pauses)
        for turns in range(30):
            task = asyncio.create_task(publisher.send_many(source))
            begin = len(source.taken)
            await until(lambda: len(source.taken) > begin, 'the publisher sends')  # noqa: B023
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert await stored(client, stream) == source.taken


@WINDOWS
async def test_call_that_times_out_sends_every_message_taken(window: int) -> None:
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
async def test_call_ends_when_another_message_is_refused(window: int) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('s')
        async with client.publisher('s', amqp=False, max_unconfirmed=window) as publisher:
            source = Source()
            broker.publish_error(0x11)
            with pytest.raises(PublishError):
                await publisher.send_many(source)
        assert broker.messages('s', raw=True) == source.taken[1:]


async def test_window_is_full_of_messages_of_other_tasks() -> None:
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


# -- while it waits for the next message


async def items(queue: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield await queue.get()


async def test_generators_of_one_queue(client: rbs.StreamsClient, stream: str) -> None:
    """A cancelled call ends its generator; the next call takes the rest of the queue."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    sent: list[bytes] = []
    async with client.publisher(stream, amqp=False, max_unconfirmed=5) as publisher:
        for turns in range(40):
            task = asyncio.create_task(publisher.send_many(items(queue)))
            for _ in range(turns):
                sent.append(b'%d' % len(sent))
                queue.put_nowait(sent[-1])
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        task = asyncio.create_task(publisher.send_many(items(queue)))
        await until(queue.empty, 'all messages are taken')
        task.cancel()
    assert await stored(client, stream) == sent


async def test_other_tasks_use_the_capacity_while_the_iterator_waits() -> None:
    held: list[tuple[Peer, Frame]] = []
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        FakeBroker(on={wire.PUBLISH: lambda *item: held.append(item)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False, max_unconfirmed=1) as publisher,
    ):
        queue.put_nowait(b'first')
        many = asyncio.create_task(publisher.send_many(items(queue)))
        await until(lambda: len(held) == 1, 'the window is full')
        other = asyncio.create_task(publisher.send(b'other'))
        await until(
            lambda: len(core_of(publisher).capacity.waiting) == 2, 'both calls wait for capacity'
        )
        fake.default(*held[0])
        await until(lambda: len(held) == 2, 'the other message is sent')
        queue.put_nowait(b'second')  # follows the other message
        await until(queue.empty, 'the second message is taken')
        assert window_of(publisher).queued == 1
        fake.default(*held[1])
        await other
        await until(lambda: len(held) == 3, 'the second message is sent')
        fake.default(*held[2])
        await until(lambda: window_of(publisher).unsettled == 0, 'the message is confirmed')
        many.cancel()


async def test_message_that_arrives_with_a_refusal_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    queue.put_nowait(b'first')
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(1)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        session = session_of(publisher)
        after_settled = session.after_settled

        def with_message() -> None:
            after_settled()
            if queue.empty() and publisher.message_id == 2:
                queue.put_nowait(b'second')

        monkeypatch.setattr(session, 'after_settled', with_message)
        with pytest.raises(PublishError) as caught:
            await publisher.send_many(items(queue))
        progress = caught.value.progress
        assert progress is not None
        assert progress.taken + queue.qsize() == 2
        assert (progress.refused, progress.unknown) == ([0], [])
        assert publisher.message_id == progress.taken + 1


async def test_message_that_arrives_when_the_publisher_gives_up() -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        many = asyncio.create_task(publisher.send_many(items(queue)))
        queue.put_nowait(b'first')
        await until(lambda: publisher.message_id == 2, 'the first message is taken')
        await until(lambda: window_of(publisher).unsettled == 0, 'the message is confirmed')
        queue.put_nowait(b'second')
        publisher._abort(PublisherError('given up by the test'))
        with pytest.raises(PublisherError, match='given up') as caught:
            await many
        progress = caught.value.progress
        assert progress is not None
        assert (progress.taken, progress.confirmed, progress.refused) == (2, 1, [1])


async def test_message_that_arrives_while_the_publisher_closes() -> None:
    held: list[tuple[Peer, Frame]] = []
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        FakeBroker(on={wire.PUBLISH: lambda *item: held.append(item)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        many = asyncio.create_task(publisher.send_many(items(queue)))
        queue.put_nowait(b'first')
        await until(lambda: len(held) == 1, 'the first message is sent')
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        queue.put_nowait(b'second')
        queue.put_nowait(b'third')
        await until(lambda: queue.qsize() == 1, 'the second message is taken')
        fake.default(*held[0])
        await until(lambda: len(held) == 2, 'the second message is sent')
        fake.default(*held[1])
        await closing
        with pytest.raises(PublisherError, match='closed') as caught:
            await many
        progress = caught.value.progress
        assert progress is not None
        assert (progress.taken, progress.confirmed) == (2, 2)
        assert queue.get_nowait() == b'third'
