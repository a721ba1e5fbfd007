"""Close, cancel and share at the wrong moment: nothing hangs, and no message is lost silently."""

import asyncio
import contextvars
import gc
from typing import Any, cast

import pytest

import rbfly.streams as rbs
from rbfly.amqp import set_message_ctx
from rbfly.error import RbFlyError
from rbfly.streams.error import (
    ConfirmTimeout,
    MessageTimeout,
    PublishError,
    StreamConnectionError,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream

HANG = 20.0  # seconds; only a safeguard


async def fill(client: rbs.StreamsClient, stream: str, *bodies: Any) -> None:
    async with client.publisher(stream) as publisher:
        for body in bodies:
            publisher.batch(body)


# -- publishers


class Held:
    """Keeps Publish frames unanswered until `confirm` or `refuse` is called."""

    def __init__(self) -> None:
        self.frames: list[tuple[Peer, Frame]] = []

    def __call__(self, connection: Peer, request: Frame) -> None:
        self.frames.append((connection, request))

    def confirm(self, fake: FakeBroker) -> None:
        while self.frames:
            fake.default(*self.frames.pop(0))

    def refuse(self) -> None:
        while self.frames:
            refuse()(*self.frames.pop(0))


@pytest.mark.parametrize('how', ['timeout', 'cancel'])
async def test_flush_waits_for_the_messages_of_an_interrupted_flush(how: str) -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        publisher.batch('x')
        if how == 'timeout':
            with pytest.raises(ConfirmTimeout):
                await publisher.flush(timeout=0.05)
        else:
            first = asyncio.create_task(publisher.flush())
            await until(lambda: bool(held.frames), 'the batch is sent')
            first.cancel()
            await asyncio.wait([first])
        second = asyncio.create_task(publisher.flush())
        third = asyncio.create_task(publisher.flush())
        await asyncio.wait([second], timeout=0.05)
        assert not second.done()
        held.confirm(fake)
        await asyncio.gather(second, third)
        await publisher.flush()


async def test_refusals_after_a_flush_timed_out_are_raised_once() -> None:
    held = Held()
    async with (
        FakeBroker(on={wire.PUBLISH: held}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for _ in range(2):
            publisher.batch('x')
            with pytest.raises(ConfirmTimeout):
                await publisher.flush(timeout=0.05)
        held.refuse()
        with pytest.raises(PublishError) as caught:
            await publisher.flush()
        assert caught.value.errors == [(1, 0x11), (2, 0x11)]
        await publisher.flush()


@pytest.mark.parametrize('bad', [object(), rbs.stream_message_ctx('x', publish_id=0)])
async def test_message_that_cannot_be_encoded_returns_its_capacity(
    client: rbs.StreamsClient, stream: str, bad: Any
) -> None:
    async with asyncio.timeout(HANG), client.publisher(stream, max_unconfirmed=1) as publisher:
        sends = (publisher.send(body) for body in (0, bad, 1, bad, 2))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(item, RbFlyError) for item in outcomes] == [
            False,
            True,
            False,
            True,
            False,
        ]
        await publisher.send(3)


async def test_cancelled_task_does_not_wait_for_confirms() -> None:
    async with FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake:

        async def publish() -> None:
            async with (
                rbs.streams_client(fake.uri, close_timeout=3600) as client,
                client.publisher('test') as publisher,
            ):
                await publisher.send('x')

        task = asyncio.create_task(publish())
        await until(
            lambda: any(f.key == wire.PUBLISH for c in fake.connections for f in c.frames),
            'the message is sent',
        )
        task.cancel()
        async with asyncio.timeout(HANG):
            await asyncio.wait([task])
        assert task.cancelled()


async def test_failed_close_does_not_replace_the_error_of_the_with_block(
    client: rbs.StreamsClient, stream: str
) -> None:
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with client.publisher(stream) as publisher:
            publisher.batch('x')
            await client.disconnect()
            raise KeyError('mine')
    assert 'closing the publisher also failed' in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ('argument', 'error'),
    [
        ({'name': 1}, TypeError),
        ({'max_unconfirmed': 'a'}, TypeError),
        ({'max_unconfirmed': 1.5}, TypeError),
        ({'max_unconfirmed': 2**63}, ValueError),
        ({'filter_extract': 5}, TypeError),
        ({'cls': dict}, TypeError),
    ],
)
async def test_publisher_refuses_wrong_arguments(
    client: rbs.StreamsClient, stream: str, argument: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        async with client.publisher(stream, **argument):
            pass
    assert isinstance(caught.value, RbFlyError)


async def test_name_is_free_after_a_publisher_class_failed(
    client: rbs.StreamsClient, stream: str
) -> None:
    class Broken(rbs.Publisher):
        def __init__(self, *args: Any) -> None:
            raise KeyError('mine')

    for _ in range(2):
        with pytest.raises(KeyError):
            async with client.publisher(stream, name='n', cls=Broken):
                pass
    async with client.publisher(stream, name='n') as publisher:
        await publisher.send('x')


# -- subscriptions


async def test_context_belongs_to_the_last_message_of_any_subscription(
    client: rbs.StreamsClient, stream: str
) -> None:
    await fill(client, stream, *range(50))
    async with (
        client.subscribe(stream, offset=rbs.Offset.FIRST) as one,
        client.subscribe(stream, offset=rbs.Offset.offset(40)) as other,
    ):
        for i in range(8):
            assert await anext(one) == rbs.get_message_ctx().body == i
            assert await anext(other) == rbs.get_message_ctx().stream_offset == 40 + i
        await client.write_offset(stream, 'r')
    assert await client.read_offset(stream, 'r') == 47


async def test_other_tasks_and_threads_have_no_context(
    client: rbs.StreamsClient, stream: str
) -> None:
    await fill(client, stream, *range(10))
    seen: list[Any] = []

    async def child() -> None:
        try:
            seen.append(rbs.get_message_ctx().body)
        except LookupError:
            seen.append(LookupError)

    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        tasks = []
        for _ in range(5):
            await anext(messages)
            tasks.append(asyncio.create_task(child()))
        await asyncio.gather(*tasks)
        assert seen == [LookupError] * 5
        with pytest.raises(LookupError):
            await asyncio.to_thread(rbs.get_message_ctx)
        assert rbs.get_message_ctx().body == 4

        async def reader() -> tuple[Any, Any]:
            return await anext(messages), rbs.get_message_ctx().body

        assert await asyncio.create_task(reader(), context=contextvars.Context()) == (5, 5)
        assert rbs.get_message_ctx().body == 4
        assert await anext(messages) == rbs.get_message_ctx().body == 6


async def test_task_started_for_a_message_has_no_context() -> None:
    """However late it asks, it never gets the context of another message."""
    stream = FakeStream()
    stream.append(*(b'%d' % i for i in range(20)))
    outcomes: list[Any] = []

    async def child(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            outcomes.append(rbs.get_message_ctx().body)
        except LookupError:
            outcomes.append(None)

    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        tasks = []
        for i in range(20):
            assert await anext(messages) == b'%d' % i
            tasks.append(asyncio.create_task(child(i % 3)))
            if i % 4 == 0:
                await asyncio.sleep(0)
            assert rbs.get_message_ctx().body == b'%d' % i
        await asyncio.gather(*tasks)
    assert outcomes == [None] * 20


async def test_tasks_that_share_a_contextvars_context(endless_turns: None) -> None:
    """They take turns; each sees the context of its own last message, or none."""
    stream = FakeStream()
    stream.append(*(b'%d' % i for i in range(8)))
    shared = contextvars.copy_context()
    seen: list[tuple[Any, Any]] = []

    async def read(messages: rbs.Subscription, n: int) -> None:
        for _ in range(n):
            body = await anext(messages)
            await asyncio.sleep(0)
            try:
                seen.append((body, rbs.get_message_ctx().body))
            except LookupError:
                seen.append((body, None))

    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        await anext(messages)
        tasks = [asyncio.create_task(read(messages, 3), context=shared) for _ in range(2)]
        await asyncio.gather(*tasks)
    assert len(seen) == 6
    assert all(found in (body, None) for body, found in seen)


async def test_context_set_by_the_program_lasts_until_the_next_message() -> None:
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    mine = rbs.stream_message_ctx('mine')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages,
    ):
        for i in range(3):
            assert await anext(messages) == rbs.get_message_ctx().body == b'%d' % i
            set_message_ctx(mine)
            assert rbs.get_message_ctx() is mine


@pytest.mark.parametrize('kind', ['messages', 'batches'])
async def test_get_message_ctx_with_messages_and_batches(kind: str) -> None:
    """It returns the context just yielded, or that of the last message of a batch."""
    stream = FakeStream()
    stream.append(b'0', b'1', b'2')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) as messages:
            if kind == 'messages':
                for _ in range(3):
                    assert await anext(messages.messages()) is rbs.get_message_ctx()
            else:
                await anext(messages.batches())
                assert rbs.get_message_ctx().stream_offset == 2
                assert rbs.get_message_ctx().body == b'2'
            await client.write_offset('test', 'reader')
        await until(lambda: wire.STORE_OFFSET in fake.connection.commands(), 'the offset is stored')
        frame = next(item for item in fake.connection.frames if item.key == wire.STORE_OFFSET)
        assert frame.body[-1] == 2


async def test_aclose_ends_the_iteration(client: rbs.StreamsClient, stream: str) -> None:
    await fill(client, stream, *range(50))
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST)
    found = []
    async for body in messages:
        found.append(body)
        await messages.aclose()
    assert found == [0]


async def test_aclose_while_the_subscription_opens(client: rbs.StreamsClient, stream: str) -> None:
    protocol = await client.get_protocol()
    for turns in range(8):
        messages = client.subscribe(stream)
        task = asyncio.ensure_future(anext(messages))
        for _ in range(turns):
            await asyncio.sleep(0)
        await messages.aclose()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, StopAsyncIteration)
    await until(lambda: len(protocol.subscription_ids) == 256, 'every subscription id is free')
    assert not protocol.registrations


@pytest.mark.parametrize(
    'argument',
    [
        {'offset': 5},
        {'filter': 'x'},
        {'filter': rbs.MessageFilter(str, cast(Any, {1}))},
        {'filter': rbs.MessageFilter(str, cast(Any, 'abc'))},
        {'filter': rbs.MessageFilter(str, cast(Any, None))},
        {'filter': rbs.MessageFilter(cast(Any, None), {'a'})},
        {'timeout': 'x'},
        {'timeout': True},
        {'initial_credit': 1.5},
    ],
)
def test_subscribe_refuses_arguments_of_wrong_type(argument: Any) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost/')
    with pytest.raises(TypeError) as caught:
        client.subscribe('s', **argument)
    assert isinstance(caught.value, RbFlyError)


@pytest.mark.parametrize(
    'argument',
    [
        {'timeout': -1},
        {'timeout': float('nan')},
        {'timeout': float('inf')},
        {'filter': rbs.MessageFilter(str, {'\ud800'})},
        {'filter': rbs.MessageFilter(str, {'x' * 65536})},
        {'offset': rbs.Offset.reference('x' * 256)},
        {'offset': rbs.Offset.reference('\ud800')},
    ],
)
def test_subscribe_refuses_arguments_out_of_range(argument: Any) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost/')
    with pytest.raises(ValueError, match=r'seconds|Unicode|longer') as caught:
        client.subscribe('s', **argument)
    assert isinstance(caught.value, RbFlyError)


async def test_subscription_times_out_without_a_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    with pytest.raises(MessageTimeout, match=r'no message within 0\.05 s'):
        await anext(client.subscribe(stream, timeout=0.05))


# -- connecting


@pytest.mark.own_clock
async def test_silent_address_leaves_time_for_the_next_one() -> None:
    silent = FakeBroker(at={Step.PEER_PROPERTIES: wire.SILENT})
    async with silent, FakeBroker() as good:
        async with rbs.streams_client([silent.uri, good.uri], connect_timeout=2) as client:
            await client.create_stream('test')
        assert len(good.connections) == 1


async def test_disconnect_while_another_task_connects() -> None:
    reached: list[tuple[Peer, Frame]] = []
    async with FakeBroker(at={Step.OPEN: lambda c, f: reached.append((c, f))}) as fake:
        async with rbs.streams_client(fake.uri) as client:
            task = asyncio.create_task(client.create_stream('test'))
            await until(lambda: bool(reached), 'the handshake reaches its last step')
        fake.default(*reached[0])
        with pytest.raises(StreamConnectionError):
            await task
        assert not client.connected


def test_client_works_in_one_loop_after_another(broker_uri: str) -> None:
    client = rbs.streams_client(broker_uri)
    name = 'test-loops'

    async def use() -> None:
        await client.create_stream(name)

        async def publish() -> None:
            async with client.publisher(name) as publisher:
                await publisher.send('x')

        await asyncio.gather(*(publish() for _ in range(4)))

    async def last() -> None:
        await use()
        await client.delete_stream(name)
        await client.disconnect()

    async def first() -> None:
        await use()
        await client.disconnect()

    asyncio.run(first())
    asyncio.run(last())


@pytest.mark.filterwarnings('ignore:unclosed:ResourceWarning')
def test_subscription_continues_in_the_next_loop(broker_uri: str, stream: str) -> None:
    """The first loops end without closing anything."""
    client = rbs.streams_client(broker_uri)
    tracking = rbs.OffsetTracking('reader', every=0, interval=0.01)
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG, commit=tracking)

    async def read(start: int) -> int | None:
        """Publish and read ten messages; return the offset of the ninth, the last finished one."""
        await fill(client, stream, *range(start, start + 10))
        assert [await anext(messages) for _ in range(9)] == list(range(start, start + 9))
        done = rbs.get_message_ctx().stream_offset
        assert await anext(messages) == start + 9
        return done

    async def last() -> None:
        done = await read(20)
        stored = None
        async with asyncio.timeout(HANG):
            while stored != done:
                stored = await client.read_offset(stream, 'reader')
        await client.disconnect()

    asyncio.run(read(0))
    asyncio.run(read(10))
    asyncio.run(last())
    gc.collect()
