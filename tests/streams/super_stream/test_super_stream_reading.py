"""Reading a super stream: its partitions as one subscription."""

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Observer
from tests.brokers import until
from tests.inside import cluster_of, session_of
from tests.super_streams import super_stream_of

HANG = 20.0  # seconds; only a bug makes a test wait that long

READERS = ['bodies', 'contexts', 'batches', 'joined batches', 'fetch']

Read = list[tuple[str, Any]]


async def fill(client: rbs.StreamsClient, stream: str, count: int, start: int = 0) -> None:
    """Publish the numbers from `start` on."""
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(start, start + count))


async def fill_all(client: rbs.StreamsClient, super_stream: str, count: int = 100) -> None:
    for i in range(3):
        await fill(client, f'{super_stream}-{i}', count)


async def read(messages: rbs.SuperStreamSubscription, how: str) -> AsyncGenerator[tuple[str, Any]]:
    """Yield the partition and the body of each message."""
    if how == 'bodies':
        async for body in messages:
            stream = rbs.get_message_ctx().stream
            assert stream is not None
            yield stream, body
    elif how == 'contexts':
        async for ctx in messages.messages():
            assert ctx.stream is not None
            yield ctx.stream, ctx.body
    else:
        batches = messages.batches(7, max_wait=0.01 if how == 'joined batches' else None)
        with contextlib.suppress(rbs.SubscriptionClosed, StopAsyncIteration):
            while True:
                batch = await (messages.fetch(7) if how == 'fetch' else anext(batches))
                assert {ctx.stream for ctx in batch.contexts()} == {batch.stream}
                for body in batch:
                    assert batch.stream is not None
                    yield batch.stream, body


async def collect(messages: rbs.SuperStreamSubscription, how: str = 'bodies') -> Read:
    return [item async for item in read(messages, how)]


def by_partition(found: Read) -> dict[str, list[Any]]:
    parts: dict[str, list[Any]] = defaultdict(list)
    for stream, body in found:
        parts[stream].append(body)
    return dict(parts)


@pytest.mark.parametrize('how', READERS)
async def test_consumer_sees_all_partitions_and_stores_offsets_on_all(
    how: str, client: rbs.StreamsClient, super_stream: str
) -> None:
    await fill_all(client, super_stream)
    names = [f'{super_stream}-{i}' for i in range(3)]
    async with client.super_stream(super_stream).subscribe(
        offset=rbs.Offset.FIRST, until='now', commit=rbs.OffsetTracking('tracker')
    ) as messages:
        found = await collect(messages, how)
    assert by_partition(found) == {name: [*range(100)] for name in names}
    assert [await client.read_offset(name, 'tracker') for name in names] == [99] * 3
    assert await client.super_stream(super_stream).lag('tracker') == dict.fromkeys(names, 0)


@pytest.mark.parametrize('how', READERS)
async def test_program_resumes_each_partition_after_its_stored_offset(
    how: str, client: rbs.StreamsClient, super_stream: str
) -> None:
    await fill_all(client, super_stream)
    found: Read = []
    for count in (50, 120, 1000):
        async with client.super_stream(super_stream).subscribe(
            offset=rbs.Offset.reference('tracker'),
            until='now',
            commit=rbs.OffsetTracking('tracker'),
        ) as messages:
            async for item in (items := read(messages, how)):
                found.append(item)
                if len(found) >= count:
                    messages.stop()
            await items.aclose()
    once = by_partition(found)
    if how in ('bodies', 'contexts'):  # the others stop within a batch, and read it again
        assert once == {f'{super_stream}-{i}': [*range(100)] for i in range(3)}
    assert {name: [*dict.fromkeys(part)] for name, part in once.items()} == {
        f'{super_stream}-{i}': [*range(100)] for i in range(3)
    }


@pytest.mark.parametrize('kind', ['mapping', 'function'])
async def test_offset_by_partition(kind: str, client: rbs.StreamsClient, super_stream: str) -> None:
    await fill_all(client, super_stream, 10)
    offsets = {f'{super_stream}-{i}': rbs.Offset.offset(3 * i) for i in range(3)}
    if kind == 'mapping':
        del offsets[f'{super_stream}-0']  # starts at its first message

    async def offset_of(partition: str) -> rbs.Offset:
        return offsets[partition]

    async with client.super_stream(super_stream).subscribe(
        offset=offsets if kind == 'mapping' else offset_of, until=rbs.Offset.offset(8)
    ) as messages:
        found = by_partition(await collect(messages))
    assert found == {f'{super_stream}-{i}': [*range(3 * i, 8)] for i in range(3)}


@pytest.mark.parametrize('tracking', [None, rbs.OffsetTracking('billing')], ids=str)
async def test_commit_without_manual_tracking_fails_before_the_subscription_opens(
    client: rbs.StreamsClient, tracking: rbs.OffsetTracking | None
) -> None:
    async with contextlib.aclosing(
        client.super_stream('orders').subscribe(commit=tracking)
    ) as messages:
        for offsets in (None, {'orders-0': 1}):
            with pytest.raises(rbs.SubscriptionError, match=r"'orders' does not allow commit"):
                await messages.commit(offsets)


async def test_commit_position_and_write_offset_by_partition(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    await fill_all(client, super_stream, 10)
    names = [f'{super_stream}-{i}' for i in range(3)]
    orders = client.super_stream(super_stream)
    with pytest.raises(LookupError, match='has not received its last message from super stream'):
        await orders.write_offset('written')
    tracking = rbs.OffsetTracking('manual', manual=True)
    async with contextlib.aclosing(
        client.super_stream(super_stream).subscribe(offset=rbs.Offset.FIRST, commit=tracking)
    ) as messages:
        assert messages.position == {}
        await messages.open()
        assert messages.position == dict.fromkeys(names)
        await messages.commit()
        last: dict[str, int] = {}
        async for ctx in messages.messages():
            assert ctx.stream is not None
            last[ctx.stream] = ctx.stream_offset
            if sum(last.values()) + len(last) == 25:
                break
        assert messages.position == {name: offset + 1 for name, offset in last.items()}
        await orders.write_offset('written', wait=True)
        assert ctx.stream is not None
        written = dict.fromkeys(names) | {ctx.stream: ctx.stream_offset}
        assert await orders.read_offset('written') == written
        with pytest.raises(ValueError, match=f"offset of '{names[1]}' must be from 0"):
            await orders.write_offset('written', {names[0]: 5, names[1]: -1}, wait=True)
        with pytest.raises(TypeError, match='offsets must be Mapping or None, not int'):
            await orders.write_offset('written', 5)  # type: ignore[arg-type]
        assert await orders.read_offset('written') == written
        await orders.write_offset('written', {names[0]: 5, names[1]: 6}, wait=True)
        written |= {names[0]: 5, names[1]: 6}
        assert await orders.read_offset('written') == written
        for name, offset, text in (
            (names[0], 10, 'was not delivered'),
            ('other', 0, 'does not read a partition'),
        ):
            with pytest.raises(ValueError, match=text):
                await messages.commit({names[1]: 0, name: offset})
        with pytest.raises(TypeError, match='offsets must be Mapping or None, not int'):
            await messages.commit(5)  # type: ignore[arg-type]
        assert await client.read_offset(names[1], 'manual') is None
        await messages.commit({names[1]: 0})
        assert await client.read_offset(names[1], 'manual') == 0
        await messages.commit()
        assert await orders.read_offset('manual') == last
    await messages.commit({names[1]: 1})  # also after the end
    assert await client.read_offset(names[1], 'manual') == 1
    with pytest.raises(ValueError, match='is from stream'):
        await client.write_offset(next(n for n in names if n != ctx.stream), 'written')


async def test_write_offset_of_a_super_stream_after_its_subscription_has_ended(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    await fill(client, f'{super_stream}-1', 3)
    async with client.super_stream(super_stream).subscribe(
        offset=rbs.Offset.FIRST, until='now'
    ) as messages:
        assert [body async for body in messages] == [0, 1, 2]
    await client.super_stream(super_stream).write_offset('written', wait=True)
    assert await client.read_offset(f'{super_stream}-1', 'written') == 2


async def test_filter_selects_messages_of_all_partitions(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    def parity(ctx: rbs.MessageCtx) -> str:
        assert isinstance(ctx.body, int)
        return 'odd' if ctx.body % 2 else 'even'

    for i in range(3):
        async with client.publisher(f'{super_stream}-{i}', filter_extract=parity) as publisher:
            await publisher.send_many(range(10))
    async with client.super_stream(super_stream).subscribe(
        offset=rbs.Offset.FIRST, filter=rbs.MessageFilter(parity, {'odd'}), until='now'
    ) as messages:
        found = by_partition(await collect(messages))
    assert found == {f'{super_stream}-{i}': [1, 3, 5, 7, 9] for i in range(3)}


@pytest.mark.parametrize('how', READERS)
async def test_all_messages_before_the_end_are_read(
    how: str, client: rbs.StreamsClient, super_stream: str
) -> None:
    """A chunk that arrives while another partition is read is not the last one.

    Whether chunks arrive at the wrong moment depends on timing, hence several tries.
    """
    counts = {f'{super_stream}-0': 80, f'{super_stream}-1': 40, f'{super_stream}-2': 10}
    for name, count in counts.items():
        async with client.publisher(name) as publisher:
            for number in range(count):  # each one in its own chunk
                await publisher.send(number)
    for _ in range(5):
        async with client.super_stream(super_stream).subscribe(
            offset=rbs.Offset.FIRST, until='now', initial_credit=1
        ) as messages:
            found = by_partition(await collect(messages, how))
        assert found == {name: [*range(count)] for name, count in counts.items()}


async def test_end_of_another_partition_does_not_drop_a_batch(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    partitions = [f'{super_stream}-{i}' for i in range(3)]
    for name in partitions[:2]:
        await fill(client, name, 1)
    async with client.super_stream(super_stream).subscribe(
        offset=rbs.Offset.FIRST, until=rbs.Offset.offset(1), timeout=HANG
    ) as messages:
        batches = messages.batches(2, max_wait=HANG)
        reading = asyncio.ensure_future(anext(batches))
        session = session_of(messages)
        await until(
            lambda: [item.ended for item in session.partitions.values()] == [True, True, False],
            'two partitions have ended, and wait for more messages',
        )
        await client.write_offset(partitions[2], 'shop', 0, wait=True)
        await fill(client, partitions[2], 1)  # after the end
        assert [*await reading, *await anext(batches)] == [0, 0]


async def test_one_partition_is_deleted_and_the_others_continue(
    client: rbs.StreamsClient, super_stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[tuple[str, str]] = []

    class Listener(Observer):
        def on_partition_gone(self, super_stream: str, partition: str) -> None:
            events.append((super_stream, partition))

    caplog.set_level(logging.INFO, 'rbfly.streams')
    cluster_of(client).observers.add(Listener())
    gone, left = f'{super_stream}-0', f'{super_stream}-1'
    async with client.super_stream(super_stream).subscribe(offset=rbs.Offset.FIRST) as messages:
        await messages.open()
        reading = asyncio.create_task(anext(messages))
        await client.delete_stream(gone)
        await until(lambda: bool(events), 'the partition is gone')
        await fill(client, left, 3)
        async with asyncio.timeout(HANG):
            assert await reading == 0
            assert [await anext(messages) for _ in range(2)] == [1, 2]
        assert gone not in messages.position
    assert events == [(super_stream, gone)]
    assert f'super stream {super_stream!r}: partition {gone!r} is gone' in caplog.text


async def test_partition_is_deleted_after_its_end(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    gone, left = f'{super_stream}-0', f'{super_stream}-1'
    await fill(client, gone, 1)
    await client.write_offset(gone, 'shop', 0, wait=True)  # the broker delivers nothing for it
    async with client.publisher(left) as publisher:
        for number in range(100):  # each one in its own chunk
            await publisher.send(number)
    found: list[Any] = []
    async with client.super_stream(super_stream).subscribe(
        offset=rbs.Offset.FIRST, until='now', initial_credit=1, timeout=HANG
    ) as messages:
        session = session_of(messages)
        partition, registration = session.partitions[gone], session.sessions[gone].registration
        while not partition.ended:
            found.append(await anext(messages))
        await client.delete_stream(gone)
        await until(lambda: not registration.is_open, 'its subscription is lost')
        found += [await anext(messages) for _ in range(20)]
        await until(
            lambda: registration.waiting_since is None, 'no attempt to open it is in progress'
        )
        found += [body async for body in messages]
    assert sorted(found) == [0, *range(100)]


async def test_deleted_super_stream(client: rbs.StreamsClient, super_stream: str) -> None:
    await fill(client, f'{super_stream}-0', 1)
    async with client.super_stream(super_stream).subscribe(offset=rbs.Offset.FIRST) as messages:
        assert await anext(messages) == 0
        reading = asyncio.create_task(anext(messages))
        await until(session_of(messages).waiter.is_waiting, 'the task waits')
        await client.super_stream(super_stream).delete()
        with pytest.raises(rbs.StreamDoesNotExist, match=f"'{super_stream}'"):
            await asyncio.wait_for(reading, HANG)
        with pytest.raises(rbs.StreamDoesNotExist, match=f"'{super_stream}'"):
            await asyncio.wait_for(anext(messages), HANG)
        await client.super_stream(super_stream).create(binding_keys=['a', 'b'])
        await fill(client, f'{super_stream}-b', 2)
        async with asyncio.timeout(HANG):
            assert [await anext(messages) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize('how', ['anext', 'open', 'fetch'])
async def test_missing_super_stream(how: str, client: rbs.StreamsClient, stream: str) -> None:
    async with contextlib.aclosing(client.super_stream('missing-super').subscribe()) as messages:
        call = {'anext': messages.__anext__, 'open': messages.open, 'fetch': messages.fetch}[how]
        for _ in range(2):
            with pytest.raises(rbs.StreamDoesNotExist, match="'missing-super'"):
                await asyncio.wait_for(call(), HANG)
    async with contextlib.aclosing(
        client.super_stream(stream).subscribe()
    ) as messages:  # not a super stream
        with pytest.raises(
            rbs.StreamDoesNotExist,
            match=rf"'{stream}' is a stream, not a super stream: use client\.",
        ):
            await asyncio.wait_for(messages.open(), HANG)
    await client.write_offset(stream, 'written', 3, wait=True)
    assert await client.read_offset(stream, 'written') == 3


async def test_super_stream_as_a_plain_stream(client: rbs.StreamsClient, super_stream: str) -> None:
    async with contextlib.aclosing(client.subscribe(super_stream)) as messages:
        with pytest.raises(rbs.StreamDoesNotExist, match='is a super stream'):
            await anext(messages)


async def test_wrong_arguments(client: rbs.StreamsClient) -> None:
    subscribe: Any = client.super_stream('test').subscribe
    for arguments, error, text in (
        ({'refresh_interval': 0}, ValueError, r'at least 0\.01 seconds'),
        ({'refresh_interval': -1}, ValueError, r'at least 0\.01 seconds'),
        ({'refresh_interval': 1e-9}, ValueError, r'at least 0\.01 seconds'),
        ({'refresh_interval': 0.0099}, ValueError, r'at least 0\.01 seconds'),
        ({'refresh_interval': math.nan}, ValueError, 'refresh_interval'),
        ({'refresh_interval': math.inf}, ValueError, 'refresh_interval'),
        ({'refresh_interval': None}, TypeError, 'refresh_interval'),
        ({'refresh_interval': '1'}, TypeError, 'refresh_interval'),
        ({'offset': {'a': 1}}, TypeError, "offset of 'a' must"),
        ({'offset': {1: rbs.Offset.FIRST}}, TypeError, 'stream'),
        ({'offset': 1}, TypeError, r'pass Offset\.offset\(1\)'),
    ):
        with pytest.raises(error, match=text):
            subscribe(**arguments)
    with pytest.raises(TypeError, match='only a super stream takes an offset for each partition'):
        client.subscribe('test', offset={'a': rbs.Offset.FIRST})  # type: ignore[call-overload]


async def test_stop_delivers_nothing_twice(client: rbs.StreamsClient, super_stream: str) -> None:
    await fill_all(client, super_stream)
    found: Counter[tuple[str, Any]] = Counter()
    while sum(found.values()) < 300:
        tracking = rbs.OffsetTracking('worker', every=1000)
        async with client.super_stream(super_stream).subscribe(
            offset=rbs.Offset.reference('worker'), commit=tracking
        ) as messages:
            stop_at = sum(found.values()) + 37
            async for body in messages:
                found[str(rbs.get_message_ctx().stream), body] += 1
                if sum(found.values()) in (stop_at, 300):
                    messages.stop()
                await asyncio.sleep(0)
    assert len(found) == 300


async def test_open_waits_for_all_partitions(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).subscribe() as messages:
        async with asyncio.timeout(HANG):
            await messages.open()
        await fill_all(client, super_stream, 1)  # NEXT: all of them are delivered
        async with asyncio.timeout(HANG):
            assert [await anext(messages) for _ in range(3)] == [0, 0, 0]
    with pytest.raises(rbs.SubscriptionClosed):
        await messages.open()
    with pytest.raises(StopAsyncIteration):
        await anext(messages)


async def test_timeout(client: rbs.StreamsClient, super_stream: str) -> None:
    async with client.super_stream(super_stream).subscribe(timeout=0.2) as messages:
        with pytest.raises(rbs.MessageTimeout):
            await anext(messages)
        assert not await messages.fetch(timeout=0.01)


async def test_300_partitions(client: rbs.StreamsClient) -> None:
    async with super_stream_of(client, 300) as name:
        async with client.publisher(f'{name}-299') as publisher:
            await publisher.send(1)
        async with client.super_stream(name).subscribe(
            offset=rbs.Offset.FIRST, until='now'
        ) as messages:
            assert await collect(messages) == [(f'{name}-299', 1)]
