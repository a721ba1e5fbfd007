"""The client's option `busy_poll`, on the in-memory broker and a clock of the test.

The test's clock stands still, so that a poll ends only when it should.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.net import busy_poll, retry
from rbfly.net.busy_poll import BusyPoll
from rbfly.streams._publish import session as publishing
from rbfly.streams.error import ArgumentError, ArgumentTypeError, ConfirmTimeout
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import connection_of, core_of

pytestmark = pytest.mark.both_loops

LIMIT = 0.0005
URI = 'rabbitmq-stream://localhost'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(publishing, 'BusyPoll', partial(BusyPoll, clock=clock))
    monkeypatch.setattr(busy_poll, 'processors', lambda: 2.0)
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    return clock


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        yield broker


async def publish(publisher: Any) -> None:
    """Publish a message or a batch, and wait for its confirms."""
    if isinstance(publisher, rbs.PublisherBatchFast):
        publisher.batch(b'a')
        publisher.batch(b'b')
        await publisher.flush()
    else:
        await publisher.send(b'a')


def poll_of(publisher: Any) -> BusyPoll:
    poll = core_of(publisher).poll
    assert isinstance(poll, BusyPoll)
    return poll


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_polls_until_the_confirm_while_tasks_and_timers_run(
    broker: StreamBroker, clock: Clock, cls: type[Any]
) -> None:
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.publisher('orders', cls=cls) as publisher,
    ):
        poll = poll_of(publisher)
        assert not poll.is_polling
        broker.withhold_confirms()
        sending = asyncio.create_task(publish(publisher))
        await until(lambda: poll.is_polling, 'the publisher polls')
        await asyncio.sleep(0.001)  # a timer
        await asyncio.to_thread(lambda: None)  # another thread wakes the event loop
        await client.stream_exists('orders')  # another connection
        assert poll.is_polling
        broker.heal()
        await sending
        assert not poll.is_polling
        for _ in range(10):
            await publish(publisher)
            assert not poll.is_polling


async def test_polls_no_longer_than_the_limit(broker: StreamBroker, clock: Clock) -> None:
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.publisher('orders') as publisher,
    ):
        broker.withhold_confirms()
        await publisher.submit(b'a')
        await asyncio.sleep(0.001)
        assert poll_of(publisher).is_polling
        clock.now += LIMIT
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not poll_of(publisher).is_polling
        broker.heal()


async def test_a_caller_that_gives_up_does_not_extend_the_poll(
    broker: StreamBroker, clock: Clock
) -> None:
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.publisher('orders') as publisher,
    ):
        broker.withhold_confirms()
        with pytest.raises(ConfirmTimeout):  # the timeout of a call works during the poll
            await publisher.send(b'a', timeout=0.001)
        clock.now += LIMIT
        await until(lambda: not poll_of(publisher).is_polling, 'the poll ends')
        broker.heal()


async def test_partitions_share_a_callback(
    broker: StreamBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled: list[None] = []
    monkeypatch.setattr(busy_poll, 'yield_processor', lambda: polled.append(None))
    broker.create_super_stream('many', partitions=20)
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.super_stream('many').publisher(route=lambda _, names: names) as publisher,
    ):
        broker.withhold_confirms()
        await publisher.submit(b'a')
        polls = [poll_of(item) for item in publisher._publishers]
        await until(lambda: all(poll.is_polling for poll in polls), 'all partitions poll')
        polled.clear()
        for turns in range(1, 6):
            await asyncio.sleep(0)
            assert len(polled) == turns
        broker.heal()


async def test_polls_for_a_refusal(broker: StreamBroker, clock: Clock) -> None:
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.publisher('orders') as publisher,
    ):
        broker.publish_error(0x11)
        with pytest.raises(rbs.PublishError):
            await publisher.send(b'a')
        assert not poll_of(publisher).is_polling


@pytest.mark.parametrize('name', [None, 'shop'])
async def test_does_not_poll_on_a_lost_connection(
    broker: StreamBroker, clock: Clock, name: str | None
) -> None:
    async with (
        rbs.streams_client(broker.uri, busy_poll=LIMIT) as client,
        client.publisher('orders', name=name) as publisher,
    ):
        poll = poll_of(publisher)
        broker.withhold_confirms()
        sending = asyncio.create_task(publisher.send(b'a'))
        await until(lambda: poll.is_polling, 'the publisher polls')
        broker.refuse()
        broker.close_connections()
        await until(lambda: connection_of(publisher) is None, 'the connection is lost')
        assert not poll.is_polling
        await publisher.submit(b'b')  # nothing is sent
        assert not poll.is_polling
        broker.heal()
        await sending
        await publish(publisher)
        assert not poll.is_polling


@pytest.mark.parametrize('end', ['abort', 'close', 'disconnect'])
async def test_does_not_poll_on_a_closed_connection(
    broker: StreamBroker, clock: Clock, end: str
) -> None:
    async with rbs.streams_client(broker.uri, busy_poll=LIMIT, close_timeout=0.01) as client:
        context = client.publisher('orders')
        publisher = await context.__aenter__()
        broker.withhold_confirms()
        confirmation = await publisher.submit(b'a')
        await asyncio.sleep(0)  # the end of the turn
        assert poll_of(publisher).is_polling
        if end == 'abort':
            publisher._abort(rbs.PublisherError('closed by the test'))
        elif end == 'close':
            with pytest.raises(ConfirmTimeout):
                await publisher.close()
        else:
            await client.disconnect()
        assert not poll_of(publisher).is_polling
        with pytest.raises(rbs.RbFlyError):
            await confirmation
        await context.__aexit__(None, None, None)


async def test_default_is_not_to_poll(broker: StreamBroker) -> None:
    async with (
        rbs.streams_client(broker.uri) as client,
        client.publisher('orders') as publisher,
    ):
        await publisher.send(b'a')
        assert core_of(publisher).poll is None


@pytest.mark.parametrize('value', [-0.001, 0, 0.11, float('nan'), float('inf')])
def test_refuses_values_out_of_range(value: float) -> None:
    with pytest.raises(ArgumentError, match=r'busy_poll must be None, or above 0 and at most 0\.1'):
        rbs.streams_client(URI, busy_poll=value)


@pytest.mark.parametrize('value', ['1', True])
def test_refuses_other_types(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match='busy_poll must be int or float'):
        rbs.streams_client(URI, busy_poll=value)
