"""Reading a super stream of the in-memory broker: turns, faults, and partitions that change."""

import asyncio
import contextlib
import gc
import logging
import random
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Observer, State
from rbfly.protocol.const import Key
from rbfly.testing import StreamBroker
from rbfly.testing.arguments import Refused
from rbfly.testing.handlers import HANDLERS
from tests.brokers import until
from tests.inside import cluster_of, session_of

HANG = 20.0  # seconds; only a bug makes a test wait that long


def publish(broker: StreamBroker, stream: str, bodies: Any) -> None:
    for body in bodies:
        broker.publish(stream, body)


async def send(client: rbs.StreamsClient, stream: str, bodies: Any) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(bodies)


@pytest.mark.parametrize('how', ['bodies', 'contexts', 'batches', 'joined', 'fetch'])
async def test_busy_partition_does_not_starve_another(how: str) -> None:
    """A partition with ten messages is read long before one with many is."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        for _ in range(300):
            await send(client, 'orders-0', [b'busy'] * 1000)
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST, amqp=False)
        await messages.open()
        assert await messages.fetch(1)
        await send(client, 'orders-1', [b'rare'] * 10)
        busy = rare = 0
        contexts, batches = messages.messages(), messages.batches(1000)
        joined = messages.batches(1000, max_wait=0.001)
        while rare < 10:
            if how in ('bodies', 'contexts'):
                await anext(messages if how == 'bodies' else contexts)
                stream, count = rbs.get_message_ctx().stream, 1
            else:
                batch = await (
                    messages.fetch(1000)
                    if how == 'fetch'
                    else anext(batches if how == 'batches' else joined)
                )
                stream, count = batch.stream, len(batch)
            if stream == 'orders-1':
                rare += count
            else:
                busy += count
        assert busy < 100_000
        await messages.aclose()


async def test_lost_partition_is_read_again_while_another_is_busy() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        await send(client, 'orders-0', [0] * 100)
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, initial_credit=1
        ) as messages:
            await messages.open()
            lost = session_of(messages).sessions['orders-1']
            lost.registration.on_metadata_update('orders-1')
            assert not lost.registration.is_open
            publish(broker, 'orders-1', [1])
            async with asyncio.timeout(HANG):
                async for body in messages:
                    if body == 1:
                        break
                    publish(broker, 'orders-0', [0])  # there is always another message


@pytest.mark.parametrize('how', ['bodies', 'batches', 'fetch'])
async def test_each_message_once_and_in_order_through_cuts(how: str, rng: random.Random) -> None:
    parts, count = 4, 3000
    async with StreamBroker(nodes=3) as broker, rbs.streams_client(broker.uris) as client:
        broker.create_super_stream('orders', partitions=parts)
        done = asyncio.Event()

        async def produce(stream: str) -> None:
            for i in range(count):
                broker.publish(stream, i)
                if rng.random() < 0.01:
                    await asyncio.sleep(0.001)

        async def cut() -> None:
            while not done.is_set():
                await asyncio.sleep(rng.random() * 0.05)
                if rng.random() < 0.5:
                    broker.cut()
                else:
                    broker.cut(after=rng.randrange(1, 100_000))

        found = defaultdict[str | None, list[Any]](list)
        tasks = [asyncio.create_task(produce(f'orders-{i}')) for i in range(parts)]
        tasks.append(asyncio.create_task(cut()))
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)
        async with messages, asyncio.timeout(3 * HANG):
            batches = messages.batches()
            while sum(map(len, found.values())) < parts * count:
                if how == 'bodies':
                    body = await anext(messages)
                    found[rbs.get_message_ctx().stream].append(body)
                else:
                    batch = await (messages.fetch() if how == 'fetch' else anext(batches))
                    found[batch.stream] += batch
                if rng.random() < 0.001:
                    await asyncio.sleep(0.001)
            done.set()
            await asyncio.gather(*tasks)
    assert found == {f'orders-{i}': [*range(count)] for i in range(parts)}


async def test_partition_that_is_added_is_read_from_its_first_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[tuple[str, str]] = []

    class Listener(Observer):
        def on_partition_added(self, super_stream: str, partition: str) -> None:
            events.append((super_stream, partition))

    caplog.set_level(logging.INFO, 'rbfly.streams')
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        cluster_of(client).observers.add(Listener())
        broker.create_super_stream('orders', partitions=2)
        async with client.super_stream('orders').subscribe(refresh_interval=0.01) as messages:
            await messages.open()
            assert not events
            broker.create_stream('orders-2')
            publish(broker, 'orders-2', range(3))
            broker.bind('orders', 'orders-2', '2')
            async with asyncio.timeout(HANG):
                assert [await anext(messages) for _ in range(3)] == [0, 1, 2]
            assert rbs.get_message_ctx().stream == 'orders-2'
    assert events == [('orders', 'orders-2')]
    assert "super stream 'orders': partition 'orders-2' was added" in caplog.text


@pytest.mark.parametrize('opens', [False, True])
async def test_partitions_open_one_after_the_other(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is not available does not delay those that open after it."""
    monkeypatch.setattr('rbfly.streams._super_stream.session.AT_ONCE', 1)
    async with StreamBroker(nodes=3) as broker, rbs.streams_client(broker.uris) as client:
        broker.create_super_stream('orders', partitions=3, initial_cluster_size='1')
        for i in range(3):
            publish(broker, f'orders-{i}', [i])
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)
        async with asyncio.timeout(HANG):
            if opens:
                await messages.open()
                assert messages.active == ('orders-0', 'orders-1', 'orders-2')
            await client.stream_exists('orders-1')
            node = broker.leader('orders-0')
            broker.stop_node(node)
            found = {await anext(messages), await anext(messages)}
            broker.start_node(node)
            assert found | {await anext(messages)} == {0, 1, 2}
        await messages.aclose()


class Openings(Observer):
    """Streams of the registrations that begin to open."""

    def __init__(self, client: rbs.StreamsClient) -> None:
        self.streams: list[str] = []
        self.begun = asyncio.Event()
        cluster_of(client).observers.add(self)

    def on_transition(self, registration: Any, before: Any, after: Any, error: Any) -> None:
        if after is State.OPENING:
            self.streams.append(registration.owner.stream)
            self.begun.set()


async def test_disconnect_while_partitions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wait raises the error, and does not reconnect."""
    monkeypatch.setattr('rbfly.streams._super_stream.session.AT_ONCE', 1)
    monkeypatch.setattr('rbfly.streams._super_stream.session.PACE', 0)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=300)
        publish(broker, 'orders-0', 'a')
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)
        assert await anext(messages) == 'a'
        await client.disconnect()
        found = Openings(client)
        with pytest.raises(rbs.StreamConnectionError):
            await anext(messages)
        assert found.streams == []
        publish(broker, 'orders-299', 'b')
        async with asyncio.timeout(HANG):
            assert await anext(messages) == 'b'
        await messages.aclose()


async def test_close_while_partitions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.session.AT_ONCE', 1)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=3)
        messages = client.super_stream('orders').subscribe()
        found = Openings(client)
        opening = asyncio.create_task(messages.open())
        await found.begun.wait()
        closing = asyncio.create_task(messages.aclose())
        with pytest.raises(rbs.SubscriptionClosed):
            await opening
        await closing
        assert found.streams == ['orders-0']


async def test_publisher_is_not_opened_after_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.opening.AT_ONCE', 1)
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=100)
        found = Openings(client)

        async def publisher() -> None:
            async with client.super_stream('orders').publisher(route=rbs.by_hash(str)):
                pass

        opening = asyncio.create_task(publisher())
        await found.begun.wait()
        await client.disconnect()
        with pytest.raises(rbs.StreamConnectionError):
            await opening
        assert len(found.streams) < 100
        assert not cluster_of(client).connected


async def test_partition_that_is_bound_twice_is_read_once() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=1)
        broker.bind('orders', 'orders-0', 'other')
        publish(broker, 'orders-0', range(3))
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, until='now'
        ) as messages:
            assert [body async for body in messages] == [0, 1, 2]


async def test_partition_that_was_deleted_and_created_again() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        publish(broker, 'orders-0', ['old'])
        async with client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'old'
            broker.delete_stream('orders-0')
            broker.create_stream('orders-0')
            broker.bind('orders', 'orders-0', '0')
            publish(broker, 'orders-0', ['new'])
            async with asyncio.timeout(HANG):
                with pytest.raises(rbs.StreamDoesNotExist, match="'orders-0'"):
                    await anext(messages)
                assert await anext(messages) == 'new'


@pytest.mark.parametrize('offset', [rbs.Offset.FIRST, rbs.Offset.NEXT])
async def test_partition_comes_back_as_another_stream_while_a_chunk_is_read(
    offset: rbs.Offset,
) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        if offset == rbs.Offset.NEXT:
            broker.publish('orders-0', 'before')
        async with client.super_stream('orders').subscribe(
            offset=offset, refresh_interval=0.01, timeout=HANG
        ) as messages:
            broker.publish('orders-0', *range(10))
            assert await anext(messages) == 0
            partitions = session_of(messages).partitions
            broker.delete_stream('orders-0')
            await until(lambda: 'orders-0' not in partitions, 'the partition is gone')
            broker.create_stream('orders-0')
            broker.publish('orders-0', *'abcdefghijk')
            broker.bind('orders', 'orders-0', '0')
            await until(lambda: 'orders-0' in partitions, 'the partition is back')
            with pytest.raises(rbs.StreamDoesNotExist, match='created again'):
                await anext(messages)
            assert [await anext(messages) for _ in range(11)] == [*'abcdefghijk']


async def test_slow_reader_holds_no_more_than_the_credit_of_each_partition() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        for i in range(2):
            publish(broker, f'orders-{i}', range(50))  # a chunk each
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, initial_credit=3
        ) as messages:
            assert await anext(messages) == 0
            sessions = session_of(messages).sessions.values()
            await cluster_of(client).ping(HANG)
            waiting = [len(session.cursor.queue.chunks) for session in sessions]
            assert all(count <= 3 for count in waiting)
            assert any(waiting)


async def test_gap_in_one_partition() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream(
            'orders',
            partitions=2,
            max_length_bytes='30000',
            stream_max_segment_size_bytes='10000',
        )
        for _ in range(20):  # retention removes the first ones
            await send(client, 'orders-0', [bytes(5000)])
        first = (await client.stream_stats('orders-0')).first_chunk_id
        assert first
        await send(client, 'orders-1', [b'x'])
        gaps: list[rbs.OffsetGapError] = []
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.offset(0), on_gap='raise', until='now'
        ) as messages:
            count = 0
            async with asyncio.timeout(HANG):
                while True:
                    try:
                        await anext(messages)
                    except rbs.OffsetGapError as ex:
                        gaps.append(ex)
                    except StopAsyncIteration:
                        break
                    else:
                        count += 1
        assert [(ex.stream, ex.wanted, ex.first) for ex in gaps] == [('orders-0', 0, first)]
        assert count == 20 - first + 1


async def test_client_that_disconnects_raises_one_error_and_reads_on() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=4)
        async with client.super_stream('orders').subscribe() as messages:
            await messages.open()
            reading = asyncio.create_task(anext(messages))
            await until(session_of(messages).waiter.is_waiting, 'the task waits')
            await client.disconnect()
            with pytest.raises(rbs.StreamConnectionError):
                await reading
            async with asyncio.timeout(HANG):
                await messages.open()
                publish(broker, 'orders-3', [1])
                assert await anext(messages) == 1


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize('how', ['dropped', 'closed', 'stopped', 'ended', 'never read'])
async def test_nothing_is_left_of_a_subscription(how: str) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=3)
        publish(broker, 'orders-1', range(3))

        async def use() -> list[weakref.ref[Any]]:
            messages = client.super_stream('orders').subscribe(
                offset=rbs.Offset.FIRST, until='now' if how == 'ended' else None
            )
            if how != 'never read':
                assert await anext(messages) == 0
            if how == 'closed':
                await messages.aclose()
            elif how == 'stopped':
                messages.stop()
            if how in ('ended', 'stopped'):
                assert [body async for body in messages] == ([1, 2] if how == 'ended' else [])
            session = session_of(messages)
            parts = session.sessions.values()
            return [weakref.ref(item) for item in (session, messages, *parts)]

        left = await asyncio.create_task(use())
        await until(lambda: not cluster_of(client).registrations, 'the subscription is closed')
        await until(lambda: not any(ref() for ref in left), 'nothing is left of it')


async def test_refusal_of_all_partitions_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=30)
        names = await client.super_stream('orders').partitions()
        for name in names:
            broker.publish(name, name)

        def refuse(*_: Any) -> None:
            refused.append(None)
            raise Refused(rbs.ResponseCode.ACCESS_REFUSED)

        refused: list[None] = []
        bodies: set[Any] = set()
        errors = 0
        async with contextlib.aclosing(
            client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)
        ) as messages:
            with monkeypatch.context() as patched:
                patched.setitem(HANDLERS['4.3'], Key.SUBSCRIBE, refuse)
                waiting = asyncio.create_task(anext(messages))
                await until(lambda: len(refused) == len(names), 'all partitions are refused')
            async with asyncio.timeout(HANG):
                await asyncio.wait([waiting])
                assert isinstance(waiting.exception(), rbs.ProtocolError)
                while len(bodies) < len(names):
                    try:
                        bodies.add(await anext(messages))
                    except rbs.ProtocolError:
                        errors += 1
    assert errors < len(names) / 2  # some may come after the next task waits


async def test_refused_refreshes_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)

        def refuse(*_: Any) -> None:
            refused.append(None)
            raise Refused(rbs.ResponseCode.ACCESS_REFUSED)

        refused: list[None] = []
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, refresh_interval=0.01
        ) as messages:
            await messages.open()
            with monkeypatch.context() as patched:
                patched.setitem(HANDLERS['4.3'], Key.PARTITIONS, refuse)
                await until(lambda: len(refused) > 10, 'several refreshes are refused')
            async with asyncio.timeout(HANG):
                with pytest.raises(rbs.ProtocolError):
                    await anext(messages)
                for body in ('first', 'second', 'third'):
                    waiting = asyncio.create_task(anext(messages))
                    await asyncio.sleep(0)
                    broker.publish('orders-0', body)
                    assert await waiting == body


@pytest.mark.parametrize('group', [None, 'g'])
async def test_partition_that_comes_back_as_another_stream_raises_once(group: str | None) -> None:
    """The program must not use the offset that it keeps of the former partition."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        async with client.super_stream('orders').publisher(route=rbs.by_hash(str)) as publisher:
            await publisher.send_many(range(20))
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, refresh_interval=0.5, timeout=HANG, group=group
        ) as messages:
            for _ in range(20):
                await anext(messages)
            partitions = session_of(messages).partitions
            reader = asyncio.ensure_future(anext(messages))
            broker.delete_stream('orders-1')
            await until(lambda: 'orders-1' not in partitions, 'the partition is gone')
            broker.create_stream('orders-1')
            broker.bind('orders', 'orders-1', '1')
            broker.publish('orders-1', 'new')
            with pytest.raises(rbs.StreamDoesNotExist):
                await reader
            assert await anext(messages) == 'new'


async def test_partition_that_is_added_is_not_read_until_an_end() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, until=rbs.Offset.offset(2), timeout=HANG
        ) as messages:
            partitions = session_of(messages).partitions
            reading = asyncio.create_task(anext(messages))
            broker.create_stream('orders-2')
            broker.publish('orders-2', 'added')
            broker.bind('orders', 'orders-2', '2')
            broker.delete_stream('orders-0')  # the subscription asks for the partitions
            await until(lambda: 'orders-0' not in partitions, 'the partition is gone')
            publish(broker, 'orders-1', range(3))
            assert [await reading, *[body async for body in messages]] == [0, 1]


async def test_iteration_ends_if_all_partitions_before_the_end_are_deleted() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, until=rbs.Offset.offset(2), timeout=HANG
        ) as messages:
            reading = asyncio.create_task(anext(messages, 'ended'))
            broker.create_stream('orders-2')
            broker.bind('orders', 'orders-2', '2')
            for name in ('orders-0', 'orders-1'):
                broker.delete_stream(name)
            assert await reading == 'ended'


@contextlib.contextmanager
def outage_at_a_listing(
    broker: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.Event]:
    """Begin an outage, and set the event, when the client asks for the partitions."""
    answer: Any = HANDLERS['4.3'][Key.PARTITIONS]
    asked = asyncio.Event()

    def fail(*arguments: Any) -> Any:
        asked.set()
        broker.refuse()
        broker.cut()
        return answer(*arguments)

    with monkeypatch.context() as patched:
        patched.setitem(HANDLERS['4.3'], Key.PARTITIONS, fail)
        yield asked
    broker.heal()


@pytest.mark.own_clock
async def test_partition_is_deleted_before_an_outage_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The subscription asks for the partitions again, although it has an end."""
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, reconnect_timeout=0.1) as client,
    ):
        broker.create_super_stream('orders', partitions=2)
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, until=rbs.Offset.offset(2), refresh_interval=0.01, timeout=HANG
        ) as messages:
            with outage_at_a_listing(broker, monkeypatch):
                broker.delete_stream('orders-0')
                with pytest.raises(rbs.StreamConnectionError):
                    await anext(messages)
                await asyncio.sleep(1)  # of the virtual clock: the listing gives up, too
            publish(broker, 'orders-1', range(3))
            found: list[Any] = []
            while not messages._waiter.ended:
                with contextlib.suppress(rbs.StreamConnectionError):
                    async for body in messages:
                        found.append(body)
            assert found == [0, 1]


@pytest.mark.own_clock
async def test_partition_is_deleted_before_an_outage_after_the_end_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The subscription reconnects to ask for the partitions: no partition is read any more."""
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, reconnect_timeout=0.1) as client,
    ):
        broker.create_super_stream('orders', partitions=2)
        publish(broker, 'orders-1', range(3))
        async with client.super_stream('orders').subscribe(
            offset=rbs.Offset.FIRST, until=rbs.Offset.offset(2), refresh_interval=0.01
        ) as messages:
            assert [await anext(messages), await anext(messages)] == [0, 1]
            session = session_of(messages)
            rest = asyncio.ensure_future(anext(messages, None))
            await until(lambda: session.partitions['orders-1'].ended, 'its end was not reached')
            with outage_at_a_listing(broker, monkeypatch) as asked:
                broker.delete_stream('orders-0')
                await asyncio.wait_for(asked.wait(), HANG)
                await asyncio.sleep(1)  # of the virtual clock: the client gives up
            assert await asyncio.wait_for(rest, HANG) is None
