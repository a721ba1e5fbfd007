"""Publishing to super streams through cuts and without leaders, on the in-memory broker."""

import asyncio
import contextlib
import gc
import itertools
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.protocol.const import Key
from rbfly.streams._admin.partitions import query_route
from rbfly.streams._publish.session import PublisherSession
from rbfly.streams._super_stream import key_routes
from rbfly.testing import StreamBroker
from rbfly.testing.handlers import HANDLERS
from tests.brokers import until
from tests.inside import cluster_of, core_of, session_of
from tests.super_streams import broker_of_orders

HANG = 20.0  # seconds; only a bug makes a test wait that long
NAMES = [f'orders-{i}' for i in range(3)]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    """Three nodes, each with the only replica of one partition of `orders`."""
    async with broker_of_orders(3) as broker:
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uris, close_timeout=1) as client:
        yield client


def route(message: Any, partitions: Any) -> str:
    """Route by the first character of a body."""
    body = message.body if isinstance(message, rbs.MessageCtx) else message
    return str(partitions[int(body[0])])


def first_key(message: Any) -> str:
    return str(message[0])


def node_of(broker: StreamBroker, partition: int) -> int:
    return broker.leader(NAMES[partition])


def stored(broker: StreamBroker) -> list[list[Any]]:
    return [broker.messages(name) for name in NAMES]


@pytest.mark.parametrize('explicit', [False, True])
async def test_named_publisher_stores_each_message_once_through_cuts(
    broker: StreamBroker, client: rbs.StreamsClient, explicit: bool
) -> None:
    sent = [f'{i * 7 % 3} {i}' for i in range(6000)]
    messages: list[Any] = [
        rbs.stream_message_ctx(body, publish_id=i) if explicit else body
        for i, body in enumerate(sent, 1)
    ]
    by = rbs.by_hash(lambda message: first_key(getattr(message, 'body', message)))
    async with client.super_stream('orders').publisher(route=by, name='shop') as publisher:
        for start in range(0, 6000, 1000):
            broker.cut(after=8000)
            await publisher.send_many(messages[start : start + 500])
            await asyncio.gather(*map(publisher.send, messages[start + 500 : start + 1000]))
        partition = {key: by(key, publisher.partitions) for key in '012'}
    found = dict(zip(NAMES, stored(broker), strict=True))
    for name in NAMES:
        assert found[name] == [body for body in sent if partition[body[0]] == name]


async def test_restarted_service_goes_on_with_automatic_ids(
    broker: StreamBroker,
) -> None:
    sent = [f'{i % 3} {i}' for i in range(900)]
    for start in (0, 300, 600):
        async with (
            rbs.streams_client(broker.uris) as client,
            client.super_stream('orders').publisher(route=route, name='shop') as publisher,
        ):
            await publisher.send_many(sent[start : start + 100])
            broker.cut()
            await publisher.send_many(sent[start + 100 : start + 300])
    assert stored(broker) == [[body for body in sent if body[0] == key] for key in '012']


async def test_partition_without_leader_delays_only_its_own_keys(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=route) as publisher:
        await publisher.send_many(['0', '1', '2'])
        node = node_of(broker, 0)
        broker.stop_node(node)
        delayed = asyncio.ensure_future(publisher.send('0 late'))
        for i in range(100):
            await publisher.send(f'1 {i}')
            await publisher.send(f'2 {i}')
        assert await publisher.send_many(['1', '2'] * 1000) == 2000
        assert not delayed.done()
        broker.start_node(node)
        await delayed
    assert stored(broker)[0] == ['0', '0 late']
    assert [len(items) for items in stored(broker)[1:]] == [1101, 1101]


@pytest.mark.parametrize('at_once', [1, 64])
@pytest.mark.parametrize('name', [None, 'shop'])
async def test_publisher_opens_while_a_partition_has_no_leader(
    broker: StreamBroker,
    client: rbs.StreamsClient,
    name: str | None,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.opening.AT_ONCE', at_once)
    await client.stream_exists('orders-1')
    node = node_of(broker, 0)
    broker.stop_node(node)
    async with client.super_stream('orders').publisher(route=route, name=name) as publisher:
        delayed = asyncio.ensure_future(publisher.send('0'))
        await publisher.send('1')
        assert await publisher.send_many(['1', '2']) == 2
        if name:
            with pytest.raises(rbs.PublisherError, match='still connecting'):
                _ = publisher.message_id
        assert not delayed.done()
        broker.start_node(node)
        await delayed
        assert publisher.message_id == 2
    assert stored(broker) == [['0'], ['1', '1'], ['2']]


async def test_messages_reach_a_partition_that_could_not_be_declared(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """They do not wait for a publisher that has given up."""
    await client.stream_exists('orders-1')
    node = node_of(broker, 0)
    broker.stop_node(node)
    by = rbs.by_key(first_key)
    async with client.super_stream('orders').publisher(route=by, name='shop') as publisher:
        broker.delete_stream('orders-0')
        session = session_of(publisher._publishers[0])
        await until(lambda: session.failure is not None, 'the publisher has given up')
        broker.start_node(node)
        broker.create_stream('orders-0')
        broker.bind('orders', 'orders-0', '0')
        publisher.batch('0')
        async with asyncio.timeout(HANG):
            await publisher.flush()
    assert stored(broker)[0] == ['0']


async def test_publisher_does_not_open_without_any_leader(broker: StreamBroker) -> None:
    for partition in range(2):
        broker.stop_node(node_of(broker, partition))
    broker.delete_stream('orders-2')
    async with rbs.streams_client(broker.uris, reconnect_timeout=0.2) as client:
        opening = client.super_stream('orders').publisher(route=route)
        with pytest.raises(rbs.StreamConnectionError) as caught:
            await opening
        assert caught.value.stream in NAMES


def sessions() -> list[PublisherSession]:
    return [item for item in gc.get_objects() if isinstance(item, PublisherSession)]


async def test_opening_that_fails_leaves_no_reference_cycle(broker: StreamBroker) -> None:
    for partition in range(2):
        broker.stop_node(node_of(broker, partition))
    broker.delete_stream('orders-2')
    gc.collect()
    gc.disable()
    try:
        async with rbs.streams_client(broker.uris, reconnect_timeout=0.2) as client:
            with contextlib.suppress(rbs.StreamConnectionError):
                await client.super_stream('orders').publisher(route=route)
            await until(lambda: not sessions(), 'the sessions are released')
    finally:
        gc.enable()


async def test_errors_name_the_partition(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    async with client.super_stream('orders').publisher(route=route) as publisher:
        await publisher.send_many(['0', '1', '2'])
        broker.publish_error()
        with pytest.raises(rbs.PublishError) as refused:
            await publisher.send('1')
        assert refused.value.stream == 'orders-1'
        broker.publish_error()
        with pytest.raises(rbs.PublishError) as refused:
            await publisher.send_many(['2', '2', '2'])
        assert refused.value.stream == 'orders-2'
        assert refused.value.progress.refused == [0]  # type: ignore[union-attr]
        broker.publish_error()
        confirmation = await publisher.submit('0')
        with pytest.raises(rbs.PublishError) as refused:
            await confirmation
        assert refused.value.stream == 'orders-0'
        broker.withhold_confirms()
        with pytest.raises(rbs.ConfirmTimeout) as late:
            await publisher.send('2', timeout=0.01)
        assert (late.value.stream, late.value.outcome) == ('orders-2', 'unknown')
        broker.heal()
    with pytest.raises(rbs.PublisherError) as closed:
        await publisher.send('1')
    assert closed.value.stream == 'orders-1'


async def test_close_raises_one_error_of_all_partitions(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    publisher = await client.super_stream('orders').publisher(route=route)
    broker.publish_error(count=2)
    for body in ('0', '1', '2'):
        await publisher.submit(body)
    with pytest.raises(rbs.PublishError) as caught:
        await publisher.close()
    assert caught.value.total == 2
    assert caught.value.stream is None
    await publisher.close()


async def test_timeout_and_cancellation_of_send_many(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(
        route=route, max_unconfirmed=10
    ) as publisher:
        broker.withhold_confirms()
        progress = rbs.SendProgress()
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.send_many(['0'] * 5 + ['1'] * 100, timeout=0.05, progress=progress)
        assert progress.taken == 16  # one waits for the window of its partition
        assert progress.unknown == [*range(15)]
        assert progress.refused == [15]
        await publisher.send_many([])
        broker.heal()
        await progress.wait()
        assert progress.confirmed == 15
        broker.withhold_confirms()
        sending = asyncio.ensure_future(publisher.send_many(['2'] * 100, progress=progress))
        await until(lambda: publisher.unconfirmed == 10, 'the window is full')
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (progress.taken, progress.refused) == (11, [10])
        broker.heal()
    assert [len(items) for items in stored(broker)] == [5, 10, 10]


async def test_calls_of_send_many_take_turns(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    calls = [[f'{i % 3} {call} {i}' for i in range(300)] for call in range(4)]
    async with client.super_stream('orders').publisher(
        route=route, max_unconfirmed=10
    ) as publisher:
        await asyncio.gather(
            *map(publisher.send_many, calls), *map(publisher.send, ['0', '1', '2'] * 30)
        )
    for partition, bodies in enumerate(stored(broker)):
        assert len(bodies) == 430
        for call, messages in enumerate(calls):
            expected = [body for body in messages if int(body[0]) == partition]
            assert [body for body in bodies if body[2:3] == str(call)] == expected


def both(message: Any, names: Any) -> Any:
    return names[:2] if message == 'both' else names[int(message[0])]


@pytest.mark.parametrize('messages', [['0 a', '0 b'], ['both'], ['2', 'both']])
async def test_last_message_of_a_list_is_sent(
    broker: StreamBroker, client: rbs.StreamsClient, messages: list[str]
) -> None:
    """Also if it had to wait for capacity, or goes to several partitions."""
    async with client.super_stream('orders').publisher(route=both, max_unconfirmed=1) as publisher:
        assert await publisher.send_many(messages, timeout=20) == len(messages)


async def test_message_that_is_not_sent_passes_its_turn_on(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    wrong: Any = ['0', object()]
    async with client.super_stream('orders').publisher(route=route, max_unconfirmed=1) as publisher:
        waiting = core_of(publisher._publishers[0]).capacity.waiting
        broker.withhold_confirms()
        first = asyncio.ensure_future(publisher.send('0 first'))
        await until(lambda: publisher.unconfirmed == 1, 'the window is full')
        bad = asyncio.ensure_future(publisher.send_many([wrong]))
        await until(lambda: len(waiting) == 1, 'the call waits')
        last = asyncio.ensure_future(publisher.send('0 last'))
        await until(lambda: len(waiting) == 2, 'both wait')
        broker.heal()
        with pytest.raises(rbs.AMQPEncoderError):
            await bad
        await asyncio.wait_for(asyncio.gather(first, last), 20)


async def test_message_to_several_partitions_delays_no_other_while_it_waits(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=both, max_unconfirmed=1) as publisher:
        waiting = core_of(publisher._publishers[0]).capacity.waiting
        await publisher.send_many(['0', '1'])
        node = node_of(broker, 1)
        broker.stop_node(node)
        late = asyncio.ensure_future(publisher.send('1 late'))
        await until(lambda: publisher.unconfirmed == 1, 'one window is full')
        broker.withhold_confirms()
        first = asyncio.ensure_future(publisher.send('0 first'))
        await until(lambda: publisher.unconfirmed == 2, 'both windows are full')
        several = asyncio.ensure_future(publisher.send_many(['both']))
        await until(lambda: len(waiting) == 1, 'the call waits')
        second = asyncio.ensure_future(publisher.send('0 second'))
        await until(lambda: len(waiting) == 2, 'both wait')
        broker.heal()
        await asyncio.wait_for(asyncio.gather(first, second), 20)
        assert not several.done()
        broker.start_node(node)
        await asyncio.wait_for(asyncio.gather(late, several), 20)


async def test_message_to_several_busy_partitions_is_sent(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async def load(body: str) -> None:
        while not several.done():
            await publisher.send(body)

    async with client.super_stream('orders').publisher(route=both, max_unconfirmed=2) as publisher:
        several = asyncio.get_running_loop().create_future()
        loads = [asyncio.ensure_future(load(str(i % 2))) for i in range(40)]
        await until(lambda: publisher.capacity == 0, 'the windows are full')
        try:
            await asyncio.wait_for(publisher.send_many(['both'] * 10), 20)
        finally:
            several.set_result(None)
            await asyncio.gather(*loads)
    for bodies in stored(broker)[:2]:
        assert bodies.count('both') == 10


async def test_call_that_ends_while_one_of_several_partitions_is_full(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=both, max_unconfirmed=1) as publisher:
        await publisher.send_many(['0', '1'])
        broker.stop_node(node := node_of(broker, 1))
        late = asyncio.ensure_future(publisher.send('1 late'))
        await until(lambda: publisher.unconfirmed == 1, 'one window is full')
        progress = rbs.SendProgress()
        sending = asyncio.ensure_future(publisher.send_many(['2', 'both'], progress=progress))
        await until(lambda: 'both' in stored(broker)[0], 'one partition has the message')
        await until(lambda: publisher.unconfirmed == 1, 'all others are confirmed')
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (progress.taken, progress.refused, progress.unknown) == (2, [], [1])
        text = r"full for 0\.\d+ s; .* \(partition 'orders-1'\); other partitions may"
        with pytest.raises(rbs.WindowTimeout, match=text) as caught:
            await publisher.send('both', timeout=0.1)
        assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
        broker.start_node(node)
        await late
    assert [bodies.count('both') for bodies in stored(broker)] == [2, 0, 0]


@pytest.mark.parametrize('asynchronous', [False, True])
async def test_endless_iterator_ends_when_a_message_is_refused(
    broker: StreamBroker, client: rbs.StreamsClient, asynchronous: bool
) -> None:
    async def messages() -> AsyncIterator[str]:
        for body in itertools.cycle('012'):
            yield body

    async with client.super_stream('orders').publisher(route=route) as publisher:
        broker.publish_error()
        sending = publisher.send_many(messages() if asynchronous else itertools.cycle('012'))
        with pytest.raises(rbs.PublishError):
            await asyncio.wait_for(sending, 20)


async def test_asynchronous_iterator_ends_when_a_message_is_refused(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async def messages() -> AsyncIterator[str]:
        yield '0'
        yield '1'
        await asyncio.Event().wait()

    async with client.super_stream('orders').publisher(route=route) as publisher:
        broker.publish_error()
        with pytest.raises(rbs.PublishError) as caught:
            await publisher.send_many(messages())
        assert caught.value.stream in NAMES
        assert not any(session_of(item).receiving for item in publisher._publishers)


async def test_message_to_several_partitions_names_the_one_that_refuses(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(
        route=lambda _, names: names[:2]
    ) as publisher:
        broker.publish_error()
        with pytest.raises(rbs.PublishError) as caught:
            await publisher.send('x')
        assert caught.value.stream in NAMES[:2]
        assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
    assert sorted(map(len, stored(broker))) == [0, 0, 1]


async def test_flush_names_the_partition(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    opener = client.super_stream('orders').publisher(route=route)
    async with opener as publisher:
        broker.publish_error()
        publisher.batch('2')
        with pytest.raises(rbs.PublishError) as refused:
            await publisher.flush()
        assert refused.value.stream == 'orders-2'
        broker.withhold_confirms()
        publisher.batch('0')
        publisher.batch('1')
        with pytest.raises(rbs.ConfirmTimeout):
            await publisher.flush(timeout=0.01)
        broker.heal()
        await publisher.flush()


async def test_keys_that_are_asked_for_at_the_same_time_share_a_request(
    broker: StreamBroker, client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def query(cluster: Any, stream: str, key: str) -> tuple[str, ...]:
        asked.append(key)
        return await query_route(cluster, stream, key)

    monkeypatch.setattr('rbfly.streams._super_stream.key_routes.query_route', query)
    async with client.super_stream('orders').publisher(route=rbs.by_key(first_key)) as publisher:
        await asyncio.gather(*[publisher.send(f'{i % 2} {i}') for i in range(100)])
        await publisher.send_many([f'1 {i}' for i in range(100, 200)])
    assert sorted(asked) == ['0', '1']
    assert stored(broker)[0] == [f'0 {i}' for i in range(0, 100, 2)]
    assert stored(broker)[1] == [
        *(f'1 {i}' for i in range(1, 100, 2)), *(f'1 {i}' for i in range(100, 200)),
    ]  # fmt: skip


async def test_key_is_asked_for_again_when_its_partition_is_gone(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=rbs.by_key(first_key)) as publisher:
        await publisher.send('0')
        broker.delete_stream('orders-0')
        with pytest.raises(rbs.StreamDoesNotExist):
            await publisher.send('0')
        with pytest.raises(rbs.NoRouteError):
            await publisher.send('0')
        broker.delete_super_stream('orders')
        with pytest.raises(rbs.StreamDoesNotExist, match='super stream') as caught:
            await publisher.send('4')
        assert caught.value.outcome == 'not_sent'


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that clients ask the broker for, once per request."""
    asked: list[str] = []
    answer: Any = HANDLERS['4.3'][Key.ROUTE]

    def do_route(session: Any, command: commands.Route) -> Any:
        asked.append(command.routing_key)
        return answer(session, command)

    monkeypatch.setitem(HANDLERS['4.3'], Key.ROUTE, do_route)
    return asked


async def send_each_way(publisher: Any, body: str) -> None:
    """Send a message in each way; each raises NoRouteError."""
    calls = [publisher.send(body), publisher.submit(body), publisher.send_many([body])]
    for call in calls:
        with pytest.raises(rbs.NoRouteError):
            await call


async def flush_one(publisher: Any, body: str) -> None:
    """Send a batch of one message, which raises NoRouteError."""
    publisher.batch(body)
    with pytest.raises(rbs.NoRouteError):
        await publisher.flush()


@pytest.mark.own_clock
@pytest.mark.parametrize(('batched', 'fail'), [(False, send_each_way), (True, flush_one)])
@pytest.mark.parametrize('bound_to', [None, 'later'])
async def test_key_without_a_partition_is_asked_for_once_in_a_period(
    broker: StreamBroker,
    client: rbs.StreamsClient,
    asked: list[str],
    batched: bool,
    fail: Any,
    bound_to: str | None,
) -> None:
    by = rbs.by_key(first_key)
    async with client.super_stream('orders').publisher(route=by) as publisher:
        if bound_to:  # a stream that the publisher does not know
            broker.create_stream(bound_to)
            broker.bind('orders', bound_to, '8')
        for _ in range(10):
            await fail(publisher, '8')
            await fail(publisher, '9')
        assert asked == ['8', '9']
        broker.bind('orders', NAMES[1], '9')
        await asyncio.sleep(key_routes.NO_ROUTE)
        await fail(publisher, '8')
        if batched:
            publisher.batch('9')
            await publisher.flush()
        else:
            await publisher.send('9')
    assert asked == ['8', '9', '8', '9']
    assert stored(broker) == [[], ['9'], []]


@pytest.mark.own_clock
async def test_few_keys_without_a_partition_are_remembered(
    client: rbs.StreamsClient, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routes, 'NO_ROUTE_KEYS', 2)
    async with client.super_stream('orders').publisher(route=rbs.by_key(first_key)) as publisher:
        for body in '789':
            await send_each_way(publisher, body)
        await send_each_way(publisher, '9')
        await send_each_way(publisher, '8')
        assert asked == ['7', '8', '9']
        await send_each_way(publisher, '7')
        assert asked == ['7', '8', '9', '7']


async def test_route_that_does_not_arrive_in_time(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.super_stream('orders').publisher(route=rbs.by_key(first_key)) as publisher:
        broker.stall()
        with pytest.raises(rbs.WindowTimeout, match='partitions of key'):
            await publisher.send('0', timeout=0.01)
        broker.heal()
        await publisher.send('0')
    assert stored(broker)[0] == ['0']


@pytest.fixture
def endless_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker does not answer for which partitions a key is."""

    async def query(*_: object) -> tuple[str, ...]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr('rbfly.streams._super_stream.key_routes.query_route', query)


@pytest.mark.usefixtures('endless_query')
async def test_closing_ends_calls_that_wait_for_a_route(client: rbs.StreamsClient) -> None:
    publisher = await client.super_stream('orders').publisher(route=rbs.by_key(first_key))
    calls: list[Any] = [publisher.send('0'), publisher.submit('1'), publisher.send_many(['2'])]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: len(publisher._routes._asking) == 3, 'all of them wait')
    await publisher.close()
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, rbs.PublisherError)
        assert 'is closed' in str(error)


@pytest.mark.usefixtures('endless_query')
async def test_closing_gives_up_batches_that_wait_for_a_route(client: rbs.StreamsClient) -> None:
    publisher = await client.super_stream('orders').publisher(route=rbs.by_key(first_key))
    for body in '001':
        publisher.batch(body)
    with pytest.raises(rbs.WindowTimeout, match=r'not sent: 3$') as caught:
        await publisher.close()
    assert caught.value.unsent == 3
    assert cluster_of(client).closing.left is not None  # closing the partitions has no full timeout
    assert publisher.unconfirmed == 0
    await publisher.close()


@pytest.mark.usefixtures('endless_query')
async def test_route_that_does_not_arrive_in_time_leaves_no_cycle(
    client: rbs.StreamsClient,
) -> None:
    async with client.super_stream('orders').publisher(route=rbs.by_key(first_key)) as publisher:
        gc.disable()
        try:
            sending = asyncio.ensure_future(publisher.send('0', timeout=0.01))
            await asyncio.wait([sending])
            assert isinstance(sending.exception(), rbs.WindowTimeout)
            left = weakref.ref(sending)
            del sending
            await until(lambda: left() is None, 'nothing refers to the task')
        finally:
            gc.enable()


async def test_cancelled_program_closes_without_waiting(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async def program() -> None:
        async with client.super_stream('orders').publisher(route=route) as publisher:
            broker.withhold_confirms()
            await publisher.send('0')

    running = asyncio.ensure_future(program())
    await until(lambda: bool(stored(broker)[0]), 'the message is stored')
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    broker.heal()


async def test_disconnected_client(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    publisher = await client.super_stream('orders').publisher(route=route)
    await client.disconnect()
    with pytest.raises(rbs.StreamConnectionError):
        await publisher.send('0')
    await publisher.close()


async def test_publisher_of_a_disconnected_client_does_not_ask_for_routes(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    by = rbs.by_key(first_key)
    publisher = await client.super_stream('orders').publisher(route=by)
    batches = await client.super_stream('orders').publisher(route=by)
    batches.batch('1')
    await client.disconnect()
    calls: list[Any] = [publisher.send('0'), publisher.send_many(['0']), batches.flush()]
    for call in calls:
        with pytest.raises(rbs.StreamConnectionError):
            await call
    with pytest.raises(rbs.StreamConnectionError):
        batches.batch('2')
    assert not client.connected


async def test_publisher_of_another_event_loop(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async def use() -> None:
        with pytest.raises(rbs.EventLoopError):
            await publisher.send('0')
        with pytest.raises(rbs.EventLoopError):
            await publisher.send_many(['0'])

    async with client.super_stream('orders').publisher(route=route) as publisher:
        await asyncio.to_thread(asyncio.run, use())
