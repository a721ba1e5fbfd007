"""Publishing ids of named publishers: the broker deduplicates, a new publisher continues."""

from collections.abc import Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams import Compression, stream_message_ctx
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_publish_sub_entries import entries_of


def assigned(body: str, publish_id: int | None) -> rbs.MessageCtx:
    ctx = rbs.MessageCtx(body)
    ctx.stream_publish_id = publish_id
    return ctx


WAYS: dict[str, Callable[[str, int | None], rbs.MessageCtx]] = {
    'factory': lambda body, publish_id: rbs.stream_message_ctx(body, publish_id=publish_id),
    'constructor': lambda body, publish_id: rbs.MessageCtx(body, stream_publish_id=publish_id),
    'attribute': assigned,
}


@pytest.mark.parametrize('way', WAYS.values(), ids=list(WAYS))
async def test_message_with_a_known_id_is_not_stored_again(
    client: rbs.StreamsClient, stream: str, way: Callable[[str, int | None], rbs.MessageCtx]
) -> None:
    async with client.publisher(stream, name='app') as publisher:
        await publisher.send(way('first', 10))
    async with client.publisher(stream, name='app') as publisher:
        await publisher.send(way('again', 10))
        await publisher.send(way('next', None))
        assert publisher.message_id == 12
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=20) as messages:
        assert [await anext(messages) for _ in range(2)] == ['first', 'next']


async def test_named_publisher_continues_after_its_last_id(
    client: rbs.StreamsClient, stream: str
) -> None:
    def message(publish_id: int) -> Any:
        return stream_message_ctx(b'%d' % publish_id, publish_id=publish_id)

    async with client.publisher(stream, name='n', amqp=False) as publisher:
        for i in (1, 2, 5, 100):  # gaps are allowed
            await publisher.send(message(i))
        assert publisher.message_id == 101
    async with client.publisher(stream, name='n', amqp=False) as publisher:
        assert publisher.message_id == 101  # after the last id
        # a program that resends all its messages stores none twice
        assert await publisher.send_many([message(i) for i in (1, 2, 5, 100, 101, 103)]) == 6
        await publisher.send(b'104')
    async with client.publisher(stream, name='other', amqp=False) as publisher:
        assert publisher.message_id == 1
        await publisher.send(message(5))
    found = await stored(client, stream)
    assert found == [b'1', b'2', b'5', b'100', b'101', b'103', b'104', b'5']


async def test_batch_of_a_named_publisher_is_stored_once_and_in_order(
    client: rbs.StreamsClient, stream: str
) -> None:
    for _ in range(2):
        async with client.publisher(stream, name='n', amqp=False) as batch:
            for i in (3, 5, 7):
                batch.batch(stream_message_ctx(b'%d' % i, publish_id=i))
            with pytest.raises(ValueError, match='5 is not above'):
                batch.batch(stream_message_ctx(b'5', publish_id=5))
            await batch.flush()
    assert await stored(client, stream) == [b'3', b'5', b'7']


@pytest.mark.parametrize('first', [0, 1])
async def test_first_message_after_a_reconnect_is_stored(
    client: rbs.StreamsClient, stream: str, first: int
) -> None:
    async with client.publisher(stream, name='n', amqp=False) as publisher:
        await publisher.send(stream_message_ctx(b'a', publish_id=first))
    for body in (b'b', b'c'):
        await client.disconnect()
        async with client.publisher(stream, name='n', amqp=False) as publisher:
            await publisher.send(body)
    assert await stored(client, stream) == [b'a', b'b', b'c']


@pytest.mark.parametrize(
    'how',
    [
        {'filter_extract': lambda context: 'zażółć'},
        {'filter_extract': lambda context: None},
        {'sub_entry_size': 4},
        {'sub_entry_size': 4, 'compression': 'gzip'},
    ],
    ids=['filter', 'no filter value', 'sub-entries', 'gzip'],
)
async def test_deduplication_with_filter_values_and_with_sub_entries(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, how: dict[str, Any]
) -> None:
    def messages(*ids: int) -> list[Any]:
        return [stream_message_ctx(str(i), publish_id=i) for i in ids]

    for ids in ((1, 2, 3), (2, 3, 4), (1, 5, 9)):
        async with client.publisher(stream, name='n', **how) as publisher:
            assert await publisher.send_many(messages(*ids)) == 3
            last = publisher.message_id
    async with client.publisher(stream, name='n', **how) as publisher:
        assert publisher.message_id == last == 10
        async with (
            rbs.streams_client(broker.uri) as other,
            other.publisher(stream, name='n', **how) as again,
        ):
            for one in (publisher, again):  # the same ids once more
                assert await one.send_many(['a' * 100] * 10) == 10
        last = publisher.message_id
    async with client.publisher(stream, name='n', **how) as publisher:
        assert publisher.message_id == last
        await publisher.send('end')
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as stored_messages:
        found = [await anext(stored_messages) for _ in range(17)]
    assert found == ['1', '2', '3', '4', '5', '9', *['a' * 100] * 10, 'end']
    if 'filter_extract' not in how:
        entries = await entries_of(broker, stream, 17)
        code = Compression(how.get('compression', 'none')).code
        assert [n for n, messages in entries if len(messages) > 1] == [code] * 3
