"""`pipe` reads, transforms and publishes messages, and stores each output exactly once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.processing import PipeProgress, Stream, pipe
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import NewClient, publish
from tests.processing.piping import in_time, run, stored


@pytest_asyncio.fixture
async def target(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A new, empty stream."""
    name = f'test-{uuid4()}'
    await client.create_stream(name)
    yield name
    await client.delete_stream(name)


def same(body: Any) -> Any:
    return body


# -- outputs


async def test_each_output_is_stored(client: rbs.StreamsClient, stream: str, target: str) -> None:
    await publish(client, stream, range(10_000))
    progress = await run(client, stream, target, lambda number: number * 2 if number % 3 else None)
    assert await stored(client, target) == [i * 2 for i in range(10_000) if i % 3]
    assert progress.read == 10_000
    assert progress.published == 6_666
    assert progress.position == {stream: 10_000}
    assert await client.read_offset(stream, 'job') == 9_999


async def test_async_transform(client: rbs.StreamsClient, stream: str, target: str) -> None:
    async def transform(number: int) -> int | None:
        await asyncio.sleep(0)
        return number + 1 if number % 2 else None

    await publish(client, stream, range(500))
    await run(client, stream, target, transform)
    assert await stored(client, target) == [i + 1 for i in range(500) if i % 2]


async def test_object_with_an_async_call(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    class Transform:
        async def __call__(self, number: int) -> int:
            return number + 1

    await publish(client, stream, range(5))
    await run(client, stream, target, Transform())
    assert await stored(client, target) == [*range(1, 6)]


async def test_output_is_stored_before_the_next_message_is_transformed(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    """A slow function does not hold back the outputs of earlier messages."""
    go_on = asyncio.Event()

    async def transform(number: int) -> int:
        if number == 9:
            await go_on.wait()
        return number

    await publish(client, stream, range(10), sub_entry_size=10)  # in one chunk
    task = asyncio.create_task(run(client, stream, target, transform))
    async with asyncio.timeout(20), client.subscribe(target, offset=rbs.Offset.FIRST) as messages:
        for i in range(9):
            assert await anext(messages) == i
    go_on.set()
    await task
    assert await stored(client, target) == [*range(10)]


async def test_sections_of_messages(client: rbs.StreamsClient, stream: str, target: str) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(3):
            await publisher.send(rbs.Message(i, app_properties={'i': i}))

    def transform(message: rbs.Message) -> rbs.Message:
        return rbs.Message(message.body * 2, app_properties={'of': message.app_properties['i']})

    await run(client, stream, target, transform, context=True)
    found = client.subscribe(target, offset=rbs.Offset.FIRST, until='now').messages()
    assert [(item.body, item.app_properties) async for item in found] == [
        (i * 2, {'of': i}) for i in range(3)
    ]


async def test_context_that_is_passed_on_keeps_its_sections(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send(rbs.Message('a', app_properties={'i': 1}))
    await run(client, stream, target, same, context=True)
    found = client.subscribe(target, offset=rbs.Offset.FIRST, until='now').messages()
    assert [(item.body, item.app_properties) async for item in found] == [('a', {'i': 1})]


async def test_bytes_of_messages(client: rbs.StreamsClient, stream: str, target: str) -> None:
    sent = [b'\x00\x01not AMQP', b'', b'\x00\x53\x75\xa0\x01a']
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many(sent)
    await run(client, stream, target, same, amqp=False)
    messages = client.subscribe(target, offset=rbs.Offset.FIRST, until='now', amqp=False)
    assert [body async for body in messages] == sent


async def test_filter_values(client: rbs.StreamsClient, stream: str, target: str) -> None:
    await publish(client, stream, [{'region': name} for name in ('emea', 'apac') * 5])
    await run(client, stream, target, same, filter_extract=lambda message: message.body['region'])
    wanted = rbs.MessageFilter(lambda message: message.body['region'], {'apac'})
    first = rbs.Offset.FIRST
    found = client.subscribe(target, offset=first, until='now', filter=wanted)
    assert [body async for body in found] == [{'region': 'apac'}] * 5


async def test_several_outputs(client: rbs.StreamsClient, stream: str, target: str) -> None:
    """None, one, one in a list, several."""
    await publish(client, stream, range(200))

    def transform(number: int) -> Any:
        outputs: list[Any] = [number * 100 + i for i in range(number % 4)]
        return outputs if number % 3 else [*map(rbs.Message, outputs)]

    progress = await run(client, stream, target, transform, max_unconfirmed=7)
    expected = [number * 100 + i for number in range(200) for i in range(number % 4)]
    assert await stored(client, target) == expected
    assert progress.published == len(expected)


async def test_several_outputs_of_an_async_function(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    async def transform(number: int) -> Any:
        return [number] * (number % 4)

    await publish(client, stream, range(50))
    await run(client, stream, target, transform)
    assert await stored(client, target) == [i for i in range(50) for _ in range(i % 4)]


async def test_more_outputs_than_in_flight(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(5))
    await run(client, stream, target, lambda number: [number] * 20, max_unconfirmed=10)
    assert await stored(client, target) == [i for i in range(5) for _ in range(20)]


@pytest.mark.parametrize('compression', [None, 'gzip'])
async def test_sub_entries(
    client: rbs.StreamsClient, stream: str, target: str, compression: str | None
) -> None:
    await publish(client, stream, range(1000), sub_entry_size=250)
    options: Any = {'sub_entry_size': 30, 'compression': compression}
    await run(client, stream, target, lambda number: number if number % 7 else None, **options)
    expected = [i for i in range(1000) if i % 7]
    assert await stored(client, target) == expected
    await client.write_offset(stream, 'job', 499, wait=True)  # the end of a chunk
    await run(client, stream, target, lambda number: number if number % 7 else None, **options)
    assert await stored(client, target) == expected


async def test_sub_entries_of_a_chunk_of_several_batches() -> None:
    """They are the same when a run was killed, and the next one starts within the chunk."""
    count = 32
    last: int | None = None

    def transform(body: bytes) -> int:
        if body[0] == last:
            raise LookupError('as if the process was killed')
        return body[0]

    # RabbitMQ may divide the messages into several chunks.
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.create_stream('bills')
        async with client.publisher('orders', sub_entry_size=1, compression='gzip') as publisher:
            for i in range(count):
                publisher.batch(bytes([i]) + bytes(900_000))
            await publisher.flush()
        messages = client.subscribe('orders', offset=rbs.Offset.FIRST, until='now')
        sizes = [len(batch) async for batch in messages.batches()]
        assert 7 < sizes[0] < count
        assert sizes[0] % 7  # the last sub-entry of the batch is not full
        last = sizes[0]
        with pytest.raises(LookupError):
            await run(client, 'orders', 'bills', transform, sub_entry_size=7)
        assert broker.messages('bills') == [*range(sizes[0])]
        await client.write_offset('orders', 'job', 6, wait=True)  # as of before
        last = None
        await run(client, 'orders', 'bills', transform, sub_entry_size=7)
        assert broker.messages('bills') == [*range(count)]


@pytest.mark.parametrize('body', [None, [1, 2]])
async def test_message_whose_body_is_none_or_a_list(
    client: rbs.StreamsClient, stream: str, target: str, body: Any
) -> None:
    await publish(client, stream, ['a'])
    await run(client, stream, target, lambda _: rbs.Message(body))
    assert await stored(client, target) == [body]


async def test_small_window(client: rbs.StreamsClient, stream: str, target: str) -> None:
    await publish(client, stream, range(300))
    await run(client, stream, target, same, max_unconfirmed=1)
    assert await stored(client, target) == [*range(300)]


async def test_empty_source(client: rbs.StreamsClient, stream: str, target: str) -> None:
    progress = await run(client, stream, target, same)
    assert (progress.read, progress.position) == (0, {})
    assert await stored(client, target) == []


# -- where it starts and resumes


async def test_job_starts_at_an_offset_once(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(10))
    await run(client, stream, target, same, offset=rbs.Offset.offset(7))
    await run(client, stream, target, same)
    assert await stored(client, target) == [7, 8, 9]


async def test_job_starts_at_the_end_once(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    for number in range(3):
        await publish(client, stream, [number])
        await run(client, stream, target, same, offset=rbs.Offset.NEXT)
    assert await stored(client, target) == [1, 2]


async def test_next_run_starts_after_the_last_one(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    for start in (0, 100, 200):
        await publish(client, stream, range(start, start + 100))
        progress = await run(client, stream, target, same)
        assert progress.read == 100
    assert await stored(client, target) == [*range(300)]


async def test_outputs_sent_again_are_stored_once(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    """The run before was killed after it had published, and before it stored its position."""
    await publish(client, stream, range(1000))
    await run(client, stream, target, same)
    for offset in (0, 500, 2**64 - 1):
        await client.write_offset(stream, 'job', offset, wait=True)
        progress = await run(client, stream, target, same)
        assert progress.published == 1000 - (offset + 1) % 2**64
    assert await stored(client, target) == [*range(1000)]


async def test_position_covers_messages_without_outputs(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    await publish(client, stream, range(50))
    await run(client, stream, target, lambda _: None)
    assert await client.read_offset(stream, 'job') == 49
    assert await stored(client, target) == []


async def test_two_jobs(client: rbs.StreamsClient, stream: str, target: str) -> None:
    await publish(client, stream, range(10))
    await run(client, stream, target, same, name='first')
    await run(client, stream, target, same, name='second')
    assert await stored(client, target) == [*range(10)] * 2


async def test_two_runs_at_once(clients: NewClient, stream: str, target: str) -> None:
    """Each sends all outputs; each output is stored once."""
    await publish(clients(), stream, range(20_000))
    runs = [run(clients(), stream, target, same) for _ in range(2)]
    await asyncio.gather(*runs)
    assert await stored(clients(), target) == [*range(20_000)]


async def test_to_another_cluster(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(1000))
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as other:
        broker.create_stream('target')
        ends = Stream(client, stream), Stream(other, 'target')
        await in_time(pipe(*ends, same, name='job', until='now'))
        await client.write_offset(stream, 'job', 10, wait=True)
        await in_time(pipe(*ends, same, name='job', until='now'))
        assert broker.messages('target') == [*range(1000)]


# -- without an end


async def test_pipe_runs_until_it_is_cancelled(
    client: rbs.StreamsClient, stream: str, target: str
) -> None:
    progress = PipeProgress()
    ends = Stream(client, stream), Stream(client, target)
    task = asyncio.create_task(pipe(*ends, same, name='job', interval=0.01, progress=progress))
    for start in (0, 100):
        await publish(client, stream, range(start, start + 100))
        async with asyncio.timeout(30):
            while progress.position.get(stream, 0) < start + 100:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stored(client, target) == [*range(200)]
    stop = await client.read_offset(stream, 'job')
    assert stop is not None
    assert stop >= 199


async def test_one_process_reads_and_another_takes_over(
    clients: NewClient, stream: str, target: str
) -> None:
    client = clients()
    tasks = []
    done: list[PipeProgress] = []
    for _ in range(2):
        each = clients()
        done.append(PipeProgress())
        ends = Stream(each, stream), Stream(each, target)
        running = pipe(*ends, same, name='job', progress=done[-1])
        tasks.append(asyncio.create_task(running))
    await publish(client, stream, range(1000))
    await until(lambda: sum(item.read for item in done) == 1000, 'the messages are read')
    active = done.index(max(done, key=lambda item: item.read))
    assert done[1 - active].read == 0
    tasks[active].cancel()
    await publish(client, stream, range(1000, 2000))
    await until(lambda: done[1 - active].read >= 1000, 'the other process reads')
    tasks[1 - active].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await run(client, stream, target, same)
    assert await stored(client, target) == [*range(2000)]
