"""Confirms that do not arrive although the connection works: a line in the log, and events."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.protocol.message_frames import PublishConfirm
from rbfly.streams._publish import overdue
from rbfly.streams.error import ConfirmTimeout
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.fake_broker import FakeBroker, FakeConnection, Frame, Step
from tests.inside import connection_of
from tests.streams.publish.test_publish_recovery import default
from tests.streams.test_outage import publishing_peers

E = TypeVar('E', bound=rbs.Event)
own_clock = pytest.mark.own_clock
BLOCKED = (
    'the broker accepts connections, but reads nothing from this one: does it have a disk alarm?'
)


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, 'rbfly.streams')


async def find(events: rbs.Events, kind: type[E]) -> E:
    """Return the next event of a kind."""
    async for event in events:
        if type(event) is kind:
            return event
    raise AssertionError(f'no {kind.__name__}')


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(item.levelname, item.getMessage()) for item in caplog.records if 'confirm' in item.msg]


def confirm(fake: FakeBroker, *ids: int) -> None:
    """Confirm messages of the publisher with id 0."""
    for peer in publishing_peers(fake):
        if not peer.transport.is_closing():
            peer.send(PublishConfirm(0, ids).encode())


def now() -> float:
    return asyncio.get_running_loop().time()


@own_clock
async def test_publisher_that_was_idle(caplog: pytest.LogCaptureFixture) -> None:
    """No timer runs while it is idle; messages that it sends later are looked at again."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        events = client.events()
        async with client.publisher('orders') as publisher, client.publisher('orders') as other:
            await publisher.send(0)
            for item in (publisher, other, publisher):
                await asyncio.sleep(2 * overdue.INTERVAL)
                assert connection_of(item).confirm_check._timer is None
                broker.withhold_confirms()
                begin = now()
                sending = asyncio.create_task(item.send(1))
                await find(events, rbs.ConfirmsOverdue)
                late = now() - begin
                assert overdue.OVERDUE <= late <= overdue.OVERDUE + 2 * overdue.INTERVAL
                broker.heal()
                await sending
                await find(events, rbs.ConfirmsResumed)
    assert [level for level, _ in lines(caplog)] == ['WARNING', 'INFO'] * 3


@own_clock
async def test_confirms_that_are_withheld(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_stream('orders')
        events = client.events()
        async with client.publisher('orders', name='a') as publisher:
            broker.withhold_confirms()
            begin = now()
            tasks = [asyncio.create_task(publisher.send(i)) for i in range(3)]
            event = await find(events, rbs.ConfirmsOverdue)
            late = now() - begin
            assert overdue.OVERDUE <= late <= overdue.OVERDUE + overdue.INTERVAL + 1
            assert event == rbs.ConfirmsOverdue('publisher', 'orders', 'a', 3, 30.0, 'answers')
            text = '3 messages have waited 30 s for confirms; the broker answers'
            assert lines(caplog) == [('WARNING', f"[shop] publisher 'a' of 'orders': {text}")]

            # later messages cause no other line
            tasks.append(asyncio.create_task(publisher.send(3)))
            await asyncio.sleep(300)
            assert len(lines(caplog)) == 1

            broker.heal()
            await asyncio.gather(*tasks)
            over = await find(events, rbs.ConfirmsResumed)
            assert (over.kind, over.stream, over.name) == ('publisher', 'orders', 'a')
            assert over.seconds == pytest.approx(now() - begin, abs=overdue.INTERVAL)
            await asyncio.sleep(1)
            text = f'no confirm is late any more, after {over.seconds:.0f} s'
            assert lines(caplog)[1:] == [('INFO', f"[shop] publisher 'a' of 'orders': {text}")]

            # it begins again
            broker.withhold_confirms()
            late_one = asyncio.create_task(publisher.send(4))
            assert (await find(events, rbs.ConfirmsOverdue)).count == 1
            broker.heal()
            await late_one
            await find(events, rbs.ConfirmsResumed)


@own_clock
async def test_one_line_for_all_publishers_of_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        names = [f's{i}' for i in range(5)]
        for name in names:
            broker.create_stream(name)
        events = client.events()
        publishers = [await client.publisher(name) for name in names]
        broker.withhold_confirms()
        tasks = [asyncio.create_task(publisher.send('x')) for publisher in publishers]
        for name in names:
            assert (await find(events, rbs.ConfirmsOverdue)).stream == name
        broker.heal()
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        found = "publisher of 's0', publisher of 's1', publisher of 's2' and 2 more"
        (_, begin), (_, end) = lines(caplog)
        assert begin == f'{found}: 5 messages have waited 30 s for confirms; the broker answers'
        assert end.startswith(f'{found}: no confirm is late any more')
        for publisher in publishers:
            await publisher.close()


@own_clock
async def test_slow_confirms_are_not_late(caplog: pytest.LogCaptureFixture) -> None:
    """Each message waits for longer than the limit, but the broker confirms one after another."""

    async def confirm_slowly() -> None:
        for number in range(1, 21):
            await asyncio.sleep(overdue.OVERDUE / 4)
            confirm(fake, number)

    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        tasks = [asyncio.create_task(publisher.send(i)) for i in range(20)]
        await confirm_slowly()
        await asyncio.gather(*tasks)
    assert lines(caplog) == []


@own_clock
async def test_one_lost_confirm_among_others(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        events = client.events()
        tasks = [asyncio.create_task(publisher.send(i)) for i in range(3)]
        await asyncio.sleep(1)
        confirm(fake, 2, 3)
        await asyncio.gather(*tasks[1:])
        assert (await find(events, rbs.ConfirmsOverdue)).count == 1
        tasks.append(asyncio.create_task(publisher.send(3)))
        await asyncio.sleep(1)
        confirm(fake, 4)
        await tasks[-1]
        assert len(lines(caplog)) == 1
        confirm(fake, 1)
        await find(events, rbs.ConfirmsResumed)
        await tasks[0]


async def wait_overdue(
    fake: FakeBroker, client: rbs.StreamsClient, on: Callable[[], object]
) -> rbs.ConfirmsOverdue:
    """Send a message that is not confirmed; call `on` once the broker has it."""
    events = client.events()
    publisher = await client.publisher('test')
    sending = asyncio.create_task(publisher.send('x'))
    await asyncio.sleep(1)
    on()
    found = await find(events, rbs.ConfirmsOverdue)
    fake.handlers.clear()
    confirm(fake, 1)
    await sending
    await publisher.close()
    return found


@own_clock
async def test_broker_that_does_not_read_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """As RabbitMQ during a disk alarm."""

    def answer_others(peer: FakeConnection, request: Frame) -> None:
        if wire.PUBLISH not in peer.commands():
            default(peer, request)

    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
    ):

        def block() -> None:
            fake.handlers[wire.METADATA] = answer_others

        found = await wait_overdue(fake, client, block)
        assert found.broker == 'blocked'
        assert lines(caplog)[0][1].endswith(f'1 message has waited 35 s for confirms; {BLOCKED}')


@own_clock
async def test_broker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, heartbeat=None) as client,
    ):

        def stall() -> None:
            fake.handlers[wire.METADATA] = wire.SILENT
            fake.handlers[Step.OPEN] = wire.SILENT

        found = await wait_overdue(fake, client, stall)
        assert found.broker == 'silent'
        assert lines(caplog)[0][1].endswith('; the broker does not answer')


@own_clock
@pytest.mark.parametrize('over', [False, True])
async def test_connection_lost_meanwhile(caplog: pytest.LogCaptureFixture, over: bool) -> None:
    """The wait that is reported goes on after the reconnect, until the confirm."""
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        events = client.events()
        publisher = await client.publisher('test', name='a')
        sending = asyncio.create_task(publisher.send('x'))
        if over:
            await find(events, rbs.ConfirmsOverdue)
        else:
            await asyncio.sleep(overdue.OVERDUE - 5)
        connection_of(publisher)._transport.abort()
        await find(events, rbs.Recovered)
        await asyncio.sleep(overdue.OVERDUE - 5)
        assert len(lines(caplog)) == over
        fake.handlers.clear()
        confirm(fake, 1)
        await sending
        await asyncio.sleep(1)
        assert [level for level, _ in lines(caplog)] == ['WARNING', 'INFO'] * over
        await publisher.close()


@own_clock
async def test_given_up_messages_count(caplog: pytest.LogCaptureFixture) -> None:
    """Calls with a timeout fail, but their messages may still be stored."""
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        events = client.events()
        with pytest.raises(ConfirmTimeout):
            await publisher.send('x', timeout=5)
        assert (await find(events, rbs.ConfirmsOverdue)).count == 1
        # the reconnect drops it, as its caller has given up
        connection_of(publisher)._transport.abort()
        await find(events, rbs.Recovered)
        await find(events, rbs.ConfirmsResumed)


@own_clock
async def test_nothing_remains_after_the_last_publisher() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        first, second = await client.publisher('orders'), await client.publisher('orders')
        connection = connection_of(first)
        check = connection.confirm_check
        assert check._timer.when() <= now() + overdue.INTERVAL
        await first.close()
        assert connection.confirm_check is check
        await second.close()
        assert connection.confirm_check is None
        assert check._timer.cancelled()


async def test_disk_alarm(
    alarmed: RabbitMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overdue, 'INTERVAL', 0.5)
    monkeypatch.setattr(overdue, 'OVERDUE', 2.0)

    async def send() -> None:
        for i in itertools.count():  # the broker still confirms what it was about to read
            await publisher.send(i)

    async with rbs.streams_client(alarmed.uri) as client:
        await client.create_stream('alarms')
        async with client.publisher('alarms') as publisher:
            events = client.events()
            sending = asyncio.create_task(send())
            await asyncio.to_thread(alarmed.ctl, 'set_disk_free_limit', '100000GB')
            async with asyncio.timeout(60):
                found = await find(events, rbs.ConfirmsOverdue)
                while found.broker != 'blocked':  # a busy broker was late before its alarm
                    found = await find(events, rbs.ConfirmsOverdue)
            assert (found.stream, found.broker) == ('alarms', 'blocked')
            await client.ping()
            await asyncio.to_thread(alarmed.ctl, 'set_disk_free_limit', '50MB')
            async with asyncio.timeout(60):
                await find(events, rbs.ConfirmsResumed)
            sending.cancel()
            await publisher.send('after')
        await client.delete_stream('alarms')
    assert any(BLOCKED in text for _, text in lines(caplog))
