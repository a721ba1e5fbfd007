"""A close that is cancelled, fails in one part, or runs beside another task leaves nothing open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import NewClient
from tests.inside import cluster_of, session_of
from tests.super_streams import subscribe_to

HANG = 20.0  # seconds; only a safeguard
PARTITIONS = 3
TRACKING = rbs.OffsetTracking('reader', every=1, interval=0)

Close = Callable[[], Awaitable[Any]]


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    """An in-memory broker with super stream `orders` and its messages; the event loop must report
    no error."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with StreamBroker() as memory:
        memory.create_super_stream('orders', partitions=PARTITIONS)
        memory.create_stream('single')
        for i in range(PARTITIONS):
            for body in range(10):
                memory.publish(f'orders-{i}', body)
                memory.publish('single', body)
        yield memory
    assert errors == []


def clients_of(memory: StreamBroker) -> list[Any]:
    """The publishers and subscriptions of a broker."""
    streams = cluster_of(memory).streams()
    return [item for stream in streams for item in stream.clients]


async def interrupt(close: Close, turns: int) -> bool:
    """Cancel a close after a number of turns of the event loop; false if it has ended before.

    Without a turn, the task was cancelled before it closes.
    """

    async def run() -> None:
        if not turns:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await close()

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns:
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def wait_until_forgotten(memory: StreamBroker) -> None:
    await until(lambda: not clients_of(memory), 'the broker has forgotten every part', HANG)


# -- subscriptions


def subscribe(client: rbs.StreamsClient, stream: str, **options: Any) -> Any:
    arguments: dict[str, Any] = {
        'super_stream': stream != 'single',
        'offset': rbs.Offset.FIRST,
        'commit': TRACKING,
        'timeout': HANG,
    } | options
    return subscribe_to(client, stream, **arguments)


async def check_closed(messages: Any) -> None:
    """Every call on a closed subscription has its documented result."""
    await messages.aclose()
    messages.stop()
    assert not messages.active
    assert messages.position is not None
    assert await anext(messages, None) is None
    assert [item async for item in messages.batches(max_wait=0)] == []
    for call in (messages.fetch, messages.open):
        with pytest.raises(rbs.SubscriptionClosed):
            await call()


async def read(messages: Any, begun: asyncio.Event) -> None:
    async for _ in messages:
        begun.set()
        await asyncio.Event().wait()


async def leave(messages: Any) -> None:
    async with messages:
        pass


WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    'aclose': lambda messages: messages.aclose(),
    'async with': leave,
    'stop': lambda messages: anext(messages, None),
}


@pytest.mark.both_loops
@pytest.mark.parametrize('stream', ['single', 'orders'])
@pytest.mark.parametrize('how', [*WAYS, 'program works'])
async def test_interrupted_close_of_a_subscription(
    memory: StreamBroker, stream: str, how: str
) -> None:
    async with rbs.streams_client(memory.uri) as client:
        for turns in count():
            messages = subscribe(client, stream)
            reading = None
            if how == 'program works':
                begun = asyncio.Event()
                reading = asyncio.create_task(read(messages, begun))
                await begun.wait()
                await messages.open()
            else:
                await messages.open()
                await anext(messages)
                await anext(messages)
            if how in ('stop', 'program works'):
                messages.stop()
            close = partial(WAYS.get(how, WAYS['aclose']), messages)
            interrupted = await interrupt(close, turns)
            if how == 'stop':  # perhaps cancelled before it closes
                await messages.aclose()
            await wait_until_forgotten(memory)
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
            await check_closed(messages)
            if not interrupted or (reading is not None and turns == 9):
                break


@pytest.mark.parametrize('stream', ['single', 'orders'])
async def test_program_that_works_keeps_its_close_if_another_is_interrupted(
    memory: StreamBroker, stream: str
) -> None:
    """A close that waits for the program returns when the close of another task is cancelled."""
    async with rbs.streams_client(memory.uri) as client:
        messages = subscribe(client, stream)
        begun = asyncio.Event()
        reading = asyncio.create_task(read(messages, begun))
        await begun.wait()
        messages.stop()
        other = asyncio.create_task(messages.aclose())
        assert await interrupt(messages.aclose, 2)
        await asyncio.wait_for(other, HANG)
        await wait_until_forgotten(memory)
        reading.cancel()
        await asyncio.wait([reading])
        await check_closed(messages)


@pytest.mark.both_loops
@pytest.mark.parametrize('stream', ['single', 'orders'])
async def test_next_message_is_asked_for_while_another_task_closes(
    memory: StreamBroker, stream: str
) -> None:
    async with rbs.streams_client(memory.uri) as client:
        for turns in range(20):
            messages = subscribe(client, stream)
            await messages.open()
            await anext(messages)
            closing = asyncio.create_task(messages.aclose())
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await anext(messages, None) in (None, *range(10))
            await closing
            await wait_until_forgotten(memory)
            await check_closed(messages)


@pytest.mark.parametrize('how', [*WAYS])
async def test_part_of_a_subscription_that_fails_to_close(memory: StreamBroker, how: str) -> None:
    async with rbs.streams_client(memory.uri) as client:
        messages = subscribe(client, 'orders')
        await messages.open()
        await anext(messages)

        async def fail(*_: object, **__: object) -> None:
            raise RuntimeError('failed')

        session_of(messages).sessions[rbs.get_message_ctx().stream].offsets.close = fail
        if how == 'stop':
            messages.stop()
        with pytest.raises(RuntimeError, match='failed'):
            await WAYS[how](messages)
        await wait_until_forgotten(memory)
        await check_closed(messages)


async def test_close_after_an_interrupted_open(memory: StreamBroker) -> None:
    async with rbs.streams_client(memory.uri) as client:
        for turns in count():
            messages = subscribe(client, 'orders')
            interrupted = await interrupt(messages.open, turns)
            await messages.aclose()
            await wait_until_forgotten(memory)
            if not interrupted:
                break


@pytest.mark.parametrize('kind', ['single', 'super'])
@pytest.mark.parametrize('turns', [0, 1, 2, 5])
@pytest.mark.parametrize('stopped', [False, True])
async def test_next_member_receives_everything_after_an_interrupted_close(
    clients: NewClient,
    stream: str,
    super_stream: str,
    group: str,
    kind: str,
    turns: int,
    stopped: bool,
) -> None:
    name, client = stream if kind == 'single' else super_stream, clients()
    options = {'group': group, 'commit': None, 'super_stream': kind == 'super'}
    opener: Any = client.publisher(name)
    if kind != 'single':
        opener = client.super_stream(name).publisher(route=rbs.by_hash(str))
    async with opener as publisher:
        await publisher.send_many(range(30))
    messages = subscribe(client, name, **options)
    begun = asyncio.Event()
    reading = asyncio.create_task(read(messages, begun))
    await begun.wait()
    await messages.open()
    if stopped:
        messages.stop()
    await interrupt(messages.aclose, turns)  # the broker may have answered before
    async with subscribe(clients(), name, **options) as others:
        found = [await anext(others) for _ in range(30)]
    assert sorted(found) == [*range(30)]
    reading.cancel()
    await asyncio.wait([reading])


# -- publishers


async def fill(publisher: Any, *, batched: bool = True) -> None:
    """Publish messages whose confirms are pending; the route of one is unknown."""
    if batched:
        for key in ('0', '1', '2'):
            publisher.batch(key)
    else:
        await publisher.submit('0')


async def check_ended(publisher: Any) -> None:
    """Every call on a closed publisher has its documented result."""
    for _ in range(2):
        with contextlib.suppress(rbs.RbFlyError):  # what no other call has raised
            await publisher.close()
    await publisher.close()
    for call in (publisher.flush(), publisher.send('0')):
        with pytest.raises(rbs.PublisherError):
            await call
    assert publisher.capacity == 0


@pytest.mark.both_loops
@pytest.mark.parametrize('batched', [False, True])
async def test_interrupted_close_of_a_publisher(memory: StreamBroker, batched: bool) -> None:
    memory.create_super_stream('keys', binding_keys=['0', '1', '2'])
    async with rbs.streams_client(memory.uri) as client:
        for turns in count():
            route = rbs.by_key(str)
            publisher: Any = await client.super_stream('keys').publisher(route=route, name='shop')
            await fill(publisher, batched=batched)
            interrupted = await interrupt(publisher.close, turns)
            await wait_until_forgotten(memory)
            if interrupted and batched and turns == 0:
                with pytest.raises(rbs.WindowTimeout, match='not sent: 3') as caught:
                    await publisher.close()
                assert caught.value.unsent == 3
            await check_ended(publisher)
            if not interrupted:
                break


async def test_interrupted_close_beside_another(memory: StreamBroker) -> None:
    """The close of another task still sends everything, and waits for the confirms."""
    memory.create_super_stream('keys', binding_keys=['0', '1', '2'])
    async with rbs.streams_client(memory.uri) as client:
        publisher: Any = await client.super_stream('keys').publisher(route=rbs.by_key(str))
        await fill(publisher)
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        assert await interrupt(publisher.close, 1)
        await closing
        await wait_until_forgotten(memory)
    assert [len(memory.messages(f'keys-{key}')) for key in '012'] == [1, 1, 1]


async def test_end_of_a_block_is_cancelled_beside_another_close(memory: StreamBroker) -> None:
    """The close of another task still receives the confirms."""
    memory.create_stream('orders')
    memory.withhold_confirms()
    publishers = []
    go_on = asyncio.Event()

    async def block(client: rbs.StreamsClient) -> None:
        async with client.publisher('orders') as publisher:
            await publisher.submit('x')
            publishers.append(publisher)
            await go_on.wait()

    async with rbs.streams_client(memory.uri, close_timeout=60) as client:
        task = asyncio.create_task(block(client))
        await until(lambda: bool(memory.messages('orders')), 'the message is stored')
        (publisher,) = publishers
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)  # the block waits for the other task
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        memory.heal()
        await closing


@pytest.mark.parametrize('aborted', [False, True])
async def test_part_of_a_publisher_that_fails_to_close(
    aborted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_super_stream('orders', partitions=PARTITIONS)
        publisher = await client.super_stream('orders').publisher(
            route=rbs.by_hash(str), name='shop'
        )
        await publisher.send('x')

        def fail(*_: object) -> None:
            raise RuntimeError('failed')

        monkeypatch.setattr(session_of(publisher._publishers[0]), '_give_up', fail)
        if aborted:
            failed: list[dict[str, Any]] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: failed.append(context))
            publisher._abort(rbs.PublisherError('aborted'))
            assert [repr(item['exception']) for item in failed] == ["RuntimeError('failed')"]
        else:
            with pytest.raises(RuntimeError, match='failed'):
                await publisher.close()
        await wait_until_forgotten(memory)
        await check_ended(publisher)


@pytest.mark.parametrize('wait', [False, True])
async def test_interrupted_opening_of_a_publisher(memory: StreamBroker, wait: bool) -> None:
    async with rbs.streams_client(memory.uri) as client:
        for turns in count():
            opener = client.super_stream('orders').publisher(
                route=rbs.by_hash(str), name='shop', wait=wait
            )
            found: list[Any] = []

            async def begin(opener: Any = opener, found: list[Any] = found) -> None:
                found.append(await opener)

            interrupted = await interrupt(begin, turns)
            if not interrupted:
                await found[0].close()
            await wait_until_forgotten(memory)
            if not interrupted:
                break


# -- the client


@pytest.mark.both_loops
async def test_interrupted_disconnect(memory: StreamBroker) -> None:
    for turns in count():
        client = rbs.streams_client(memory.uri)
        messages = subscribe(client, 'orders')
        await messages.open()
        publisher = await client.super_stream('orders').publisher(route=rbs.by_hash(str))
        await publisher.submit('x')
        interrupted = await interrupt(client.disconnect, turns)
        assert not client.connected
        await wait_until_forgotten(memory)
        assert memory.connections == 0
        with pytest.raises(rbs.RbFlyError):
            await publisher.send('x')
        await messages.aclose()
        await client.disconnect()
        if not interrupted:
            break
