"""Errors, cancellation and closing at the wrong moment: every call ends with its outcome."""

import asyncio
import struct
from functools import partial
from typing import Any, Self

import pytest

import rbfly.streams as rbs
from rbfly.net import retry
from rbfly.streams.error import (
    ConfirmTimeout,
    ConnectTimeout,
    PublisherError,
    PublishError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    WindowTimeout,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, connection_of, core_of, session_of, window_of
from tests.registrations import FakeRegistration
from tests.streams.publish.test_publish_recovery import missing, moved
from tests.streams.publish.test_send_many import refusing
from tests.streams.test_misuse import Held

HANG = 30.0  # seconds; only a safeguard


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)


async def test_capacity_of_a_refused_send_many_goes_to_the_next_call() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(1)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=1) as publisher,
    ):
        many = asyncio.create_task(publisher.send_many(['refused', 'never sent']))
        await asyncio.sleep(0)
        behind = asyncio.create_task(publisher.send('x'))
        async with asyncio.timeout(HANG):
            with pytest.raises(PublishError):
                await many
            await behind


async def test_publisher_whose_name_has_used_the_highest_id(
    client: rbs.StreamsClient, stream: str
) -> None:
    highest = rbs.stream_message_ctx('x', publish_id=2**64 - 1)
    async with client.publisher(stream, name='n') as publisher:
        await publisher.send(highest)
        for call in (publisher.send, publisher.submit):
            with pytest.raises(PublisherError, match='the highest'):
                await call('y')
        with pytest.raises(PublisherError, match='the highest'):
            await publisher.send_many(['y'])
        with pytest.raises(ValueError, match='not above'):
            await publisher.send(highest)
    for _ in range(2):
        with pytest.raises(PublisherError, match=f'{2**64 - 1}'):
            async with client.publisher(stream, name='n'):
                pytest.fail('nothing that it sends would be stored')


@pytest.mark.parametrize('connecting', [False, True])
async def test_cancelled_reconnect(connecting: bool) -> None:
    def cancel(error: Exception | None = None) -> None:
        for task in asyncio.all_tasks() - {test, sending}:
            task.cancel()

    test = asyncio.current_task()
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        sending = asyncio.create_task(publisher.send('x'))
        fake.handlers[Step.OPEN] = wire.SILENT
        if connecting:
            await until(lambda: len(fake.connections) == 3, 'the client reconnects')
            cancel()
        else:
            assert connection_of(publisher) is not None
            connection_of(publisher).registrations[FakeRegistration(lost=cancel)] = None
        with pytest.raises(StreamConnectionError, match='cancelled'):
            await asyncio.wait_for(sending, HANG)
        fake.handlers.clear()
        await asyncio.wait_for(publisher.send('y'), HANG)  # the next call reconnects


@pytest.mark.parametrize(
    'key', [wire.METADATA, wire.DECLARE_PUBLISHER, wire.QUERY_PUBLISHER_SEQUENCE]
)
async def test_client_closes_while_another_task_opens_a_publisher(key: int) -> None:
    async def publish() -> None:
        async with client.publisher('test', name='me'):
            pytest.fail('the client was closed meanwhile')

    async with FakeBroker(on={key: wire.SILENT}) as fake:
        async with rbs.streams_client(fake.uri) as client:
            task = asyncio.create_task(publish())
            await until(
                lambda: fake.has_received(key),
                'the publisher requests it',
            )
        fake.handlers.clear()
        with pytest.raises(StreamConnectionError):
            await task
        assert not client.connected


@pytest.mark.own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_interrupted_close_ends_a_concurrent_close(cls: type) -> None:
    """No confirm can arrive any more, so that it need not wait for `close_timeout`."""
    loop = asyncio.get_running_loop()
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, close_timeout=60) as client,
    ):
        context: Any = client.publisher('test', cls=cls)
        publisher: Any = await context.__aenter__()
        if cls is rbs.Publisher:
            sending = asyncio.create_task(publisher.send('x'))
        else:
            publisher.batch('x')
            sending = asyncio.create_task(publisher.flush())
        await until(
            lambda: fake.has_received(wire.PUBLISH),
            'the message is sent',
        )
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        began = loop.time()
        error = asyncio.CancelledError()
        assert not await context.__aexit__(asyncio.CancelledError, error, None)
        await asyncio.wait([sending, closing])
        assert loop.time() - began < 1
        with pytest.raises(PublisherError, match='was closed because of CancelledError'):
            await sending
        await asyncio.wait([closing])
        assert closing.exception() is None  # `send` or `flush` has raised the error


@pytest.mark.own_clock
async def test_node_that_closes_every_connection_at_once() -> None:
    def close(connection: Peer, request: Frame) -> None:
        connection.answer(request, struct.pack('>I', 0))
        body = struct.pack('>IH', 1, 1) + wire.string('go away')
        connection.send(wire.frame(wire.CLOSE, body))

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.2) as client,
    ):
        await client.create_stream('test')
        fake.handlers[Step.EXCHANGE_COMMAND_VERSIONS] = close
        async with asyncio.timeout(HANG):
            with pytest.raises(StreamConnectionError, match='go away'):
                async with client.publisher('test'):
                    pytest.fail('there is no connection')
        assert len(fake.connections) < 20


class Silent:
    """An asynchronous iterator that yields one message, then waits forever.

    :ivar cancelled: how often a wait for the next message was cancelled.
    """

    def __init__(self) -> None:
        self.given = False
        self.cancelled = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if not self.given:
            self.given = True
            return 'x'
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


@pytest.mark.parametrize('how', ['refused', 'deleted', 'closed', 'cancelled'])
async def test_send_many_stops_waiting_for_messages_after_a_failure(how: str) -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        source = Silent()
        task = asyncio.create_task(publisher.send_many(source))
        await until(lambda: bool(held.frames), 'the first message is sent')
        expected: type[BaseException] = PublishError
        if how == 'refused':
            held.refuse()
        else:
            held.confirm(fake)
            await until(
                lambda: window_of(publisher).unsettled == 0, 'the first message is confirmed'
            )
            if how == 'deleted':
                expected = StreamDoesNotExist
                fake.handlers[wire.METADATA] = missing
                moved(fake.connections[-1], Frame(0, 0, b''))
            elif how == 'closed':
                expected = PublisherError
                await publisher.close()
            else:
                expected = asyncio.CancelledError
                task.cancel()
        with pytest.raises(expected):
            await asyncio.wait_for(task, HANG)
        assert source.cancelled == 1
        assert session_of(publisher) is not None
        assert not session_of(publisher).receiving


@pytest.mark.parametrize('ending', ['resumed', 'lost', 'closed'])
async def test_broker_that_does_not_read(ending: str) -> None:
    """The client stops writing before the window is full, and callers can time out."""
    body = bytes(100_000)
    async with FakeBroker() as fake, rbs.streams_client(fake.uri, close_timeout=0.05) as client:
        context = client.publisher('test', amqp=False)
        publisher = await context.__aenter__()
        peer = fake.connections[-1].transport
        peer.pause_reading()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(publisher.send_many(body for _ in range(300)))
        ]
        assert connection_of(publisher) is not None
        connection = connection_of(publisher)
        await until(lambda: connection.paused, 'the transport pauses writing')
        tasks += [asyncio.create_task(publisher.send(body)) for _ in range(300)]
        await until(
            lambda: len(core_of(publisher).capacity.waiting) == 301, 'all calls wait for capacity'
        )
        assert window_of(publisher).unsettled < 200
        for call in (publisher.send, publisher.submit):
            with pytest.raises(WindowTimeout):
                await call(body, timeout=0.01)
        tasks.pop(50).cancel()
        if ending == 'closed':
            with pytest.raises(ConfirmTimeout):
                await context.__aexit__(None, None, None)
            outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANG)
            assert {type(item) for item in outcomes} == {PublisherError}
            peer.abort()
            return
        if ending == 'lost':
            peer.abort()
        else:
            peer.resume_reading()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks), HANG)
        assert outcomes == [300] + [None] * 299
        await context.__aexit__(None, None, None)


async def test_concurrent_flushes_raise_their_own_errors() -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        publisher.batch('a')
        flushes = [asyncio.create_task(publisher.flush())]
        await asyncio.sleep(0)
        publisher.batch('b')
        flushes += [asyncio.create_task(publisher.flush()) for _ in range(2)]
        await until(lambda: len(held.frames) == 2, 'both batches are sent')
        held.refuse()
        errors = await asyncio.gather(*flushes, return_exceptions=True)
        both = [(1, 0x11), (2, 0x11)]
        assert [getattr(error, 'errors', None) for error in errors] == [both[:1], both, both]


async def test_flush_ends_for_lack_of_a_connection_before_its_timeout() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.2) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.OPEN] = wire.SILENT
        publisher.batch('x')
        with pytest.raises(ConnectTimeout):
            await publisher.flush(timeout=HANG)


async def test_flush_raises_for_messages_too_large_for_a_new_connection() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for how in ('flush', 'flush', 'close'):
            publisher.batch('a' * (fake.tune[0] - 100))
            fake.tune = (fake.tune[0] // 2, 60)
            opened = len(fake.connections)
            fake.connections[-1].transport.abort()
            await until(
                partial(
                    lambda n: len(fake.connections) > n and bool(connection_of(publisher)),
                    opened,
                ),
                'the publisher has reconnected',
            )
            if how == 'flush':
                with pytest.raises(PublishError, match='larger than the negotiated maximum'):
                    await publisher.flush()
                await publisher.flush()
            else:
                with pytest.raises(PublishError, match='larger than the negotiated maximum'):
                    await publisher.close()


async def test_context_manager_of_an_open_publisher_cannot_be_entered_again() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        context = client.publisher('test')
        async with context as publisher:
            with pytest.raises(PublisherError, match='already open'):
                await context.__aenter__()
            await publisher.send('x')


async def test_publisher_outlives_its_context_manager() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        publisher = await client.publisher('test', name='shop').__aenter__()
        await asyncio.sleep(0)
        await publisher.send('x')
        with pytest.raises(RbFlyError, match='already has a publisher'):
            await client.publisher('test', name='shop')
        del publisher
        await until(lambda: not cluster_of(client).registrations, 'the publisher is closed')
        async with client.publisher('test', name='shop') as other:
            await other.send('x')


async def test_publisher_that_no_variable_holds_is_closed() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.publisher('test', name='shop').__aenter__()  # no variable holds it
        await until(lambda: not cluster_of(client).registrations, 'the publisher is closed')
        async with client.publisher('test', name='shop') as other:
            await other.send('x')
