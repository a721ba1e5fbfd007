"""Publishing to super streams."""

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import wire
from rbfly.net.connection import Connection
from rbfly.streams.types import MessageCtx
from rbfly.testing import StreamBroker
from tests.inside import session_of, window_of
from tests.super_streams import read_partition

KEYS = ('a', 'b', 'c')


@pytest_asyncio.fixture
async def super_stream(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A new super stream of three partitions, with the binding keys `a`, `b` and `c`."""
    name = f'test-{uuid4()}'
    await client.super_stream(name).create(binding_keys=KEYS)
    yield name
    await client.super_stream(name).delete()


def key(message: Any) -> str:
    body = message.body if isinstance(message, rbs.MessageCtx) else message
    return str(body['key'])


def orders(count: int, keys: int = 20) -> list[Any]:
    return [{'key': f'customer-{i % keys}', 'n': i} for i in range(count)]


by_hash = rbs.by_hash(key)


async def all_stored(client: rbs.StreamsClient, name: str) -> dict[str, list[Any]]:
    return {item: await read_partition(client, f'{name}-{item}') for item in KEYS}


def check_keys(found: dict[str, list[Any]], sent: list[Any]) -> None:
    """Each key is in one partition, and its messages are there exactly once and in order."""
    assert sorted(item['n'] for items in found.values() for item in items) == [
        item['n'] for item in sent
    ]
    names = tuple(found)
    for name, items in found.items():
        assert {by_hash(item, names) for item in items} <= {name}
        for one in {item['key'] for item in items}:
            numbers = [item['n'] for item in items if item['key'] == one]
            assert numbers == sorted(numbers)


async def test_all_messages_of_one_key_stay_ordered_in_one_partition(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    sent = orders(3000)
    async with client.super_stream(super_stream).publisher(route=by_hash) as publisher:
        assert_type(publisher, rbs.SuperStreamPublisher)
        assert publisher.partitions == tuple(f'{super_stream}-{item}' for item in KEYS)
        await publisher.send_many(sent[:1000])
        await publisher.send_many(iter(sent[1000:1500]))
        await publisher.send_many(items(sent[1500:2000]))
        for item in sent[2000:2100]:
            await publisher.send(item)
        confirmations = [await publisher.submit(item) for item in sent[2100:2500]]
        await asyncio.gather(*confirmations)
        await asyncio.gather(*[publisher.send(item) for item in sent[2500:]])
        assert publisher.unconfirmed == 0
        assert publisher.capacity > 0
    found = await all_stored(client, super_stream)
    check_keys(found, sent)
    assert all(found.values())


async def items(messages: list[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def test_hash_routing_reaches_the_partitions_of_the_shared_table(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    async with client.super_stream(super_stream).publisher(route=rbs.by_hash(str)) as publisher:
        await publisher.send_many([f'hello{i}' for i in (*range(1, 11), 88)])
    assert await all_stored(client, super_stream) == {
        'a': ['hello2', 'hello5', 'hello7', 'hello9'],
        'b': ['hello1', 'hello3', 'hello8', 'hello88'],
        'c': ['hello4', 'hello6', 'hello10'],
    }


async def test_key_routing(client: rbs.StreamsClient, super_stream: str) -> None:
    sent = [{'key': item, 'n': i} for i, item in enumerate('abcab' * 40)]
    async with client.super_stream(super_stream).publisher(route=rbs.by_key(key)) as publisher:
        await publisher.send_many(sent[:100])
        await asyncio.gather(*[publisher.send(item) for item in sent[100:]])
    found = await all_stored(client, super_stream)
    assert found == {item: [one for one in sent if one['key'] == item] for item in KEYS}


async def test_no_route_concerns_only_that_message(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    async with client.super_stream(super_stream).publisher(route=rbs.by_key(key)) as publisher:
        results = await asyncio.gather(
            *[publisher.send({'key': item, 'n': 0}) for item in 'axb'], return_exceptions=True
        )
        assert results[0] is results[2] is None
        assert isinstance(results[1], rbs.NoRouteError)
        assert results[1].outcome == 'not_sent'
        with pytest.raises(rbs.NoRouteError, match=r"message 1 of send_many: .*'x'") as caught:
            await publisher.send_many([{'key': item, 'n': 1} for item in 'axb'])
        progress = caught.value.progress
        assert progress is not None
        assert (caught.value.index, progress.taken, progress.refused) == (1, 2, [1])
        with pytest.raises(rbs.NoRouteError):
            await publisher.submit({'key': 'x'})
        await publisher.send({'key': 'c', 'n': 2})
    found = await all_stored(client, super_stream)
    assert {name: [item['n'] for item in items] for name, items in found.items()} == {
        'a': [0, 1], 'b': [0], 'c': [2],
    }  # fmt: skip


async def test_custom_routing_chooses_one_or_several_partitions(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    def route(message: Any, partitions: Any) -> Any:
        if message == 'none':
            return []
        return partitions if message == 'all' else partitions[message]

    async with client.super_stream(super_stream).publisher(route=route) as publisher:
        await publisher.send(0)
        await publisher.send('all')
        await (await publisher.submit('all'))
        assert await publisher.send_many([1, 'all', 2]) == 3
        with pytest.raises(rbs.NoRouteError, match='chose no partition'):
            await publisher.send('none')
    assert await all_stored(client, super_stream) == {
        'a': [0, 'all', 'all', 'all'],
        'b': ['all', 'all', 1, 'all'],
        'c': ['all', 'all', 'all', 2],
    }


@pytest.mark.parametrize(
    ('found', 'error', 'text'),
    [
        ('other', rbs.ArgumentError, "returned 'other', .* partitions '.*-a', '.*-b', '.*-c'$"),
        (['other'], rbs.ArgumentError, "returned 'other', .* partitions '.*-a', '.*-b', '.*-c'$"),
        (7, rbs.ArgumentTypeError, 'must return the names of partitions, not 7$'),
    ],
)
async def test_wrong_answer_of_a_route(
    client: rbs.StreamsClient, super_stream: str, found: Any, error: type[Exception], text: str
) -> None:
    async with client.super_stream(super_stream).publisher(route=lambda *_: found) as publisher:
        sending = publisher.send('x')
        with pytest.raises(error, match=f'^route {text}'):
            await sending


async def test_error_of_a_key_is_raised_when_awaited(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    async with client.super_stream(super_stream).publisher(route=by_hash) as publisher:
        sending = publisher.send({})
        with pytest.raises(KeyError):
            await sending
        with pytest.raises(KeyError) as caught:
            await publisher.send_many([*orders(3), {}, *orders(3)])
        assert caught.value.progress.refused == [3]  # type: ignore[attr-defined]
    assert sum(map(len, (await all_stored(client, super_stream)).values())) == 3


async def test_a_deleted_partition_does_not_stop_the_others(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    async with client.super_stream(super_stream).publisher(
        route=lambda body, names: names['abc'.index(body)]
    ) as publisher:
        await publisher.send_many(['a', 'b', 'c'])
        await client.delete_stream(f'{super_stream}-a')
        with pytest.raises(rbs.StreamDoesNotExist) as caught:  # noqa: PT012
            async with asyncio.timeout(60):
                while True:  # the leader may end later
                    await publisher.send('a')
        assert caught.value.stream == f'{super_stream}-a'
        await publisher.send('b')
        await (await publisher.submit('c'))
        assert await publisher.send_many(['b', 'c']) == 2
        with pytest.raises(rbs.StreamDoesNotExist) as caught:
            await publisher.send_many(['b', 'a', 'c'])
        assert caught.value.stream == f'{super_stream}-a'
    assert await read_partition(client, f'{super_stream}-b') == ['b'] * 4
    # The last call may have sent one before the error.
    assert await read_partition(client, f'{super_stream}-c') in (['c'] * 3, ['c'] * 4)


async def test_each_partition_continues_its_own_automatic_ids(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    route = lambda body, names: names['abc'.index(body)]  # noqa: E731
    for count in (1, 2):
        async with client.super_stream(super_stream).publisher(
            route=route, name='shop'
        ) as publisher:
            assert publisher.message_id == 1  # of the partition `c`
            await publisher.send_many(['a'] * 3 + ['b'])
            assert await read_partition(client, f'{super_stream}-a') == ['a'] * 3 * count
            assert await read_partition(client, f'{super_stream}-b') == ['b'] * count


async def test_context_sent_again_in_flight_awaits_the_same_confirm(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    message = rbs.stream_message_ctx({'key': 'x', 'n': 0}, publish_id=5)
    async with client.super_stream(super_stream).publisher(route=by_hash) as publisher:
        await asyncio.gather(publisher.send(message), publisher.send(message))
    assert sum(map(len, (await all_stored(client, super_stream)).values())) == 1


async def test_batches(client: rbs.StreamsClient, super_stream: str) -> None:
    sent = orders(600)
    opener = client.super_stream(super_stream).publisher(route=by_hash)
    async with opener as publisher:
        assert isinstance(publisher, rbs.SuperStreamPublisher)
        await publisher.flush()
        for item in sent[:300]:
            publisher.batch(item)
        assert publisher.unconfirmed == 300
        await publisher.flush()
        assert publisher.unconfirmed == 0
        for item in sent[300:]:
            publisher.batch(item)
    check_keys(await all_stored(client, super_stream), sent)


async def test_batches_by_key_wait_for_routes_in_flush(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    sent = [{'key': item, 'n': i} for i, item in enumerate('abcab' * 20)]
    opener = client.super_stream(super_stream).publisher(route=rbs.by_key(key))
    async with opener as publisher:
        for item in sent[:50]:
            publisher.batch(item)
        with pytest.raises(rbs.AMQPEncoderError):
            publisher.batch({'key': 'a', 'n': object()})
        publisher.batch({'key': 'x', 'n': 0})
        assert publisher.unconfirmed == 51
        with pytest.raises(rbs.NoRouteError, match="'x'"):
            await publisher.flush()
        for item in sent[50:]:
            publisher.batch(item)
        await publisher.flush()
    found = await all_stored(client, super_stream)
    assert found == {item: [one for one in sent if one['key'] == item] for item in KEYS}


async def test_batches_by_key_send_the_others_when_a_filter_fails(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    def extract(context: MessageCtx) -> str:
        if context.body['n'] == 1:
            raise LookupError(context.body)
        return 'value'

    opener = client.super_stream(super_stream).publisher(
        route=rbs.by_key(key), filter_extract=extract
    )
    sent = [{'key': 'a', 'n': i} for i in range(4)]
    async with opener as publisher:
        for item in sent:
            publisher.batch(item)
        with pytest.raises(LookupError, match="'n': 1"):
            await publisher.flush()
        assert publisher.unconfirmed == 0
    assert await read_partition(client, f'{super_stream}-a') == [
        item for item in sent if item['n'] != 1
    ]


async def test_batches_by_key_are_sent_by_close(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    opener = client.super_stream(super_stream).publisher(route=rbs.by_key(key))
    async with opener as publisher:
        publisher.batch({'key': 'a'})
    assert await read_partition(client, f'{super_stream}-a') == [{'key': 'a'}]


@pytest.mark.parametrize('compression', [None, 'gzip'])
async def test_sub_entries(
    client: rbs.StreamsClient, super_stream: str, compression: str | None
) -> None:
    sent = orders(1000)
    async with client.super_stream(super_stream).publisher(
        route=by_hash, sub_entry_size=50, compression=compression
    ) as publisher:
        await publisher.send_many(sent)
    check_keys(await all_stored(client, super_stream), sent)


async def test_filters(client: rbs.StreamsClient, super_stream: str) -> None:
    sent = orders(100)
    async with client.super_stream(super_stream).publisher(
        route=by_hash, filter_extract=key
    ) as publisher:
        await publisher.send_many(sent)
    wanted = rbs.MessageFilter(lambda ctx: str(ctx.body['key']), {'customer-1'})
    found: list[Any] = []
    for item in KEYS:
        name = f'{super_stream}-{item}'
        found += [
            one
            async for one in client.subscribe(
                name, offset=rbs.Offset.FIRST, filter=wanted, until='now', timeout=20
            )
        ]
    assert [item['n'] for item in found] == [1, 21, 41, 61, 81]


async def test_raw_bytes(client: rbs.StreamsClient, super_stream: str) -> None:
    route = rbs.by_hash(lambda body: body.decode())
    async with client.super_stream(super_stream).publisher(route=route, amqp=False) as publisher:
        await publisher.send(b'hello1')
    messages = client.subscribe(
        f'{super_stream}-b', offset=rbs.Offset.FIRST, until='now', amqp=False
    )
    assert [body async for body in messages] == [b'hello1']


async def test_dropped_publisher_leaves_nothing(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    publisher = await client.super_stream(super_stream).publisher(route=by_hash, name='dropped')
    await publisher.send_many(orders(100))
    sessions = [weakref.ref(session_of(item)) for item in publisher._publishers]
    del publisher
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert [session() for session in sessions] == [None] * 3
    async with client.super_stream(super_stream).publisher(
        route=by_hash, name='dropped'
    ) as publisher:
        await publisher.send({'key': 'x', 'n': 0})


async def test_name_is_in_use(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).publisher(route=by_hash, name='shop'):
        with pytest.raises(rbs.PublisherNameInUse):
            await client.super_stream(super_stream).publisher(route=by_hash, name='shop')
        with pytest.raises(rbs.PublisherNameInUse):
            await client.publisher(f'{super_stream}-a', name='shop')


async def test_closed_publisher(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).publisher(route=by_hash) as publisher:
        pass
    await publisher.close()
    with pytest.raises(rbs.PublisherError, match='is closed'):
        await publisher.send({'key': 'x'})
    with pytest.raises(rbs.PublisherError, match='is closed'):
        await publisher.send_many(orders(10))


async def test_opening_ends_with_a_clear_error(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(rbs.StreamDoesNotExist):
        await client.super_stream(f'{stream}-other').publisher(route=by_hash)

    async def later(message: Any, names: Any) -> str:
        raise AssertionError

    with pytest.raises(rbs.ArgumentTypeError, match=r'route must be by_hash.* an async function'):
        client.super_stream(stream).publisher(route=later)  # type: ignore[arg-type]
    with pytest.raises(rbs.ArgumentTypeError, match='route must be by_hash'):
        client.super_stream(stream).publisher(route='key')  # type: ignore[arg-type]


async def test_send_times_out(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).publisher(route=by_hash) as publisher:
        with pytest.raises(ValueError, match='timeout'):
            await publisher.send({'key': 'x'}, -1)
        with pytest.raises(ValueError, match='timeout'):
            await publisher.send_many([], -1)


@pytest.mark.parametrize('publishes', [True, False])
async def test_an_idle_partition_needs_less_than_5_kilobytes(
    memory_uri: str, publishes: bool
) -> None:
    count, name = 120, f'test-{uuid4()}'

    async def idle(client: rbs.StreamsClient) -> list[int]:
        if publishes:
            async with client.super_stream(name).publisher(route=by_hash, name='shop') as publisher:
                assert len(publisher.partitions) == count
                return allocated()
        async with client.super_stream(name).subscribe() as messages:
            await messages.open()
            assert len(messages.position) == count
            return allocated()

    def allocated() -> list[int]:
        gc.collect()
        if not tracemalloc.is_tracing():
            return []
        return [trace.size for trace in tracemalloc.take_snapshot().traces]

    async with rbs.streams_client(memory_uri) as client:
        await client.super_stream(name).create(partitions=count)
        await idle(client)
        gc.collect()
        tracemalloc.start()
        try:
            sizes = await idle(client)
        finally:
            tracemalloc.stop()
        # A slow broker frees the first publishers late: another connection may open, with a buffer.
        buffers = [size for size in sizes if size >= 2**18]
        assert len(buffers) <= 1
        assert sum(sizes) - sum(buffers) < 5120 * count
        await client.super_stream(name).delete()


async def test_windows_of_all_partitions_stay_below_the_limit_of_a_connection(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    def limits(publisher: Any) -> Iterator[int]:
        return (window_of(item).max_unconfirmed for item in publisher._publishers)

    async with client.super_stream(super_stream).publisher(route=by_hash) as first:
        assert [*limits(first)] == [10_000] * 3
        async with client.super_stream(super_stream).publisher(
            route=by_hash, max_unconfirmed=9000
        ) as second:
            assert [*limits(first), *limits(second)] == [5000] * 6
            await asyncio.gather(first.send_many(orders(20_000)), second.send_many(orders(20_000)))
        assert [*limits(first)] == [10_000] * 3


async def test_tasks_that_one_read_wakes_share_one_frame_per_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[tuple[int, int]] = []  # publisher id and number of messages of each frame
    all_written = asyncio.Event()
    write = Connection.write

    def note(self: Connection, data: bytes) -> None:
        if (found := wire.PUBLISH_HEAD.unpack_from(data.ljust(13)))[1] == wire.PUBLISH:
            written.append(found[3:])
            if sum(count for _, count in written) == 9:
                all_written.set()
        write(self, data)

    def route(message: Any, names: Any) -> Any:
        return names[int(message) % 3]

    async def send(number: int) -> None:
        await publisher.send(str(number % 3))
        await publisher.send(str(number // 3))  # tasks of a partition use all of them

    monkeypatch.setattr(Connection, 'write', note)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=3)
        publisher = await client.super_stream('orders').publisher(route=route)
        broker.withhold_confirms()
        tasks = [asyncio.create_task(send(number)) for number in range(9)]
        await all_written.wait()
        written.clear()
        all_written.clear()

        used = [session_of(item).registration for item in publisher._publishers]
        head = wire.CONFIRM.pack
        confirms = b''.join(
            head(33, wire.PUBLISH_CONFIRM, 1, item.id, 3) + b''.join(map(wire.U64.pack, (1, 2, 3)))
            for item in used
        )
        connection = used[0].connection
        assert connection is not None
        connection.get_buffer(-1)[: len(confirms)] = confirms
        connection.buffer_updated(len(confirms))
        await all_written.wait()
        assert sorted(written) == sorted((item.id, 3) for item in used)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
