"""`close_timeout` limits the time without progress, not the duration of a close."""

import asyncio
import gc
import gzip
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.waiting import IDLE_CLOSE
from rbfly.protocol import message_frames
from rbfly.streams._publish import publisher as publisher_module
from rbfly.streams.error import ConfirmTimeout, PublisherError
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import cluster_of, connection_of, session_of, window_of

LIMIT = 10.0  # the default of `close_timeout` in seconds
NEARLY = 0.9 * LIMIT


def now() -> float:
    return asyncio.get_running_loop().time()


def freeze(fake: FakeBroker) -> None:
    """Make the broker stop answering."""
    fake.handlers.update(dict.fromkeys(range(0x20), SILENT))


def confirm_slowly(delay: float = NEARLY) -> Callable[[Peer, Frame], None]:
    """Return a handler that confirms one message after each delay."""
    last = 0.0

    def handler(peer: Peer, request: Frame) -> None:
        nonlocal last
        loop = asyncio.get_running_loop()
        publisher_id = request.decode().publisher_id
        for publish_id in request.publishing_ids:
            last = max(last, loop.time()) + delay
            confirm = message_frames.PublishConfirm(publisher_id, (publish_id,))
            loop.call_at(last, peer.send, confirm.encode())

    return handler


async def fill(publisher: Any, count: int) -> None:
    """Queue messages without waiting for their confirms."""
    for i in range(count):
        if isinstance(publisher, rbs.PublisherBatchFast):
            publisher.batch(i)
        else:
            await publisher.submit(i)


async def confirm_timeout(coroutine: Any) -> ConfirmTimeout:
    with pytest.raises(ConfirmTimeout) as caught:
        await coroutine
    return caught.value


# -- what is progress


@pytest.mark.own_clock
@pytest.mark.parametrize('max_unconfirmed', [5, 100])
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_close_waits_for_slow_confirms(cls: type[Any], max_unconfirmed: int) -> None:
    count = 20
    async with (
        FakeBroker(on={wire.PUBLISH: confirm_slowly()}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=cls, max_unconfirmed=max_unconfirmed) as publisher,
    ):
        began = now()
        await fill(publisher, count)
        await publisher.close()
        assert window_of(publisher).unsettled == 0
        assert now() - began > count * NEARLY - 1


@pytest.mark.own_clock
async def test_refusals_count_as_progress() -> None:
    def refuse_later(peer: Peer, request: Frame) -> None:
        loop = asyncio.get_running_loop()
        for n, publish_id in enumerate(request.publishing_ids, 1):
            error = message_frames.PublishError(
                request.decode().publisher_id, ((publish_id, 0x11),)
            )
            loop.call_later(n * NEARLY, peer.send, error.encode())

    async with (
        FakeBroker(on={wire.PUBLISH: refuse_later}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=rbs.PublisherBatchFast) as publisher,
    ):
        await fill(publisher, 5)
        with pytest.raises(rbs.PublishError) as caught:
            await publisher.close()
        assert len(caught.value.errors) == 5


@pytest.mark.own_clock
async def test_sending_counts_as_progress() -> None:
    """The broker reads slowly, and confirms nothing before the publisher has sent everything."""
    held: list[tuple[Peer, Frame]] = []
    reads = 0

    def read_slowly(peer: Peer, request: Frame) -> None:
        nonlocal reads
        reads += 1
        held.append((peer, request))
        if reads % 3 == 0:
            peer.transport.pause_reading()
            asyncio.get_running_loop().call_later(NEARLY, peer.transport.resume_reading)
        if not window_of(publisher).queued:
            while held:
                fake.default(*held.pop(0))

    async with (
        FakeBroker(on={wire.PUBLISH: read_slowly}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=rbs.PublisherBatchFast, amqp=False) as publisher,
    ):
        began = now()
        for _ in range(500):
            publisher.batch(bytes(100_000))  # about ten messages per frame
        await publisher.close()
        assert now() - began > 4 * LIMIT


@pytest.mark.own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_resending_does_not_count_as_progress(cls: type[Any]) -> None:
    """The broker resets every connection on which it receives messages."""
    async with FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake:
        client = rbs.streams_client(fake.uri)
        context = client.publisher('test', cls=cls)
        publisher = await context.__aenter__()
        await fill(publisher, 3)
        began = now()
        error = await confirm_timeout(context.__aexit__(None, None, None))
        assert now() - began == pytest.approx(LIMIT, abs=1)
        assert (error.unconfirmed, error.unsent) == (3, 0)
        assert len(fake.connections) > 3
        await client.disconnect()


@pytest.mark.own_clock
async def test_heartbeats_do_not_count_as_progress() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.submit('x')
        loop = asyncio.get_running_loop()
        for n in range(20):
            loop.call_later(n, fake.connections[1].send, wire.frame(wire.HEARTBEAT, b''))
        began = now()
        await confirm_timeout(publisher.close())
        assert now() - began == pytest.approx(LIMIT, abs=0.5)


@pytest.mark.own_clock
async def test_progress_of_another_publisher_does_not_count() -> None:
    def confirm_only_the_second(peer: Peer, request: Frame) -> None:
        if request.decode().publisher_id:
            fake.default(peer, request)

    async with (
        FakeBroker(on={wire.PUBLISH: confirm_only_the_second}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        stuck = client.publisher('test')
        publisher = await stuck.__aenter__()
        async with client.publisher('test') as other:
            publishers = {window_of(publisher).publisher_id: publisher}
            publishers[window_of(other).publisher_id] = other
            await publishers[0].submit('x')

            async def keep_sending() -> None:
                while True:
                    await publishers[1].send('y')
                    await asyncio.sleep(1)

            sending = asyncio.create_task(keep_sending())
            began = now()
            await confirm_timeout(publishers[0].close())
            assert now() - began == pytest.approx(LIMIT, abs=0.5)
            sending.cancel()
            await asyncio.wait([sending])
        await stuck.__aexit__(None, None, None)


# -- several closes


@pytest.mark.own_clock
async def test_nested_closes_with_a_silent_broker_take_as_long_as_one() -> None:
    stream = FakeStream()
    stream.append(b'x', b'y')
    tracking = rbs.OffsetTracking('me', interval=0)
    async with FakeBroker(on=stream.handlers()) as fake:
        began = 0.0
        with pytest.raises(ConfirmTimeout) as caught:  # noqa: PT012
            async with (
                rbs.streams_client(fake.uri) as client,
                client.publisher('test') as first,
                client.publisher('test'),
                client.subscribe(
                    'test', offset=rbs.Offset.FIRST, commit=tracking, amqp=False
                ) as messages,
                client.publisher('test', cls=rbs.PublisherBatchFast) as last,
            ):
                assert [await anext(messages), await anext(messages)] == [b'x', b'y']
                freeze(fake)
                await first.submit('x')
                last.batch('y')
                began = now()
        assert now() - began < 1.2 * LIMIT
        assert caught.value.unconfirmed == 1


@pytest.mark.own_clock
async def test_next_close_has_its_full_time_after_the_broker_confirms_again() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as first,
        client.publisher('test') as second,
    ):
        fake.handlers[wire.PUBLISH] = SILENT
        await first.submit('x')
        began = now()
        await confirm_timeout(first.close())
        assert now() - began == pytest.approx(LIMIT, abs=0.5)
        del fake.handlers[wire.PUBLISH]
        await second.send('y')
        fake.handlers[wire.PUBLISH] = SILENT
        await second.submit('z')
        began = now()
        await confirm_timeout(second.close())
        assert now() - began == pytest.approx(LIMIT, abs=0.5)


@pytest.mark.own_clock
async def test_cancelled_close_does_not_shorten_a_later_one() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as first,
        client.publisher('test') as second,
    ):
        fake.handlers[wire.PUBLISH] = SILENT
        await first.submit('x')
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.close(), NEARLY)
        del fake.handlers[wire.PUBLISH]
        await second.send('y')
        fake.handlers[wire.PUBLISH] = confirm_slowly()
        await fill(second, 3)
        await second.close()
        with pytest.raises(PublisherError):  # the cancelled close did not report 'x'
            await first.close()


@pytest.mark.own_clock
async def test_publisher_on_another_node_finishes_after_one_on_a_frozen_node() -> None:
    """The second publisher has sent nothing since the first one gave up, but its node answers."""
    stuck: set[int] = set()

    def stick(peer: Peer, request: Frame) -> None:
        if request.decode().publisher_id not in stuck:
            confirm_slowly(0.1)(peer, request)

    batched: dict[str, Any] = {'cls': rbs.PublisherBatchFast, 'max_unconfirmed': 10}
    async with (
        FakeBroker(on={wire.PUBLISH: stick}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', **batched) as first,
        client.publisher('test', **batched) as second,
    ):
        stuck.add(window_of(first).publisher_id)
        first.batch('x')
        await fill(second, 100)
        await confirm_timeout(first.close())
        await second.close()


@pytest.mark.own_clock
async def test_failure_to_store_an_offset_does_not_shorten_a_later_close() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('a')
        broker.create_stream('b')
        broker.publish('b', 1, 2)
        async with (
            rbs.streams_client(broker.uri, close_timeout=1) as client,
            client.publisher('a', cls=rbs.PublisherBatchFast) as publisher,
        ):
            messages = client.subscribe(
                'b', offset=rbs.Offset.FIRST, commit=rbs.OffsetTracking('r', interval=0)
            )
            assert [await anext(messages), await anext(messages)] == [1, 2]
            session = session_of(messages)
            broker.delete_stream('b')
            await until(
                lambda: not session.registration.is_open, 'the client knows of the deletion'
            )
            await messages.aclose()
            await asyncio.sleep(1.1)
            await fill(publisher, 50_000)
            await publisher.close()
        assert len(broker.messages('a')) == 50_000


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_client_is_released_after_a_close_that_timed_out(cls: type[Any]) -> None:
    """It is released with its task, without a garbage collection."""
    found: list[weakref.ref[object]] = []

    async def use(fake: FakeBroker) -> None:
        client = rbs.streams_client(fake.uri, close_timeout=0.05)
        found.append(weakref.ref(cluster_of(client)))
        async with client, client.publisher('test', cls=cls) as publisher:
            await fill(publisher, 1)

    async with FakeBroker(on={wire.PUBLISH: SILENT}) as fake:
        gc.disable()
        try:
            task = asyncio.create_task(use(fake))
            await asyncio.wait([task])
            assert isinstance(task.exception(), ConfirmTimeout)
            del task
            if sys.version_info[:2] in [(3, 12), (3, 13)]:  # these create a cycle themselves
                gc.collect()
            await until(lambda: found[0]() is None, 'the client is released')
        finally:
            gc.enable()


# -- nothing in flight


@pytest.mark.own_clock
@pytest.mark.parametrize('name', [None, 'shop'])
@pytest.mark.parametrize('close_timeout', [None, LIMIT])
async def test_closing_does_not_wait_for_a_frozen_broker_with_nothing_in_flight(
    name: str | None, close_timeout: float | None
) -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri, close_timeout=close_timeout) as client,
            client.publisher('test', name=name) as first,
            client.publisher('test', cls=rbs.PublisherBatchFast) as batches,
            client.publisher('test') as last,
            client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
        ):
            assert await anext(messages) == b'x'
            batches.batch('x')
            await batches.flush()
            await first.send('x')
            await client.write_offset('test', 'me', 0)
            await client.read_offset('test', 'me')
            freeze(fake)
            with pytest.raises(ConfirmTimeout):
                await last.send('its caller gives up', timeout=1)
            began = now()
        assert now() - began < 1.2 * IDLE_CLOSE


@pytest.mark.own_clock
@pytest.mark.parametrize('what', ['confirm', 'dropped publisher', 'offset'])
async def test_disconnecting_waits_until_a_broker_has_read_everything(what: str) -> None:
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        publisher = await client.publisher('test')
        await publisher.send('x')
        freeze(fake)
        if what == 'offset':
            await client.write_offset('test', 'me', 0)
        else:
            await publisher.submit('y')
        if what == 'dropped publisher':
            del publisher
            await asyncio.sleep(1)
        began = now()
        await client.disconnect()
        assert now() - began == pytest.approx(LIMIT, abs=0.1)


@pytest.mark.own_clock
async def test_close_that_gave_up_with_nothing_in_flight_does_not_shorten_a_later_one() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as first,
        client.publisher('test') as second,
    ):
        fake.handlers.update({wire.DELETE_PUBLISHER: SILENT, wire.PUBLISH: confirm_slowly()})
        began = now()
        await first.close()
        assert now() - began == pytest.approx(IDLE_CLOSE, abs=0.1)
        await fill(second, 3)
        await second.close()


# -- a close that fails


@pytest.mark.parametrize('kind', [None, asyncio.CancelledError])
async def test_waiting_calls_fail_if_the_remaining_messages_cannot_be_sent(
    kind: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressors: list[Callable[[memoryview], bytes]] = [gzip.compress]
    monkeypatch.setattr(
        publisher_module, 'compressor', lambda compression: lambda data: compressors[-1](data)
    )

    def fail(data: memoryview) -> bytes:
        raise MemoryError('no memory for the compressor')

    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        context = client.publisher(
            'test', cls=rbs.PublisherBatchFast, sub_entry_size=10, compression='gzip'
        )
        publisher = await context.__aenter__()
        await fill(publisher, 5)
        flushing = asyncio.create_task(publisher.flush())
        await until(lambda: window_of(publisher).in_flight == 5, 'the batch is sent')
        await fill(publisher, 5)
        compressors.append(fail)
        with pytest.raises(MemoryError):
            await context.__aexit__(kind, kind() if kind else None, None)
        await asyncio.wait([flushing], timeout=5)
        assert isinstance(flushing.exception(), PublisherError)


# -- what the error says


@pytest.mark.own_clock
async def test_error_counts_unconfirmed_and_unsent_messages() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=rbs.PublisherBatchFast, max_unconfirmed=3) as publisher,
    ):
        await fill(publisher, 10)
        error = await confirm_timeout(publisher.close())
        assert (error.unconfirmed, error.unsent) == (3, 7)
        assert 'close_timeout is 10.0 s' in str(error)
        assert 'sent but not confirmed, which may be stored: 3; never sent: 7' in str(error)


@pytest.mark.own_clock
@pytest.mark.parametrize('sub_entry_size', [None, 4])
async def test_messages_sent_on_a_lost_connection_count_as_unconfirmed(
    sub_entry_size: int | None,
) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher(
            'test', cls=rbs.PublisherBatchFast, sub_entry_size=sub_entry_size
        ) as publisher,
    ):
        await fill(publisher, 6)
        flushing = asyncio.create_task(publisher.flush())
        peer = fake.connections[1]
        await until(lambda: wire.PUBLISH in peer.commands(), 'the batch is sent')
        fake.handlers[Step.PEER_PROPERTIES] = SILENT
        peer.transport.abort()
        await until(lambda: connection_of(publisher) is None, 'the connection is lost')
        await fill(publisher, 5)
        error = await confirm_timeout(publisher.close())
        assert (error.unconfirmed, error.unsent) == (6, 5)
        with pytest.raises(PublisherError):
            await flushing


@pytest.mark.own_clock
async def test_close_gives_up_if_the_broker_stops_reading() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        context = client.publisher('test', cls=rbs.PublisherBatchFast, amqp=False)
        publisher = await context.__aenter__()
        fake.connections[-1].transport.pause_reading()
        for _ in range(300):
            publisher.batch(bytes(100_000))
        error = await confirm_timeout(context.__aexit__(None, None, None))
        assert error.unsent > 100
        assert error.unconfirmed + error.unsent == 300
        fake.connections[-1].transport.abort()


@pytest.mark.own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_error_for_unconfirmed_messages_has_refused_ones_as_its_cause(cls: type[Any]) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.refuse(0x11)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', cls=cls) as publisher,
    ):
        window = window_of(publisher)
        await fill(publisher, 1)
        if cls is rbs.PublisherBatchFast:
            flushing = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            flushing.cancel()
        await until(lambda: window.unsettled == 0, 'the message is refused')
        fake.handlers[wire.PUBLISH] = SILENT
        await fill(publisher, 1)
        error = await confirm_timeout(publisher.close())
        assert error.unconfirmed == 1
        assert isinstance(error.__cause__, rbs.PublishError)
        assert error.__cause__.errors == [(1, 0x11)]


async def test_second_close_completes_after_the_first_is_cancelled() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri, close_timeout=None) as client,
        client.publisher('test') as publisher,
    ):
        confirmation = await publisher.submit('x')
        first, second = [asyncio.create_task(publisher.close()) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first, second], timeout=5)
        assert first.cancelled()
        assert isinstance(second.exception(), PublisherError)
        assert isinstance(confirmation.exception(), PublisherError)


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_close_after_a_cancelled_one_reports_the_messages_given_up(
    cls: type[rbs.Publisher] | type[rbs.PublisherBatchFast],
) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri) as client,
    ):
        broker.create_stream('test')
        context = client.publisher('test', cls=cls, max_unconfirmed=5)
        publisher = await context.__aenter__()
        broker.withhold_confirms()
        if isinstance(publisher, rbs.PublisherBatchFast):
            for i in range(20):
                publisher.batch(i)
        else:
            await publisher.submit(0)
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        other = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(PublisherError, match='was closed before'):
            await other
        await context.__aexit__(None, None, None)
