"""`send_many` and `submit`: pipelined publishing, and how it ends early."""

import asyncio
import gc
import math
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly._turn import Turn
from rbfly.error import AMQPEncoderError
from rbfly.streams import stream_message_ctx
from rbfly.streams._publish import send_many
from rbfly.streams.error import (
    ConfirmTimeout,
    PublisherError,
    PublishError,
    StreamConnectionError,
    WindowTimeout,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.inside import window_of
from tests.streams.publish.test_publish import stored


async def count(client: rbs.StreamsClient, stream: str) -> int:
    return len(await stored(client, stream))


def numbers(count: int) -> Iterator[bytes]:
    return (b'%d' % i for i in range(count))


async def later(count: int) -> AsyncIterator[bytes]:
    """Yield the same items asynchronously, with occasional waits."""
    for i in range(count):
        if i % 100 == 0:
            await asyncio.sleep(0)
        yield b'%d' % i


def refusing(*bad: int) -> wire.Handler:
    """A handler of Publish that refuses these ids, or all, and confirms the others."""

    def handle(connection: Peer, request: Frame) -> None:
        ids = request.publishing_ids
        refused = [i for i in ids if i in bad or not bad]
        head = request.body[:1]
        for key, part, code in (
            (wire.PUBLISH_CONFIRM, [i for i in ids if i not in refused], b''),
            (wire.PUBLISH_ERROR, refused, b'\x00\x11'),
        ):
            body = b''.join(i.to_bytes(8, 'big') + code for i in part)
            connection.send(wire.frame(key, head + len(part).to_bytes(4, 'big') + body))

    return handle


# -- send_many


@pytest.mark.parametrize('kind', ['list', 'tuple', 'iterator', 'asynchronous'])
@pytest.mark.parametrize('window', [1, 9, 64, 10_000])
async def test_send_many_stores_all_in_order(
    client: rbs.StreamsClient, stream: str, kind: str, window: int
) -> None:
    count = 25_000 if window > 9 else 300
    make: dict[str, Callable[[], Any]] = {
        'list': lambda: list(numbers(count)),
        'tuple': lambda: tuple(numbers(count)),
        'iterator': lambda: numbers(count),
        'asynchronous': lambda: later(count),
    }
    async with client.publisher(stream, amqp=False, max_unconfirmed=window) as publisher:
        assert await publisher.send_many(make[kind]()) == count
        assert publisher.message_id == count + 1
    assert await stored(client, stream) == list(numbers(count))


async def test_send_many_of_nothing(client: rbs.StreamsClient, stream: str) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for item in list[bytes]():
            yield item

    async with client.publisher(stream) as publisher:
        assert await publisher.send_many([]) == 0
        assert await publisher.send_many(iter(())) == 0
        assert await publisher.send_many(nothing()) == 0


async def test_send_many_of_nothing_waits_for_nothing() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, close_timeout=0) as client,
        client.publisher('test', max_unconfirmed=1) as publisher,
    ):
        sending = asyncio.create_task(publisher.send('x'))
        await until(lambda: publisher.unconfirmed == 1, 'the window is full')
        assert await publisher.send_many([]) == 0
        sending.cancel()


async def test_send_many_from_many_tasks(client: rbs.StreamsClient, stream: str) -> None:
    async def alone(task: int) -> None:
        for i in range(100):
            await publisher.send(b'%d %d' % (task, i))

    async with client.publisher(stream, amqp=False, max_unconfirmed=100) as publisher:
        counts = await asyncio.gather(
            *(publisher.send_many([b'%d %d' % (t, i) for i in range(2000)]) for t in range(5)),
            *(alone(task) for task in range(5, 15)),
        )
    assert counts[:5] == [2000] * 5
    found = [tuple(map(int, item.split())) for item in await stored(client, stream)]
    for task in range(15):  # the order of each task is kept
        assert [i for t, i in found if t == task] == list(range(2000 if task < 5 else 100))


async def test_other_tasks_run_during_send_many() -> None:
    turns = 0
    seen = []

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def source() -> Iterator[bytes]:
        begin = turns
        for item in numbers(20_000):  # less than makes the transport pause
            sum(range(500))
            yield item
        seen.append(turns - begin)

    async def never_waits() -> AsyncIterator[bytes]:
        for item in source():
            yield item

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=100_000) as publisher,
    ):
        task = asyncio.create_task(others())
        await publisher.send_many(source())
        await publisher.send_many(never_waits())
        task.cancel()
    assert len(seen) == 2
    assert min(seen) > 2


async def test_send_many_fills_the_window_in_any_number_of_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that wait for a whole frame's capacity would cost a distant program a round trip."""
    monkeypatch.setattr(send_many, 'TURN', 0.0)  # each turn sends a part of a frame
    held: list[tuple[Peer, Frame]] = []

    def sent() -> int:
        return sum(len(frame.publishing_ids) for _, frame in held)

    async with (
        FakeBroker(on={wire.PUBLISH: lambda c, f: held.append((c, f))}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=10_000) as publisher,
    ):
        task = asyncio.create_task(publisher.send_many(numbers(20_000)))
        await until(lambda: sent() == 10_000, 'the window is full')
        first = [*held]
        for item in first:
            fake.default(*item)
        await until(lambda: sent() == 20_000, 'the window is full again')
        for item in held[len(first) :]:
            fake.default(*item)
        assert await task == 20_000


async def test_turn_of_send_many_begins_after_a_wait(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first frame after a wait, during which others ran, would be a short one."""
    turns: list[Turn] = []

    def endless(_: float) -> Turn:
        turns.append(Turn(math.inf))
        return turns[-1]

    monkeypatch.setattr(send_many, 'Turn', endless)
    async with client.publisher(stream, max_unconfirmed=10) as publisher:
        assert await publisher.send_many(numbers(30)) == 30
    (turn,) = turns
    assert turn.number > 1


@pytest.mark.parametrize('window', [1, 10, 99])
async def test_window_is_never_exceeded(window: int, endless_turns: None) -> None:
    unconfirmed: list[int] = []
    most = 0

    def hold(connection: Peer, request: Frame) -> None:
        nonlocal most
        unconfirmed.append(len(request.publishing_ids))
        most = max(most, sum(unconfirmed))
        asyncio.get_running_loop().call_soon(release, connection, request)

    def release(connection: Peer, request: Frame) -> None:
        unconfirmed.remove(len(request.publishing_ids))
        fake.default(connection, request)

    async with (
        FakeBroker(on={wire.PUBLISH: hold}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=window) as publisher,
    ):
        assert await publisher.send_many(numbers(1000)) == 1000
        assert await publisher.send_many(later(1000)) == 1000
    assert most == window


@pytest.mark.parametrize('asynchronous', [False, True])
async def test_send_many_stops_at_a_message_without_amqp_form(
    client: rbs.StreamsClient, stream: str, asynchronous: bool
) -> None:
    taken = []

    def source() -> Iterator[Any]:
        for i in range(5000):
            taken.append(i)
            yield object() if i == 2345 else i

    async def source_later() -> AsyncIterator[Any]:
        for item in source():
            yield item

    async with client.publisher(stream, max_unconfirmed=100) as publisher:
        with pytest.raises(AMQPEncoderError) as caught:
            await publisher.send_many(source_later() if asynchronous else source())
        assert caught.value.index == 2345
        assert str(caught.value).startswith('message 2345 of send_many: ')
        assert taken == list(range(2346))
        # those before it are confirmed when the error is raised
        assert await count(client, stream) == 2345
        await publisher.send('behind')
    assert await count(client, stream) == 2346


async def test_error_of_the_iterator(client: rbs.StreamsClient, stream: str) -> None:
    def source() -> Iterator[bytes]:
        yield from numbers(1500)
        raise KeyError('lost')

    async def source_later() -> AsyncIterator[bytes]:
        for item in source():
            yield item

    async with client.publisher(stream, amqp=False) as publisher:
        for messages in (source(), source_later()):
            with pytest.raises(KeyError) as caught:
                await publisher.send_many(messages)
            assert caught.value.index == 1500  # type: ignore[attr-defined]
            note = 'raised by the iterator given to send_many, after 1500 messages'
            assert caught.value.__notes__ == [note]
    assert await count(client, stream) == 3000


async def test_send_many_stops_at_a_message_that_fits_no_frame(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        with pytest.raises(PublisherError, match='limit') as caught:
            await publisher.send_many([b'a', bytes(2**21), b'b'])
        assert caught.value.index == 1
        assert await publisher.send_many([b'c']) == 1
    assert await stored(client, stream) == [b'a', b'c']


@pytest.mark.parametrize('asynchronous', [False, True])
async def test_send_many_stops_at_a_refused_message_and_names_it(asynchronous: bool) -> None:
    def source() -> Iterator[bytes]:
        for i, item in enumerate(numbers(100_000)):
            last.append(i)
            yield item

    async def source_later() -> AsyncIterator[bytes]:
        for item in source():
            await asyncio.sleep(0)
            yield item

    last: deque[int] = deque(maxlen=1)
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(250, 333)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=100) as publisher,
    ):
        await publisher.send('other')  # has id 1
        with pytest.raises(PublishError) as caught:
            await publisher.send_many(source_later() if asynchronous else source())
        error = caught.value
        assert (error.code, error.publish_id, error.index) == (0x11, 250, 248)
        assert error.errors[0] == (250, 0x11)
        assert last[0] < 500  # it did not continue
        assert await publisher.send_many(numbers(10)) == 10


async def test_refused_message_before_one_that_cannot_be_encoded() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(3)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        with pytest.raises(PublishError) as caught:
            await publisher.send_many(['a', 'b', 'c', 'd', object()])  # type: ignore[list-item]
        assert caught.value.index == 2
        cause = caught.value.__cause__
        assert isinstance(cause, AMQPEncoderError)


async def test_explicit_ids_of_a_list_are_checked_before_anything_is_sent(
    client: rbs.StreamsClient, stream: str
) -> None:
    def messages(*ids: int | None) -> list[Any]:
        return ['x' if i is None else stream_message_ctx('x', publish_id=i) for i in ids]

    async with client.publisher(stream, name='n') as publisher:
        for ids, index in [((5, 6, 6), 2), ((5, None, 6), 2), ((5, 7, None, 3), 3)]:
            with pytest.raises(ValueError, match=f'publishing id {ids[index]}') as caught:
                await publisher.send_many(messages(*ids))
            assert caught.value.index == index  # type: ignore[attr-defined]
        assert await count(client, stream) == 0
        assert await publisher.send_many(tuple(messages(5, None, 7, None, 20))) == 5
        with pytest.raises(ValueError, match='publishing id 20'):
            await publisher.send_many(messages(20, 21))
        # of an iterator, when it is their turn
        with pytest.raises(ValueError, match='publishing id 21') as caught:
            await publisher.send_many(iter(messages(21, 21)))
        assert caught.value.index == 1  # type: ignore[attr-defined]
        assert publisher.message_id == 22
    assert await count(client, stream) == 6


async def test_send_many_takes_no_single_message(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        for message in ('abc', b'abc', bytearray(b'abc'), {'a': 1}, stream_message_ctx('a')):
            with pytest.raises(TypeError, match='send_many'):
                await publisher.send_many(message)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await publisher.send_many(5)  # type: ignore[arg-type]


async def test_send_many_cancelled(client: rbs.StreamsClient, stream: str) -> None:
    def source() -> Iterator[bytes]:
        for item in numbers(10**9):
            taken.append(item)
            yield item

    taken: list[bytes] = []
    async with client.publisher(stream, amqp=False, max_unconfirmed=100) as publisher:
        task = asyncio.create_task(publisher.send_many(source()))
        await until(lambda: len(taken) > 1000, 'send_many has taken many messages')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        end = len(taken)
        await publisher.send(b'behind')
        assert len(taken) == end
    # every message taken was sent
    assert await stored(client, stream) == [*taken, b'behind']


@pytest.mark.own_clock
async def test_send_many_with_a_timeout(endless_turns: None) -> None:
    held: list[tuple[Peer, Frame]] = []
    async with (
        FakeBroker(on={wire.PUBLISH: lambda c, f: held.append((c, f))}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=50) as publisher,
    ):
        for source in (numbers(100), later(100)):
            with pytest.raises(ConfirmTimeout, match='0 of 50'):
                await publisher.send_many(source, timeout=0.05)
            for item in held:
                fake.default(*item)
            held.clear()
            await until(lambda: window_of(publisher).unsettled == 0, 'the late confirms arrive')
        with pytest.raises(TimeoutError, match='mine'):
            await publisher.send_many(failing(TimeoutError('mine')), timeout=10)


def failing(error: Exception) -> Iterator[bytes]:
    yield from ()
    raise error


async def test_publisher_closes_during_send_many() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        async with client.publisher('test', max_unconfirmed=10) as publisher:
            tasks = [asyncio.create_task(publisher.send_many(s)) for s in (numbers(99), later(99))]
            await until(lambda: window_of(publisher).unsettled == 10, 'the window is full')
            publisher._abort(PublisherError('closed by the test'))
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, PublisherError)
        with pytest.raises(PublisherError, match='closed'):
            await publisher.send_many([])


# -- submit


async def test_submit_returns_a_future_of_the_confirm(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        confirmations = [await publisher.submit(item) for item in numbers(1000)]
        assert [item.publish_id for item in confirmations] == list(range(1, 1001))
        await asyncio.gather(*confirmations)
        await confirmations[0]
        assert await stored(client, stream) == list(numbers(1000))


async def test_submit_waits_only_for_capacity() -> None:
    held: list[tuple[Peer, Frame]] = []
    async with (
        FakeBroker(on={wire.PUBLISH: lambda c, f: held.append((c, f))}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=3) as publisher,
    ):
        first = [await publisher.submit('x') for _ in range(3)]
        with pytest.raises(WindowTimeout):
            await publisher.submit('late', timeout=0.05)
        waiting = asyncio.create_task(publisher.submit('y'))
        await until(
            lambda: sum(len(f.publishing_ids) for _, f in held) == 3, 'three messages are sent'
        )
        assert not waiting.done()
        assert not any(item.done() for item in first)
        for item in held:
            fake.default(*item)
        held.clear()
        last = await waiting
        assert last.publish_id == 4  # the message that timed out has no id
        await until(lambda: bool(held), 'the last message is sent')
        fake.default(*held.pop())
        await last


async def test_future_of_a_refused_message_raises() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing(1, 2, 4, 5)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        with pytest.raises(PublishError) as caught:  # noqa: PT012
            async with client.publisher('test') as publisher:
                one, two, three, four, five = [await publisher.submit('x') for _ in range(5)]
                with pytest.raises(PublishError) as awaited:
                    await one
                assert awaited.value.errors == [(1, 0x11)]
                await three
                assert isinstance(two.exception(), PublishError)
                del four, five  # the program ignores these
        assert caught.value.errors == [(4, 0x11), (5, 0x11)]


@pytest.mark.own_clock
async def test_future_of_an_unconfirmed_message_raises() -> None:
    async with FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake:
        client = rbs.streams_client(fake.uri, reconnect_timeout=0.2)
        with pytest.raises(StreamConnectionError, match=r'0\.2 s'):  # noqa: PT012
            async with client.publisher('test') as publisher:
                for _ in range(3):
                    await publisher.submit('x')
                fake.handlers[wire.Step.OPEN] = wire.CLOSING
        await client.disconnect()


async def test_close_does_not_raise_failures_that_the_program_has_seen() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing()}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for _ in range(4):
            submitted = [await publisher.submit('x') for _ in range(500)]
            outcomes = await asyncio.gather(*submitted, return_exceptions=True)
            assert all(isinstance(item, PublishError) for item in outcomes)
        for _ in range(4):
            submitted = [await publisher.submit('x') for _ in range(500)]
            assert all(item.cancel() for item in submitted)
            await until(lambda: window_of(publisher).unsettled == 0, 'all messages are refused')


async def test_close_raises_the_first_failures_and_counts_the_others() -> None:
    count, total = 500, 5000
    async with (
        FakeBroker(on={wire.PUBLISH: refusing()}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        context = client.publisher('test')
        publisher = await context.__aenter__()
        kept = []
        for _ in range(total // count):
            submitted = [await publisher.submit('x') for _ in range(count)]
            kept += [weakref.ref(item) for item in submitted]
            await until(lambda: window_of(publisher).unsettled == 0, 'all messages are refused')
            assert isinstance(submitted[0].exception(), PublishError)
            assert isinstance(submitted[1].exception(), PublishError)
        del submitted
        gc.collect()
        assert not [item for item in kept if item() is not None]
        with pytest.raises(PublishError) as caught:
            await context.__aexit__(None, None, None)
    unseen = total - 2 * total // count
    assert caught.value.total == unseen
    assert f'{unseen} messages failed in total' in str(caught.value)
    numbers = [info.publish_id for info in caught.value.errors]
    assert 900 < len(numbers) <= 1000
    assert numbers[:2] == [3, 4]
    assert numbers[498:500] == [503, 504]


async def test_close_raises_the_failures_that_the_program_has_not_seen() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: refusing()}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        context = client.publisher('test')
        publisher = await context.__aenter__()
        submitted = [await publisher.submit('x') for _ in range(1500)]
        await until(lambda: window_of(publisher).unsettled == 0, 'all messages are refused')
        assert all(isinstance(item.exception(), PublishError) for item in submitted[:1000])
        with pytest.raises(PublishError) as caught:
            await context.__aexit__(None, None, None)
    assert caught.value.total == 500


async def test_failure_is_unseen_if_the_program_asked_before_the_outcome() -> None:
    async with FakeBroker(on={wire.PUBLISH: refusing()}) as fake:
        client = rbs.streams_client(fake.uri)
        with pytest.raises(PublishError) as caught:  # noqa: PT012
            async with client.publisher('test') as publisher:
                confirmation = await publisher.submit('x')
                with pytest.raises(asyncio.InvalidStateError):
                    confirmation.exception()
                with pytest.raises(asyncio.InvalidStateError):
                    confirmation.result()
        assert caught.value.total == 1
        await client.disconnect()
