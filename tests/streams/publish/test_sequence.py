"""When a named publisher queries the broker's sequence, and what the answers do."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import ConfirmTimeout, PublisherNameInUse, PublishError
from rbfly.protocol import message_frames
from rbfly.streams._publish.name_check import INTERVAL, NameCheck
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Handler, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import connection_of, core_of, session_of
from tests.streams.publish.test_publish_recovery import moved
from tests.streams.publish.test_publisher_names import lose

QUERY = wire.QUERY_PUBLISHER_SEQUENCE
NO_HEARTBEAT = (1048576, 0)

own_clock = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


def timers() -> list[Any]:
    """Timers of the virtual clock that query the sequence."""
    loop: Any = asyncio.get_running_loop()
    return [
        handle
        for handle in loop._scheduled
        if not handle.cancelled()
        and isinstance(getattr(handle._callback, '__self__', None), NameCheck)
    ]


def queries(fake: FakeBroker) -> int:
    return sum(peer.commands().count(QUERY) for peer in fake.connections)


def last_id(value: int) -> Handler:
    """Answer the query with an id."""
    return lambda peer, request: peer.respond(request, value)


@asynccontextmanager
async def opened(**broker: Any) -> AsyncIterator[tuple[FakeBroker, rbs.Publisher]]:
    """Open a publisher with a name, at a broker with these arguments."""
    async with (
        FakeBroker(**broker) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', name='me') as publisher,
    ):
        yield fake, publisher


# -- when the publisher asks


@own_clock
async def test_queries_while_publishing() -> None:
    async with (
        FakeBroker(tune=NO_HEARTBEAT) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
    ):
        async with client.publisher('test', name='me') as publisher:
            begin = now()
            await asyncio.sleep(0.5)
            for _ in range(60):
                await publisher.send('x')
                await asyncio.sleep(1)
                assert queries(fake) == 1 + int((now() - begin) / INTERVAL)
                assert len(timers()) == 1
            before = queries(fake)

            await asyncio.sleep(2 * INTERVAL)
            assert not timers()
            await asyncio.sleep(1000)
            assert queries(fake) == before

            await publisher.send('after an idle time')
            await asyncio.sleep(0.1)
            assert queries(fake) == before + 1
            await asyncio.sleep(1000)
            assert queries(fake) == before + 1
            await publisher.send('x')
            await asyncio.sleep(0.1)
        assert queries(fake) == before + 3
        assert not timers()


@own_clock
async def test_timer_waits_while_the_broker_does_not_answer_the_close_of_the_client() -> None:
    async with FakeBroker(on={wire.CLOSE: wire.SILENT}, tune=NO_HEARTBEAT) as fake:
        client = rbs.streams_client(fake.uri, heartbeat=None, close_timeout=3 * INTERVAL)
        publisher = await client.publisher('test', name='me')
        await publisher.send('x')
        fake.handlers[wire.PUBLISH] = wire.SILENT
        await publisher.submit('y')
        begin = now()
        await client.disconnect()  # the clock stands still if a callback is always ready
        assert now() - begin >= 3 * INTERVAL
        assert not timers()


@own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_no_queries_without_a_name(cls: type[Any]) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        async with client.publisher('test', cls=cls) as publisher:
            for _ in range(30):
                if cls is rbs.Publisher:
                    await publisher.send('x')
                else:
                    publisher.batch('x')
                    await publisher.flush()
                await asyncio.sleep(1)
                assert not timers()
        assert queries(fake) == 0


@own_clock
async def test_no_timer_before_the_first_confirm_and_during_an_outage() -> None:
    async with opened(on={wire.PUBLISH: wire.SILENT}) as (fake, publisher):
        first = asyncio.create_task(publisher.send('x'))
        await asyncio.sleep(15)
        assert not timers()
        fake.handlers[wire.PUBLISH] = fake.default
        lose(publisher)
        await first
        assert len(timers()) == 1
        assert queries(fake) == 2

        fake.handlers[wire.DECLARE_PUBLISHER] = wire.SILENT
        lose(publisher)
        await asyncio.sleep(1)
        assert not timers()
        fake.handlers.clear()


@own_clock
async def test_publisher_that_leaves_its_connection_asks_on_the_next_one() -> None:
    """Also while an earlier query is not answered."""
    async with opened() as (fake, publisher):
        fake.handlers[QUERY] = wire.SILENT
        for n in range(3):
            await publisher.send('x')
            moved(fake.connections[-1], fake.connections[-1].frames[-1])
            await publisher.send('x')
            assert queries(fake) == 2 + n
        await publisher.close()


# -- queries that fail


@own_clock
@pytest.mark.parametrize(
    'handler',
    [wire.SILENT, refuse(0x02), refuse(0x06), refuse(0x10)],
    ids=['silent', '0x02', '0x06', '0x10'],
)
async def test_failed_query_changes_nothing(handler: Handler) -> None:
    async with opened() as (fake, publisher):
        connection = connection_of(publisher)
        fake.handlers[QUERY] = handler
        for _ in range(35):
            await publisher.send('x')
            await asyncio.sleep(1)
        assert connection_of(publisher) is connection
        assert queries(fake) == 1 + (1 if handler is wire.SILENT else 3)

        lose(publisher)
        begin = now()
        await publisher.send('x')
        assert now() - begin < 0.2  # the first backoff
        connection = connection_of(publisher)
        begin = now()
        await publisher.close()
        assert now() == begin
        await asyncio.sleep(1)
        assert connection is not None
        assert connection.is_unused


@own_clock
@pytest.mark.parametrize('handler', [wire.CLOSING, wire.GARBAGE, wire.TRUNCATED])
async def test_connection_that_fails_with_the_query(handler: Handler) -> None:
    """The publisher reconnects as usual."""
    async with opened() as (fake, publisher):
        fake.handlers[QUERY] = handler
        await publisher.send('x')
        await asyncio.sleep(INTERVAL + 0.01)
        fake.handlers.clear()
        await publisher.send('y')
        await publisher.close()


# -- another publisher


@own_clock
async def test_error_within_the_interval() -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri) as client,
        rbs.streams_client(broker.uri) as other,
    ):
        broker.create_stream('orders')
        async with (
            client.publisher('orders', name='shop') as slow,
            other.publisher('orders', name='shop') as fast,
        ):
            await slow.send(0)
            await fast.send_many(range(100))
            begin = now()

            async def send() -> None:
                while True:
                    await asyncio.sleep(0.3)
                    await slow.send(0)

            with pytest.raises(PublisherNameInUse, match=r'publishing id 100, .* none above 34;'):
                await send()
            assert now() - begin < INTERVAL + 0.5
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: slow.send(0),
                lambda: slow.submit(0),
                lambda: slow.send_many([0]),
            ]
            for call in calls:
                with pytest.raises(PublisherNameInUse):
                    await call()
            assert [handle._args for handle in timers()] == [(core_of(fast),)]
            assert (slow.capacity, fast.capacity) == (0, 10_000)
            await fast.send(0)
        assert len(broker.messages('orders')) == 101


@own_clock
async def test_unconfirmed_messages_raise() -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri) as client,
        rbs.streams_client(broker.uri) as other,
    ):
        broker.create_stream('orders')
        async with other.publisher('orders', name='shop') as fast:
            publisher = client.publisher('orders', name='shop', max_unconfirmed=3)
            async with publisher as slow:
                await slow.send(0)
                await fast.send_many(range(100))
                broker.withhold_confirms()

                async def later() -> Any:
                    yield 0
                    await asyncio.Event().wait()

                confirmation = await slow.submit(0)
                begin = now()
                calls = [
                    slow.send(0),
                    slow.send_many(later()),
                    slow.send(0),  # waits for capacity
                    confirmation,
                ]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(item) for item in outcomes] == [PublisherNameInUse] * 4
                assert now() - begin <= INTERVAL
            broker.heal()


@own_clock
async def test_answer_that_arrives_together_with_a_confirm() -> None:
    """The message is not reported as confirmed."""
    async with opened() as (fake, publisher):
        held: list[Frame] = []

        def publish(peer: Peer, request: Frame) -> None:
            answer = held[0].decode().respond(held[0].correlation_id, 100)
            confirm = message_frames.PublishConfirm(request.decode().publisher_id, (1,))
            peer.send(answer + confirm.encode())

        fake.handlers[QUERY] = lambda peer, request: held.append(request)
        fake.handlers[wire.PUBLISH] = publish
        lose(publisher)
        with pytest.raises(PublisherNameInUse):
            await publisher.send('x')
        await publisher.close()


@own_clock
@pytest.mark.parametrize(('opening', 'answer'), [(0, 3), (100, 100), (100, 103), (100, 7)])
async def test_answers_that_are_no_other_publisher(opening: int, answer: int) -> None:
    async with opened(on={QUERY: last_id(opening)}) as (fake, publisher):
        await publisher.send_many(['x'] * 3)
        fake.handlers[QUERY] = last_id(answer)
        lose(publisher)
        await publisher.send('y')
        await publisher.close()


@own_clock
@pytest.mark.parametrize(('opening', 'answer'), [(0, 4), (100, 104), (0, 2**64 - 1)])
async def test_answers_that_are_another_publisher(opening: int, answer: int) -> None:
    async with opened(on={QUERY: last_id(opening)}) as (fake, publisher):
        await publisher.send_many(['x'] * 3)
        fake.handlers[QUERY] = last_id(answer)
        with pytest.raises(PublisherNameInUse):
            await publisher.close()


@own_clock
@pytest.mark.parametrize(('answer', 'found'), [(101, False), (102, True)])
async def test_publisher_declared_in_the_background(answer: int, found: bool) -> None:
    async with (
        FakeBroker(on={QUERY: last_id(100)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('test', name='me', wait=False)
        await publisher.send('x')
        assert queries(fake) == 1
        fake.handlers[QUERY] = last_id(answer)
        closing = await asyncio.gather(publisher.close(), return_exceptions=True)
        assert [type(item) for item in closing] == [PublisherNameInUse if found else type(None)]


# -- closing


@own_clock
async def test_close_raises_the_error_once() -> None:
    async with opened() as (fake, publisher):
        await publisher.send('x')
        fake.handlers[QUERY] = last_id(9)
        closing = [asyncio.create_task(publisher.close()) for _ in range(2)]
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        assert [type(item) for item in outcomes] == [PublisherNameInUse, type(None)]
        await publisher.close()


@own_clock
async def test_close_does_not_repeat_the_error() -> None:
    async with opened() as (fake, publisher):
        fake.handlers[QUERY] = last_id(9)
        lose(publisher)
        with pytest.raises(PublisherNameInUse):
            await publisher.send('x')
        begin = now()
        await publisher.close()
        assert now() == begin


@own_clock
async def test_close_raises_an_error_that_no_call_has_raised() -> None:
    async with opened() as (fake, publisher):
        await publisher.send('x')
        fake.handlers[QUERY] = last_id(9)
        await asyncio.sleep(INTERVAL + 1)
        assert isinstance(core_of(publisher).error, PublisherNameInUse)
        with pytest.raises(PublisherNameInUse):
            await publisher.close()


@own_clock
async def test_close_raises_the_error_of_a_submitted_message() -> None:
    async with opened() as (fake, publisher):
        await publisher.send('x')
        fake.handlers[QUERY] = last_id(9)
        fake.handlers[wire.PUBLISH] = wire.SILENT
        results = [await publisher.submit('x') for _ in range(3)]
        await asyncio.sleep(INTERVAL + 1)
        with pytest.raises(PublisherNameInUse):
            await results[0]
        with pytest.raises(PublisherNameInUse) as caught:
            await publisher.close()
        assert caught.value.__notes__ == ['2 messages failed in total']
        await publisher.close()


@own_clock
async def test_close_reports_refused_messages_as_the_cause() -> None:
    async with opened() as (fake, publisher):
        fake.handlers[wire.PUBLISH] = refuse(0x11)
        await publisher.submit('x')
        await asyncio.sleep(1)
        fake.handlers[QUERY] = last_id(9)
        with pytest.raises(PublisherNameInUse) as caught:
            await publisher.close()
        assert isinstance(caught.value.__cause__, PublishError)


@own_clock
async def test_close_while_messages_are_unconfirmed() -> None:
    """It neither hangs nor waits for `close_timeout`."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, close_timeout=60) as client,
        client.publisher('test', name='me') as publisher,
    ):
        await publisher.send('x')
        fake.handlers[wire.PUBLISH] = wire.SILENT
        fake.handlers[QUERY] = last_id(9)
        sending = asyncio.create_task(publisher.send('y'))
        await asyncio.sleep(1)
        begin = now()
        await publisher.close()
        assert now() - begin <= INTERVAL
        with pytest.raises(PublisherNameInUse):
            await sending


@own_clock
async def test_close_after_only_a_waiting_call_raised_the_error() -> None:
    """The caller of the unconfirmed message has given up; the other call waits for capacity."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', name='me', max_unconfirmed=1) as publisher,
    ):
        await publisher.send('x')
        fake.handlers[wire.PUBLISH] = wire.SILENT
        fake.handlers[QUERY] = last_id(9)
        with pytest.raises(ConfirmTimeout):
            await publisher.send('y', timeout=1)
        with pytest.raises(PublisherNameInUse):
            await publisher.send('z')
        await publisher.close()


@own_clock
async def test_close_raises_an_error_whose_only_caller_has_given_up() -> None:
    async with opened() as (fake, publisher):
        await publisher.send('x')
        fake.handlers[wire.PUBLISH] = wire.SILENT
        fake.handlers[QUERY] = last_id(9)
        with pytest.raises(ConfirmTimeout):
            await publisher.send_many(['y'], timeout=1)
        await asyncio.sleep(INTERVAL)
        assert isinstance(core_of(publisher).error, PublisherNameInUse)
        with pytest.raises(PublisherNameInUse):
            await publisher.close()


@own_clock
async def test_close_does_not_repeat_the_error_of_an_iterator_that_waits() -> None:
    """All messages of the call are confirmed."""

    async def messages() -> AsyncIterator[str]:
        yield 'x'
        await asyncio.Event().wait()

    async with opened() as (fake, publisher):
        fake.handlers[QUERY] = last_id(9)
        with pytest.raises(PublisherNameInUse):
            await publisher.send_many(messages())
        await publisher.close()


@own_clock
@pytest.mark.parametrize('reports', ['flush that waits', 'later flush', 'batch', 'close'])
async def test_batch_publisher_raises_the_error_once(reports: str) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', name='me') as publisher,
    ):
        publisher.batch('x')
        await publisher.flush()
        fake.handlers.update({QUERY: last_id(9), wire.PUBLISH: wire.SILENT})
        publisher.batch('y')
        if reports != 'flush that waits':
            with pytest.raises(ConfirmTimeout):
                await publisher.flush(timeout=1)
            publisher.batch('z')
            await asyncio.sleep(INTERVAL)
        if reports == 'batch':
            with pytest.raises(PublisherNameInUse):
                publisher.batch('too late')
        else:
            with pytest.raises(PublisherNameInUse) as caught:
                await (publisher.close() if reports == 'close' else publisher.flush())
            assert not hasattr(caught.value, '__notes__')
        await publisher.close()


@own_clock
async def test_end_of_async_with_adds_no_second_error() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:

        async def publish() -> None:
            async with client.publisher('test', name='me') as publisher:
                fake.handlers[QUERY] = last_id(9)
                lose(publisher)
                await publisher.send('x')

        with pytest.raises(PublisherNameInUse) as caught:
            await publish()
        assert not hasattr(caught.value, '__notes__')


# -- references


@own_clock
async def test_timer_does_not_keep_the_publisher_alive() -> None:
    gc.disable()
    try:
        async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
            context: Any = client.publisher('test', name='me')
            publisher = await context.__aenter__()
            await publisher.send('x')
            assert timers()
            gone, session = weakref.ref(publisher), weakref.ref(session_of(publisher))
            del context, publisher
            await asyncio.sleep(1)
            assert gone() is None
            assert session() is None
            assert not timers()
    finally:
        gc.enable()


async def test_dropped_publisher_with_an_unanswered_query() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        context: Any = client.publisher('test', name='me')
        publisher = await context.__aenter__()
        fake.handlers[QUERY] = wire.SILENT
        lose(publisher)
        await publisher.send('x')
        connection = connection_of(publisher)
        del context, publisher
        await until(lambda: connection.is_unused, 'the publisher is removed')
