"""Messages that `submit` takes in one turn of the event loop leave in one frame."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import rbfly.streams as rbs
from tests import fake_broker as wire
from tests.fake_broker import FakeBroker
from tests.inside import session_of, window_of
from tests.streams.publish.test_publish_recovery import default, once, published
from tests.streams.publish.test_sending import Connection, attach


async def submit_all(publisher: Any, messages: Sequence[Any]) -> list[rbs.Confirmation]:
    return [await publisher.submit(message) for message in messages]


async def read(client: rbs.StreamsClient, stream: str, count: int) -> list[Any]:
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=20) as subscription:
        return [await anext(subscription) for _ in range(count)]


# -- frames


async def test_an_idle_publisher_writes_one_frame() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for confirmation in await submit_all(publisher, range(50)):
            await confirmation
        assert published(fake) == [list(range(1, 51))]
        await asyncio.gather(*await submit_all(publisher, range(50)))
        assert published(fake)[1:] == [list(range(51, 101))]


async def test_tasks_that_submit_in_one_turn_share_a_frame() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        tasks = [asyncio.create_task(submit_all(publisher, range(3))) for _ in range(5)]
        for task in tasks:
            await asyncio.gather(*await task)
        assert published(fake) == [list(range(1, 16))]


async def test_frames_hold_at_most_a_tenth_of_the_window() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=1000) as publisher,
    ):
        await asyncio.gather(*await submit_all(publisher, range(250)))
        assert list(map(len, published(fake))) == [100, 100, 50]


async def test_messages_of_one_frame_are_resent_in_one_frame() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.RESETTING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        await asyncio.gather(*await submit_all(publisher, range(5)))
        assert published(fake) == [[1, 2, 3, 4, 5]] * 2


# -- when the frame leaves


async def test_awaiting_a_confirm_sends_at_once(client: rbs.StreamsClient, stream: str) -> None:
    async def submit_and_wait() -> None:
        confirmation = await publisher.submit('x')
        assert (window.in_flight, window.queued) == (0, 1)
        await confirmation

    async with client.publisher(stream) as publisher:
        window = window_of(publisher)
        task = asyncio.create_task(submit_and_wait())
        await asyncio.sleep(0)  # resumes right after the task has begun to wait
        assert (window.in_flight, window.queued) == (1, 0)
        await task


async def test_awaiting_the_confirm_of_several_partitions_sends_at_once(
    client: rbs.StreamsClient, super_stream: str
) -> None:
    async def submit_and_wait() -> None:
        await (await publisher.submit('x'))

    orders = client.super_stream(super_stream)
    async with orders.publisher(route=lambda body, partitions: partitions) as publisher:
        windows = [window_of(item) for item in publisher._publishers]
        for call in (submit_and_wait, lambda: publisher.send('x'), lambda: publisher.send('x', 60)):
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            assert [window.in_flight for window in windows] == [1] * len(windows)
            await task


async def test_a_message_whose_confirm_nobody_awaits_leaves_at_the_end_of_the_turn(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        window = window_of(publisher)
        confirmation = await publisher.submit('x')
        await asyncio.sleep(0)
        assert (window.in_flight, window.queued) == (1, 0)
        await asyncio.wait([confirmation], timeout=20)
        assert confirmation.done()


@pytest.mark.parametrize('max_unconfirmed', [1, 3, 10_000])
async def test_all_ways_of_publishing_keep_the_order_of_the_calls(
    client: rbs.StreamsClient, stream: str, max_unconfirmed: int
) -> None:
    async with client.publisher(stream, max_unconfirmed=max_unconfirmed) as publisher:
        await publisher.submit('a')
        await publisher.send('b')
        await publisher.submit('c')
        await publisher.send_many(['d', 'e'])
        await publisher.submit('f')
        await publisher.flush()
        if publisher.capacity > 1:
            publisher.batch('g')
        else:
            await publisher.submit('g')
        await publisher.submit('h')
        await publisher.send_atomic(['i'])
        await publisher.submit('j')
    assert await read(client, stream, 10) == list('abcdefghij')


async def test_a_cancelled_confirm_does_not_withdraw_its_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        first, second = await submit_all(publisher, 'ab')
        first.cancel()
        await second
    assert await read(client, stream, 2) == ['a', 'b']


async def test_messages_leave_before_the_client_closes_its_connections() -> None:
    """Tasks that the client starts may run in this turn (`asyncio.eager_task_factory`)."""
    connection = Connection()
    publisher = attach(rbs.Publisher, connection)
    (confirmation,) = await submit_all(publisher, 'x')
    session_of(publisher).on_disconnect()
    assert connection.ids() == [[0]]
    connection.confirm(0)
    await confirmation


@pytest.mark.parametrize('end', ['close', 'drop', 'disconnect'])
async def test_messages_leave_if_the_publisher_ends_in_the_same_turn(end: str) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        context = client.publisher('test')
        publisher = await context.__aenter__()
        confirmations = await submit_all(publisher, range(3))
        if end == 'close':
            await publisher.close()
        elif end == 'disconnect':
            await client.disconnect()
        else:
            del publisher, context
        await asyncio.wait(confirmations, timeout=20)
        assert published(fake) == [[1, 2, 3]]
        errors = [confirmation.exception() for confirmation in confirmations]
        assert end != 'close' or not any(errors)
