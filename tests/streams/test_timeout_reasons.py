"""A ConfirmTimeout names the stream, the publisher, and why there is no connection."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

SOON = 0.01  # seconds; the timeout of calls that cannot end before it


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as broker:
        broker.create_stream('events')
        broker.create_super_stream('orders', partitions=2)
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uri) as client:
        yield client


async def lose(broker: StreamBroker, *publishers: Any) -> None:
    """Cut the connections; the next ones are refused."""
    sessions = [session_of(item) for item in publishers]
    broker.refuse()
    broker.close_connections()
    await until(
        lambda: all(item.registration.problem is not None for item in sessions), 'all are lost'
    )


async def full_batch(publisher: Any) -> None:
    publisher.batch('x')
    await publisher.flush(timeout=SOON)


CALLS: dict[str, Callable[[Any], Any]] = {
    'send': lambda publisher: publisher.send('x', timeout=SOON),
    'send_many': lambda publisher: publisher.send_many(['x'], timeout=SOON),
    'flush': full_batch,
}


@pytest.mark.parametrize('call', [*CALLS])
async def test_reason_of_a_timeout(
    broker: StreamBroker, client: rbs.StreamsClient, call: str
) -> None:
    cls: Any = rbs.PublisherBatchFast if call == 'flush' else rbs.Publisher
    publisher = await client.publisher('events', name='shop', cls=cls)
    await lose(broker, publisher)
    with pytest.raises(rbs.ConfirmTimeout) as caught:
        await CALLS[call](publisher)
    text = str(caught.value)
    assert text.startswith("publisher 'shop' of stream 'events': ")
    assert caught.value.stream == 'events'
    assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
    assert text.endswith(f'; there is no connection: {caught.value.__cause__}')
    broker.heal()
    await publisher.close()


async def test_reason_of_a_full_window(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    publisher = await client.publisher('events', max_unconfirmed=1)
    await lose(broker, publisher)
    await publisher.submit('x')
    for call in (publisher.send, publisher.submit):
        with pytest.raises(rbs.WindowTimeout, match="publisher of stream 'events': ") as caught:
            await call('y', timeout=SOON)
        assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
    broker.heal()
    await publisher.close()


async def test_reason_why_closing_gave_up(broker: StreamBroker) -> None:
    async with rbs.streams_client(broker.uri, close_timeout=SOON) as client:
        publisher = await client.publisher('events', name='shop')
        await lose(broker, publisher)
        await publisher.submit('x')
        with pytest.raises(rbs.ConfirmTimeout, match='gave up closing') as caught:
            await publisher.close()
    assert "publisher 'shop' of stream 'events'" in str(caught.value)
    assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)


async def test_timeout_with_a_connection_has_no_reason(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    broker.withhold_confirms()
    publisher = await client.publisher('events')
    with pytest.raises(rbs.ConfirmTimeout, match="publisher of stream 'events'") as caught:
        await publisher.send('x', timeout=SOON)
    assert 'no connection' not in str(caught.value)
    assert caught.value.__cause__ is None
    broker.heal()
    await publisher.close()


@pytest.mark.parametrize('call', ['send', 'send_many'])
async def test_reason_of_a_super_stream(
    broker: StreamBroker, client: rbs.StreamsClient, call: str
) -> None:
    async with client.super_stream('orders').publisher(route=lambda _, names: names) as publisher:
        await lose(broker, *publisher._publishers)
        with pytest.raises(
            rbs.ConfirmTimeout, match="publisher of super stream 'orders'"
        ) as caught:
            await CALLS[call](publisher)
        assert isinstance(caught.value.__cause__, rbs.StreamConnectionError)
        assert caught.value.stream in publisher.partitions
        broker.heal()
