"""`send_many` reports the outcome of each message that it took, however it ends."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import AMQPEncoderError, RbFlyError
from rbfly.streams import SendProgress, stream_message_ctx
from rbfly.streams.error import (
    ArgumentTypeError,
    ConfirmTimeout,
    EventLoopError,
    MessageTooLarge,
    PublisherError,
    PublishError,
    StreamConnectionError,
    StreamDoesNotExist,
)
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.inside import core_of
from tests.streams.publish.test_send_many import refusing

KINDS = pytest.mark.parametrize('asynchronous', [False, True])
Numbers = tuple[int, int, list[int], list[int]]


def messages_of(items: Iterable[Any], asynchronous: bool) -> Any:
    async def later() -> AsyncIterator[Any]:
        for item in items:
            yield item

    return later() if asynchronous else iter(items)


def numbers(progress: SendProgress | None) -> Numbers:
    """Taken, confirmed, refused, unknown."""
    assert progress is not None
    return progress.taken, progress.confirmed, progress.refused, progress.unknown


class Holding:
    """A handler of Publish that confirms the ids up to a limit and holds the others."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.held: list[tuple[Peer, int, int]] = []
        self.came = 0

    def __call__(self, connection: Peer, request: Frame) -> None:
        for publish_id in request.publishing_ids:
            self.came += 1
            if publish_id > self.last:
                self.held.append((connection, request.body[0], publish_id))
            else:
                answer(connection, request.body[0], publish_id)

    def release(self, *refused: int) -> None:
        for connection, publisher_id, publish_id in self.held:
            answer(connection, publisher_id, publish_id, 0x11 if publish_id in refused else 0)
        self.held.clear()


def answer(connection: Peer, publisher_id: int, publish_id: int, code: int = 0) -> None:
    body = bytes([publisher_id, 0, 0, 0, 1]) + publish_id.to_bytes(8, 'big')
    if code:
        connection.send(wire.frame(wire.PUBLISH_ERROR, body + code.to_bytes(2, 'big')))
    else:
        connection.send(wire.frame(wire.PUBLISH_CONFIRM, body))


async def test_all_are_confirmed(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        progress = SendProgress()
        await publisher.send_many(range(500), progress=progress)
        assert numbers(progress) == (500, 500, [], [])
        assert progress.unconfirmed == []
        await publisher.send_many([], progress=progress)  # reused: describes the last call only
        assert numbers(progress) == (0, 0, [], [])
        assert repr(progress) == '<SendProgress taken=0 confirmed=0 refused=0 unknown=0>'


@pytest.mark.own_clock
@KINDS
@pytest.mark.parametrize('how', ['timeout', 'cancel'])
async def test_messages_in_flight_are_unknown(asynchronous: bool, how: str) -> None:
    holding = Holding(last=12)
    async with (
        FakeBroker(on={wire.PUBLISH: holding}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=10) as publisher,
    ):
        others = asyncio.gather(publisher.send('has id 1'), publisher.send('has id 2'))
        await others
        progress = SendProgress()
        call = publisher.send_many(
            messages_of(range(100), asynchronous),
            timeout=0.05 if how == 'timeout' else None,
            progress=progress,
        )
        if how == 'timeout':
            with pytest.raises(ConfirmTimeout, match='10 of 20 messages') as caught:
                await call
            assert caught.value.progress is progress
        else:
            task = asyncio.create_task(call)
            await until(lambda: holding.came == 22, 'the window is full')
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert numbers(progress) == (20, 10, [], [*range(10, 20)])

        waiting = [asyncio.create_task(progress.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        waiting[0].cancel()
        holding.release(15, 21)
        await waiting[1]
        assert numbers(progress) == (20, 18, [12, 18], [])
        assert progress.unconfirmed == [12, 18]
        await progress.wait()


@KINDS
async def test_progress_lists_refused_messages(asynchronous: bool, endless_turns: None) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(4, 6)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=10) as publisher,
    ):
        await publisher.send('has id 1')
        progress = SendProgress()
        with pytest.raises(PublishError, match=r'message 2 of send_many: .* id 4') as caught:
            await publisher.send_many(messages_of(range(8), asynchronous), progress=progress)
        assert caught.value.index == 2
        assert caught.value.progress is progress
        assert numbers(progress) == (8, 6, [2, 4], [])


@KINDS
@pytest.mark.parametrize(
    ('bad', 'kind'), [(object(), AMQPEncoderError), (bytes(2**21), MessageTooLarge)]
)
async def test_message_that_cannot_be_sent(
    client: rbs.StreamsClient, stream: str, asynchronous: bool, bad: Any, kind: Any
) -> None:
    async with client.publisher(stream) as publisher:
        with pytest.raises(kind, match=r'^message 3 of send_many: ') as caught:
            await publisher.send_many(messages_of([0, 1, 2, bad, 4], asynchronous))
        assert caught.value.index == 3
        assert numbers(caught.value.progress) == (4, 3, [3], [])
        copy = pickle.loads(pickle.dumps(caught.value))
        assert numbers(copy.progress) == (4, 3, [3], [])


@KINDS
async def test_iterator_that_fails(
    client: rbs.StreamsClient, stream: str, asynchronous: bool
) -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise KeyError('mine')

    async with client.publisher(stream) as publisher:
        with pytest.raises(KeyError) as caught:
            await publisher.send_many(messages_of(failing(), asynchronous))
        error: Any = caught.value
        note = 'raised by the iterator given to send_many, after 3 messages'
        assert (error.index, error.__notes__) == (3, [note])
        assert numbers(error.progress) == (3, 3, [], [])


class Slotted(Exception):
    """An error of the user's that takes no attributes."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


async def test_error_without_attributes(client: rbs.StreamsClient, stream: str) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise Slotted

    async with client.publisher(stream) as publisher:
        progress = SendProgress()
        with pytest.raises(Slotted):
            await publisher.send_many(failing(), progress=progress)
        assert numbers(progress) == (1, 1, [], [])


async def test_call_with_wrong_arguments_takes_nothing(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        calls: list[tuple[Any, Any]] = [
            ('one', None),
            (5, None),
            ([1], -1),
            ([stream_message_ctx(i, publish_id=i) for i in (3, 2)], None),
        ]
        for messages, timeout in calls:
            with pytest.raises((TypeError, ValueError)) as caught:
                await publisher.send_many(messages, timeout)
            error: Any = caught.value
            assert numbers(error.progress) == (0, 0, [], [])
        assert str(error).startswith('message 1 of send_many: publishing id 2')
        with pytest.raises(ArgumentTypeError, match='progress'):
            await publisher.send_many([1], progress=5)  # type: ignore[arg-type]
    with pytest.raises(PublisherError, match='closed') as closed:
        await publisher.send_many([1])
    assert numbers(closed.value.progress) == (0, 0, [], [])


@KINDS
@pytest.mark.own_clock
async def test_connection_lost_for_too_long(asynchronous: bool) -> None:
    """Two calls share the publisher and the error; each reports its own messages."""
    holding = Holding(last=3)
    async with FakeBroker(on={wire.PUBLISH: holding}) as fake:
        client = rbs.streams_client(fake.uri, reconnect_timeout=0.2)
        async with client.publisher('test', max_unconfirmed=4) as publisher:
            calls = [
                asyncio.create_task(publisher.send_many(messages_of(range(8), asynchronous)))
                for _ in range(2)
            ]
            await until(lambda: holding.came == 7, 'the window is full')
            fake.handlers[wire.Step.OPEN] = wire.CLOSING
            fake.connections[-1].transport.abort()
            first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, StreamConnectionError)
        assert isinstance(second, StreamConnectionError)
        assert first is not second
        for error in (first, second):
            assert error.progress is not None
            assert error.progress.refused == []
            await error.progress.wait()  # no outcome is pending
        both = [numbers(first.progress), numbers(second.progress)]
        assert sum(item[0] for item in both) == 7
        assert sum(item[1] for item in both) == 3
        assert sum(len(item[3]) for item in both) == 4
        for taken, confirmed, _, unknown in both:
            assert unknown == [*range(confirmed, taken)]
        await client.disconnect()


@KINDS
async def test_messages_that_were_never_sent(asynchronous: bool) -> None:
    """Their progress says that they are not stored."""
    holding = Holding()
    async with (
        FakeBroker(on={wire.PUBLISH: holding}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=10) as publisher,
    ):
        call = asyncio.create_task(publisher.send_many(messages_of(range(4), asynchronous)))
        await until(lambda: holding.came == 4, 'the first messages are sent')
        core = core_of(publisher)
        core.suspend()  # as without a connection
        later_call = asyncio.create_task(publisher.send_many(messages_of(range(3), asynchronous)))
        await until(lambda: core.window.queued == 3, 'the other messages are queued')
        publisher._abort(PublisherError('given up by the test'))
        outcomes = await asyncio.gather(call, later_call, return_exceptions=True)
        assert all(isinstance(item, PublisherError) for item in outcomes)
        assert numbers(outcomes[0].progress) == (4, 0, [], [0, 1, 2, 3])  # type: ignore[union-attr]
        assert numbers(outcomes[1].progress) == (3, 0, [0, 1, 2], [])  # type: ignore[union-attr]


@KINDS
async def test_progress_of_a_call_whose_stream_is_deleted(
    client: rbs.StreamsClient, stream: str, asynchronous: bool
) -> None:
    endless = iter(int, 1)
    async with client.publisher(stream, max_unconfirmed=10) as publisher:
        progress = SendProgress()
        call = asyncio.create_task(
            publisher.send_many(messages_of(endless, asynchronous), progress=progress)
        )
        await until(lambda: publisher.message_id > 50, 'the publisher sends')
        await client.delete_stream(stream)
        with pytest.raises(StreamDoesNotExist) as caught:
            await call
        assert caught.value.progress is progress
        assert progress.taken >= 50
        left = sorted(progress.refused + progress.unknown)
        assert left == [*range(progress.confirmed, progress.taken)]


@pytest.mark.own_clock
@KINDS
async def test_progress_counts_messages_of_sub_entries(
    asynchronous: bool, endless_turns: None
) -> None:
    holding = Holding(last=1)
    async with (
        FakeBroker(on={wire.PUBLISH: holding}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', sub_entry_size=4, max_unconfirmed=20) as publisher,
    ):
        progress = SendProgress()
        with pytest.raises(ConfirmTimeout):
            await publisher.send_many(
                messages_of(range(40), asynchronous), timeout=0.1, progress=progress
            )
        first = 1 if asynchronous else 4  # the first message is sent at once
        assert numbers(progress) == (first + 20, first, [], [*range(first, first + 20)])
        holding.release(3)
        await progress.wait()
        refused = [*range(first + 4, first + 8)]
        assert numbers(progress) == (first + 20, first + 16, refused, [])


async def test_progress_ignores_other_calls(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, max_unconfirmed=20) as publisher:
        several = [SendProgress() for _ in range(10)]
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(
                publisher.send_many(messages_of(range(10_000), i % 2 == 0), progress=progress)
            )
            for i, progress in enumerate(several)
        ]
        tasks.append(asyncio.create_task(publisher.send('alone')))
        await until(lambda: publisher.message_id > 500, 'the publisher sends')
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(progress.taken for progress in several) >= publisher.message_id - 2
        assert sum(len(progress.unknown) for progress in several) <= 20 + 5
        for progress in several:
            await progress.wait()
            assert numbers(progress) == (progress.taken, progress.taken, [], [])


async def test_wait_in_another_event_loop() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        with pytest.raises(ConfirmTimeout) as caught:
            await publisher.send_many([1, 2], timeout=0.01)
        progress = caught.value.progress
        assert progress is not None
        with pytest.raises(EventLoopError):
            await asyncio.to_thread(lambda: asyncio.run(progress.wait()))
        publisher._abort(PublisherError('given up by the test'))
        await progress.wait()
        assert numbers(progress) == (2, 0, [], [0, 1])


def test_errors_of_other_calls_have_no_progress() -> None:
    assert RbFlyError('x').progress is None


@KINDS
async def test_calls_that_wait_for_capacity_raise_separate_errors(asynchronous: bool) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=1) as publisher,
    ):
        confirmation = await publisher.submit('x')
        calls = [
            asyncio.create_task(publisher.send_many(messages_of(range(8), asynchronous)))
            for _ in range(2)
        ]
        await until(
            lambda: len(core_of(publisher).capacity.waiting) == 2, 'both calls wait for capacity'
        )
        publisher._abort(PublisherError('given up by the test'))
        errors: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert errors[0] is not errors[1]
        assert errors[0].progress is not errors[1].progress
        assert [numbers(error.progress) for error in errors] == [(0, 0, [], [])] * 2
        assert isinstance(confirmation.exception(), PublisherError)  # so close does not raise it


async def test_error_on_a_single_message() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('test')
        async with client.publisher('test') as publisher:
            broker.withhold_confirms()
            with pytest.raises(ConfirmTimeout, match=r'confirmed 0 of 1 message in 0\.05 s'):
                await publisher.send_many(['x'], timeout=0.05)
            broker.heal()
