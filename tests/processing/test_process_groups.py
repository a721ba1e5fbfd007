"""`process` in a consumer group: it finishes or gives back what it works on."""

import asyncio
from collections import Counter
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.processing import process
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import HANG, NewClient, hand_over_late, publish, until_active
from tests.processing.working import InOrder, Work, in_time, start
from tests.super_streams import subscribe_to


def join(client: rbs.StreamsClient, stream: str, group: str, **options: Any) -> Any:
    is_super = stream.startswith('super')
    settings = {'handover_timeout': HANG} | options
    return subscribe_to(
        client, stream, super_stream=is_super, group=rbs.Group(group, **settings), commit='manual'
    )


async def until_joined(messages: Any) -> None:
    await until(lambda: bool(messages.active), 'the member is active', HANG)


async def load(client: rbs.StreamsClient, super_stream: str, numbers: range) -> None:
    orders = client.super_stream(super_stream)
    route = rbs.by_hash(lambda number: str(number % 20))
    async with orders.publisher(route=route) as publisher:
        await publisher.send_many(numbers)


async def test_members_join_and_leave(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """Each message is processed once, and in order by key over all members."""
    count = 400
    work = InOrder(lambda number: number % 20)
    members: list[tuple[Any, asyncio.Task[Any]]] = []

    def processed() -> int:
        return sum(map(len, work.seen.values()))

    for joined in range(1, 4):
        messages = join(clients(), super_stream, group)
        members.append((messages, start(messages, work, workers=4, key=work.key)))
        await until_joined(messages)
        await load(client, super_stream, range(count * (joined - 1), count * joined))
    await until(lambda: processed() >= 3 * count, 'all messages are processed', HANG)
    finished = 0
    for messages, task in members:
        messages.stop()
        finished += (await in_time(task)).finished
    assert finished == processed() == 3 * count
    for key, seen in work.seen.items():
        assert seen == [number for number in range(3 * count) if number % 20 == key]
    assert not any((await client.super_stream(super_stream).lag(group)).values())


@pytest.mark.parametrize('max_pending', [10_000, 20])
async def test_handover_finishes_what_is_in_work(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient, max_pending: int
) -> None:
    """Also if no more messages of a partition can be taken."""
    await load(client, super_stream, range(300))
    first, second = Work(*range(300)), Work()
    reader = join(clients(), super_stream, group)
    task = start(reader, first, workers=2, max_pending=max_pending)
    await until(lambda: len(first.begun) == 2, 'messages are in work', HANG)
    other = join(clients(), super_stream, group)
    other_task = start(other, second)
    await other.open()
    for number in range(300):
        first.let_go(number)
    await until_joined(other)
    await load(client, super_stream, range(300, 600))  # the first may have finished all others
    await until(lambda: len(first.ended) + len(second.ended) >= 600, 'all are finished', HANG)
    for messages in (reader, other):
        messages.stop()
    await in_time(asyncio.gather(task, other_task))
    assert Counter(first.ended + second.ended) == Counter(range(600))
    assert second.ended


async def test_handover_cancels_what_takes_too_long(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """The member is not late, and stores the offset below the message."""
    await load(client, super_stream, range(300))
    first, second = Work(*range(300)), Work()
    old, new = clients(), clients()
    events = old.events()
    reader = join(old, super_stream, group)
    # Not a short `handover_timeout`: a busy RabbitMQ needs time to store the offset within it.
    task = start(reader, first, workers=300, finish_timeout=3.0)
    await until(lambda: len(first.begun) == 300, 'all messages are in work', HANG)
    for number in range(10):
        first.let_go(number)
    await until(lambda: len(first.ended) == 10, 'some are finished', HANG)
    messages = join(new, super_stream, group)
    other = start(messages, second, key=lambda number: number % 20)
    await until(lambda: bool(first.cancelled), 'work is cancelled', HANG)
    await until(lambda: set(first.cancelled) <= set(second.ended), 'it is done', HANG)
    for number in range(10, 300):  # so that stopping waits for nothing
        first.let_go(number)
    for subscription in (reader, messages):
        subscription.stop()
    await in_time(asyncio.gather(task, other))
    assert 0 not in second.ended
    await old.close()
    assert not [event async for event in events if isinstance(event, rbs.HandoverLate)]


async def test_partition_that_was_handed_over_late_comes_back(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """The member processes its new messages, also more of them than `max_pending`."""
    await load(client, super_stream, range(60))
    first, second = Work(*range(60)), Work()
    reader, other = (join(clients(), super_stream, group) for _ in range(2))
    task = start(reader, first, workers=60, max_pending=100)
    await until(lambda: len(first.begun) == 60, 'all messages are in work', HANG)
    hand_over_late(reader)
    other_task = start(other, second)
    await until_joined(other)
    hand_over_late(reader, HANG)
    await until(lambda: set(first.cancelled) <= set(second.ended), 'the other repeats them', HANG)
    other.stop()
    await in_time(other_task)
    for number in range(60):
        first.let_go(number)
    await until(lambda: len(reader.active) == 3, 'the partition is back', HANG)
    await load(client, super_stream, range(60, 1000))
    await until(lambda: {*first.ended, *second.ended} >= {*range(1000)}, 'all are processed', HANG)
    reader.stop()
    await in_time(task)
    assert first.cancelled
    assert not any((await client.super_stream(super_stream).lag(group)).values())


@pytest.mark.own_clock  # `handover_timeout` leaves a tenth of a second to store the offset
async def test_stop_cancels_what_takes_too_long() -> None:
    """The next member repeats only what is above the stored offset."""
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri) as leaving,
        rbs.streams_client(broker.uri) as client,
    ):
        broker.create_stream('orders')
        broker.publish('orders', *range(20))
        first, second = Work(15), Work()
        reader = join(leaving, 'orders', 'billing', handover_timeout=0.5)
        task = start(reader, first)
        await until(lambda: len(first.ended) == 19, 'one message is in work', HANG)
        messages = join(client, 'orders', 'billing')
        other = start(messages, second, workers=1)
        reader.stop()
        await in_time(task)
        assert first.cancelled == [15]
        await until(lambda: len(second.ended) == 5, 'the rest is finished', HANG)
        messages.stop()
        await in_time(other)
        assert second.ended == [*range(15, 20)]


async def test_own_function_runs_after_the_work_is_finished(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    await publish(client, stream, range(10))
    work = Work(4)
    seen: list[tuple[str, int, int | None]] = []

    async def on_revoke(name: str) -> None:
        seen.append((name, len(work.ended), await client.read_offset(stream, group)))

    messages = join(clients(), stream, group, on_revoke=on_revoke)
    task = start(messages, work)
    await until(lambda: len(work.ended) == 9, 'one message is in work', HANG)
    messages.stop()
    work.let_go(4)
    await in_time(task)
    assert seen == [(stream, 10, 9)]


async def test_lost_connection_cancels_the_work(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """The messages are delivered again, but worked on only after the former work has ended."""
    await publish(client, stream, range(10))
    gate, ended = asyncio.Event(), list[int]()
    in_work = Counter[int]()
    cancelled = asyncio.Event()

    async def work(number: int) -> None:
        assert not in_work[number]
        in_work[number] += 1
        try:
            if number == 4 and not cancelled.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    await gate.wait()  # ends late
                    raise
            ended.append(number)
        finally:
            in_work[number] -= 1

    reader = clients()
    messages = join(reader, stream, group)
    task = start(messages, work, key=lambda number: number % 5, interval=0)
    await until(lambda: len(ended) == 8, 'others are finished', HANG)
    await reader.reconnect()
    await asyncio.wait_for(cancelled.wait(), HANG)
    await until_active(messages)
    gate.set()
    await until(lambda: set(ended) == set(range(10)), 'all are finished', HANG)
    messages.stop()
    await in_time(task)
    assert set(ended) == set(range(10))
    assert await client.read_offset(stream, group) == 9


async def test_handover_before_the_former_work_has_ended(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """The messages that were delivered again are given back, and the member is not late."""
    await publish(client, stream, range(10))
    gate, cancelled = asyncio.Event(), asyncio.Event()
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.set()
            await gate.wait()  # ends late, as if nothing had happened

    reader = clients()
    messages = join(reader, stream, group)
    task = start(messages, work, workers=3)
    await until(lambda: len(begun) == 3, 'messages are in work', HANG)
    await reader.reconnect()
    await asyncio.wait_for(cancelled.wait(), HANG)
    await until_active(messages)
    second = Work()
    other = join(client, stream, group)
    other_task = start(other, second)
    await other.open()
    messages.stop()
    await until(lambda: len(second.ended) == 10, 'the other member works on all', HANG)
    gate.set()
    assert (await in_time(task)).finished == 0
    other.stop()
    await in_time(other_task)
    assert begun == [0, 1, 2]


async def test_member_that_stands_by(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    active = join(clients(), stream, group)
    async with active:
        await until_active(active)
        messages = join(clients(), stream, group)
        task = start(messages, Work())
        await messages.open()
        messages.stop()
        assert (await in_time(task)).finished == 0


@pytest.mark.parametrize('is_super', [False, True])
async def test_cancelled_process_leaves_the_group(
    clients: NewClient, stream: str, super_stream: str, group: str, is_super: bool
) -> None:
    """The next member becomes active, though the program keeps the subscription and its client."""
    name = super_stream if is_super else stream
    reader, other = (join(clients(), name, group) for _ in range(2))
    task = start(reader, Work())
    await until_joined(reader)
    if is_super:
        await until(lambda: len(reader.active) == 3, 'all partitions are active', HANG)
    active = reader.active
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other_task = start(other, Work())
    await until_active(other, active)
    assert not reader.active
    other.stop()
    await in_time(other_task)


async def test_fail_hands_over(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    await publish(client, stream, range(10))

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number == 4:
            raise ValueError('cannot process 4')

    with pytest.raises(ValueError, match='cannot process 4'):
        await in_time(process(join(clients(), stream, group), work, workers=1))
    second = Work()
    messages = join(clients(), stream, group)
    task = start(messages, second, workers=1)
    await until(lambda: len(second.ended) == 6, 'the rest is finished', HANG)
    messages.stop()
    await in_time(task)
    assert second.ended == [*range(4, 10)]
