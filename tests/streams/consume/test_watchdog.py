"""A subscription without deliveries polls StreamStats to detect a stalled broker."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net import registration
from rbfly.streams._consume import watchdog
from rbfly.streams.error import MessageTimeout, StreamDoesNotExist
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of

NEVER = 1000.0  # seconds
HANG = 20.0  # seconds; only a safeguard


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, 'SILENCE', 0.01)
    monkeypatch.setattr(watchdog, 'SILENCE_LAST', 0.04)
    monkeypatch.setattr(watchdog, 'GRACE', 0.01)
    monkeypatch.setattr(registration, 'STABLE', 0.0)


def count_polls(stream: FakeStream) -> int:
    return stream.reader.peer.commands().count(wire.STREAM_STATS)


async def wait_for_timer(messages: rbs.Subscription) -> None:
    """Wait until the timer has expired and is set again."""
    found = session_of(messages)._watchdog
    before = found.timer
    await until(lambda: found.timer is not before, 'the timer has expired')


def is_far_off(timer: asyncio.TimerHandle) -> bool:
    return timer.when() > asyncio.get_running_loop().time() + NEVER / 2


async def cancel_and_wait(task: 'asyncio.Future[Any]') -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ('offset', 'found'),
    [
        (rbs.Offset.FIRST, [b'0', b'1']),
        (rbs.Offset.NEXT, []),
        (rbs.Offset.LAST, [b'1']),
        (rbs.Offset.offset(1), [b'1']),
    ],
)
async def test_broker_that_stops_delivering(
    offset: rbs.Offset, found: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stream = stream_of_chunks(1, 1)
    async with subscribe_to_fake(stream, offset=offset) as messages:
        assert [await anext(messages) for _ in found] == found
        for i in range(2, 5):
            waiting = asyncio.ensure_future(anext(messages))
            await until(
                lambda: cursor_of(messages).position == stream.end,
                'the client has read the whole stream',
            )
            stream.reader.live = False
            stream.append(b'%d' % i)
            assert await waiting == b'%d' % i
            # for each chunk, it has looked for the last message, and subscribed again
            assert len(stream.readers) == 2 * i - 1
    lines = [text for text in caplog.messages if 'subscribing again' in text]
    assert len(lines) == 3
    assert all(text.startswith("[shop] stream 'test': chunk ") for text in lines)


async def test_broker_that_stops_before_the_first_chunk() -> None:
    stream = stream_of_chunks(1, 1)

    def lose(reader: Any) -> int:
        reader.live = len(stream.readers) > 1
        return wire.OK

    stream.on_subscribe = lose
    async with subscribe_to_fake(stream) as messages:
        assert await anext(messages) == b'0'


async def test_stream_recreated_without_a_metadata_update() -> None:
    stream = stream_of_chunks(1, 1, 1, 1)
    async with subscribe_to_fake(stream) as messages:
        for _ in range(4):
            await anext(messages)
        stream.reader.live = False
        stream.recreate()
        for i in range(6):
            stream.append(b'new%d' % i)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await anext(messages) == b'new0'


@pytest.mark.parametrize(
    'offset',
    [
        rbs.Offset.FIRST,
        rbs.Offset.NEXT,
        rbs.Offset.LAST,
        rbs.Offset.offset(7),
        rbs.Offset.timestamp(4e9),
    ],
)
async def test_idle_stream_causes_no_resubscription(offset: rbs.Offset) -> None:
    stream = stream_of_chunks(1, 1, 1)
    async with subscribe_to_fake(stream, offset=offset, on_gap='ignore') as messages:
        waiting = asyncio.ensure_future(read_on(messages))
        await until(
            lambda: bool(stream.readers) and count_polls(stream) > 5,
            'the client has polled repeatedly',
        )
        await cancel_and_wait(waiting)
    assert len(stream.readers) == 1


async def read_on(messages: rbs.Subscription) -> None:
    async for _ in messages:
        pass


async def test_empty_stream_causes_no_resubscription() -> None:
    stream = FakeStream()
    async with subscribe_to_fake(stream) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await until(
            lambda: bool(stream.readers) and count_polls(stream) > 5,
            'the client has polled repeatedly',
        )
        stream.append(b'0')
        assert await waiting == b'0'
    assert len(stream.readers) == 1


async def test_each_chunk_causes_one_resubscription(caplog: pytest.LogCaptureFixture) -> None:
    """The chunk may contain stored offsets, which are never delivered."""
    stream = stream_of_chunks(1, 1)
    async with subscribe_to_fake(stream) as messages:
        waiting = asyncio.ensure_future(read_on(messages))
        await until(
            lambda: bool(stream.readers) and stream.reader.sent == 2, 'both chunks are delivered'
        )
        stream.ahead = 1
        await until(
            lambda: len(stream.readers) == 3,
            'the client has looked for the last message, and subscribed again',
        )
        before = count_polls(stream)
        await until(lambda: count_polls(stream) > before + 5, 'the client has polled repeatedly')
        assert len(stream.readers) == 3
        await cancel_and_wait(waiting)
    assert not [item for item in caplog.records if item.levelno >= logging.WARNING]


async def test_reported_chunk_has_time_to_arrive(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reports a chunk before it delivers it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watchdog, 'GRACE', NEVER)
    stream = stream_of_chunks(1, 1)
    async with subscribe_to_fake(stream) as messages:
        for _ in range(2):
            await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        stream.ahead = 1
        found = session_of(messages)._watchdog
        await until(
            lambda: found.timer is not None and is_far_off(found.timer),
            'the client has seen the report',
        )
        stream.append(b'2')
        assert await waiting == b'2'
        assert len(stream.readers) == 1
    assert 'subscribing again' not in caplog.text


async def test_polls_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    set_timer = watchdog.DeliveryWatchdog._set

    def recorded(item: watchdog.DeliveryWatchdog, seconds: float, *args: Any) -> None:
        set_timer(item, seconds, *args)
        if item._waiter.is_waiting():
            found.append(seconds)

    monkeypatch.setattr(watchdog.DeliveryWatchdog, '_set', recorded)
    stream = stream_of_chunks(1)
    async with subscribe_to_fake(stream) as messages:
        await anext(messages)
        for _ in range(2):
            found.clear()
            stream.append(b'1')
            assert await anext(messages) == b'1'
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: len(found) > 5, 'the client has polled repeatedly')
            assert found == sorted(found)
            assert set(found) == {0.01, 0.02, 0.04}
            await cancel_and_wait(waiting)


async def test_filtered_subscriptions_and_old_brokers_are_not_polled() -> None:
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {'x'})
    for arguments in ({'filter': only}, {'version': '3.10.8'}):
        stream = stream_of_chunks(1)
        async with subscribe_to_fake(stream, **arguments, timeout=0.1) as messages:
            with pytest.raises(MessageTimeout):
                await read_on(messages)
            assert session_of(messages)._watchdog.timer is None
        assert count_polls(stream) == 0


async def test_no_polls_while_no_task_waits() -> None:
    stream = stream_of_chunks(1)
    async with subscribe_to_fake(stream) as messages:
        await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: count_polls(stream) > 0, 'the client has polled')
        await cancel_and_wait(waiting)
        await wait_for_timer(messages)  # perhaps a request is in flight
        stream.reader.live = False
        stream.append(b'1')
        before = count_polls(stream)
        for _ in range(3):
            await wait_for_timer(messages)
        assert count_polls(stream) == before
        assert await anext(messages) == b'1'


@pytest.mark.parametrize('end', ['closed', 'lost', 'moved', 'dropped'])
async def test_timer_ends_with_the_subscription(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, 'SILENCE', NEVER)
    stream = stream_of_chunks(1)
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        found = session_of(messages)._watchdog
        waiting = asyncio.ensure_future(read_on(messages))
        await until(lambda: found.timer is not None, 'the timer is set')
        await cancel_and_wait(waiting)
        timer = found.timer
        assert timer is not None
        if end == 'closed':
            await messages.aclose()
        elif end == 'lost':
            fake.connection.transport.abort()
        elif end == 'moved':
            stream.reader.live = False
            body = b'\x00\x06' + wire.string('test')
            fake.connection.send(wire.frame(wire.METADATA_UPDATE, body))
        else:
            gone = weakref.ref(messages)
            del messages, found, waiting
            gc.collect()
            assert gone() is None
        await until(timer.cancelled, 'the timer is cancelled')


@pytest.mark.filterwarnings('ignore:unclosed:ResourceWarning')
@pytest.mark.parametrize('over', [False, True])
def test_event_loop_ends(
    broker_uri: str, stream: str, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, 'SILENCE', 0.3 if over else NEVER)
    client = rbs.streams_client(broker_uri)
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=0.2)

    async def wait() -> None:
        await messages.open()
        with pytest.raises(MessageTimeout):
            await anext(messages)
        assert over or session_of(messages)._watchdog.timer is not None
        if over:
            await wait_for_timer(messages)

    async def read_again() -> None:
        messages._waiter.timeout = HANG
        async with client, messages:
            async with client.publisher(stream) as publisher:
                await publisher.send('x')
            assert await anext(messages) == 'x'

    asyncio.run(wait())
    asyncio.run(read_again())
    gc.collect()
