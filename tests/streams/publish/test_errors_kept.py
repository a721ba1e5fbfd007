"""A publisher forgets an error only when a call raises it; on the in-memory broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import copy_error
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import core_of

SOON = 0.01  # seconds; the timeout of calls that cannot end before it


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    """Super stream `orders` with binding keys `a` and `b`, and stream `single`."""
    async with StreamBroker() as broker:
        broker.create_super_stream('orders', binding_keys=['a', 'b'])
        broker.create_stream('single')
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uri, close_timeout=1) as client:
        yield client


@pytest_asyncio.fixture
async def publisher(client: rbs.StreamsClient) -> rbs.SuperStreamPublisher:
    """A publisher that knows the routes of `a` and `b`."""
    publisher = await client.super_stream('orders').publisher(route=rbs.by_key(first_letter))
    await publisher.send('a0')
    await publisher.send('b0')
    return publisher


def first_letter(message: Any) -> str:
    return str(message)[0]


def first_partition(message: object, partitions: Sequence[str]) -> str:
    return partitions[0]


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def refuse_one(broker: StreamBroker, publisher: rbs.SuperStreamPublisher) -> None:
    """Queue a message that partition a refuses, and one that partition b does not confirm."""
    publisher.batch('a refused')
    publisher.batch('b late')
    broker.publish_error()
    broker.withhold_confirms()


# -- calls that end early


@pytest.mark.parametrize('then', ['flush', 'close'])
async def test_cancelled_flush_keeps_the_error_of_a_message_without_route(
    broker: StreamBroker, publisher: rbs.SuperStreamPublisher, then: str
) -> None:
    publisher.batch('x')
    publisher.batch('a1')
    broker.withhold_confirms()
    flush = asyncio.create_task(publisher.flush())
    await until(lambda: broker.messages('orders-a') == ['a0', 'a1'], 'a1 was sent')
    await cancel(flush)
    broker.heal()
    with pytest.raises(rbs.NoRouteError):
        await getattr(publisher, then)()
    await publisher.close()


@pytest.mark.parametrize('first', ['flush', 'close'])
async def test_cancelled_call_keeps_the_refusal_of_one_partition(
    broker: StreamBroker, publisher: rbs.SuperStreamPublisher, first: str
) -> None:
    await refuse_one(broker, publisher)
    task = asyncio.create_task(getattr(publisher, first)())
    await until(lambda: publisher.unconfirmed == 1, 'a message is refused')
    await cancel(task)
    broker.heal()
    with pytest.raises(rbs.PublishError) as caught:
        await getattr(publisher, first)()
    assert len(caught.value.errors) == 1
    await publisher.close()
    assert broker.messages('orders-a') == ['a0']


@pytest.mark.parametrize('then', ['flush', 'close'])
async def test_timeout_does_not_hide_the_refusal_of_another_partition(
    broker: StreamBroker, publisher: rbs.SuperStreamPublisher, then: str
) -> None:
    await refuse_one(broker, publisher)
    with pytest.raises(rbs.ConfirmTimeout) as late:
        await publisher.flush(timeout=SOON)
    assert late.value.outcome == 'unknown'
    broker.heal()
    with pytest.raises(rbs.PublishError):
        await getattr(publisher, then)()
    await publisher.close()
    assert broker.messages('orders-b') == ['b0', 'b late']


async def test_timeout_does_not_hide_that_another_partition_gave_up(
    broker: StreamBroker, publisher: rbs.SuperStreamPublisher
) -> None:
    broker.withhold_confirms()
    publisher.batch('a1')
    publisher.batch('b1')
    with pytest.raises(rbs.ConfirmTimeout):
        await publisher.flush(timeout=SOON)
    broker.delete_stream('orders-a')
    await until(lambda: publisher.unconfirmed == 1, 'the publisher of one partition gave up')
    with pytest.raises(rbs.ConfirmTimeout):
        await publisher.flush(timeout=SOON)
    broker.heal()
    with pytest.raises(rbs.StreamDoesNotExist):
        await publisher.flush()


# -- several calls get an error


async def test_calls_of_send_many_that_wait_for_one_partition(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    opener = client.super_stream('orders').publisher(route=first_partition, max_unconfirmed=2)
    publisher = await opener
    broker.withhold_confirms()
    given = [await publisher.submit(i) for i in range(2)]
    progress = [rbs.SendProgress() for _ in range(2)]
    calls = [
        asyncio.create_task(publisher.send_many(iter([str(i)]), progress=item))
        for i, item in enumerate(progress)
    ]
    await until(lambda: publisher.capacity == 0, 'the window is full')
    broker.delete_stream('orders-a')
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for error, item in zip(errors, progress, strict=True):
        assert isinstance(error, rbs.StreamDoesNotExist)
        assert error.progress is item
        assert str(error).count('message 0 of send_many') == 1
    await asyncio.gather(*given, return_exceptions=True)
    await publisher.close()


async def test_error_of_a_message_to_several_partitions_is_its_own(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    def route(message: object, partitions: Sequence[str]) -> Sequence[str]:
        return partitions[::-1] if message == 'all' else partitions[:1]

    opener = client.super_stream('orders').publisher(route=route, max_unconfirmed=2)
    publisher = await opener
    broker.withhold_confirms()
    given = [await publisher.submit(i) for i in range(2)]
    one = asyncio.create_task(publisher.send('one'))
    several = asyncio.create_task(publisher.send('all'))
    await until(lambda: broker.messages('orders-b') == ['all'], 'partition b has a message')
    broker.delete_stream('orders-a')
    with pytest.raises(rbs.StreamDoesNotExist) as caught:
        await one
    assert caught.value.outcome == 'not_sent'
    assert 'other partitions' not in str(caught.value)
    with pytest.raises(rbs.StreamDoesNotExist, match='other partitions may store') as caught:
        await several
    assert caught.value.outcome == 'unknown'
    await asyncio.gather(*given, return_exceptions=True)
    broker.heal()
    await publisher.close()


@pytest.mark.parametrize('how', ['send', 'submit', 'joined'])
async def test_each_call_raises_its_own_error(
    broker: StreamBroker, client: rbs.StreamsClient, how: str
) -> None:
    publisher = await client.publisher('single', max_unconfirmed=2)

    async def call(i: int) -> None:
        if how == 'submit':
            await (await publisher.submit(i))
        else:
            await publisher.send(rbs.Message('same', publish_id=1) if how == 'joined' else i)

    broker.withhold_confirms()
    calls = [asyncio.create_task(call(i)) for i in range(4)]
    await until(lambda: broker.messages('single') != [], 'messages were sent')
    broker.delete_stream('single')
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in errors} == {rbs.StreamDoesNotExist}
    assert len({id(error) for error in errors}) == len(calls)
    await publisher.close()


async def test_concurrent_flushes_raise_their_own_errors(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.publisher('single') as publisher:
        broker.publish_error()
        publisher.batch('refused')
        errors = await asyncio.gather(publisher.flush(), publisher.flush(), return_exceptions=True)
    assert {type(error) for error in errors} == {rbs.PublishError}
    assert errors[0] is not errors[1]


def test_copy_of_an_error_has_its_own_notes() -> None:
    error = rbs.PublisherError('closed')
    error.add_note('first')
    copy = copy_error(error)
    copy.add_note('second')
    assert error.__notes__ == ['first']
    assert copy.__notes__ == ['first', 'second']


# -- messages to several partitions


async def test_send_many_while_a_partition_is_full_and_another_gives_up(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    def route(message: object, partitions: Sequence[str]) -> Sequence[str]:
        return partitions if message == 'all' else partitions[:1]

    opener = client.super_stream('orders').publisher(route=route, max_unconfirmed=2)
    publisher = await opener
    broker.withhold_confirms()
    call = asyncio.create_task(publisher.send_many(['1', '2', 'all']))
    await until(lambda: len(broker.messages('orders-a')) == 2, 'the window is full')
    broker.delete_stream('orders-b')
    core = core_of(publisher._publishers[1])
    await until(lambda: core.error is not None, 'the publisher of partition b gave up')
    broker.heal()
    with pytest.raises(rbs.StreamDoesNotExist) as caught:
        async with asyncio.timeout(20):
            await call
    assert caught.value.progress is not None
    assert caught.value.progress.unconfirmed == [2]
    await publisher.close()
