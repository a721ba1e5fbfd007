"""What closing waits for, and for how long, even if the broker is frozen."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Role
from rbfly.protocol import commands
from rbfly.streams.error import ConfirmTimeout, PublishError, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import cluster_of, pool_of

LIMIT = 0.05  # timeout in seconds, for tests in which it expires
HANG = 30.0  # seconds; only a safeguard


def freeze(fake: FakeBroker) -> None:
    """Make the broker stop answering."""
    fake.handlers.update(dict.fromkeys(range(0x20), SILENT))


class Held:
    """Keeps requests until `answer` is called."""

    def __init__(self) -> None:
        self.requests: list[tuple[Peer, Frame]] = []

    def __call__(self, peer: Peer, request: Frame) -> None:
        self.requests.append((peer, request))

    def answer(self) -> None:
        while self.requests:
            peer, request = self.requests.pop()
            peer.broker.default(peer, request)


# -- how long


async def test_slow_broker_gets_an_orderly_close() -> None:
    def late(peer: Peer, request: Frame) -> None:
        asyncio.get_running_loop().call_later(LIMIT, peer.broker.default, peer, request)

    keys = (wire.PUBLISH, wire.DELETE_PUBLISHER, wire.CLOSE)
    async with (
        FakeBroker(on=dict.fromkeys(keys, late)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        confirmations = [await publisher.submit(i) for i in range(1000)]
    assert all(item.done() and item.failure is None for item in confirmations)
    assert fake.connections[1].commands()[-2:] == [wire.DELETE_PUBLISHER, wire.CLOSE]


async def test_cancelled_program_does_not_wait_for_the_broker() -> None:
    stream = FakeStream()
    stream.append(b'x', b'y')

    async def run(fake: FakeBroker, ready: asyncio.Event) -> None:
        tracking = rbs.OffsetTracking('me', interval=0)
        async with (
            rbs.streams_client(fake.uri, close_timeout=None, request_timeout=None) as client,
            client.publisher('test') as publisher,
            client.subscribe(
                'test', offset=rbs.Offset.FIRST, amqp=False, commit=tracking
            ) as messages,
        ):
            assert [await anext(messages), await anext(messages)] == [b'x', b'y']
            freeze(fake)
            ready.set()
            await publisher.send('z')

    async with FakeBroker(on=stream.handlers()) as fake:
        ready = asyncio.Event()
        task = asyncio.create_task(run(fake, ready))
        await ready.wait()
        task.cancel()
        await asyncio.wait_for(asyncio.wait([task]), HANG)
        assert task.cancelled()
    goodbye = [wire.STORE_OFFSET, wire.UNSUBSCRIBE, wire.CLOSE]
    assert fake.connection.commands()[-3:] == goodbye


@pytest.mark.parametrize('what', ['publisher', 'subscription', 'client'])
async def test_cancelled_close_ends_at_once(what: str) -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake:
        client = rbs.streams_client(fake.uri, close_timeout=None, request_timeout=None)
        context = client.publisher('test')
        publisher = await context.__aenter__()
        messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        await anext(messages)
        freeze(fake)
        close = {
            'publisher': publisher.close,
            'subscription': messages.aclose,
            'client': client.disconnect,
        }
        tasks = [asyncio.create_task(close[what]()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait_for(asyncio.wait(tasks), HANG)
        assert [task.cancelled() for task in tasks] == [True, False]
        await cluster_of(client).close(wait=False)


# -- twice


async def in_order(
    first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]
) -> list[str]:
    """Run two closes; return the order in which they end, and their errors."""
    ended: list[str] = []

    async def note(name: str, closing: Coroutine[Any, Any, None]) -> None:
        try:
            await closing
        except Exception as ex:
            name = f'{name} {type(ex).__name__}'
        ended.append(name)

    await asyncio.gather(note('first', first), note('second', second))
    return ended


async def test_second_close_of_a_publisher_waits_for_the_first() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri, close_timeout=LIMIT) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.submit('x')
        ended = await in_order(publisher.close(), publisher.close())
        assert ended == ['first ConfirmTimeout', 'second']


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_second_close_does_not_repeat_the_error(cls: type[Any]) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.refuse(0x0E)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=cls) as publisher,
    ):
        if cls is rbs.Publisher:
            await publisher.submit('x')
        else:
            publisher.batch('x')
        ended = await in_order(publisher.close(), publisher.close())
        assert ended == [f'first {PublishError.__name__}', 'second']


async def test_second_close_of_a_subscription_waits_for_the_first() -> None:
    stream = FakeStream()
    stream.append(b'x')
    held = Held()
    async with (
        FakeBroker(on=stream.handlers() | {wire.UNSUBSCRIBE: held}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        await anext(messages)
        closing = asyncio.create_task(in_order(messages.aclose(), messages.aclose()))
        await until(lambda: bool(held.requests), 'the subscription unsubscribes')
        held.answer()
        assert await closing == ['first', 'second']


async def test_second_disconnect_waits_for_the_first() -> None:
    held = Held()
    async with FakeBroker(on={wire.CLOSE: held}) as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        closing = asyncio.create_task(in_order(client.disconnect(), client.disconnect()))
        await until(lambda: bool(held.requests), 'the client disconnects')
        held.answer()
        assert await closing == ['first', 'second']


# -- after a Close frame


async def test_client_writes_nothing_after_a_close_frame() -> None:
    stream = FakeStream()
    stream.append(b'x')
    held = Held()
    async with FakeBroker(on=stream.handlers() | {wire.CLOSE: held}) as fake:
        client = rbs.streams_client(fake.uri)
        async with client.publisher('test') as publisher:
            messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
            await anext(messages)
            connections = [
                *pool_of(client)._connections[Role.CONSUME],
                *pool_of(client)._connections[Role.PUBLISH],
            ]
            closing = asyncio.create_task(client.disconnect())
            await until(lambda: len(held.requests) == 2, 'the client disconnects')
            sending = asyncio.create_task(publisher.send('y'))
            for connection in connections:
                connection.resume_writing()
                connection.write(wire.frame(wire.HEARTBEAT, b''))
                with pytest.raises(StreamConnectionError, match='the client was disconnected'):
                    connection.send_request(commands.Delete('test'))
            await asyncio.sleep(0)
            held.answer()
            await closing
            with pytest.raises(StreamConnectionError, match='the client was disconnected'):
                await sending
    assert [peer.commands()[-1] for peer in fake.connections] == [wire.CLOSE, wire.CLOSE]


async def test_call_fails_while_the_client_disconnects() -> None:
    held = Held()
    async with FakeBroker(on={wire.CLOSE: held}) as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        closing = asyncio.create_task(client.disconnect())
        await until(lambda: bool(held.requests), 'the client disconnects')
        with pytest.raises(StreamConnectionError, match='the client was disconnected'):
            await client.get_protocol()
        held.answer()
        await closing
        assert len(fake.connections) == 1
        del fake.handlers[wire.CLOSE]
        await client.get_protocol()


async def test_confirm_before_the_response_to_a_close_counts() -> None:
    held = Held()
    async with FakeBroker(on={wire.PUBLISH: held, wire.CLOSE: held}) as fake:
        client = rbs.streams_client(fake.uri)
        async with client.publisher('test') as publisher:
            confirmation = await publisher.submit('x')
            closing = asyncio.create_task(client.disconnect())
            await until(lambda: len(held.requests) == 3, 'the client disconnects')
            held.requests.reverse()
            held.answer()
            await closing
            await confirmation


@pytest.mark.own_clock
async def test_each_outage_has_its_own_close_timeout() -> None:
    """A close that gave up in one outage does not shorten a close in the next one."""
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        for recovers in (False, True):
            fake.handlers[wire.PUBLISH] = SILENT
            context = client.publisher('test')
            publisher = await context.__aenter__()
            await publisher.submit('x')
            fake.handlers[Step.PEER_PROPERTIES] = wire.RESETTING
            for peer in fake.connections:
                peer.transport.abort()
            await asyncio.sleep(1)
            if recovers:
                asyncio.get_running_loop().call_later(2, fake.handlers.clear)
                await publisher.close()
            else:
                with pytest.raises(ConfirmTimeout):
                    await publisher.close()
                fake.handlers.clear()
                await asyncio.sleep(3600)
