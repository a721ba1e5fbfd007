"""`process` works on many messages at once, and stores the offset below which all are finished."""

import asyncio
import random
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.processing import ProcessSummary, process
from tests.brokers import until
from tests.group_members import publish
from tests.inside import cursor_of
from tests.processing.working import (
    HANG,
    InOrder,
    Work,
    client_in_memory,
    in_time,
    reading,
    start,
    until_stored,
)


async def test_messages_at_once(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(100))
    barrier = asyncio.Barrier(10)  # passes when ten messages are in work

    async def work(message: int) -> None:
        await barrier.wait()

    summary = await in_time(process(reading(client, stream), work, workers=10))
    assert summary == ProcessSummary(finished=100)
    assert await client.read_offset(stream, 'reader') == 99


async def test_order_by_key(client: rbs.StreamsClient, stream: str, rng: random.Random) -> None:
    numbers = [(rng.randrange(7), i) for i in range(3000)]
    await publish(client, stream, [{'key': key, 'i': i} for key, i in numbers])
    work = InOrder(lambda message: message['key'])
    summary = await in_time(process(reading(client, stream), work, workers=5, key=work.key))
    assert summary.finished == 3000
    for key, seen in work.seen.items():
        assert [message['i'] for message in seen] == [i for other, i in numbers if other == key]


async def test_slow_key_blocks_no_other(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(100))
    work = Work(0)
    task = start(reading(client, stream), work, workers=2, key=lambda number: number % 10)
    await until(lambda: len(work.ended) == 90, 'all messages with other keys are finished')
    work.let_go(0)
    assert (await in_time(task)).finished == 100
    assert [number for number in work.ended if not number % 10] == [*range(0, 100, 10)]


async def test_one_worker_keeps_the_order(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(100))
    work = Work()
    await in_time(process(reading(client, stream), work, workers=1))
    assert work.ended == [*range(100)]


@pytest.mark.parametrize('options', [{'every': 1, 'interval': 0}, {'every': 0, 'interval': 0.01}])
async def test_stored_offset_stays_below_unfinished_messages(
    client: rbs.StreamsClient, stream: str, options: dict[str, Any]
) -> None:
    await publish(client, stream, range(20))
    work = Work(5, 7)
    messages = reading(client, stream, until=None)
    task = start(messages, work, **options)
    await until(lambda: len(work.ended) == 18, 'all others are finished')
    await until_stored(client, stream, 4)
    work.let_go(5)
    await until_stored(client, stream, 6)
    work.let_go(7)
    messages.stop()
    await in_time(task)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a cancellation, a busy RabbitMQ may need more than two seconds to store an offset."""
    monkeypatch.setattr('rbfly.processing._processing.CANCEL_TIMEOUT', HANG)


@pytest.mark.usefixtures('patient')
async def test_restart_begins_at_the_lowest_unfinished_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, range(20))
    work = Work(5)
    task = start(reading(client, stream), work)
    await until(lambda: len(work.ended) == 19, 'all others are finished')
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert work.cancelled == [5]
    assert await client.read_offset(stream, 'reader') == 4
    work = Work()
    await in_time(process(reading(client, stream), work, workers=1))
    assert work.ended == [*range(5, 20)]


@pytest.mark.parametrize('answers', [False, True])
async def test_cancellation_logs_an_offset_that_is_not_stored(
    client: rbs.StreamsClient,
    stream: str,
    answers: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def commit(*_: object) -> None:
        if answers:
            raise rbs.OffsetNotStored('no answer')
        await asyncio.Event().wait()

    monkeypatch.setattr('rbfly.processing._processing.CANCEL_TIMEOUT', 0.01)
    await publish(client, stream, range(20))
    work, messages = Work(5), reading(client, stream)
    monkeypatch.setattr(type(messages), 'commit', commit)
    task = start(messages, work, every=0, interval=0)
    await until(lambda: len(work.ended) == 19, 'all others are finished')
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    error = 'no answer' if answers else 'no answer within 0.01 s of the cancellation'
    (line,) = [r for r in caplog.records if r.name == 'rbfly.processing']
    assert line.getMessage().endswith(f'offset 4 of stream {stream!r} is not stored: {error}')
    assert line.levelname == 'WARNING'


async def test_distance_is_bounded(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(500))
    work = Work(3)
    task = start(reading(client, stream), work, workers=4, max_pending=100)
    await until(lambda: len(work.ended) >= 80, 'messages after the slow one are finished')
    for _ in range(100):  # nothing else can happen
        await asyncio.sleep(0)
    assert max(work.begun) <= 3 + 100
    work.let_go(3)
    assert (await in_time(task)).finished == 500


@pytest.mark.parametrize('max_pending', [1, 2, 5])
async def test_small_bounds(client: rbs.StreamsClient, stream: str, max_pending: int) -> None:
    await publish(client, stream, range(50))
    in_work = set[int]()

    async def work(number: int) -> None:
        in_work.add(number)
        assert max(in_work) - min(in_work) < max_pending
        await asyncio.sleep(0)
        in_work.remove(number)

    summary = await in_time(process(reading(client, stream), work, max_pending=max_pending))
    assert summary.finished == 50


async def test_context(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(10):
            await publisher.send(rbs.MessageCtx(i, app_properties={'key': i % 2}))
    seen: list[tuple[str | None, int, int]] = []

    async def work(message: rbs.MessageCtx[int]) -> None:
        seen.append((message.stream, message.stream_offset, message.body))

    messages = reading(client, stream)
    keys = set[int]()

    def key(message: rbs.MessageCtx[int]) -> int:
        keys.add(message.app_properties['key'])
        return int(message.app_properties['key'])

    await in_time(process(messages, work, workers=1, key=key, context=True))
    assert seen == [(stream, i, i) for i in range(10)]
    assert keys == {0, 1}


async def test_without_stored_offsets(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(10))
    work = Work()
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now')
    assert (await in_time(process(messages, work))).finished == 10
    assert await client.references(stream) == {}


@pytest.mark.parametrize('how', ['stop', 'close'])
async def test_stop_gives_back_what_is_not_begun(
    client: rbs.StreamsClient, stream: str, how: str
) -> None:
    await publish(client, stream, range(50))
    work = Work(0, 1)
    messages = reading(client, stream, until=None)
    task = start(messages, work, workers=2)
    await until(lambda: len(work.begun) == 2, 'two messages are in work')
    closing = None
    if how == 'stop':
        messages.stop()
    else:
        closing = asyncio.create_task(messages.close())
        await asyncio.sleep(0)
    work.let_go(1)
    work.let_go(0)
    assert (await in_time(task)).finished == 2
    if closing is not None:
        await in_time(closing)
    assert work.ended == [1, 0]
    assert await client.read_offset(stream, 'reader') == 1


async def test_stop_while_no_more_messages_can_be_taken(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, range(100))
    work = Work(0)
    messages = reading(client, stream, until=None)
    task = start(messages, work, max_pending=20)
    await until(lambda: len(work.ended) >= 15, 'the bound is reached')
    messages.stop()
    work.let_go(0)
    finished = (await in_time(task)).finished
    assert finished == len(work.ended) <= 20
    assert await client.read_offset(stream, 'reader') == finished - 1


@pytest.mark.own_clock  # `finish_timeout` limits how long storing the offset takes, too
async def test_stop_cancels_work_that_hangs() -> None:
    work = Work(4)
    async with client_in_memory(10) as client:
        messages = reading(client, 'orders', until=None)
        task = start(messages, work, finish_timeout=0.1)
        await until(lambda: len(work.ended) == 9, 'one message hangs')
        messages.stop()
        assert (await in_time(task)).finished == 9
        assert work.cancelled == [4]
        assert await client.read_offset('orders', 'reader') == 3


@pytest.mark.usefixtures('patient')
async def test_leaving_async_with_cancels(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(10))
    work = Work(4)

    async def run() -> None:
        async with reading(client, stream, until=None) as messages:
            await process(messages, work)

    task = asyncio.create_task(run())
    await until(lambda: len(work.ended) == 9, 'one message hangs')
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert work.cancelled == [4]
    assert await client.read_offset(stream, 'reader') == 3


async def test_other_tasks_run(client: rbs.StreamsClient, stream: str) -> None:
    """Work that never waits does not stop other tasks."""
    await publish(client, stream, range(20_000))
    steps = 0

    async def tick() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        if number == 10_000:
            seen.append(steps)

    seen: list[int] = []
    ticking = asyncio.create_task(tick())
    await in_time(process(reading(client, stream), work))
    ticking.cancel()
    assert 0 < seen[0] < steps


async def test_error_of_the_subscription(client: rbs.StreamsClient, stream: str) -> None:
    """Messages in work are finished, and their offset is stored."""
    await publish(client, stream, range(10), sub_entry_size=10)  # they arrive in one chunk
    work = Work(4)
    messages = reading(client, stream, until=None, timeout=0.05)
    await messages.open()
    await until(lambda: cursor_of(messages).has_messages, 'the messages have arrived')
    task = start(messages, work)
    await until(lambda: len(work.ended) == 9, 'one message is in work')
    await until(lambda: "state='clos" in repr(messages), 'the subscription has failed')
    work.let_go(4)
    with pytest.raises(rbs.MessageTimeout):
        await in_time(task)
    assert await client.read_offset(stream, 'reader') == 9


async def test_partition_that_is_deleted(
    client: rbs.StreamsClient, super_stream: str, stream: str
) -> None:
    """Its offset is not stored; the others are read."""
    orders = client.super_stream(super_stream)
    names = await orders.partitions()
    for name in names:
        await publish(client, name, range(5))
    work = Work()
    start_at = rbs.Offset.reference('reader', default=rbs.Offset.FIRST)
    messages = orders.subscribe(offset=start_at, commit='manual', refresh_interval=0.05)
    events = client.events()
    task = start(messages, work, interval=0)
    await until(lambda: len(work.ended) == 15, 'all messages are finished')
    await client.delete_stream(names[0])
    async for event in events:
        if isinstance(event, rbs.PartitionGone):
            break
    await publish(client, names[1], [5])
    await until(lambda: len(work.ended) == 16, 'the next message is finished')
    messages.stop()
    assert (await in_time(task)).finished == 16
    assert await client.read_offset(names[1], 'reader') == 5
