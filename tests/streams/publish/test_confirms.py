"""Every message is confirmed once, or its sender gets an error, in spite of closes and timeouts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams import stream_message_ctx
from rbfly.streams.error import (
    ConfirmTimeout,
    PublisherError,
    PublishError,
    WindowTimeout,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.inside import core_of, window_of
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_send_many import refusing

Held = list[tuple[Peer, Frame]]


def numbers(*span: int) -> list[bytes]:
    return [b'%d' % i for i in range(*span)]


def publishing_ids(held: Held) -> int:
    return sum(len(frame.publishing_ids) for _, frame in held)


def holding(held: Held) -> dict[int, wire.Handler]:
    """Keep Publish frames without confirming them."""
    return {wire.PUBLISH: lambda connection, request: held.append((connection, request))}


# -- every publishing method


async def test_every_publishing_method_confirms_each_message_once(
    client: rbs.StreamsClient, stream: str
) -> None:
    confirmed: Counter[int] = Counter()
    async with client.publisher(stream, amqp=False) as publisher:
        for i in range(10):
            await publisher.send(b'%d' % i)
        await asyncio.gather(*(publisher.send(b'%d' % i) for i in range(10, 100)))
        submitted = [await publisher.submit(b'%d' % i) for i in range(100, 200)]
        for confirmation in submitted:
            confirmation.add_done_callback(lambda item: confirmed.update([item.publish_id]))
        await asyncio.gather(*submitted)
        assert await publisher.send_many(numbers(200, 300)) == 100
    async with client.publisher(stream, amqp=False) as batch:
        for i in range(300, 400):
            batch.batch(b'%d' % i)
        await batch.flush()
    await asyncio.sleep(0)  # callbacks
    assert confirmed == dict.fromkeys(range(101, 201), 1)
    assert await stored(client, stream) == numbers(400)


# -- the same message


async def test_same_message_many_times(client: rbs.StreamsClient, stream: str) -> None:
    body: dict[str, Any] = {'n': 0}
    message = stream_message_ctx(body, app_properties={'k': 'v'})
    async with client.publisher(stream) as publisher:
        confirmations = []
        for i in range(100):
            body['n'] = i  # the messages sent before are unchanged
            confirmations.append(await publisher.submit(message))
        assert await publisher.send_many([message] * 100) == 100
        await asyncio.gather(*confirmations, *(publisher.send(message) for _ in range(100)))
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        found = [await anext(messages) for _ in range(300)]
    assert found == [{'n': i} for i in range(100)] + [{'n': 99}] * 200


# -- many publishers, many tasks


async def test_many_publishers_of_many_tasks(client: rbs.StreamsClient, stream: str) -> None:
    async def send(publisher: rbs.Publisher, i: int, task: int) -> None:
        for n in range(10):
            await publisher.send(b'%d %d %d' % (i, task, n))

    async def publish(i: int) -> None:
        async with client.publisher(stream, amqp=False, max_unconfirmed=20) as publisher:
            await asyncio.gather(*(send(publisher, i, task) for task in range(30)))

    await asyncio.gather(*(publish(i) for i in range(20)))
    found = [tuple(map(int, item.split())) for item in await stored(client, stream)]
    assert sorted(found) == [(i, t, n) for i in range(20) for t in range(30) for n in range(10)]
    for i in range(20):  # the order of each task is kept
        for task in range(30):
            assert [n for p, t, n in found if (p, t) == (i, task)] == list(range(10))


# -- stop while sending


async def test_every_call_ends_when_the_publisher_closes(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False, max_unconfirmed=100) as publisher:
        sends = [asyncio.create_task(publisher.send(b'%d' % i)) for i in range(1000)]
        many = asyncio.create_task(publisher.send_many(numbers(1000, 100_000)))
        confirmations = [await publisher.submit(b'%d' % -i) for i in range(1, 51)]
    outcomes = await asyncio.gather(*sends, *confirmations, many, return_exceptions=True)
    assert {type(item) for item in outcomes} <= {type(None), PublisherError}
    assert isinstance(outcomes[-1], PublisherError)
    found = {int(item) for item in await stored(client, stream)}
    sent = [*range(1000), *(-i for i in range(1, 51))]
    assert {i for i, outcome in zip(sent, outcomes, strict=False) if outcome is None} <= found


async def test_every_call_ends_when_the_publisher_closes_without_confirms() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, close_timeout=0.05) as client,
    ):
        with pytest.raises(ConfirmTimeout):  # noqa: PT012
            async with client.publisher('test', max_unconfirmed=10) as publisher:
                confirmations = [await publisher.submit('x') for _ in range(10)]
                tasks = [
                    asyncio.create_task(publisher.send('y')),
                    asyncio.create_task(publisher.submit('z')),
                    asyncio.create_task(publisher.send_many(['a'] * 100)),
                ]
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(*confirmations, *tasks, return_exceptions=True)
        assert {type(item) for item in outcomes} == {PublisherError}


# -- the broker's refusal


async def test_refused_message_raises_for_its_own_sender() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(2, 4)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        outcomes = await asyncio.gather(
            *(publisher.send(i) for i in range(5)), return_exceptions=True
        )
        assert [getattr(item, 'publish_id', None) for item in outcomes] == [None, 2, None, 4, None]
        for outcome in (outcomes[1], outcomes[3]):
            assert isinstance(outcome, PublishError)
            assert outcome.code == 0x11


@pytest.mark.parametrize('code', [0, 1])
async def test_publish_error_with_code_ok_is_not_a_confirm(code: int) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.refuse(code)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        with pytest.raises(PublishError) as caught:
            await publisher.send('x')
        assert caught.value.code == code
        with pytest.raises(PublishError) as caught:
            await publisher.send_many(['y', 'z'])
        assert caught.value.errors == [(2, code), (3, code)]
        assert window_of(publisher).unsettled == 0


# -- early confirms


async def test_confirm_may_arrive_before_it_is_awaited() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        confirmations = [await publisher.submit('x') for _ in range(5)]
        await until(lambda: window_of(publisher).unsettled == 0, 'all messages are confirmed')
        assert all(item.done() for item in confirmations)
        for confirmation in confirmations:
            await asyncio.wait_for(confirmation, 10)

        async def slow() -> AsyncIterator[int]:
            for i in range(20):
                yield i
                await until(lambda: window_of(publisher).unsettled == 0, 'the message is confirmed')

        assert await asyncio.wait_for(publisher.send_many(slow()), 10) == 20


async def test_flush_returns_if_the_batch_is_already_confirmed() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as batch,
    ):
        batch.batch('x')
        flushing = asyncio.create_task(batch.flush())
        await asyncio.sleep(0)
        flushing.cancel()  # the batch is sent, and no task waits
        await until(lambda: window_of(batch).unsettled == 0, 'the message is confirmed')
        await asyncio.wait_for(batch.flush(), 10)


# -- max_unconfirmed


async def test_full_window_blocks_until_a_confirm() -> None:
    held: Held = []
    async with (
        FakeBroker(on=holding(held)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=5) as publisher,
    ):
        tasks = [asyncio.create_task(publisher.send(i)) for i in range(12)]
        await until(lambda: publishing_ids(held) == 5, 'the window is full')
        assert window_of(publisher).in_flight == 5
        assert len(core_of(publisher).capacity.waiting) == 7
        while not all(task.done() for task in tasks):
            await until(
                lambda: bool(held) or all(task.done() for task in tasks),
                'the next messages are sent',
            )
            assert window_of(publisher).in_flight <= 5
            for connection, frame in held:
                fake.default(connection, frame)
            held.clear()
        await asyncio.gather(*tasks)


async def test_wait_for_capacity_ends_only_at_its_timeout() -> None:
    held: Held = []
    async with (
        FakeBroker(on=holding(held)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=1) as publisher,
    ):
        first = asyncio.create_task(publisher.send('first'))
        await until(lambda: bool(held), 'the window is full')
        for call in (publisher.send, publisher.submit):
            with pytest.raises(WindowTimeout, match='window of unconfirmed messages was full'):
                await call('x', timeout=0.02)
        with pytest.raises(ConfirmTimeout, match='0 of 0'):
            await publisher.send_many(['x'], timeout=0.02)
        patient = [
            asyncio.create_task(publisher.send('y')),
            asyncio.create_task(publisher.send_many(['z'])),
        ]
        await until(
            lambda: len(core_of(publisher).capacity.waiting) == 2, 'both calls wait for capacity'
        )
        fake.handlers.clear()
        fake.default(*held[0])
        await asyncio.gather(first, *patient)
    assert publisher.message_id == 4  # messages that timed out got no id


@pytest.mark.parametrize('bound', [1, 9, 10])
async def test_small_window_waits_only_for_confirms(
    client: rbs.StreamsClient, stream: str, bound: int
) -> None:
    # with a timer, however short, this would take minutes
    async with (
        asyncio.timeout(60),
        client.publisher(stream, amqp=False, max_unconfirmed=bound) as publisher,
    ):
        assert await publisher.send_many(numbers(2000)) == 2000
        await asyncio.gather(*(publisher.send(b'%d' % i) for i in range(2000, 4000)))
    assert await stored(client, stream) == numbers(4000)


# -- late confirms


async def test_late_confirms_are_ignored() -> None:
    held: Held = []
    async with (
        FakeBroker(on=holding(held)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
        client.publisher('test') as batch,
    ):
        with pytest.raises(ConfirmTimeout, match='did not confirm') as caught:
            await publisher.send('x', timeout=0.02)
        assert not isinstance(caught.value, WindowTimeout)  # the message was sent
        with pytest.raises(ConfirmTimeout, match='0 of 3'):
            await publisher.send_many(['x'] * 3, timeout=0.02)
        batch.batch('x')
        with pytest.raises(ConfirmTimeout):
            await batch.flush(timeout=0.02)
        await until(lambda: publishing_ids(held) == 5, 'all messages are sent')
        late = list(held)
        held.clear()
        batch.batch('y')
        tasks = [asyncio.create_task(call) for call in (publisher.send('y'), batch.flush())]
        await until(lambda: len(held) == 2, 'both messages are sent')
        for _ in range(2):  # the late confirms arrive twice
            for item in late:
                fake.default(*item)
        await until(lambda: window_of(publisher).unsettled == 1, 'the message of send is confirmed')
        assert not any(task.done() for task in tasks)
        for item in held:
            fake.default(*item)
        await asyncio.gather(*tasks)


# -- alarms


async def test_disk_alarm_blocks_publishing_only(alarmed: RabbitMQ) -> None:
    async def send_until_blocked() -> int:
        # the broker still accepts what it was about to read
        for i in range(10):
            try:
                await publisher.send(i, timeout=1)
            except ConfirmTimeout:
                return i
        pytest.fail('the broker does not block')

    async with rbs.streams_client(alarmed.uri) as client:
        await client.create_stream('alarms')
        try:
            async with client.publisher('alarms') as publisher:
                await publisher.send('before')
                await asyncio.to_thread(alarmed.ctl, 'set_disk_free_limit', '100000GB')
                blocked = await send_until_blocked()
                # consuming continues
                async with client.subscribe('alarms', offset=rbs.Offset.FIRST) as messages:
                    for expected in ('before', *range(blocked)):
                        assert await asyncio.wait_for(anext(messages), 30) == expected
                    sending = asyncio.create_task(publisher.send('after'))
                    await asyncio.to_thread(alarmed.ctl, 'set_disk_free_limit', '50MB')
                    await asyncio.wait_for(sending, 30)
                    for expected in (blocked, 'after'):
                        assert await asyncio.wait_for(anext(messages), 30) == expected
        finally:
            await client.delete_stream('alarms')


async def test_memory_alarm_blocks_nothing(alarmed: RabbitMQ) -> None:
    async with rbs.streams_client(alarmed.uri) as client:
        await client.create_stream('alarms')
        try:
            async with client.publisher('alarms') as publisher:
                await asyncio.to_thread(alarmed.ctl, 'set_vm_memory_high_watermark', '0.0001')
                await asyncio.wait_for(publisher.send('during'), 30)
                async with client.subscribe('alarms', offset=rbs.Offset.FIRST) as messages:
                    assert await asyncio.wait_for(anext(messages), 30) == 'during'
        finally:
            await client.delete_stream('alarms')
