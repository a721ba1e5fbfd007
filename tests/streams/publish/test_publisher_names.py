"""Two publishers with the same name: the broker drops messages, and the client reports it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import PublisherError
from rbfly.net import retry
from rbfly.streams.error import PublisherNameInUse, StreamConnectionError
from tests.brokers import CONNECT_TIMEOUT
from tests.inside import connection_of
from tests.streams.consume.test_consume import first, take
from tests.streams.publish.test_publish import stored

NAME = 'shop'


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)


@pytest_asyncio.fixture
async def other(broker: RabbitMQ) -> AsyncIterator[rbs.StreamsClient]:
    """The client of another process."""
    async with rbs.streams_client(broker.uri, connect_timeout=CONNECT_TIMEOUT) as client:
        yield client


def lose(publisher: Any) -> None:
    """Cut the connection of a publisher."""
    connection_of(publisher).abort(StreamConnectionError('cut'))


async def test_publishers_at_different_paces(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    """A program of two processes with one name: the broker confirms 150 messages, and stores 100.

    The slower process gets the error.
    """
    confirmed: list[bytes] = []

    async def send(publisher: rbs.Publisher, message: bytes) -> None:
        await publisher.send(message)
        confirmed.append(message)

    async def run() -> None:
        async with (
            other.publisher(stream, name=NAME, amqp=False) as fast,
            client.publisher(stream, name=NAME, amqp=False) as slow,
        ):
            for i in range(100):
                await send(fast, b'fast %d' % i)
                if i % 2:
                    await send(slow, b'slow %d' % i)

    with pytest.raises(PublisherNameInUse) as caught:
        await run()
    assert isinstance(caught.value, PublisherError)
    assert not caught.value.retriable
    text = str(caught.value)
    assert repr(stream) in text
    assert repr(NAME) in text
    assert 'has publishing id 100, but this publisher has sent none above 50' in text
    assert len(confirmed) == 150
    assert await stored(client, stream) == [b'fast %d' % i for i in range(100)]


async def test_publishers_at_the_same_pace_go_unnoticed(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    """A documented limit: the broker confirms 200 messages, and stores 100, without an error."""
    async with (
        client.publisher(stream, name=NAME, amqp=False) as one,
        other.publisher(stream, name=NAME, amqp=False) as two,
    ):
        for i in range(100):
            await one.send(b'%d' % i)
            await two.send(b'%d' % i)
    assert len(await stored(client, stream)) == 100


async def test_each_process_has_its_own_name(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    async with (
        client.publisher(stream, name='shop-0', amqp=False) as one,
        other.publisher(stream, name='shop-1', amqp=False) as two,
    ):
        for i in range(100):
            await one.send(b'one %d' % i)
            if i % 2:
                await two.send(b'two %d' % i)
    assert len(await stored(client, stream)) == 150


async def test_second_publisher_while_the_first_is_reconnecting(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    """Messages that wait for the connection raise, and so do all later ones."""
    async with (
        client.publisher(stream, name=NAME, amqp=False) as slow,
        other.publisher(stream, name=NAME, amqp=False) as fast,
    ):
        await slow.send(b'slow')
        assert await fast.send_many(b'fast %d' % i for i in range(1, 101)) == 100
        lose(slow)
        sent = [slow.send(b'too late'), slow.send_many([b'too late'] * 3)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(item) for item in outcomes] == [PublisherNameInUse] * 2
        with pytest.raises(PublisherNameInUse):
            await slow.send(b'later')
        with pytest.raises(PublisherNameInUse):
            await slow.submit(b'later')
        await fast.send(b'fast 101')
    found = await stored(client, stream)
    assert found == [b'slow', *[b'fast %d' % i for i in range(2, 102)]]


async def test_batch_that_waits_for_its_flush(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    """Ids of messages that the publisher has not sent do not hide those of another publisher."""
    async with (
        client.publisher(stream, name=NAME) as slow,
        other.publisher(stream, name=NAME) as fast,
    ):
        for i in range(100):
            slow.batch(i)
        await fast.send_many(range(50))
        lose(slow)
        with pytest.raises(PublisherNameInUse):
            await slow.flush()
        with pytest.raises(PublisherNameInUse):
            slow.batch(0)
        # The publisher sent its batch right behind the query that found the other publisher.
        assert await take(first(client, stream), 100) == list(range(100))
        with pytest.raises(PublisherNameInUse):
            await fast.close()  # the broker has stored messages 51 to 100 of the batch


@pytest.mark.parametrize(
    'options',
    [
        {},
        {'sub_entry_size': 7},
        {'sub_entry_size': 7, 'compression': 'gzip'},
        {'max_unconfirmed': 3},
        {'cls': rbs.PublisherBatchFast},
    ],
    ids=str,
)
async def test_own_messages_are_no_other_publisher(
    client: rbs.StreamsClient, stream: str, options: dict[str, Any]
) -> None:
    """Neither those sent before a reconnect, nor those of an earlier publisher of the name."""

    async def send(publisher: Any, messages: range) -> None:
        if isinstance(publisher, rbs.Publisher):
            await publisher.send_many(b'%d' % i for i in messages)
            return
        for i in messages:
            publisher.batch(b'%d' % i)
        await publisher.flush()

    for run in range(3):
        async with client.publisher(stream, name=NAME, amqp=False, **options) as publisher:
            start = 300 * run
            for first in range(start, start + 300, 30):
                sending = asyncio.create_task(send(publisher, range(first, first + 30)))
                await asyncio.sleep(0)
                lose(publisher)
                await sending
    assert await stored(client, stream) == [b'%d' % i for i in range(900)]


async def test_explicit_publishing_ids(client: rbs.StreamsClient, stream: str) -> None:
    """A publisher may repeat ids that the broker had stored before the publisher opened."""
    for ids in (range(1000, 1100), range(1, 50), range(1050, 1200), [2**63, 2**64 - 1]):
        async with client.publisher(stream, name=NAME) as publisher:
            await publisher.send_many(rbs.stream_message_ctx(i, publish_id=i) for i in ids[:-1])
            lose(publisher)
            await publisher.send(rbs.stream_message_ctx(ids[-1], publish_id=ids[-1]))
    assert len(await stored(client, stream)) == 202


@pytest.mark.parametrize('others', [254, 255])
async def test_broker_remembers_255_names(
    client: rbs.StreamsClient, stream: str, others: int
) -> None:
    """A program that resumes after its last publishing id then publishes everything again."""

    async def load() -> None:
        async with client.publisher(stream, name='loader', amqp=False) as publisher:
            await publisher.send_many([b'1', b'2', b'3'][publisher.message_id - 1 :])

    await client.delete_stream(stream)
    await client.create_stream(stream, segment_size=1000)
    await load()
    await load()
    for number in range(others):  # each of them at a restart of a pod
        async with client.publisher(stream, name=f'pod-{number}', amqp=False) as publisher:
            await publisher.send(b'pod' * 500)  # begins a segment
    await load()
    found = [body for body in await stored(client, stream) if len(body) == 1]
    assert found == [b'1', b'2', b'3'] * (1 if others < 255 else 2)


async def test_second_publisher_of_a_client(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, name=NAME) as publisher:
        with pytest.raises(PublisherNameInUse, match=f'already has a publisher named {NAME!r}'):
            async with client.publisher(stream, name=NAME):
                pytest.fail('the name is in use')
        await publisher.send('x')


async def test_name_of_a_dropped_publisher_is_free_at_once(
    client: rbs.StreamsClient, stream: str
) -> None:
    publisher = await client.publisher(stream, name=NAME, amqp=False)
    await publisher.submit(b'1')
    del publisher  # closes it in the next turn of the event loop
    async with client.publisher(stream, name=NAME, amqp=False) as publisher:
        await publisher.send(b'2')
    assert await stored(client, stream) == [b'1', b'2']


async def test_publisher_that_sent_nothing_closes_without_an_error(
    client: rbs.StreamsClient, other: rbs.StreamsClient, stream: str
) -> None:
    """It has lost no message."""
    async with client.publisher(stream, name=NAME), other.publisher(stream, name=NAME) as fast:
        await fast.send('x')
