"""`Subscription.stop` ends the iteration cleanly: the offset of the last message is stored."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.fake_subscription import stream_of_chunks
from tests.inside import session_of

HANG = 60.0  # seconds; only a safeguard
COUNT = 20
TRACKING = rbs.OffsetTracking('reader', every=0, interval=0)  # stores the offset at the end


async def fetch(messages: rbs.Subscription) -> AsyncIterator[rbs.MessageBatch]:
    with contextlib.suppress(rbs.SubscriptionClosed):
        while True:
            yield await messages.fetch(3)


WAYS: dict[str, Callable[[rbs.Subscription], AsyncIterator[Any]]] = {
    'bodies': lambda messages: messages,
    'contexts': lambda messages: messages.messages(),
    'batches': lambda messages: messages.batches(3),
    'joined batches': lambda messages: messages.batches(3, max_wait=HANG),
    'fetch': fetch,
}


def subscribe(client: rbs.StreamsClient, stream: str, **options: Any) -> rbs.Subscription:
    arguments: dict[str, Any] = {
        'offset': rbs.Offset.FIRST,
        'commit': TRACKING,
        'timeout': HANG,
    } | options
    found: rbs.Subscription = client.subscribe(stream, **arguments)
    return found


async def fill(client: rbs.StreamsClient, stream: str, sub_entry_size: int | None = COUNT) -> None:
    """Store the messages, by default in one chunk: a sub-entry is not split."""
    async with client.publisher(stream, sub_entry_size=sub_entry_size) as publisher:
        await publisher.send_many(range(COUNT))


async def wait_turns(n: int = 20) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


# -- on every broker


@pytest.mark.parametrize('how', [*WAYS])
async def test_iteration_ends_after_the_current_message_and_stores_its_offset(
    client: rbs.StreamsClient, stream: str, how: str
) -> None:
    single = how in ('bodies', 'contexts')
    await fill(client, stream, None if single else COUNT)
    seen: list[Any] = []
    for start in (rbs.Offset.FIRST, rbs.Offset.reference('reader')):
        async with subscribe(client, stream, offset=start) as messages:
            async for _ in WAYS[how](messages):
                begun = len(seen)
                seen.append(rbs.get_message_ctx().body)
                messages.stop()
                messages.stop()
            assert begun == len(seen) - 1
            # before the subscription is closed
            assert await client.read_offset(stream, 'reader') == seen[-1]
            assert await anext(messages, None) is None
    assert len(seen) == 2
    assert seen[1] == seen[0] + (1 if single else 3)


async def test_stop_before_the_first_message(client: rbs.StreamsClient, stream: str) -> None:
    await fill(client, stream)
    for opened in (False, True):
        async with contextlib.aclosing(subscribe(client, stream)) as messages:
            if opened:
                await messages.open()
            messages.stop()
            await messages.open()
            assert [item async for item in messages] == []
            with pytest.raises(rbs.SubscriptionClosed):
                await messages.open()
    assert await client.read_offset(stream, 'reader') is None


async def test_stop_ends_the_iteration_of_a_waiting_task(
    client: rbs.StreamsClient, stream: str
) -> None:
    await fill(client, stream)
    async with subscribe(client, stream) as messages:
        seen: list[Any] = []

        async def read() -> None:
            async for item in messages:
                seen.append(item)

        reading = asyncio.create_task(read())
        await until(
            lambda: len(seen) == COUNT and session_of(messages)._waiter.is_waiting(),
            'the task waits for a message',
        )
        messages.stop()
        await reading
        assert await client.read_offset(stream, 'reader') == COUNT - 1


async def test_close_waits_until_the_program_has_finished_its_batch(
    client: rbs.StreamsClient, stream: str
) -> None:
    await fill(client, stream)
    begun, go_on = asyncio.Event(), asyncio.Event()
    done: list[Any] = []

    async def work(messages: rbs.Subscription) -> None:
        async for batch in messages.batches(7):
            begun.set()
            await go_on.wait()
            done.extend(batch)

    messages = subscribe(client, stream)
    working = asyncio.create_task(work(messages))
    await begun.wait()
    messages.stop()
    closing = [asyncio.create_task(messages.aclose()) for _ in range(2)]
    await wait_turns()
    assert not any(task.done() for task in closing)
    go_on.set()
    await asyncio.gather(working, *closing)
    assert done
    assert await client.read_offset(stream, 'reader') == done[-1]


@pytest.mark.parametrize('how', ['break', 'error', 'cancellation'])
async def test_close_does_not_wait_for_a_task_that_will_not_ask(
    client: rbs.StreamsClient, stream: str, how: str
) -> None:
    """Its last message is not finished."""
    await fill(client, stream)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(messages: rbs.Subscription) -> None:
        async for item in messages:
            if item == 3:
                begun.set()
                await go_on.wait()
                if how == 'error':
                    raise RuntimeError
                break

    messages = subscribe(client, stream)
    working = asyncio.create_task(work(messages))
    await begun.wait()
    messages.stop()
    closing = asyncio.create_task(messages.aclose())
    await wait_turns()
    assert not closing.done()
    if how == 'cancellation':
        working.cancel()
    go_on.set()
    await closing
    await asyncio.wait([working])
    assert isinstance(working.exception(), RuntimeError) if how == 'error' else True
    assert await client.read_offset(stream, 'reader') == 2


async def test_task_that_reads_can_close_in_the_loop_body(
    client: rbs.StreamsClient, stream: str
) -> None:
    await fill(client, stream)
    async with subscribe(client, stream) as messages:
        async for item in messages:
            if item == 3:
                messages.stop()
                await messages.aclose()
    assert await client.read_offset(stream, 'reader') == 2


PROGRAM = """
import asyncio, signal, sys
import rbfly.streams as rbs

async def main(uri, stream, kind):
    async with rbs.streams_client(uri) as client:
        source = client.super_stream(stream) if kind == 'super stream' else client
        names = [] if kind == 'super stream' else [stream]
        async with source.subscribe(
            *names,
            offset=rbs.Offset.reference('worker'),
            commit=rbs.OffsetTracking('worker', every=7, interval=0),
        ) as messages:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
            async for item in messages:
                await asyncio.sleep(0)
                print(rbs.get_message_ctx().stream, item, flush=True)
        print('end', flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize('kind', ['stream', 'super stream'])
async def test_program_stopped_by_sigterm_loses_and_repeats_nothing(
    kind: str, broker_uri: str, client: rbs.StreamsClient, stream: str
) -> None:
    name, names, count = stream, [stream], 500
    if kind == 'super stream':
        name, count = f'{stream}-super', 170
        await client.super_stream(name).create(partitions=3)
        names = [*await client.super_stream(name).partitions()]
    for partition in names:
        async with client.publisher(partition) as publisher:
            for start in range(0, count, 20):
                await publisher.send_many(range(start, min(start + 20, count)))
    seen: dict[str, list[int]] = {partition: [] for partition in names}
    while left := count * len(names) - sum(map(len, seen.values())):
        process = await asyncio.create_subprocess_exec(
            sys.executable, '-W', 'error', '-c', PROGRAM, broker_uri, name, kind,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(HANG):
                while not lines or lines[-1] != 'end':
                    lines.append((await process.stdout.readline()).decode().strip())
                    if len(lines) == min(30, left):
                        process.terminate()
                assert await process.wait() == 0
        except BaseException:
            process.kill()
            raise
        for partition, item in map(str.split, lines[:-1]):
            seen[partition].append(int(item))
        for partition, items in seen.items():
            stored = await client.read_offset(partition, 'worker')
            assert stored == (items[-1] if items else None)
    assert seen == {partition: [*range(count)] for partition in names}
    if kind == 'super stream':
        await client.super_stream(name).delete()


# -- through faults


async def test_stop_during_an_outage_stores_the_offset_on_another_connection() -> None:
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        memory.create_stream('test')
        memory.publish('test', *range(5))
        messages = subscribe(client, 'test')
        async for item in messages:
            if item == 3:
                memory.cut()
                await until(lambda: not client.connected, 'the connection is lost')
                messages.stop()
        assert item == 3
        assert memory.offsets('test') == {'reader': 3}


async def test_stopped_subscription_that_was_opening_delivers_nothing() -> None:
    stream = stream_of_chunks(1)
    asked: list[tuple[Peer, Frame]] = []

    def on_query(peer: Peer, request: Frame) -> None:
        asked.append((peer, request))

    handlers = stream.handlers() | {wire.QUERY_OFFSET: on_query}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        start = rbs.Offset.reference('reader')
        messages = subscribe(client, 'test', offset=start, amqp=False)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: bool(asked), 'the client asks where to start')
        waiting.cancel()
        await asyncio.wait([waiting])
        messages.stop()
        peer, request = asked[0]
        peer.respond(request, code=0x13)  # NO_OFFSET
        await wait_turns(100)
        assert [item async for item in messages] == []
        assert not stream.readers


async def test_open_ends_when_the_subscription_stops() -> None:
    async with (
        FakeBroker(on={wire.SUBSCRIBE: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = subscribe(client, 'test')
        opening = asyncio.create_task(messages.open())
        await wait_turns()
        messages.stop()
        await opening
        assert [item async for item in messages] == []
        with pytest.raises(rbs.SubscriptionClosed, match='closed'):
            await messages.open()


async def test_offset_is_stored_again_if_the_connection_is_lost_before_it_is_read_back() -> None:
    stream = stream_of_chunks(5)
    asked: list[Peer] = []

    def stored(peer: Peer, request: Frame) -> None:
        asked.append(peer)
        if len(asked) == 1:
            peer.transport.abort()
        else:
            peer.respond(request, 3)

    handlers = stream.handlers() | {wire.QUERY_OFFSET: stored}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        messages = subscribe(client, 'test', amqp=False)
        async for item in messages:
            if item == b'3':
                messages.stop()
        first, second = asked
        assert first is not second
        for peer in asked:
            frames = [frame.decode() for frame in peer.frames if frame.key == wire.STORE_OFFSET]
            assert [frame.offset for frame in frames] == [3]


async def test_offset_that_the_broker_ignores_is_reported() -> None:
    stream = stream_of_chunks(5)

    def stored(peer: Peer, request: Frame) -> None:
        peer.respond(request, 1)

    handlers = stream.handlers() | {wire.QUERY_OFFSET: stored}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        messages = subscribe(client, 'test', amqp=False)
        async for item in messages:
            if item == b'3':
                messages.stop()
                break
        with pytest.raises(rbs.OffsetNotStored, match='offset 3 of stream'):
            await anext(messages)
        assert await anext(messages, None) is None
        await messages.aclose()


@pytest.mark.own_clock
async def test_close_gives_up_waiting_for_the_program() -> None:
    async with (
        FakeBroker(on=stream_of_chunks(5).handlers()) as fake,
        rbs.streams_client(fake.uri, close_timeout=3) as client,
    ):
        messages = subscribe(client, 'test', amqp=False, timeout=None)
        begun = asyncio.Event()

        async def work() -> None:
            async for _ in messages:
                begun.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await begun.wait()
        messages.stop()
        clock = asyncio.get_running_loop().time
        before = clock()
        await messages.aclose()
        assert 3 <= clock() - before < 4
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.both_loops
async def test_cancelled_end_of_an_iteration_closes_the_subscription() -> None:
    stream = stream_of_chunks(5)
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        for i in range(12):
            messages = subscribe(client, 'test', amqp=False)
            assert await anext(messages) == b'0'
            messages.stop()
            ending = asyncio.create_task(anext(messages, None))
            await wait_turns(i)
            ending.cancel()
            await asyncio.wait([ending])
            await messages.aclose()
            assert await anext(messages, None) is None
            await until(lambda: not stream.reader.live, 'the client has unsubscribed')


async def test_close_after_an_interrupted_close(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = client.subscribe(stream)
    session = session_of(messages)
    begin = session.registration.begin_close

    def interrupted() -> None:
        begin()
        raise KeyboardInterrupt

    monkeypatch.setattr(session.registration, 'begin_close', interrupted)
    with pytest.raises(KeyboardInterrupt):
        await messages.aclose()
    await asyncio.wait_for(messages.aclose(), 10)
