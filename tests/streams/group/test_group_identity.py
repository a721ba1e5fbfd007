"""A member of a consumer group recognizes a stream that was deleted and created again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from rbfly.streams.error import StreamDoesNotExist
from rbfly.testing import StreamBroker
from rbfly.testing.stream import Stream
from tests.brokers import until
from tests.group_members import HANG, NewClient, OwnOffsets, publish, take, until_active
from tests.inside import session_of

OLD, NEW = 50, 20


async def recreate(client: rbs.StreamsClient, stream: str, numbers: range) -> None:
    await client.delete_stream(stream)
    await client.create_stream(stream)
    await publish(client, stream, numbers)


def hold_reconnect(messages: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Let the member reconnect only after the returned function is called."""
    session = session_of(messages)
    prepare, go = session.prepare, asyncio.Event()

    async def wait(*args: Any) -> Any:
        await go.wait()
        return await prepare(*args)

    async def release() -> None:
        go.set()

    monkeypatch.setattr(session, 'prepare', wait)
    return release


def cut(messages: Any) -> None:
    session_of(messages).registration.connection._transport.abort()


async def lose(messages: Any) -> None:
    """Lose the connection, and with it the messages that the program has not received."""
    registration = session_of(messages).registration
    connection = registration.connection
    cut(messages)
    await until(lambda: registration.connection is not connection, 'the connection is lost')


async def replace(
    client: rbs.StreamsClient,
    messages: Any,
    stream: str,
    numbers: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Create the stream again while the member reconnects."""
    release = hold_reconnect(messages, monkeypatch)
    cut(messages)
    await recreate(client, stream, numbers)
    await release()


@pytest.mark.parametrize('new', [NEW, 2 * OLD])
@pytest.mark.parametrize('kept', ['by the program', 'by the broker', 'resolved'])
async def test_recreated_stream_is_read_from_its_first_message(
    clients: NewClient,
    stream: str,
    group: str,
    kept: str,
    new: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, own = clients(), OwnOffsets()
    await publish(client, stream, range(OLD))
    offset: Any = {'by the program': own.start, 'resolved': rbs.Offset.offset(OLD - 1)}
    tracking = rbs.OffsetTracking(manual=True) if kept == 'by the broker' else None
    async with clients().subscribe(
        stream,
        group=group,
        offset=offset.get(kept, rbs.Offset.FIRST),
        commit=tracking,
        timeout=HANG,
    ) as messages:
        assert (await take(messages, 1 if kept == 'resolved' else OLD))[-1] == OLD - 1
        own.offsets[stream] = OLD
        if tracking:
            await messages.commit()
        await replace(client, messages, stream, range(1000, 1000 + new), monkeypatch)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        asked = own.asked
        assert await take(messages, new) == [*range(1000, 1000 + new)]
        assert own.asked == asked


async def test_member_that_stood_by_recognizes_the_stream(
    clients: NewClient, stream: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has received no message of the former stream."""
    client, own = clients(), OwnOffsets()
    await publish(client, stream, range(OLD))
    options: Any = {'group': group, 'offset': own.start, 'timeout': HANG}
    async with clients().subscribe(stream, **options) as first:
        assert await take(first, OLD) == [*range(OLD)]
        own.offsets[stream] = OLD
        async with clients().subscribe(stream, **options) as second:
            await second.open()
            release = hold_reconnect(second, monkeypatch)
            await first.aclose()
            cut(second)
            await recreate(client, stream, range(1000, 1000 + 2 * OLD))
            await release()
            with pytest.raises(StreamDoesNotExist, match='created again'):
                await anext(second)
            assert await take(second, 2 * OLD) == [*range(1000, 1000 + 2 * OLD)]


async def test_member_that_handed_over_recognizes_the_stream(
    clients: NewClient, stream: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joined while the stream was empty, and another member was active since."""
    client, own = clients(), OwnOffsets()
    options: Any = {'group': group, 'offset': own.start, 'timeout': HANG}
    async with clients().subscribe(stream, **options) as first:
        await first.open()
        await until_active(first)
        await publish(client, stream, range(10))
        assert await take(first, 10) == [*range(10)]
        own.offsets[stream] = 10
        async with clients().subscribe(stream, **options) as second:
            await second.open()
            cut(first)
            await until_active(second)
            await first.open()  # stands by
            await publish(client, stream, range(10, OLD))
            assert await take(second, OLD - 10) == [*range(10, OLD)]
            own.offsets[stream] = OLD
            release = hold_reconnect(first, monkeypatch)
            cut(first)
            await second.aclose()
            await recreate(client, stream, range(1000, 1000 + 2 * OLD))
            await release()
            with pytest.raises(StreamDoesNotExist, match='created again'):
                await anext(first)
            assert await take(first, 2 * OLD) == [*range(1000, 1000 + 2 * OLD)]


async def test_offset_function_is_called_again_after_a_message_of_the_new_stream(
    clients: NewClient, stream: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, own = clients(), OwnOffsets()
    await publish(client, stream, range(OLD))
    async with clients().subscribe(stream, group=group, offset=own.start, timeout=HANG) as messages:
        await take(messages, OLD)
        own.offsets[stream] = OLD
        await replace(client, messages, stream, range(1000, 1100), monkeypatch)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        await messages.open()
        await until_active(messages)
        await lose(messages)  # before the first message
        assert await take(messages, 100) == [*range(1000, 1100)]
        own.offsets[stream] = 5
        await lose(messages)
        assert await take(messages, 5) == [*range(1005, 1010)]


async def test_the_same_stream_goes_on_after_retention(
    clients: NewClient, stream_name: str, group: str
) -> None:
    """The chunk that identified it is gone."""
    client, own = clients(), OwnOffsets()
    size = 10_000
    await client.create_stream(stream_name, max_length_bytes=6 * size, segment_size=2 * size)
    async with client.publisher(stream_name) as publisher:
        await publisher.send(b'0' * size)
        async with clients().subscribe(
            stream_name, group=group, offset=own.start, on_gap='ignore', timeout=HANG
        ) as messages:
            assert await take(messages, 1)
            while (await client.stream_stats(stream_name)).first_chunk_id == 0:
                await publisher.send(b'0' * size)
            await lose(messages)
            assert await take(messages, 1)


@pytest.mark.parametrize('grouped', [True, False])
@pytest.mark.parametrize('start', ['function', 'mapping'])
@pytest.mark.parametrize('noticed', [True, False])
async def test_partition_that_was_created_again(noticed: bool, start: str, grouped: bool) -> None:
    own = OwnOffsets()
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        broker.publish('orders-0', *range(OLD))
        own.offsets['orders-0'] = OLD - 10
        kept = {'orders-0': rbs.Offset.offset(OLD - 10)}
        reported = client.events()
        async with client.super_stream('orders').subscribe(
            group='billing' if grouped else None,
            offset=own.start if start == 'function' else kept,
            refresh_interval=0.01,
            timeout=HANG,
        ) as messages:
            assert await take(messages, 10) == [*range(OLD - 10, OLD)]
            own.offsets['orders-0'] = OLD
            broker.delete_stream('orders-0')
            if noticed:  # the subscription knows that it is gone
                waiting = asyncio.ensure_future(anext(messages))
                async for event in reported:
                    if isinstance(event, events.PartitionGone):
                        break
            broker.create_stream('orders-0')
            broker.publish('orders-0', *range(1000, 1000 + 2 * OLD))
            broker.bind('orders', 'orders-0', '0')
            found = []
            with contextlib.suppress(StreamDoesNotExist):
                found.append(await (waiting if noticed else anext(messages)))
            found += await take(messages, 2 * OLD - len(found))
            assert found == [*range(1000, 1000 + 2 * OLD)]


@pytest.mark.parametrize(
    ('grouped', 'start'), [(True, 'function'), (False, 'function'), (False, 'first')]
)
async def test_partition_that_was_bound_again_is_the_same_stream(
    grouped: bool, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, bound = OwnOffsets(), ['orders-0', 'orders-1']

    async def query(*_: Any) -> tuple[str, ...]:
        return tuple(bound)

    monkeypatch.setattr('rbfly.streams._super_stream.session.query_partitions', query)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        broker.publish('orders-0', *range(OLD))
        reported = client.events()
        async with client.super_stream('orders').subscribe(
            group='billing' if grouped else None,
            offset=own.start if start == 'function' else rbs.Offset.FIRST,
            refresh_interval=0.01,
            timeout=HANG,
        ) as messages:
            assert await take(messages, OLD) == [*range(OLD)]
            own.offsets['orders-0'] = OLD
            waiting = asyncio.ensure_future(anext(messages))
            del bound[0]
            async for event in reported:
                if isinstance(event, events.PartitionGone):
                    break
            broker.publish('orders-0', *range(OLD, 2 * OLD))
            bound.append('orders-0')
            assert [await waiting, *await take(messages, OLD - 1)] == [*range(OLD, 2 * OLD)]


@pytest.mark.parametrize('start', ['function', 'mapping'])
@pytest.mark.parametrize('grouped', [True, False])
async def test_super_stream_that_was_created_again(
    clients: NewClient, super_stream: str, group: str, start: str, grouped: bool
) -> None:
    client, own = clients(), OwnOffsets()
    partition = (await client.super_stream(super_stream).partitions())[0]
    await publish(client, partition, range(OLD))
    own.offsets[partition] = 10
    offset: Any = own.start if start == 'function' else {partition: rbs.Offset.offset(10)}
    async with (
        clients()
        .super_stream(super_stream)
        .subscribe(group=group if grouped else None, offset=offset, timeout=HANG) as messages
    ):
        assert await take(messages, OLD - 10) == [*range(10, OLD)]
        waiting = asyncio.ensure_future(anext(messages))
        await client.super_stream(super_stream).delete()
        with pytest.raises(StreamDoesNotExist):
            await waiting
        await client.super_stream(super_stream).create(partitions=3)
        await publish(client, partition, range(1000, 1000 + NEW))
        assert await take(messages, NEW) == [*range(1000, 1000 + NEW)]


async def test_leader_that_has_not_committed_the_known_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader has all chunks, but commits those of the former leader only after a while.

    The in-memory broker commits a chunk at once, so the test hides the chunks.
    """
    is_hidden = False
    at, stats = Stream.at, Stream.stats

    def chunk_at(self: Stream, number: int) -> Any:
        return None if is_hidden else at(self, number)

    def stats_of(self: Stream) -> dict[str, int]:
        hidden = {'committed_chunk_id': -1, 'committed_offset': -1} if is_hidden else {}
        return stats(self) | hidden

    monkeypatch.setattr(Stream, 'at', chunk_at)
    monkeypatch.setattr(Stream, 'stats', stats_of)
    own = OwnOffsets()
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', *range(OLD))
        reported = client.events()
        async with client.subscribe(
            'orders', group='billing', offset=own.start, timeout=HANG
        ) as messages:
            assert await take(messages, OLD) == [*range(OLD)]
            own.offsets['orders'] = OLD
            is_hidden = True
            cut(messages)
            waiting = asyncio.ensure_future(take(messages, NEW))
            async for event in reported:
                assert not waiting.done()
                if isinstance(event, events.RecoveryScheduled) and event.attempt == 3:
                    break
            is_hidden = False
            broker.publish('orders', *range(OLD, OLD + NEW))
            assert await waiting == [*range(OLD, OLD + NEW)]
