"""A subscription that receives nothing although the stream has more: a line, and events."""

import asyncio
import logging

import pytest

import rbfly.streams as rbs
from rbfly.streams._consume import watchdog
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

pytestmark = pytest.mark.own_clock


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, 'rbfly.streams')


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(item.levelname, item.getMessage()) for item in caplog.records if 'receive' in item.msg]


async def find(events: rbs.Events) -> rbs.Event:
    """Return the next event of a stall."""
    async for event in events:
        if isinstance(event, rbs.DeliveryStalled | rbs.DeliveryResumed):
            return event
    raise AssertionError


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize('group', [None, 'billing'])
async def test_broker_that_delivers_nothing(
    caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_stream('orders')
        broker.publish('orders', 'a')
        events = client.events()
        async with client.subscribe('orders', offset=rbs.Offset.FIRST, group=group) as messages:
            assert await anext(messages) == 'a'
            waiting = asyncio.ensure_future(anext(messages))
            begin = now()
            broker.silence()
            broker.publish('orders', 'b')
            stalled = await find(events)
            assert isinstance(stalled, rbs.DeliveryStalled)
            assert (stalled.kind, stalled.stream) == ('subscription', 'orders')
            late = now() - begin
            assert watchdog.SILENCE <= late <= 3 * watchdog.SILENCE
            assert stalled.seconds == pytest.approx(late, abs=watchdog.SILENCE)
            text = f'nothing for {stalled.seconds:.0f} s, although the stream has more'
            assert lines(caplog) == [
                ('WARNING', f"[shop] subscription of 'orders' has received {text}")
            ]
            await asyncio.sleep(300)
            assert len(lines(caplog)) == 1
            broker.heal()
            assert await waiting == 'b'
            resumed = await find(events)
            assert isinstance(resumed, rbs.DeliveryResumed)
            assert resumed.seconds == pytest.approx(now() - begin, abs=watchdog.SILENCE)
            text = f'receives messages again, after {resumed.seconds:.0f} s'
            assert lines(caplog)[1:] == [('INFO', f"[shop] subscription of 'orders' {text}")]
            stall = session_of(messages)._watchdog.stall
            assert stall.since is None
            assert stall._timer is None


@pytest.mark.parametrize('offset', [rbs.Offset.FIRST, rbs.Offset.NEXT])
@pytest.mark.parametrize('group', [None, 'billing'])
async def test_broker_that_delivers_nothing_from_the_start(
    caplog: pytest.LogCaptureFixture, group: str | None, offset: rbs.Offset
) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', *['old'] * (offset is rbs.Offset.NEXT))
        events = client.events()
        async with client.subscribe('orders', offset=offset, group=group) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            if group:
                await until(lambda: 'open, active' in repr(messages), 'the member is active')
            broker.silence()
            broker.publish('orders', 'a')
            stalled = await find(events)
            assert isinstance(stalled, rbs.DeliveryStalled)
            [reason] = client.health().reasons
            assert 'although the stream has more' in reason
            broker.heal()
            assert await waiting == 'a'
            assert isinstance(await find(events), rbs.DeliveryResumed)
    assert [level for level, _ in lines(caplog)] == ['WARNING', 'INFO']


async def test_stored_offsets_before_the_first_message_are_no_stall(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        await client.write_offset('orders', 'someone', 0)
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(300)
            broker.publish('orders', 'a')
            assert await waiting == 'a'
    assert lines(caplog) == []


async def test_subscribing_again_helps(caplog: pytest.LogCaptureFixture) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', 'a')
        events = client.events()
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'a'
            waiting = asyncio.ensure_future(anext(messages))
            broker.silence()
            broker.publish('orders', 'b')
            stalled = await find(events)
            broker.heal()
            assert await waiting == 'b'
            resumed = await find(events)
            assert isinstance(stalled, rbs.DeliveryStalled)
            assert isinstance(resumed, rbs.DeliveryResumed)
            assert resumed.seconds - stalled.seconds <= 2
    assert [level for level, _ in lines(caplog)] == ['WARNING', 'INFO']


async def test_stored_offsets_are_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    """The broker counts them, but delivers only messages."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', 'a')
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'a'
            waiting = asyncio.ensure_future(anext(messages))
            await client.write_offset('orders', 'someone', 0)
            await asyncio.sleep(300)
            broker.publish('orders', 'b')
            assert await waiting == 'b'
    assert lines(caplog) == []


async def test_stall_ends_with_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', 'a')
        events = client.events()
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'a'
            waiting = asyncio.ensure_future(anext(messages))
            broker.silence()
            broker.publish('orders', 'b')
            assert isinstance(await find(events), rbs.DeliveryStalled)
            broker.cut()
            broker.heal()
            assert await waiting == 'b'
            assert isinstance(await find(events), rbs.DeliveryResumed)
    assert [level for level, _ in lines(caplog)] == ['WARNING', 'INFO']
