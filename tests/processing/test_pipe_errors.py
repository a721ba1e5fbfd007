"""When a pipe cannot go on, it says so, and loses nothing."""

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.streams import ArgumentError, ArgumentTypeError, OffsetGapError, PipeError
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import NewClient, publish
from tests.processing.piping import in_time, run, stored
from tests.super_streams import super_stream_of


@pytest_asyncio.fixture
async def target(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A new, empty stream."""
    name = f'test-{uuid4()}'
    await client.create_stream(name)
    yield name
    await client.delete_stream(name)


SEGMENT = 64 * 1024  # bytes


def same(body: Any) -> Any:
    return body


@pytest.mark.parametrize('kind', ['function', 'async function', 'sub-entries'])
async def test_error_of_the_function(
    client: rbs.StreamsClient, stream: str, target: str, kind: str
) -> None:
    """The pipe stops before the message; the next run starts there."""
    broken = True

    def transform(number: int) -> int:
        if number == 70 and broken:
            raise LookupError('no price')
        return number

    async def transform_later(number: int) -> int:
        return transform(number)

    function: Any = transform_later if kind == 'async function' else transform
    options: Any = {'sub_entry_size': 10} if kind == 'sub-entries' else {}
    await publish(client, stream, range(100))
    with pytest.raises(LookupError, match='no price') as caught:
        await run(client, stream, target, function, **options)
    note = f"raised by pipe 'job' for the message at offset 70 of stream {stream!r}"
    assert note in caught.value.__notes__
    found = await stored(client, target)
    assert found == [*range(len(found))]
    assert len(found) in (range(61, 71) if options else [70])  # a sub-entry that is not full waits
    assert await client.read_offset(stream, 'job') == len(found) - 1
    broken = False
    progress = await run(client, stream, target, function, **options)
    assert progress.read == 100 - len(found)
    assert await stored(client, target) == [*range(100)]


@pytest.mark.parametrize('wrong', [{3, 4}, [1, {3, 4}]])
async def test_output_that_cannot_be_encoded(
    client: rbs.StreamsClient, stream: str, target: str, wrong: Any
) -> None:
    def transform(number: int) -> Any:
        return wrong if number == 5 else number

    await publish(client, stream, range(10))
    for _ in range(2):
        with pytest.raises(rbs.AMQPEncoderError) as caught:
            await run(client, stream, target, transform)
        assert any('at offset 5' in note for note in caught.value.__notes__)
        assert await stored(client, target) == [*range(5)]


async def test_end_of_an_iterator_in_the_function(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    """It does not end the pipe silently."""
    found = iter([1, 2])
    await publish(client, stream, range(5))
    with pytest.raises(RuntimeError, match='raised StopIteration'):
        await run(client, stream, target, lambda _: next(found))
    assert await stored(client, target) == [1, 2]


@pytest.mark.parametrize('until', ['now', None])
async def test_source_that_was_created_again(
    client: rbs.StreamsClient, stream: str, target: str, until: Any
) -> None:
    await publish(client, stream, range(10))
    await run(client, stream, target, same)
    await client.delete_stream(stream)
    await client.create_stream(stream)
    with pytest.raises(PipeError, match='deleted and created again') as caught:
        await run(client, stream, target, same, until=until)
    assert (caught.value.stream, caught.value.reference) == (stream, 'job')
    await publish(client, stream, range(100, 120))
    with pytest.raises(PipeError, match='deleted and created again'):
        await run(client, stream, target, same, until=until)
    assert await stored(client, target) == [*range(10)]
    await run(client, stream, target, same, name='another job')
    assert await stored(client, target) == [*range(10), *range(100, 120)]


async def test_run_that_was_killed_before_its_first_position(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    """It is not taken for one whose source was created again."""
    await publish(client, stream, range(100))
    done = PipeProgress()
    ends = Stream(client, stream), Stream(client, target)
    task = asyncio.create_task(pipe(*ends, same, name='job', progress=done))
    await until(lambda: done.read == 100, 'the messages are read')
    task.cancel()
    await asyncio.wait([task])
    await run(client, stream, target, same)
    assert await stored(client, target) == [*range(100)]


async def test_source_created_again_while_it_is_read(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(10))
    done = PipeProgress()
    ends = Stream(client, stream), Stream(client, target)
    task = asyncio.create_task(in_time(pipe(*ends, same, name='job', progress=done)))
    await until(lambda: done.read == 10, 'the messages are read')
    await client.delete_stream(stream)
    await client.create_stream(stream)
    await publish(client, stream, range(5))
    with pytest.raises(rbs.RbFlyError, match=r'does not exist|created again'):
        await task


async def test_partition_created_again_while_it_is_read(client: rbs.StreamsClient) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as other:
        broker.create_super_stream('orders', partitions=2)
        broker.create_stream('target')
        for name in ('orders-0', 'orders-1'):
            await publish(other, name, range(10))
        done = PipeProgress()
        orders: Any = other.super_stream('orders')
        orders.subscribe = functools.partial(orders.subscribe, refresh_interval=0.05)
        ends = orders, Stream(other, 'target')
        task = asyncio.create_task(in_time(pipe(*ends, same, name='job', progress=done)))
        await until(lambda: done.read == 20, 'the messages are read')
        await other.delete_stream('orders-0')
        await other.create_stream('orders-0')
        broker.bind('orders', 'orders-0', '0')
        await publish(other, 'orders-0', range(5))
        with pytest.raises(rbs.RbFlyError, match=r'does not exist|created again'):
            await task
        assert len(broker.messages('target')) == 20


async def test_outputs_beyond_the_end_of_the_source(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(10))
    async with client.publisher(target, name=f'job/{stream}') as publisher:
        await publisher.send(rbs.Message('x', publish_id=500))
    await client.write_offset(stream, 'job', 3, wait=True)
    with pytest.raises(PipeError, match='ends before offset'):
        await run(client, stream, target, same)


async def test_position_beyond_the_end_of_the_source(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(10))
    await client.write_offset(stream, 'job', 500, wait=True)
    with pytest.raises(OffsetGapError, match='ends before'):
        await run(client, stream, target, same)


async def test_messages_that_retention_has_removed(
    client: rbs.StreamsClient, stream_name: str, target: str
) -> None:
    await client.create_stream(stream_name, max_length_bytes=3 * SEGMENT, segment_size=SEGMENT)
    await publish(client, stream_name, range(10))
    await run(client, stream_name, target, same)
    position = await client.read_offset(stream_name, 'job')
    assert position is not None
    async with client.publisher(stream_name) as publisher:
        while ((await client.stream_stats(stream_name)).first_chunk_id or 0) <= position + 1:
            await publisher.send(bytes(SEGMENT // 2))
    with pytest.raises((OffsetGapError, PipeError), match='retention'):
        await run(client, stream_name, target, same)


@pytest.mark.parametrize('several', [False, True])
async def test_output_that_the_broker_refuses(several: bool) -> None:
    """The position does not pass its message."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('source')
        broker.create_stream('target')
        await publish(client, 'source', range(100))
        await run(client, 'source', 'target', same)
        await publish(client, 'source', range(100, 200))
        before = await client.read_offset('source', 'job')

        def transform(number: int) -> Any:
            if number == 100:
                broker.publish_error(0x11, 1)
            return [number] * 2 if several else number

        with pytest.raises(rbs.PublishError):
            await run(client, 'source', 'target', transform)
        assert await client.read_offset('source', 'job') == before


async def test_message_that_is_not_amqp(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many([b'\x00\x53\x75\xa0\x01a', b'?', b'\x00\x53\x75\xa0\x01b'])
    with pytest.raises(rbs.AMQPDecoderError):
        await run(client, stream, target, same)
    assert await stored(client, target) == [b'a']
    await run(client, stream, target, same, on_decode_error='skip')
    assert await stored(client, target) == [b'a', b'b']


async def test_target_is_deleted(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(rbs.StreamDoesNotExist):
        await run(client, stream, f'missing-{uuid4()}', same)


async def test_more_partitions_than_names(client: rbs.StreamsClient) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as other:
        broker.create_super_stream('orders', partitions=256)
        broker.create_stream('target')
        orders, target = other.super_stream('orders'), Stream(other, 'target')
        with pytest.raises(PipeError, match='more than 255 partitions'):
            await pipe(orders, target, same, name='job', until='now')


async def test_name_in_use_starts_again(
    client: rbs.StreamsClient, clients: NewClient, stream: str, target: str
) -> None:
    """The broker still reads what a run that was killed has sent: it sent the same."""
    await publish(client, stream, range(100))
    done = PipeProgress()

    async def transform(number: int) -> int:
        if number == 50 and not done.restarts:
            await other.send_many(rbs.Message(i, publish_id=i + 1) for i in range(90))
            await client.reconnect()  # then the publisher asks for the last id of its name
        return number

    async with clients() as earlier:
        other = await earlier.publisher(target, name=f'job/{stream}')
        await run(client, stream, target, transform, progress=done)
        with contextlib.suppress(rbs.PublisherNameInUse):
            await other.close()
    assert await stored(client, target) == [*range(100)]
    assert done.restarts == 1


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    'source': ({'source': 'orders'}, ArgumentError, r"pass Stream\(client, 'orders'\)"),
    'type of source': ({'source': 3}, ArgumentTypeError, 'source must be Stream or SuperStream'),
    'target': ({'target': 'orders'}, ArgumentError, r"pass Stream\(client, 'orders'\)"),
    'function': ({'transform': 3}, ArgumentTypeError, 'transform must be a function'),
    'name': ({'name': ''}, ArgumentError, 'name must not be empty'),
    'type of name': ({'name': 3}, ArgumentTypeError, 'name must be str'),
    'long name': ({'name': 'x' * 254}, ArgumentError, 'name must be shorter'),
    'route': ({'route': same}, ArgumentError, 'omit route'),
    'context': ({'context': 1}, ArgumentTypeError, 'context must be bool'),
    'interval': ({'interval': 0}, ArgumentError, 'interval must be above 0'),
    'no interval': ({'interval': None}, ArgumentTypeError, 'interval must be int or float'),
    'stranded': (
        {'until': None, 'stranded_after': 5}, ArgumentError, 'must be above interval, 5 seconds'
    ),
    'type of stranded': ({'stranded_after': '9'}, ArgumentTypeError, 'stranded_after must be'),
    'stranded without a group': ({'stranded_after': 9}, ArgumentError, 'omit stranded_after'),
    'window': ({'max_unconfirmed': 0}, ArgumentError, 'max_unconfirmed must be from 1'),
    'offset': ({'offset': 3}, ArgumentTypeError, 'offset must be Offset'),
    'progress': ({'progress': 3}, ArgumentTypeError, 'progress must be PipeProgress'),
    'filters of sub-entries': (
        {'sub_entry_size': 3, 'filter_extract': same}, ArgumentError, 'filter'
    ),
    'until': ({'until': 'then'}, ArgumentError, 'until'),
    'decoding': ({'on_decode_error': 'x'}, ArgumentError, 'on_decode_error must be'),
}  # fmt: skip


@pytest.mark.parametrize(('options', 'kind', 'text'), WRONG.values(), ids=WRONG)
async def test_wrong_arguments(
    client: rbs.StreamsClient,
    stream: str,
    target: str,
    options: dict[str, Any],
    kind: type[Exception],
    text: str,
) -> None:
    await publish(client, stream, range(3))
    settings: dict[str, Any] = {
        'source': Stream(client, stream),
        'target': Stream(client, target),
        'transform': same,
        'name': 'job',
        'until': 'now',
    }
    with pytest.raises(kind, match=text):
        await in_time(pipe(**settings | options))
    assert await stored(client, target) == []


async def test_same_stream(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(ArgumentError, match='are the same stream'):
        await run(client, stream, stream, same)


async def test_super_stream_needs_a_route(
    client: rbs.StreamsClient, stream: str, rng: random.Random
) -> None:
    async with super_stream_of(client, 2) as name:
        with pytest.raises(ArgumentError, match='is a super stream: pass route'):
            await pipe(Stream(client, stream), client.super_stream(name), same, name='job')
