"""Offsets that the program commits or keeps itself, positions, lag, and resolved offsets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.net import connection
from rbfly.protocol._chunk import Chunk
from rbfly.protocol.const import Key
from rbfly.streams._admin.partitions import AT_ONCE
from rbfly.streams._offsets import last_messages as counting
from rbfly.streams._offsets import queries as offsets
from rbfly.testing import StreamBroker
from rbfly.testing.handlers import HANDLERS
from rbfly.testing.stream import Stream
from tests.brokers import until
from tests.inside import cluster_of, cursor_of, session_of

HANG = 20.0  # seconds; only a safeguard
MANUAL = rbs.OffsetTracking('reader', manual=True)
KINDS = ('bodies', 'messages', 'batches')


async def publish(client: rbs.StreamsClient, stream: str, *bodies: Any, **arguments: Any) -> None:
    """Store messages in one chunk: a sub-entry is not split."""
    async with client.publisher(stream, sub_entry_size=100, **arguments) as publisher:
        for body in bodies:
            publisher.batch(body)
        await publisher.flush()


def subscribe(
    client: rbs.StreamsClient, stream: str, kind: str = 'bodies', **arguments: Any
) -> tuple[rbs.Subscription, AsyncIterator[Any]]:
    """Return a subscription with manual commits, and an iterator over messages of that kind."""
    arguments.setdefault('offset', rbs.Offset.FIRST)
    arguments.setdefault('commit', MANUAL)
    messages = client.subscribe(stream, timeout=HANG, **arguments)
    if kind == 'batches':
        return messages, aiter(messages.batches(max_messages=2))
    return messages, aiter(messages.messages() if kind == 'messages' else messages)


# -- commit


@pytest.mark.parametrize('kind', KINDS)
async def test_commit_stores_everything_received_so_far(
    client: rbs.StreamsClient, stream: str, kind: str
) -> None:
    await publish(client, stream, *range(8))
    messages, items = subscribe(client, stream, kind)
    async with messages:
        for n in range(1, 4):
            await anext(items)
            received = 2 * n if kind == 'batches' else n
            await messages.commit()
            assert await client.read_offset(stream, 'reader') == received - 1
    after = rbs.Offset.reference('reader')
    async with client.subscribe(stream, offset=after, timeout=HANG) as again:
        assert await anext(again) == received


async def test_commit_of_a_given_offset(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, *range(5))
    messages, _ = subscribe(client, stream)
    async with messages:
        for _ in range(4):
            await anext(messages)
        for offset in (2, 0, 3, 1):  # it may go back
            await messages.commit(offset)
            assert await client.read_offset(stream, 'reader') == offset
        with pytest.raises(
            ValueError, match=r'offset 4 of .* was not delivered; the last one is 3'
        ):
            await messages.commit(4)
        assert await client.read_offset(stream, 'reader') == 1


async def test_commit_before_the_first_message_does_nothing(
    client: rbs.StreamsClient, stream: str
) -> None:
    messages, _ = subscribe(client, stream)
    async with messages:
        await messages.commit()
        with pytest.raises(ValueError, match='no message was'):
            await messages.commit(0)
    assert await client.read_offset(stream, 'reader') is None


async def test_manual_tracking_stores_nothing_by_itself(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(5))
    messages, _ = subscribe(client, stream)
    async with messages:
        for _ in range(3):
            await anext(messages)
    assert await client.read_offset(stream, 'reader') is None


@pytest.mark.parametrize('tracking', [None, rbs.OffsetTracking('reader')])
async def test_commit_requires_manual_tracking(
    client: rbs.StreamsClient, stream: str, tracking: rbs.OffsetTracking | None
) -> None:
    messages, _ = subscribe(client, stream, commit=tracking)
    async with messages:
        with pytest.raises(rbs.SubscriptionError, match="commit='manual'"):
            await messages.commit()


async def test_commit_after_the_subscription_has_ended(
    client: rbs.StreamsClient, stream: str
) -> None:
    """A program may process the last messages after its loop."""
    await publish(client, stream, *range(5))
    messages, _ = subscribe(client, stream)
    for _ in range(3):
        await anext(messages)
    await messages.aclose()
    await messages.commit()
    assert await client.read_offset(stream, 'reader') == 2
    await messages.commit(1)
    assert await client.read_offset(stream, 'reader') == 1
    with pytest.raises(ValueError, match='was not delivered'):
        await messages.commit(3)


@pytest.mark.parametrize(
    ('offset', 'error'),
    [(-1, ValueError), (2**64, ValueError), ('0', TypeError), (True, TypeError)],
)
async def test_argument_of_commit_is_checked(
    client: rbs.StreamsClient, stream: str, offset: Any, error: type[Exception]
) -> None:
    await publish(client, stream, 0, 1, 2)
    messages, _ = subscribe(client, stream)
    async with messages:
        await anext(messages)
        await anext(messages)
        with pytest.raises(error):
            await messages.commit(offset)


@pytest.mark.parametrize('kind', KINDS)
async def test_messages_that_a_filter_drops_count_as_received(
    client: rbs.StreamsClient, stream: str, kind: str
) -> None:
    await publish(client, stream, *'abacc')
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {'a', ''}, match_unfiltered=True)
    messages, items = subscribe(client, stream, kind, filter=only)
    async with messages:
        if kind != 'batches':
            await anext(items)
            assert messages.position == 1
        await anext(items)
        assert messages.position == 3
        waiting = asyncio.ensure_future(anext(items))
        await until(lambda: messages.position == 5, 'all messages are filtered')
        await messages.commit()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert await client.read_offset(stream, 'reader') == 4


async def test_message_that_is_ready_is_not_committed(
    client: rbs.StreamsClient, stream: str
) -> None:
    """A task was cancelled between the steps that find a message and that return it."""
    await publish(client, stream, *range(3))
    messages, items = subscribe(client, stream, 'messages')
    async with messages:
        assert (await anext(items)).body == 0
        ready = anext(items).__await__()
        assert messages.position == 1
        await messages.commit()
        assert await client.read_offset(stream, 'reader') == 0
        del ready
        assert (await anext(items)).body == 1


@pytest.mark.parametrize('closed', [False, True])
async def test_message_whose_error_was_not_raised_is_not_committed(
    client: rbs.StreamsClient, stream: str, closed: bool
) -> None:
    texts = (b'\x00Sw\xa1\x01%d' % i for i in range(4))
    bodies = [b'\xff' if text.endswith(b'2') else text for text in texts]
    await publish(client, stream, *bodies, amqp=False)
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG, commit=MANUAL)
    async with messages:
        batches = aiter(messages.batches())
        assert list(await anext(batches)) == ['0', '1']
        await messages.commit()
        assert await client.read_offset(stream, 'reader') == 1
        if closed:
            await messages.aclose()
            await messages.commit()
            assert await client.read_offset(stream, 'reader') == 1
            return
        with pytest.raises(rbs.AMQPDecoderError):
            await anext(batches)
        await messages.commit()
        assert await client.read_offset(stream, 'reader') == 2
        assert list(await anext(batches)) == ['3']
        assert messages.position == 4


async def test_commit_during_an_outage_reconnects() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(5))
        messages, _ = subscribe(client, 'test')
        async with messages:
            await anext(messages)
            await anext(messages)
            memory.cut()
            await until(lambda: not client.connected, 'the connection is lost')
            await messages.commit()
            assert memory.offsets('test') == {'reader': 1}
            memory.publish('test', 5)
            for i in range(2, 6):
                assert await anext(messages) == i
            memory.delay(HANG)  # the broker stores the offset, but its answer is lost
            committing = asyncio.ensure_future(messages.commit())
            await until(lambda: memory.offsets('test') != {'reader': 1}, 'it is stored')
            memory.cut()
            memory.heal()
            await committing


async def test_commits_at_the_same_time_store_the_last_one() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(20))
        messages, _ = subscribe(client, 'test')
        committing = []
        async with messages:
            for i in range(20):
                await anext(messages)
                committing.append(asyncio.ensure_future(messages.commit()))
                if i == 10:
                    await asyncio.sleep(0)
                    memory.cut()
            await asyncio.gather(*committing)
        assert memory.offsets('test') == {'reader': 19}


async def test_commit_does_not_reach_a_new_stream_of_the_same_name() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        for i in range(3):
            memory.publish('test', i)
        messages, _ = subscribe(client, 'test')
        async with messages:
            for _ in range(3):
                await anext(messages)
            memory.delete_stream('test')
            memory.create_stream('test')
            registration = session_of(messages).registration
            await until(lambda: not registration.is_open, 'the broker has reported the deletion')
            with pytest.raises(rbs.StreamDoesNotExist, match='created again'):
                await messages.commit()
            assert memory.offsets('test') == {}


# -- write_offset that waits


async def test_write_offset_waits_until_it_is_stored(
    client: rbs.StreamsClient, stream: str
) -> None:
    for value in (7, 2**64 - 1, 0, 3):
        await client.write_offset(stream, 'reader', value, wait=True)
        assert await client.read_offset(stream, 'reader') == value
    with pytest.raises(rbs.StreamDoesNotExist):
        await client.write_offset('no-such-stream', 'reader', 1, wait=True)
    with pytest.raises(TypeError):
        await client.write_offset(stream, 'reader', 1, wait=1)  # type: ignore[arg-type]


@pytest.mark.parametrize('before', [None, 5])
async def test_ignored_offset_raises(monkeypatch: pytest.MonkeyPatch, before: int | None) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        if before is not None:
            await client.write_offset('test', 'reader', before, wait=True)
        monkeypatch.setattr(Stream, 'store_offset', lambda *_: None)
        has = 'none' if before is None else 'another program'
        with pytest.raises(rbs.OffsetNotStored, match=has) as caught:
            await client.write_offset('test', 'reader', 7, wait=True)
        assert not caught.value.retriable
        await client.write_offset('test', 'reader', 7)  # nobody notices


# -- an offset that the program keeps


Source = Callable[[str], Awaitable[rbs.Offset]]


def returning(*results: Any) -> tuple[Source, list[str]]:
    """Return an async function that returns or raises these results, and the list of its calls."""
    calls: list[str] = []

    async def source(stream: str) -> rbs.Offset:
        calls.append(stream)
        await asyncio.sleep(0)
        found = results[len(calls) - 1]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    return source, calls


@pytest.mark.parametrize(
    ('offset', 'first'),
    [
        (rbs.Offset.offset(2), 2),
        (rbs.Offset.FIRST, 0),
        (rbs.Offset.LAST, 0),
        (rbs.Offset.reference('reader'), 4),
    ],
)
async def test_async_function_returns_the_start(
    client: rbs.StreamsClient, stream: str, offset: rbs.Offset, first: int
) -> None:
    await publish(client, stream, *range(6))
    await client.write_offset(stream, 'reader', 3, wait=True)
    source, calls = returning(offset)
    async with contextlib.aclosing(
        client.subscribe(stream, offset=source, timeout=HANG)
    ) as messages:
        assert calls == []
        assert await anext(messages) == first
        assert await anext(messages) == first + 1
    assert calls == [stream]


@pytest.mark.parametrize('read', [0, 2])
async def test_reconnect_does_not_call_the_function(read: int) -> None:
    source, calls = returning(rbs.Offset.offset(2))
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        async with client.subscribe('test', offset=source, timeout=HANG) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: session_of(messages).registration.is_open, 'it is subscribed')
            if read:
                memory.publish('test', *range(4))
                assert await waiting == 2
            memory.cut()
            await until(lambda: not client.connected, 'the connection is lost')
            if not read:
                memory.publish('test', *range(4))
                assert await waiting == 2
            assert await anext(messages) == 3
    assert calls == ['test']


@pytest.mark.parametrize('error', [OSError('disk'), TimeoutError('database'), ValueError('row')])
async def test_error_of_the_function_is_raised_to_the_reader(
    client: rbs.StreamsClient, stream: str, error: Exception
) -> None:
    await publish(client, stream, *range(3))
    source, calls = returning(error, error, rbs.Offset.offset(1))
    async with contextlib.aclosing(
        client.subscribe(stream, offset=source, timeout=HANG)
    ) as messages:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                await anext(messages)
            assert caught.value is error
        assert await anext(messages) == 1
    assert len(calls) == 3


@pytest.mark.parametrize('found', [5, None, 'first'])
async def test_result_of_the_function_is_checked(
    client: rbs.StreamsClient, stream: str, found: Any
) -> None:
    source, _ = returning(found)
    async with contextlib.aclosing(
        client.subscribe(stream, offset=source, timeout=HANG)
    ) as messages:
        with pytest.raises(TypeError, match='the result of the offset function must be Offset'):
            await anext(messages)


async def test_function_must_be_async(client: rbs.StreamsClient, stream: str) -> None:
    source: Any = lambda stream: rbs.Offset.FIRST  # noqa: E731
    async with contextlib.aclosing(
        client.subscribe(stream, offset=source, timeout=HANG)
    ) as messages:
        with pytest.raises(TypeError, match='is not async'):
            await anext(messages)
    with pytest.raises(
        TypeError, match=r'must be Offset or Callable, not int: pass Offset.offset\(5\)'
    ):
        client.subscribe(stream, offset=5)  # type: ignore[call-overload]


async def test_function_is_called_again_after_the_stream_did_not_exist(
    client: rbs.StreamsClient, stream_name: str
) -> None:
    source, calls = returning(rbs.Offset.offset(1), rbs.Offset.offset(1))
    async with contextlib.aclosing(
        client.subscribe(stream_name, offset=source, timeout=HANG)
    ) as messages:
        with pytest.raises(rbs.StreamDoesNotExist):
            await anext(messages)
        await client.create_stream(stream_name)
        await publish(client, stream_name, *range(3))
        assert await anext(messages) == 1
    assert set(calls) == {stream_name}


# -- position


@pytest.mark.parametrize('kind', KINDS)
async def test_position_is_the_next_offset(
    client: rbs.StreamsClient, stream: str, kind: str
) -> None:
    await publish(client, stream, *range(6))
    messages, items = subscribe(client, stream, kind, offset=rbs.Offset.offset(1), commit=None)
    async with messages:
        assert messages.position is None
        await anext(items)
        assert messages.position == (3 if kind == 'batches' else 2)
        await anext(items)
        assert messages.position == (5 if kind == 'batches' else 3)
    assert messages.position == (5 if kind == 'batches' else 3)


async def test_position_stays_during_an_outage() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(5))
        async with client.subscribe('test', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
            for i in range(3):
                assert await anext(messages) == i
            memory.cut()
            await until(lambda: not client.connected, 'the connection is lost')
            assert messages.position == 3
            assert await anext(messages) == 3
            assert messages.position == 4
            memory.delete_stream('test')
            memory.create_stream('test')
            memory.publish('test', 'new')
            assert await anext(messages) == 4
            with pytest.raises(rbs.StreamDoesNotExist):
                await anext(messages)
            assert messages.position is None


@pytest.fixture(params=['with the request', 'without it'])
def has_request(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the in-memory broker has ResolveOffsetSpec."""
    if request.param == 'without it':
        monkeypatch.setitem(HANDLERS, '4.3', HANDLERS['4.0'])
    return bool(request.param == 'with the request')


# -- lag


async def test_lag(client: rbs.StreamsClient, stream: str) -> None:
    assert await client.lag(stream, 'reader') is None
    await client.write_offset(stream, 'reader', 0, wait=True)
    assert await client.lag(stream, 'reader') == 0  # no message is left: there is none
    await publish(client, stream, *range(10))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        async for ctx in messages.messages():
            left = 9 - ctx.body
            await client.write_offset(stream, 'reader', ctx.stream_offset, wait=True)
            assert await client.lag(stream, 'reader') == left
            if not left:
                break
    # Each stored offset takes up an offset: the lag is more than the number of messages left.
    for i in range(3):
        await publish(client, stream, i)
        last = ctx.stream_offset
        found = await client.lag(stream, 'reader')
        assert found is not None
        assert found > 1
        async with client.subscribe(
            stream, offset=rbs.Offset.offset(last + 1), timeout=HANG
        ) as messages:
            ctx = await anext(aiter(messages.messages()))
        assert found == ctx.stream_offset - last
        await client.write_offset(stream, 'reader', ctx.stream_offset, wait=True)
        assert await client.lag(stream, 'reader') == 0
    # A group stores that if it begins with the first message of the stream.
    await client.write_offset(stream, 'reader', 2**64 - 1, wait=True)
    assert await client.lag(stream, 'reader') == ctx.stream_offset + 1


async def test_lag_of_an_offset_that_the_program_keeps(
    client: rbs.StreamsClient, stream: str
) -> None:
    assert await client.lag(stream, position=None) is None
    assert await client.lag(stream, position=0) == 0  # no message is left: there is none
    await publish(client, stream, *range(10))
    for position in range(12):
        assert await client.lag(stream, position=position) == max(0, 10 - position)
    # A stored offset takes up an offset, after the messages and between them.
    await client.write_offset(stream, 'other', 3, wait=True)
    assert await client.lag(stream, position=10) == 0
    await publish(client, stream, 'last')
    next_offset = None
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        async for batch in messages.batches(max_messages=4):
            last = batch.offsets[-1]
            next_offset = batch.next_offset
            if batch[-1] == 'last':
                break
            assert await client.lag(stream, position=next_offset) == 11 - last
    assert last == 11
    assert await client.lag(stream, position=next_offset) == 0
    assert await client.lag(stream, position=2**64 - 1) == 0


async def test_lag_of_positions_by_partition(client: rbs.StreamsClient, super_stream: str) -> None:
    orders = client.super_stream(super_stream)
    names = await orders.partitions()
    for name in names:
        await publish(client, name, *range(10))
    position = {names[0]: 3, names[1]: None, 'deleted': 5}
    assert await orders.lag(position=position) == {names[0]: 7, names[1]: None, names[2]: None}
    async with orders.subscribe(offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        for _ in range(30):
            await anext(messages)
        assert await orders.lag(position=messages.position) == dict.fromkeys(names, 0)


async def test_lag_needs_either_a_reference_or_a_position() -> None:
    client: Any = rbs.streams_client('rabbitmq-stream://127.0.0.1:1/', connect_timeout=0.1)
    orders: Any = client.super_stream('orders')
    either = 'pass either reference or position'
    with pytest.raises(rbs.ArgumentError, match=either):
        await client.lag('orders')
    with pytest.raises(rbs.ArgumentError, match=either):
        await client.lag('orders', 'reader', position=None)
    with pytest.raises(rbs.ArgumentError, match=either):
        await orders.lag()
    with pytest.raises(rbs.ArgumentError, match=either):
        await orders.lag('reader', position={})
    with pytest.raises(rbs.ArgumentTypeError, match='reference must be str, not int'):
        await client.lag('orders', 5)
    with pytest.raises(rbs.ArgumentTypeError, match='position must be int, not dict'):
        await client.lag('orders', position={'orders': 5})
    with pytest.raises(rbs.ArgumentError, match='position must be from 0'):
        await client.lag('orders', position=-1)
    with pytest.raises(rbs.ArgumentTypeError, match='position must be Mapping, not int'):
        await orders.lag(position=5)
    with pytest.raises(rbs.ArgumentError, match="position of 'orders-0' must be from 0"):
        await orders.lag(position={'orders-0': -1})


async def test_monitor_waits_until_everything_is_processed(
    client: rbs.StreamsClient, stream: str, broker_uri: str
) -> None:
    """A worker collects messages and commits; another program watches its lag."""
    processed: list[Any] = []

    async def work() -> None:
        messages, _ = subscribe(client, stream, offset=rbs.Offset.reference('reader'))
        async with messages:
            collected = []
            async for body in messages:
                collected.append(body)
                if len(collected) == 20:
                    processed.extend(collected)
                    await messages.commit()
                    assert messages.position is not None
                    positions.append(messages.position)
                    collected.clear()

    positions: list[int] = []
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(100))
    working = asyncio.create_task(work())
    async with rbs.streams_client(broker_uri) as monitor:
        lags: list[int | None] = []
        while not lags or lags[-1] != 0:
            lags.append(await monitor.lag(stream, 'reader'))
            assert not working.done()
        assert processed == list(range(100))
    known = [lag for lag in lags if lag is not None]
    assert known == sorted(known, reverse=True)
    assert positions == sorted(positions)
    working.cancel()
    await asyncio.wait([working])


async def test_user_that_may_not_read_cannot_store(own_broker: RabbitMQ, own_stream: str) -> None:
    """RabbitMQ ignores the offset; the query shows why."""
    user = f'u{uuid4()}'
    own_broker.ctl('add_user', user, 'secret')
    try:
        own_broker.ctl('set_permissions', user, '', '', '')
        uri = own_broker.uri.replace('guest:guest', f'{user}:secret')
        async with rbs.streams_client(uri) as client:
            await client.write_offset(own_stream, 'reader', 1)
            with pytest.raises(rbs.ProtocolError, match='permission') as caught:
                await client.write_offset(own_stream, 'reader', 1, wait=True)
            assert caught.value.code == rbs.ResponseCode.ACCESS_REFUSED
        async with rbs.streams_client(own_broker.uri) as client:
            assert await client.read_offset(own_stream, 'reader') is None
    finally:
        own_broker.ctl('delete_user', user)


async def test_lag_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is a chunk, so the client does not ask for all partitions at once."""
    end_of_messages = offsets.end_of_messages
    asking = most = 0

    async def count(*args: Any) -> int:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        try:
            return await end_of_messages(*args)
        finally:
            asking -= 1

    monkeypatch.setattr(offsets, 'end_of_messages', count)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_super_stream('orders', partitions=100)
        names = await client.super_stream('orders').partitions()
        for number, name in enumerate(names):
            memory.publish(name, *range(number + 1))
            await client.write_offset(name, 'reader', 0, wait=True)
        found = await client.super_stream('orders').lag('reader')
        assert found == {name: number for number, name in enumerate(names)}
    assert 1 < most <= AT_ONCE


async def test_lag_of_no_name(client: rbs.StreamsClient) -> None:
    with pytest.raises(rbs.ArgumentTypeError, match='stream'):
        await client.super_stream(7).lag('reader')  # type: ignore[arg-type]


async def test_lag_of_no_stream(client: rbs.StreamsClient) -> None:
    with pytest.raises(rbs.StreamDoesNotExist):
        await client.lag('no-such-stream', 'reader')


async def test_lag_is_that_of_the_leader() -> None:
    async with StreamBroker(nodes=3) as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(5))
        await client.write_offset('test', 'reader', 1, wait=True)
        for node in range(3):
            memory.move_leader('test', node)
            assert await client.lag('test', 'reader') == 3
            found, is_leader = await cluster_of(client).leader('test')
            assert is_leader
            assert f':{found.address.port}/' in memory.uris[node]


async def test_other_node_answers_if_the_leader_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, has_request: bool
) -> None:
    """The addresses that the nodes report lead nowhere, as behind NAT."""
    monkeypatch.setattr(connection.Connection, 'leads_to', lambda *_: False)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(5))
        await client.write_offset('test', 'reader', 1, wait=True)
        assert await client.lag('test', 'reader') == 3
        assert await client.resolve_offset('test', rbs.Offset.NEXT) == 6


async def test_requests_for_offsets_free_their_subscription_ids(
    client: rbs.StreamsClient, stream: str
) -> None:
    """More of them than a connection has ids."""
    await publish(client, stream, 0)
    await client.write_offset(stream, 'reader', 0, wait=True)
    for _ in range(300):
        assert await client.lag(stream, 'reader') == 0


# -- resolved offsets


async def starts(client: rbs.StreamsClient, stream: str) -> None:
    """Compare resolved offsets with those of the first messages of subscriptions."""
    wanted = [rbs.Offset.FIRST, rbs.Offset.LAST, rbs.Offset.timestamp(0)]
    wanted += [rbs.Offset.offset(i) for i in (0, 3, 7, 8, 9, 11, 12)]
    wanted += [rbs.Offset.reference('reader'), rbs.Offset.reference('x', rbs.Offset.LAST)]
    for offset in wanted:
        found = await client.resolve_offset(stream, offset)
        async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
            ctx = await anext(aiter(messages.messages()))
        assert found <= ctx.stream_offset
        async with client.subscribe(
            stream, offset=rbs.Offset.offset(found), timeout=HANG
        ) as messages:
            assert (await anext(aiter(messages.messages()))).stream_offset == ctx.stream_offset


async def test_resolved_offset_is_where_a_subscription_starts(
    client: rbs.StreamsClient, stream: str
) -> None:
    assert await client.resolve_offset(stream, rbs.Offset.FIRST) == 0
    assert await client.resolve_offset(stream, rbs.Offset.LAST) == 0
    assert await client.resolve_offset(stream, rbs.Offset.NEXT) == 0
    await publish(client, stream, *range(8))  # offsets 0 to 7
    await client.write_offset(stream, 'reader', 4, wait=True)  # offset 8
    await publish(client, stream, *range(4))  # offsets 9 to 12
    await starts(client, stream)
    assert await client.resolve_offset(stream, rbs.Offset.NEXT) == 13
    assert await client.resolve_offset(stream, rbs.Offset.timestamp(2**33)) == 13
    assert await client.resolve_offset(stream, rbs.Offset.offset(100)) == 100
    await client.write_offset(stream, 'reader', 4, wait=True)
    assert await client.resolve_offset(stream, rbs.Offset.LAST) == 9
    assert await client.resolve_offset(stream, rbs.Offset.NEXT) == 14
    with pytest.raises(rbs.StreamDoesNotExist):
        await client.resolve_offset('no-such-stream', rbs.Offset.FIRST)
    with pytest.raises(TypeError):
        await client.resolve_offset(stream, 5)  # type: ignore[arg-type]


async def test_offset_is_resolved_without_the_request(has_request: bool) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        found, _ = await cluster_of(client).leader('test')
        assert (Key.RESOLVE_OFFSET_SPEC in found.commands) == has_request
        await test_resolved_offset_is_where_a_subscription_starts(client, 'test')


@pytest.mark.parametrize('offset', [rbs.Offset.FIRST, rbs.Offset.LAST, rbs.Offset.timestamp(0)])
async def test_message_published_meanwhile_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch, has_request: bool, offset: rbs.Offset
) -> None:
    chunk_at = counting.chunk_at

    async def publish_after(*args: Any) -> Chunk | None:
        found = await chunk_at(*args)
        memory.publish('test', 'new')
        return found

    monkeypatch.setattr('rbfly.streams._offsets.queries.counting.chunk_at', publish_after)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        assert await client.resolve_offset('test', offset) == 0


# -- the end of the stream in batches


async def test_batches_know_the_last_committed_chunk(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(4))
    await publish(client, stream, *range(3))
    async with client.subscribe(
        stream, offset=rbs.Offset.FIRST, timeout=HANG, initial_credit=1
    ) as messages:
        found = []
        async for batch in messages.batches(max_messages=2):
            found.append((batch.offsets[0], batch.committed_chunk_id))
            if batch.offsets[-1] == 6:
                break
        assert found == [(0, 4), (2, 4), (4, 4), (6, 4)]


async def test_joined_batch_knows_the_last_committed_chunk(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(4))
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG, commit=MANUAL)
    async with messages:
        waiting = asyncio.ensure_future(
            anext(aiter(messages.batches(max_messages=7, max_wait=HANG)))
        )
        await until(lambda: cursor_of(messages).position == 4, 'the first chunk has arrived')
        await messages.commit()  # nothing: the batch is not complete
        assert await client.read_offset(stream, 'reader') is None
        await publish(client, stream, *range(3))
        batch = await waiting
        assert (len(batch), batch.committed_chunk_id) == (7, batch.offsets[4])
        await messages.commit()
        assert await client.read_offset(stream, 'reader') == batch.offsets[-1]
