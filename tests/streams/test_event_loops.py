"""A client belongs to one event loop at a time; other threads and forked children cannot use it."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import rbfly.streams as rbs
from rbfly.streams._consume import watchdog
from rbfly.streams.error import EventLoopError, MessageTimeout
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Handler
from tests.fake_stream import FakeStream
from tests.inside import cluster_of, core_of, cursor_of, session_of, use_settings_of, window_of
from tests.super_streams import subscribe_to

T = TypeVar('T', bound=Callable[..., object] | type)

HANG = 30.0  # seconds; only a safeguard


def in_thread(function: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Run a coroutine in another thread's loop while this loop is blocked; return its error."""
    found: list[BaseException] = []

    async def run() -> None:
        await function()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as ex:
            found.append(ex)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive()
    return found[0] if found else None


async def test_client_refuses_another_thread() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        for call in (client.get_protocol, client.disconnect, client.__aenter__):
            assert isinstance(in_thread(call), EventLoopError)
        assert await client.get_protocol() is connection
    assert len(fake.connections) == 1


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_publisher_refuses_another_thread(cls: type[Any]) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=cls) as publisher,
    ):
        calls: list[Callable[[], Awaitable[object]]] = [publisher.close]
        if cls is rbs.Publisher:
            calls += [
                lambda: publisher.send('x'),
                lambda: publisher.send('x', timeout=HANG),
                lambda: publisher.submit('x'),
                lambda: publisher.send_many(['x']),
            ]
        else:
            calls.append(publisher.flush)
        for call in calls:
            assert isinstance(in_thread(call), EventLoopError)
        assert window_of(publisher).unsettled == 0
    assert wire.PUBLISH not in fake.connections[1].commands()


async def test_busy_publisher_refuses_another_thread() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        sending = [asyncio.create_task(publisher.send(i)) for i in range(3)]
        if not core_of(publisher).scheduled:  # without eager tasks, they have not started yet
            await asyncio.sleep(0)
        assert core_of(publisher).scheduled
        assert isinstance(in_thread(lambda: publisher.send('x')), EventLoopError)
        await asyncio.gather(*sending)
        assert publisher.message_id == 4


async def test_subscription_refuses_another_thread() -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        assert await anext(messages) == b'x'

        async def stop() -> None:
            messages.stop()

        calls = (messages.__anext__, messages.open, messages.fetch, messages.aclose, stop)
        assert isinstance(in_thread(messages.__anext__), EventLoopError)
        stream.append(b'y')
        stream.append(b'z')
        await until(lambda: len(cursor_of(messages).queue.chunks) == 2, 'both chunks arrive')
        assert await anext(messages) == b'y'
        for call in calls:
            assert isinstance(in_thread(call), EventLoopError)
        assert await anext(messages) == b'z'
        await until(lambda: stream.reader.granted == 2, 'the credit for both chunks is returned')


def test_client_can_be_used_in_one_loop_after_another() -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/', connect_timeout=0.1)
    loops = [asyncio.new_event_loop() for _ in range(2)]

    async def use() -> None:
        async with FakeBroker() as fake:
            use_settings_of(rbs.streams_client(fake.uri), client)
            await client.get_protocol()
            with pytest.raises(EventLoopError):
                raise in_thread(client.get_protocol) or AssertionError
            await client.disconnect()

    for loop in loops:
        loop.run_until_complete(use())
    for loop in loops:
        loop.close()


class Left:
    """A subscription that was used in an event loop that has stopped.

    :param on: additional handlers of the broker in that loop.
    """

    def __init__(
        self,
        stream: FakeStream,
        on: dict[int, Handler] | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self.stream = stream
        self.loop = new_loop()
        self.loop.run_until_complete(self._begin(stream.handlers() | (on or {})))

    async def _begin(self, handlers: dict[int, Handler]) -> None:
        self._fake = await FakeBroker(on=handlers).__aenter__()
        self.client = rbs.streams_client(self._fake.uri)
        self.messages = self.client.subscribe(
            'test', offset=rbs.Offset.FIRST, amqp=False, timeout=0.01
        )
        peers = self._fake.connections
        while not any(wire.SUBSCRIBE in item.commands() for item in peers):
            with contextlib.suppress(MessageTimeout):
                await anext(self.messages)

    async def listen(self) -> None:
        self.messages._waiter.timeout = HANG
        waiting = asyncio.ensure_future(self.messages.__anext__())
        await until(
            lambda: session_of(self.messages)._watchdog.timer is not None, 'the watchdog is started'
        )
        waiting.cancel()
        await asyncio.wait([waiting])

    async def lose(self) -> None:
        for item in self._fake.connections:
            item.transport.abort()
        await until(lambda: not self.client.connected, 'the connection is lost')

    async def receive(self, *messages: bytes) -> None:
        for message in messages:
            self.stream.append(message)
        chunks = session_of(self.messages).cursor.queue.chunks
        await until(lambda: len(chunks) == len(messages), 'all chunks arrive')

    async def resume(self, use: Callable[[], Awaitable[object]]) -> object:
        """Use the subscription in another event loop, with another broker."""
        async with FakeBroker(on=self.stream.handlers()) as fake:
            use_settings_of(rbs.streams_client(fake.uri), self.client)
            self.messages._waiter.timeout = HANG
            try:
                return await use()
            finally:
                await self.messages.aclose()
                await self.client.disconnect()


@pytest.fixture
def collected() -> Iterator[None]:
    yield
    gc.collect()  # so that the sockets of the first loop warn now, not in another test


def leaves_sockets(test: T) -> T:
    """Mark a test, or a class of tests, that closes an event loop while sockets are open."""
    for mark in (
        pytest.mark.usefixtures('collected'),
        pytest.mark.filterwarnings('ignore::ResourceWarning'),
        pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
    ):
        test = mark(test)
    return test


NewLoop = Callable[[], asyncio.AbstractEventLoop]


def run_each(new_loop: NewLoop, *steps: tuple[Callable[[], Awaitable[Any]], Any]) -> None:
    """Run each function in an event loop of its own, and check its result."""
    for work, expected in steps:
        loop = new_loop()
        try:
            assert loop.run_until_complete(asyncio.wait_for(work(), HANG)) == expected
        finally:
            loop.close()


@leaves_sockets
class TestNextLoop:
    def test_next_loop_closes_a_subscription_that_was_opening(self) -> None:
        left = Left(FakeStream(), {wire.SUBSCRIBE: wire.SILENT})
        left.loop.close()
        asyncio.run(left.messages.aclose())

    def test_next_loop_opens_a_subscription_that_was_opening(self) -> None:
        stream = FakeStream()
        left = Left(stream, {wire.SUBSCRIBE: wire.SILENT})
        left.loop.run_until_complete(left.lose())
        stream.append(b'x')
        assert asyncio.run(left.resume(left.messages.__anext__)) == b'x'
        left.loop.run_until_complete(asyncio.sleep(0))
        left.loop.close()

    @pytest.mark.parametrize('new_loop', [asyncio.new_event_loop, uvloop.new_event_loop])
    def test_next_loop_delivers_messages_that_have_arrived(self, new_loop: NewLoop) -> None:
        left = Left(FakeStream(), new_loop=new_loop)
        left.loop.run_until_complete(left.receive(b'x', b'y'))
        left.stream.reader.live = False
        left.loop.close()

        async def use() -> list[object]:
            left.stream.append(b'z')
            return [await anext(left.messages) for _ in range(3)]

        assert asyncio.run(left.resume(use)) == [b'x', b'y', b'z']

    def test_watchdog_works_in_the_next_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watchdog, 'SILENCE', 0.02)
        monkeypatch.setattr(watchdog, 'GRACE', 0.01)
        stream = FakeStream()
        left = Left(stream)
        left.loop.run_until_complete(left.listen())
        left.loop.close()

        async def use() -> object:
            waiting = asyncio.ensure_future(left.messages.__anext__())
            await until(
                lambda: session_of(left.messages).registration.is_open, 'the subscription is open'
            )
            stream.reader.live = False
            stream.append(b'x')
            return await waiting

        assert asyncio.run(left.resume(use)) == b'x'


FORK = """
import asyncio, os, sys
import rbfly.streams as rbs
from tests.fake_broker import FakeBroker, PUBLISH

def child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        asyncio.run(function())
        print('fine')
    except BaseException as ex:
        print(type(ex).__name__)
    sys.stdout.flush()
    os._exit(0)

async def use(client):
    async with client:
        await client.get_protocol()

async def main():
    async with FakeBroker() as fake:
        new = rbs.streams_client(fake.uri)
        async with rbs.streams_client(fake.uri) as client, client.publisher('test') as publisher:
            loop = asyncio.get_running_loop()
            async def send():
                await publisher.send('x')
            for function in (send, lambda: use(client), lambda: use(new)):
                await loop.run_in_executor(None, os.waitpid, child(function), 0)
            await publisher.send('y')
        await asyncio.gather(*(item.lost for item in fake.connections))
        frames = [frame for item in fake.connections for frame in item.frames]
        print([frame.publishing_ids for frame in frames if frame.key == PUBLISH])

asyncio.run(main())
"""


def test_forked_child_cannot_use_its_parents_client() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, '-W', 'ignore::DeprecationWarning', '-c', FORK]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split('\n') == ['EventLoopError', 'EventLoopError', 'fine', '[[1]]', ''], (
        done.stderr
    )


LEAVING_CHILD = """
import asyncio, os, sys
import rbfly.streams as rbs

def leave(how):
    if os.fork() == 0:
        if how == 'return':
            return
        sys.exit()
    os.wait()
    os._exit(0)

async def use(client, block, how):
    messages = client.subscribe('events', group='billing')
    await anext(messages)
    await anext(messages)
    queue = client.publisher('orders'), client.super_stream('all').publisher(route=rbs.by_hash(str))
    if block == 'block':
        async with queue[0] as publisher, queue[1] as others:
            publisher.batch('queued')
            others.batch('queued')
            leave(how)
    else:
        publisher, others = await queue[0], await queue[1]
        publisher.batch('queued')
        others.batch('queued')
        leave(how)
    del messages, publisher, others, queue

async def main(uri, *arguments):
    loop, parent = asyncio.get_running_loop(), os.getpid()
    try:
        await use(rbs.streams_client(uri), *arguments)
    finally:
        if os.getpid() != parent:  # where no task runs from CPython 3.14 on
            loop.call_soon(loop.call_soon, loop.call_soon, os._exit, 0)
            await loop.create_future()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(('block', 'how'), [('block', 'exit'), ('dropped', 'return')])
def test_forked_child_closes_nothing(block: str, how: str) -> None:
    """A child that ends `main` writes nothing to the connections of its parent."""
    ended = threading.Semaphore(0)

    def on_event(text: str) -> None:
        if text.endswith(' closed'):
            ended.release()

    with StreamBroker(on_event=on_event) as broker:
        broker.create_stream('events')
        broker.publish('events', 1, 2)
        broker.create_stream('orders')
        broker.create_super_stream('all', partitions=1)
        command = [sys.executable, '-c', LEAVING_CHILD, broker.uri, block, how]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        for _ in range(2):  # the connections that publish and consume
            assert ended.acquire(timeout=HANG)
        assert broker.messages('orders') == broker.messages('all-0') == []
        assert broker.offsets('events') == {}


@leaves_sockets
def test_next_loop_closes_what_an_interrupted_loop_left_open(broker_uri: str, stream: str) -> None:
    """Closing does not wait for tasks of the interrupted loop, and the client can be used again."""
    client = rbs.streams_client(broker_uri)
    left = client.publisher(stream)
    opened: list[rbs.Publisher] = []

    async def interrupted() -> None:
        opened.append(await left.__aenter__())
        async with client.publisher(stream) as publisher:
            await publisher.send('x')
            raise KeyboardInterrupt

    async def close() -> None:
        await opened[0].close()
        await client.disconnect()

    async def use() -> bool:
        async with client:
            return await client.stream_exists(stream)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    asyncio.run(asyncio.wait_for(close(), HANG))
    assert asyncio.run(use())


@leaves_sockets
def test_publisher_dropped_after_its_loop_has_ended_frees_its_name(
    broker_uri: str, stream: str
) -> None:
    client = rbs.streams_client(broker_uri)
    kept: list[rbs.Publisher] = []

    async def use() -> None:
        kept.append(await client.publisher(stream, name='shop'))
        await kept[0].send('x')

    for _ in range(2):
        asyncio.run(use())
        kept.clear()
    asyncio.run(client.disconnect())


def test_publisher_of_an_earlier_loop_raises_after_its_client_was_closed_in_another_one() -> None:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        client = rbs.streams_client(broker.uri)

        async def publish() -> rbs.Publisher:
            publisher = await client.publisher('orders')
            await publisher.send(1)
            return publisher

        publisher = asyncio.run(publish())
        asyncio.run(client.close())
        with pytest.raises(EventLoopError):
            asyncio.run(publisher.send(2))
        assert broker.messages('orders') == [1]


@leaves_sockets
@pytest.mark.parametrize('new_loop', [asyncio.new_event_loop, uvloop.new_event_loop])
def test_next_loop_delivers_messages_without_the_connection_they_came_from(
    new_loop: NewLoop,
) -> None:
    stream = FakeStream()
    for body in (b'0', b'1', b'2'):
        stream.append(body)
    kept: list[tuple[rbs.StreamsClient, rbs.Subscription]] = []

    async def begin() -> Any:
        fake = await FakeBroker(on=stream.handlers()).__aenter__()
        client = rbs.streams_client(fake.uri)
        messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        kept.append((client, messages))
        first = await anext(messages)
        await until(lambda: len(cursor_of(messages).queue.chunks) == 2, 'the other chunks arrive')
        return first

    async def resume() -> Any:
        ((client, messages),) = kept
        found = [await anext(messages), await anext(messages)]
        await messages.aclose()
        await client.disconnect()
        return found

    run_each(new_loop, (begin, b'0'), (resume, [b'1', b'2']))


@leaves_sockets
@pytest.mark.parametrize('new_loop', [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize('super_stream', [False, True])
def test_member_of_a_group_joins_again_in_the_next_loop(
    new_loop: NewLoop, super_stream: bool
) -> None:
    """The member drops its messages, because another member may have read them since.

    asyncio leaves the socket of the first loop open, and with it the member that was active.
    """
    options: Any = {'super_stream': True} if super_stream else {}
    with StreamBroker() as broker:
        if super_stream:
            broker.create_super_stream('orders', partitions=1)
        else:
            broker.create_stream('orders')
        broker.publish('orders-0' if super_stream else 'orders', *range(10))
        client = rbs.streams_client(broker.uri)
        messages: Any = subscribe_to(
            client, 'orders', group='billing', offset=rbs.Offset.FIRST, **options
        )

        async def read() -> list[int]:
            return [await anext(messages) for _ in range(3)]

        async def close() -> None:
            await messages.aclose()
            await client.disconnect()

        run_each(new_loop, (read, [0, 1, 2]), (read, [0, 1, 2]), (close, None))


@leaves_sockets
@pytest.mark.parametrize('new_loop', [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tasks_of_one_loop_after_another_commit(
    new_loop: NewLoop, broker_uri: str, stream: str
) -> None:
    """Also if they do so at the same time."""
    client = rbs.streams_client(broker_uri)
    tracking = rbs.OffsetTracking('me', manual=True)
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, commit=tracking)

    async def commit() -> bool:
        async with client.publisher(stream) as publisher:
            await publisher.send('x')
        message = await anext(messages.messages())
        await asyncio.gather(messages.commit(), messages.commit())
        return await client.read_offset(stream, 'me') == message.stream_offset

    async def close() -> None:
        await messages.aclose()
        await client.disconnect()

    run_each(new_loop, (commit, True), (commit, True), (close, None))


@leaves_sockets
def test_next_loop_reads_every_partition() -> None:
    with StreamBroker() as broker:
        broker.create_super_stream('orders', partitions=3)
        client = rbs.streams_client(broker.uri)
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)

        async def read() -> list[Any]:
            found = [await anext(messages) for _ in range(3)]
            waiting = asyncio.ensure_future(anext(messages))
            await until(messages._waiter.is_waiting, 'no partition has a message')
            waiting.cancel()
            await asyncio.wait([waiting])
            return found

        for number in range(2):
            for partition in broker.streams:
                broker.publish(partition, number)
            assert asyncio.run(asyncio.wait_for(read(), HANG)) == [number] * 3
        asyncio.run(client.disconnect())


@leaves_sockets
def test_next_loop_after_one_that_was_closed_while_a_task_waited_to_write() -> None:
    with StreamBroker() as broker:
        client = rbs.streams_client(broker.uri)

        async def wait() -> asyncio.Task[Any]:
            connection = await cluster_of(client).locator()
            connection.pause_writing()
            waiting = asyncio.create_task(connection.wait_writable())
            await asyncio.sleep(0)
            return waiting

        loop = asyncio.new_event_loop()
        waiting = loop.run_until_complete(wait())
        loop.close()
        assert not asyncio.run(asyncio.wait_for(client.stream_exists('orders'), HANG))
        asyncio.run(client.disconnect())
        del waiting


@leaves_sockets
def test_partitions_open_in_another_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.session.AT_ONCE', 1)
    with StreamBroker() as broker:
        broker.create_super_stream('orders', partitions=3)
        for i in range(3):
            broker.publish(f'orders-{i}', i)
        client = rbs.streams_client(broker.uri)
        messages = client.super_stream('orders').subscribe(offset=rbs.Offset.FIRST)

        async def read(count: int) -> set[Any]:
            async with asyncio.timeout(HANG):
                return {await anext(messages) for _ in range(count)}

        async def finish() -> set[Any]:
            found = await read(2)
            await messages.aclose()
            await client.disconnect()
            return found

        assert asyncio.run(read(1)) | asyncio.run(finish()) == {0, 1, 2}
