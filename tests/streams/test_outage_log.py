"""What a client logs when publishers and subscriptions lose their connection, and return."""

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.net import outage_log
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, FakeConnection, Frame, Step
from tests.fake_stream import FakeStream
from tests.inside import cluster_of, session_of
from tests.sizes import sized
from tests.streams.publish.test_publish_recovery import default
from tests.streams.test_outage import lose, now, publishing_peers, subscribe

HANG = 20.0
NEXT = r'; next attempt (?:at once|in (\d+\.\d) s)'

own_clock = pytest.mark.own_clock


class Lines(logging.Handler):
    """The lines on outages: time of the event loop, level and text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((now(), record.levelname, record.getMessage()))

    def texts(self, level: str) -> list[str]:
        return [text for _, found, text in self.found if found == level]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger('rbfly.net'), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest_asyncio.fixture
async def reported() -> AsyncIterator[list[BaseException]]:
    """What the event loop's exception handler receives."""
    found: list[BaseException] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: found.append(context['exception']))
    yield found
    loop.set_exception_handler(before)


def cut(owner: Any) -> None:
    """Cut the connection of a publisher or subscription."""
    session_of(owner).registration.connection._transport.abort()


def log_of(client: rbs.StreamsClient) -> outage_log.OutageLog:
    observers = cluster_of(client).observers._observers
    (found,) = [item for item in observers if isinstance(item, outage_log.OutageLog)]
    return found


def is_idle(log: outage_log.OutageLog) -> bool:
    return not (log._outages or log._timer or log._has_news())


def check_return(text: str, who: str, end: str, reminders: list[str]) -> None:
    """Check the line of a return; only an outage of more than a second has reminders."""
    found = re.fullmatch(who + r'reconnected to \S+:\d+ after (\d+\.\d) s' + end, text)
    assert found
    assert not reminders or float(found[1]) >= 1
    assert all('has had no connection for' in reminder for reminder in reminders)


# -- programs, on every broker


async def test_publisher(broker_uri: str, stream: str, lines: Lines) -> None:
    """The log reports the loss with its cause, the return with its node, and the client's name."""
    async with (
        rbs.streams_client(broker_uri, connection_name='shop') as client,
        client.publisher(stream) as publisher,
    ):
        await publisher.send(1)
        cut(publisher)
        await until(lambda: bool(lines.texts('INFO')), 'the return is logged')
        await publisher.send(2)
    loss, *reminders, back = lines.found
    assert loss[1:] == ('WARNING', loss[2])
    who = re.escape(f'[shop] publisher of {stream!r} ')
    assert re.fullmatch(who + 'lost its connection: .*connection lost.*', loss[2])
    assert back[1] == 'INFO'
    resent = '; 0 messages resent'
    check_return(back[2], who, resent, [text for *_, text in reminders])


async def test_subscription(client: rbs.StreamsClient, stream: str, lines: Lines) -> None:
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: session_of(messages).registration.is_open, 'it is open')
        cut(messages)
        await until(lambda: bool(lines.texts('INFO')), 'the return is logged')
        waiting.cancel()
    (loss, *reminders), (back,) = lines.texts('WARNING'), lines.texts('INFO')
    who = re.escape(f'subscription of {stream!r} ')
    assert re.fullmatch(who + 'lost its connection: .*connection lost.*', loss)
    check_return(back, who, '', reminders)


async def test_deleted_stream(client: rbs.StreamsClient, stream: str, lines: Lines) -> None:
    async with client.publisher(stream, name='till') as publisher:
        await client.delete_stream(stream)
        await until(lambda: 'deleted' in str(lines.found), 'it is logged')
        with pytest.raises(rbs.StreamDoesNotExist):
            await publisher.send(1)
    who = re.escape(f"publisher 'till' of {stream!r} ")
    assert re.fullmatch(
        who + r'gave up after \d+\.\d s: the stream was deleted', lines.texts('WARNING')[-1]
    )
    assert len(lines.texts('WARNING')) <= 2  # the first one: it lost its connection
    assert not lines.texts('INFO')


# -- messages resent


@pytest.mark.parametrize(('count', 'text'), [(1, '; 1 message resent'), (4, '; 4 messages resent')])
async def test_messages_resent(count: int, text: str, lines: Lines) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send('confirmed')
            for outage in range(2):
                broker.withhold_confirms()
                confirms = [await publisher.submit(i) for i in range(count)]
                await broker.wait_for('orders', 1 + 2 * count * outage + count)
                broker.cut()
                broker.heal()
                await asyncio.gather(*confirms)
                await until(lambda: len(lines.texts('INFO')) > outage, 'it is logged')  # noqa: B023
        assert len(broker.messages('orders')) == 1 + 4 * count
    assert [item.endswith(text) for item in lines.texts('INFO')] == [True, True]


# -- an outage that lasts


@own_clock
async def test_lines_while_an_outage_lasts(lines: Lines) -> None:
    """They come at growing intervals, and tell how long it lasts and when the client tries next."""
    attempts: list[float] = []

    def refuse(peer: FakeConnection, request: Frame) -> None:
        attempts.append(now())
        peer.transport.abort()

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.PEER_PROPERTIES] = refuse
        began = now()
        lose(fake)
        await asyncio.sleep(2000)
        fake.handlers.clear()
        await publisher.send('x')
        ended = now()
        await until(lambda: bool(lines.texts('INFO')), 'the return is logged')
        node = f'127.0.0.1:{fake.port}'
        assert is_idle(log_of(client))
    first, *more = lines.found[:-1]
    assert first[1] == 'WARNING'
    assert first[0] - began == pytest.approx(outage_log.COLLECT)
    times = []
    for at, level, text in more:
        assert level == 'WARNING'
        who = "publisher of 'test' has had no connection for "
        found = re.fullmatch(who + r'([\d.]+) s: .*connection lost.*' + NEXT, text)
        assert found is not None, text
        assert float(found[1]) == pytest.approx(at - began, abs=0.51)
        assert any(abs(at + float(found[2]) - attempt) < 0.06 for attempt in attempts)
        times.append(at)
    assert 8 < len(times) < 20
    intervals = [after - before for before, after in itertools.pairwise(times)]
    # An attempt causes each line, so that it may come up to 30 s later.
    assert all(after > before - 31 for before, after in itertools.pairwise(intervals))
    assert 250 < max(intervals) < 331
    assert lines.found[-1][1:] == (
        'INFO',
        f"publisher of 'test' reconnected to {node} after {ended - began:.0f} s; 0 messages resent",
    )


@own_clock
async def test_publisher_that_cannot_connect_at_first(lines: Lines, down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=None) as client:
        opening = client.publisher('test')
        task = asyncio.create_task(opening.__aenter__())
        await asyncio.sleep(60)
        down.handlers.clear()
        await task
        await asyncio.sleep(0.1)
        await opening.__aexit__(None, None, None)
        node = f'127.0.0.1:{down.port}'
    first, *more = lines.texts('WARNING')
    who = "publisher of 'test' "
    assert re.fullmatch(who + 'cannot be opened: .*connection lost while .*' + NEXT, first)
    assert 2 <= len(more) <= 8
    assert all(text.startswith(who + 'has had no connection for ') for text in more)
    (back,) = lines.texts('INFO')
    assert re.fullmatch(who + rf'connected to {node} after \d+\.\d s', back)


async def test_publisher_that_opens_in_the_background_and_fails(
    client: rbs.StreamsClient, stream_name: str, lines: Lines
) -> None:
    publisher = await client.publisher(stream_name, wait=False)
    await until(lambda: bool(lines.found), 'the failure is logged')
    with pytest.raises(rbs.StreamDoesNotExist):
        await publisher.send(1)
    (text,) = lines.texts('WARNING')
    who = re.escape(f'publisher of {stream_name!r} ')
    assert re.fullmatch(who + r'gave up after 0\.0 s: .*does not exist.*', text)
    await publisher.close()


async def test_publisher_that_opens_in_the_background_and_fails_repeatedly(
    client: rbs.StreamsClient, stream_name: str, lines: Lines
) -> None:
    publisher = await client.publisher(stream_name, wait=False)
    for _ in range(10):
        with pytest.raises(rbs.StreamDoesNotExist):
            await publisher.send(1)
    await until(lambda: bool(lines.found), 'the failures are logged')
    who = re.escape(f'publisher of {stream_name!r} ')
    for text in lines.texts('WARNING'):
        assert re.fullmatch(who + r'gave up after \d+\.\d s: .*does not exist.*', text)
    await publisher.close()


@own_clock
async def test_publisher_that_gives_up(lines: Lines) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=5) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.OPEN] = wire.CLOSING
        lose(fake)
        with pytest.raises(rbs.StreamConnectionError):
            await publisher.send('x')
        await asyncio.sleep(30)
        assert is_idle(log_of(client))
    text = lines.texts('WARNING')[-1]
    assert re.fullmatch(r"publisher of 'test' gave up after [45]\.\d s: .*connection lost.*", text)
    assert text.count('gave up after') == 1
    assert not lines.texts('INFO')


@own_clock
async def test_subscription_that_no_task_reads(lines: Lines) -> None:
    """It does not reconnect by itself, so no lines follow the first one."""
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        lose(fake)
        await asyncio.sleep(1000)
        assert [level for _, level, _ in lines.found] == ['WARNING']
        stream.append(b'1')
        assert await anext(messages) == b'1'
        await until(lambda: bool(lines.texts('INFO')), 'the return is logged')
        assert [level for _, level, _ in lines.found] == ['WARNING', 'INFO']
        assert re.search(r'after 0\.\d s$', lines.texts('INFO')[0])  # since the task waits


@own_clock
async def test_subscription_that_no_task_reads_does_not_affect_the_lines_of_others(
    lines: Lines,
) -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri, connect_timeout=5, reconnect_timeout=5) as client,
        subscribe(client) as messages,
    ):
        assert await anext(messages) == b'0'
        lose(fake)
        await asyncio.sleep(100)
        assert len(lines.found) == 1
        async with client.publisher('test') as publisher:
            lose(fake)
            await publisher.send('x')
            await asyncio.sleep(0.5)  # less than the time to collect other returns
            assert len(lines.texts('INFO')) == 1
        fake.handlers[Step.OPEN] = wire.CLOSING
        lose(fake)
        await until(lambda: not client.connected, 'the connections are lost')
        with pytest.raises(rbs.ConnectTimeout):
            await client.stream_exists('test')
        assert 'a call waits: ' in lines.texts('WARNING')[-1]


@own_clock
@pytest.mark.parametrize('how', ['disconnect', 'close', 'close, then disconnect'])
async def test_loss_is_logged_if_the_client_closes_at_once(how: str, lines: Lines) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri, heartbeat=None) as client:
        publisher = await client.publisher('test')
        messages = subscribe(client)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: session_of(messages).registration.is_open, 'it is open')
        lose(fake)
        await until(lambda: not client.connected, 'the connections are lost')
        assert not lines.found
        if 'close' in how:
            await publisher.close()
            await messages.aclose()
        if 'disconnect' in how:
            await client.disconnect()
        else:
            await until(lambda: bool(lines.found), 'the loss is logged')
        ((_, level, text),) = lines.found
        assert level == 'WARNING'
        assert re.match(r"\w+ of 'test' and \w+ of 'test' lost their connections: ", text)
        await asyncio.wait([waiting])
        waiting.exception()
        await publisher.close()
        assert is_idle(log_of(client))


@own_clock
async def test_call_that_waits(lines: Lines, down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connection_name='shop', connect_timeout=60) as client:
        with pytest.raises(rbs.StreamConnectionError):
            await client.stream_exists('test')
    texts = lines.texts('WARNING')
    assert 4 < len(texts) < 9
    assert all(re.fullmatch(r'\[shop\] a call waits: .*' + NEXT, text) for text in texts)


@own_clock
async def test_connection_that_is_lost_again_and_again(lines: Lines) -> None:
    """The broker confirms each message, then closes the connection: the lines grow rare."""

    def confirm_and_close(peer: FakeConnection, request: Frame) -> None:
        peer.broker.default(peer, request)
        asyncio.get_running_loop().call_soon(peer.transport.close)

    count = sized(1000, 3000)
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[wire.PUBLISH] = confirm_and_close
        for i in range(count):
            await publisher.send(i)
        assert len(publishing_peers(fake)) > count / 2
        fake.handlers.clear()
        await asyncio.sleep(60)
        assert is_idle(log_of(client))
    assert now() > 100
    assert 5 < len(lines.texts('WARNING')) < 25
    assert 5 < len(lines.texts('INFO')) < 25
    found = [re.search(r'lost its connection (\d+) times, most recently: ', text)
             for text in lines.texts('WARNING')]  # fmt: skip
    assert sum(int(item[1]) if item else 1 for item in found) == len(publishing_peers(fake)) - 1


# -- a thousand at once


@own_clock
async def test_a_thousand_that_are_lost_and_return_together(lines: Lines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        broker.create_stream('orders')
        broker.create_stream('refunds')
        publishers = [
            await stack.enter_async_context(client.publisher('orders')) for _ in range(600)
        ]
        subscriptions = [client.subscribe('refunds') for _ in range(400)]
        waiting = [asyncio.ensure_future(anext(item)) for item in subscriptions]
        await until(
            lambda: all(session_of(item).registration.is_open for item in subscriptions), 'open'
        )
        assert broker.connections > 4
        broker.cut()
        await asyncio.sleep(30)
        broker.publish('refunds', 'x')
        assert await asyncio.gather(*waiting) == ['x'] * 400
        await asyncio.gather(*(item.send('y') for item in publishers))
        assert is_idle(log_of(client))
        for item in subscriptions:
            await item.aclose()
    (loss,), (back,) = lines.texts('WARNING'), lines.texts('INFO')
    assert re.fullmatch(
        r"\w+ of '\w+', \w+ of '\w+' and 998 more lost their connections: .*connection lost.*", loss
    )
    assert re.fullmatch(
        r"\w+ of '\w+', \w+ of '\w+' and 998 more reconnected to 127\.0\.0\.1:\d+"
        r' after up to 0\.\d s; 0 messages resent',
        back,
    )


@own_clock
async def test_most_return_and_one_does_not(lines: Lines) -> None:
    """The line on those that are back does not wait for the last one."""

    def declare(peer: FakeConnection, request: Frame) -> None:
        answer = wire.refuse(0x06) if request.decode().stream == 'stays' else default
        answer(peer, request)

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        for name in ('a', 'b', 'stays', 'c', 'd'):
            await stack.enter_async_context(client.publisher(name))
        fake.handlers[wire.DECLARE_PUBLISHER] = declare
        lose(fake)
        await asyncio.sleep(3)
        node = f'127.0.0.1:{fake.port}'
        (back,) = lines.texts('INFO')
        who = "publisher of '[abcd]', publisher of '[abcd]', publisher of '[abcd]' and 1 more"
        assert re.fullmatch(rf'{who} reconnected to {node} after up to 0\.\d s; .*', back)
        fake.handlers.clear()
        await asyncio.sleep(60)
        assert lines.texts('INFO')[1].startswith(f"publisher of 'stays' reconnected to {node} ")
    first, *more = lines.texts('WARNING')
    who = "publisher of 'a', publisher of 'b', publisher of 'stays' and 2 more"
    assert first.startswith(f'{who} lost their connections: ')
    assert more
    who = "publisher of 'stays' has had no connection for "
    assert all(text.startswith(who) and '(code 0x06)' in text for text in more)


# -- what the log must not do


async def test_filter_that_raises_does_not_disturb_recovery(
    lines: Lines, reported: list[BaseException]
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    logger = logging.getLogger('rbfly.net')
    logger.addFilter(fail)
    try:
        async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
            broker.create_stream('orders')
            async with client.publisher('orders') as publisher:
                for i in range(3):
                    await publisher.send(i)
                    count = len(reported)
                    broker.cut()
                    await asyncio.wait_for(publisher.send('x'), HANG)
                    await until(lambda: len(reported) >= count + 2, 'both lines failed')  # noqa: B023
            assert is_idle(log_of(client))
    finally:
        logger.removeFilter(fail)
    assert {type(error) for error in reported} == {ZeroDivisionError}


async def test_nothing_is_computed_for_a_disabled_logger(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    reported: list[BaseException],
) -> None:
    caplog.set_level(logging.ERROR, 'rbfly.net')
    monkeypatch.setattr(outage_log, 'Outage', None)  # calling it would raise
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send(1)
            broker.cut()
            await publisher.send(2)
            assert is_idle(log_of(client))
    assert not reported


async def test_no_timer_while_nothing_is_wrong(client: rbs.StreamsClient, stream: str) -> None:
    log = log_of(client)
    async with client.publisher(stream) as publisher:
        await publisher.send(1)
        async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 1
            assert is_idle(log)
    assert is_idle(log)
    await client.disconnect()
    assert is_idle(log)


@own_clock
@pytest.mark.parametrize('seconds', [0.0, 0.02, 10.0])
async def test_client_that_disconnects_during_an_outage(seconds: float, lines: Lines) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test'),
        contextlib.AsyncExitStack() as stack,
    ):
        stack.push_async_callback(client.disconnect)
        fake.handlers[Step.OPEN] = wire.CLOSING
        peer = publishing_peers(fake)[0]
        lose(fake)
        await until(lambda: not client.connected, 'the connections are lost')
        await asyncio.sleep(seconds)
        await client.disconnect()
        assert is_idle(log_of(client))
        count = len(lines.found)
        await asyncio.sleep(100)
        assert len(lines.found) == count
        assert peer.lost.done()
    assert not any('gave up' in text for _, _, text in lines.found)


@pytest.mark.parametrize(
    ('seconds', 'text'), [(-1, 'at once'), (0.0, 'at once'), (0.04, 'at once'), (0.06, 'in 0.1 s')]
)
def test_line_says_when_the_next_attempt_is(seconds: float, text: str) -> None:
    assert outage_log.next_attempt(seconds) == f'next attempt {text}'
