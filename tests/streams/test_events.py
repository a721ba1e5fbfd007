"""`StreamsClient.events`: what a program learns about its client."""

import asyncio
import copy
import gc
import inspect
import pickle
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests.inside import cluster_of, session_of
from tests.next_event import HANG, find

BASES = (
    rbs.Event,
    rbs.ConnectionEvent,
    rbs.RegistrationEvent,
    rbs.PartitionEvent,
    rbs.GroupEvent,
)


def queue_of(client: rbs.StreamsClient) -> list[object]:
    observers = cluster_of(client).observers._observers
    return [item for item in observers if isinstance(item, events.EventQueue)]


def cut(owner: Any) -> None:
    """Cut the connection of a publisher or subscription."""
    session_of(owner).registration.connection._transport.abort()


# -- classes


EVENTS = [
    item
    for item in (getattr(rbs, name) for name in rbs.__all__)
    if inspect.isclass(item) and issubclass(item, rbs.Event) and item not in BASES
]


@pytest.mark.parametrize('kind', EVENTS)
def test_no_event_is_a_subclass_of_another(kind: type[rbs.Event]) -> None:
    assert len(EVENTS) == 20
    assert [other for other in EVENTS if issubclass(other, kind)] == [kind]
    assert all(len(base.__subclasses__()) > 1 for base in BASES)


def test_match_on_an_event_does_not_catch_its_opposite() -> None:
    for event in (
        rbs.ConnectionLost('a:5552', 'publish', OSError()),
        rbs.PartitionGone('orders', 'orders-0'),
        rbs.Deactivated('orders', 'billing'),
        rbs.HandoverLate('orders', 'billing'),
    ):
        match event:
            case rbs.ConnectionOpened() | rbs.PartitionAdded() | rbs.Activated():
                pytest.fail(f'{event} was matched')
            case rbs.ConnectionLost('a:5552', 'publish', OSError()):
                pass
            case rbs.PartitionEvent('orders', partition='orders-0'):
                pass
            case rbs.GroupEvent('orders', group='billing'):
                pass
            case _:
                pytest.fail(f'{event} was not matched')


def test_equal_events() -> None:
    event = rbs.Activated('orders', 'billing')
    assert event == rbs.Activated(stream='orders', group='billing')
    assert len({event, rbs.Activated('orders', 'billing')}) == 1
    assert event not in [rbs.Deactivated('orders', 'billing'), rbs.GroupEvent('orders', 'billing')]
    assert event != rbs.Activated('orders', 'shipping')
    assert repr(event) == "Activated(stream='orders', group='billing')"
    assert copy.copy(event) == pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(AttributeError, match='stream'):
        event.stream = 'a'  # type: ignore[misc]
    with pytest.raises(TypeError):
        rbs.Activated('orders')  # type: ignore[call-arg]


# -- programs, on every broker


async def test_events_until_the_client_disconnects(client: rbs.StreamsClient, stream: str) -> None:
    await client.disconnect()
    found = client.events()
    async with client.publisher(stream) as publisher:
        await publisher.send('a')
    await client.disconnect()
    kinds = [event async for event in found]
    assert {type(event) for event in kinds} == {events.ConnectionOpened}
    roles = {event.role for event in kinds if isinstance(event, events.ConnectionOpened)}
    assert 'publish' in roles
    port = cluster_of(client).settings.endpoints[0].address.port
    assert all(event.node.endswith(f':{port}') for event in kinds if hasattr(event, 'node'))
    assert not queue_of(client)


@pytest.mark.parametrize('name', [None, 'shop'])
async def test_recovery_of_a_publisher(
    client: rbs.StreamsClient, stream: str, name: str | None
) -> None:
    async with client.publisher(stream, name=name) as publisher:
        await publisher.send('a')
        found = client.events()
        cut(publisher)
        await publisher.send('b')
        lost = await find(found, events.ConnectionLost)
        assert lost.role == 'publish'
        assert isinstance(lost.error, StreamConnectionError)
        trying = await find(found, events.RecoveryScheduled)
        assert (trying.kind, trying.stream, trying.name) == ('publisher', stream, name or '')
        assert trying.attempt == 1
        assert trying.delay >= 0
        assert isinstance(trying.error, StreamConnectionError)
        back = await find(found, events.Recovered)
        assert (back.kind, back.stream, back.name) == ('publisher', stream, name or '')
        assert back.node == lost.node


async def test_recovery_of_a_subscription(client: rbs.StreamsClient, stream: str) -> None:
    async with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages,
    ):
        await publisher.send('a')
        assert await anext(messages) == 'a'
        found = client.events()
        cut(messages)
        await publisher.send('b')
        assert await anext(messages) == 'b'
        assert (await find(found, events.RecoveryScheduled)).kind == 'subscription'
        assert (await find(found, events.Recovered)).stream == stream


async def test_deleted_stream(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream, timeout=HANG) as messages:
        await messages.open()
        found = client.events()
        await client.delete_stream(stream)
        with pytest.raises(StreamDoesNotExist):
            await anext(messages)
        deleted = await find(found, events.StreamDeleted)
        assert (deleted.kind, deleted.stream) == ('subscription', stream)


# -- in memory


async def test_moved_leader() -> None:
    async with StreamBroker(nodes=2) as broker, rbs.streams_client(broker.uris) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send('a')
            found = client.events()
            before = broker.leader('orders')
            broker.move_leader('orders', 1 - before)
            broker.metadata_update('orders')
            await publisher.send('b')
            assert (await find(found, events.StreamMoved)).stream == 'orders'
            back = await find(found, events.Recovered)
            assert back.node in broker.uris[1 - before]


async def test_attempts_are_counted_until_the_publisher_gives_up() -> None:
    async with StreamBroker() as broker:
        # with the usual delays, there might be time for two attempts only
        client = rbs.streams_client(broker.uri, reconnect_timeout=1.0, backoff=(0.01, 0.1))
        broker.create_stream('orders')
        publisher = await client.publisher('orders')
        found = client.events()
        broker.stop_node(0)
        attempts = [(await find(found, events.RecoveryScheduled)).attempt for _ in range(3)]
        assert attempts == [1, 2, 3]
        gone = await find(found, events.RecoveryFailed)
        assert (gone.kind, gone.stream) == ('publisher', 'orders')
        assert isinstance(gone.error, StreamConnectionError)
        broker.start_node(0)
        await publisher.close()
        await client.disconnect()


async def test_partitions() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        found = client.events()
        async with client.super_stream('orders').subscribe(
            refresh_interval=0.01, timeout=HANG
        ) as messages:
            await messages.open()
            broker.create_stream('orders-2')
            broker.bind('orders', 'orders-2', '2')
            broker.publish('orders-2', 'a')
            assert await anext(messages) == 'a'
            broker.delete_stream('orders-2')
            reading = asyncio.create_task(anext(messages))
            added = await find(found, events.PartitionAdded)
            assert (added.super_stream, added.partition) == ('orders', 'orders-2')
            gone = await find(found, events.PartitionGone)
            assert (gone.super_stream, gone.partition) == ('orders', 'orders-2')
            reading.cancel()


async def test_gap(client: rbs.StreamsClient, stream_name: str) -> None:
    size = 10_000
    await client.create_stream(stream_name, max_length_bytes=60_000, segment_size=20_000)
    first = 0
    async with client.publisher(stream_name) as publisher:
        while first < 3:
            await publisher.send(b'x' * size)
            first = (await client.stream_stats(stream_name)).first_chunk_id or 0
    found = client.events()
    async with client.subscribe(stream_name, offset=rbs.Offset.offset(1), timeout=HANG) as messages:
        await anext(messages)
    gap = await find(found, events.OffsetGap)
    assert (gap.stream, gap.first_missing) == (stream_name, 1)
    assert gap.next >= first


async def test_slow_program_learns_how_many_events_were_dropped() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        found = client.events(limit=2)
        queue: Any
        [queue] = queue_of(client)
        for number in range(5):
            queue.on_gap('orders', number, 10)
        assert await anext(found) == events.EventsDropped(3)
        assert await anext(found) == events.OffsetGap('orders', 3, 10)
        queue.on_gap('orders', 5, 10)
        assert await anext(found) == events.OffsetGap('orders', 4, 10)
        assert await anext(found) == events.OffsetGap('orders', 5, 10)
        await client.disconnect()
        assert [event async for event in found] == []


async def test_closing_ends_every_task_that_waits() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        found = client.events()
        tasks = [asyncio.ensure_future(anext(found, None)) for _ in range(2)]
        await asyncio.sleep(0)
        await found.aclose()
        async with asyncio.timeout(HANG):
            assert await asyncio.gather(*tasks) == [None, None]
        assert not queue_of(client)


async def test_cancelled_task_loses_no_event() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        found = client.events()
        task = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0)
        queue: Any
        [queue] = queue_of(client)
        queue.on_gap('orders', 1, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anext(found) == events.OffsetGap('orders', 1, 2)


async def test_dropped_iterator_is_no_longer_notified() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        found = client.events()
        assert queue_of(client)
        del found
        gc.collect()
        assert not queue_of(client)


@pytest.mark.parametrize(
    ('limit', 'error'), [(0, ValueError), (-1, ValueError), ('1', TypeError), (1.5, TypeError)]
)
async def test_wrong_limit(limit: Any, error: type[Exception]) -> None:
    client = rbs.streams_client('rabbitmq-stream://guest:guest@localhost/')
    with pytest.raises(error, match='limit'):
        client.events(limit)
