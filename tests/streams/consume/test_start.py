"""Where a subscription starts if its connection is lost before the first message.

The tests combine every kind of offset with every point of the loss, every end of the stream and
everything that may be written meanwhile.  The start never moves forward:

=========== ==============================================================================
offset      first message
=========== ==============================================================================
`FIRST`     the first one of the stream
`LAST`      the first one of the last chunk with messages at the first attempt; an earlier one if
            chunks of stored offsets followed it and more messages were written since
`NEXT`      the first one after the last chunk at the first attempt
`offset`    the first one with that offset or a higher one
`timestamp` the first one of a chunk written at that time or later, or the first one after the
            last chunk at the first attempt, whichever comes first
`reference` the first one after the offset stored at the first attempt, or that of its default
            offset if none was stored
=========== ==============================================================================
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.net import retry
from rbfly.net.connection import Connection
from rbfly.streams._consume import session as consuming
from rbfly.streams._offsets import last_messages as counting
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

HANG = 60.0  # seconds; only a safeguard
END = 99  # the last message
ENDS = ('empty', 'messages', 'offsets')
GROWTHS = ('nothing', 'offsets', 'messages and offsets')
LOSSES = ('subscribing', 'subscribed', 'received')


class Message(NamedTuple):
    body: Any
    offset: int
    timestamp: float
    chunk: int


Choose = Callable[[list[Message]], tuple[rbs.Offset, int]]
"""Returns an offset in these messages, and the number of messages before it."""


def first(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.FIRST, 0


def last(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.LAST, sum(item.chunk < messages[-1].chunk for item in messages)


def from_next(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.NEXT, len(messages)


def within(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.offset(messages[-1].offset if messages else 0), max(len(messages) - 1, 0)


def after_last(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.offset(messages[-1].offset + 1 if messages else 0), len(messages)


def from_the_past(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.timestamp(0), 0


def between(messages: list[Message]) -> tuple[rbs.Offset, int]:
    at = messages[-1].timestamp if messages else 0
    return rbs.Offset.timestamp(at), sum(item.timestamp < at for item in messages)


def future(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.timestamp(time.time() + 3600), len(messages)


def stored(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.reference('stored'), min(2, len(messages))


def default_next(messages: list[Message]) -> tuple[rbs.Offset, int]:
    return rbs.Offset.reference('other', rbs.Offset.NEXT), len(messages)


STARTS = (
    first,
    last,
    from_next,
    within,
    after_last,
    from_the_past,
    between,
    future,
    stored,
    default_next,
)


def parity(ctx: rbs.MessageCtx) -> str:
    return 'odd' if ctx.body % 2 else 'even'


async def write(client: rbs.StreamsClient, stream: str, *chunks: list[int]) -> None:
    async with client.publisher(stream, filter_extract=parity) as publisher:
        for bodies in chunks:
            await publisher.send_many(bodies)


async def write_offsets(client: rbs.StreamsClient, stream: str) -> None:
    """Store offsets: chunks without messages, each of which uses up an offset."""
    for i in range(5):
        before = await client.stream_stats(stream)
        await client.write_offset(stream, 'tracking', i)
        while await client.stream_stats(stream) == before:
            pass


async def fill(client: rbs.StreamsClient, stream: str, end: str) -> list[Message]:
    if end == 'empty':
        return []
    await write(client, stream, [0], [1], [2, 3])
    await client.write_offset(stream, 'stored', 1)
    while await client.read_offset(stream, 'stored') is None:
        pass
    await write(client, stream, [4])
    found: list[Message] = []
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        async for batch in messages.batches():
            found += [
                Message(ctx.body, ctx.stream_offset, batch.timestamp, batch.offsets[0])
                for ctx in batch.contexts()
            ]
            if found[-1].body == 4:
                break
    if end == 'offsets':
        await write_offsets(client, stream)
    return found


async def grow(client: rbs.StreamsClient, stream: str, growth: str) -> list[int]:
    if growth == 'nothing':
        return []
    await write_offsets(client, stream)
    await client.write_offset(stream, 'stored', 4)
    if growth == 'offsets':
        return []
    await write(client, stream, [10], [11, 12], [13])
    await write_offsets(client, stream)
    return [10, 11, 12, 13]


async def cut(client: rbs.StreamsClient) -> None:
    (await client.get_protocol()).abort(StreamConnectionError('cut by the test'))


async def lose(client: rbs.StreamsClient, messages: rbs.Subscription, loss: str) -> Any:
    """Wait for the first message until the point of the loss; return the task if it still waits."""
    session = session_of(messages)
    prepare, credit = session.prepare, session._credit
    prepared = asyncio.Event()

    async def prepare_and_lose(*args: Any) -> Any:
        session.prepare = prepare
        command = await prepare(*args)
        if loss == 'subscribing':
            await cut(client)
        prepared.set()
        return command

    session.prepare = prepare_and_lose
    if loss == 'subscribed':
        session._credit = 0  # the broker sends no chunk
    waiting: Any = asyncio.ensure_future(anext(messages))
    await prepared.wait()
    session._credit = credit
    if loss == 'subscribed':
        await until(lambda: session.registration.is_open, 'the client has subscribed')
    if loss == 'received':
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: session.registration.is_open, 'the client has subscribed')
        waiting = None
    return waiting


async def check(
    uri: str, choose: Choose, loss: str, end: str, growth: str, filter: rbs.MessageFilter | None
) -> None:
    stream = f'test-{uuid4()}'
    async with rbs.streams_client(uri) as other, rbs.streams_client(uri) as client:
        await other.create_stream(stream)
        try:
            old = await fill(other, stream, end)
            offset, before = choose(old) if old or choose is not last else (rbs.Offset.LAST, 0)
            async with contextlib.aclosing(
                client.subscribe(stream, offset=offset, filter=filter, timeout=HANG)
            ) as messages:
                waiting = await lose(client, messages, loss)
                new = await grow(other, stream, growth)
                if loss != 'subscribing':
                    await cut(client)
                await write(other, stream, [END])
                found = [await (waiting or anext(messages))]
                while found[-1] != END:
                    found.append(await anext(messages))
        finally:
            await other.delete_stream(stream)
    every = [item.body for item in old] + [*new, END]
    expected = every[before:]
    if filter is not None:
        every, expected = ([body for body in part if body % 2] for part in (every, expected))
    if choose is last and end == 'offsets':
        assert found[-len(expected) :] == expected
        expected = every[-len(found) :]
    assert found == expected


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('choose', STARTS)
@pytest.mark.parametrize('filter', [None, rbs.MessageFilter(parity, {'odd'})], ids=['all', 'odd'])
async def test_lost_connection_does_not_move_the_start(
    broker_uri: str,
    choose: Choose,
    loss: str,
    filter: rbs.MessageFilter | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    cases = [(end, growth) for end in ENDS for growth in GROWTHS]
    found = await asyncio.gather(
        *(check(broker_uri, choose, loss, *case, filter) for case in cases),
        return_exceptions=True,
    )
    failed = {case: error for case, error in zip(cases, found, strict=True) if error is not None}
    assert not failed


# -- another stream of the same name


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as memory:
        yield memory


@contextlib.asynccontextmanager
async def outage(memory: StreamBroker) -> AsyncIterator[None]:
    """Cut all connections and refuse new ones meanwhile."""
    memory.refuse()
    memory.cut()
    yield
    memory.heal()


FROM_END = (rbs.Offset.NEXT, rbs.Offset.LAST, rbs.Offset.timestamp(2e9))


@pytest.mark.parametrize('loss', LOSSES[:2])
@pytest.mark.parametrize('offset', FROM_END)
@pytest.mark.parametrize('new', [0, 3])
async def test_shorter_stream_is_another_one(
    memory: StreamBroker, offset: rbs.Offset, loss: str, new: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed messages never disappear from the leader."""
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    memory.create_stream('orders')
    for i in range(5):
        memory.publish('orders', i)
    async with (
        rbs.streams_client(memory.uri) as client,
        contextlib.aclosing(client.subscribe('orders', offset=offset, timeout=HANG)) as messages,
    ):
        waiting = await lose(client, messages, loss)
        async with outage(memory):
            memory.delete_stream('orders')
            memory.create_stream('orders')
            for i in range(new):
                memory.publish('orders', 1000 + i)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        memory.publish('orders', END)
        found = [await anext(messages)]
        while found[-1] != END:
            found.append(await anext(messages))
        assert found == [*range(1000, 1000 + new), END]


async def test_a_silent_broker_does_not_move_the_start(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that delivers nothing does not say that the stream ends before the time."""
    resolved = asyncio.Event()

    async def start_before(*args: Any) -> Any:
        try:
            return await counting.start_before(*args)
        finally:
            resolved.set()

    monkeypatch.setattr(consuming, 'start_before', start_before)
    memory.create_stream('orders')
    for i in range(3):
        memory.publish('orders', i)
    memory.silence()
    start = rbs.Offset.timestamp(0)
    async with (
        rbs.streams_client(memory.uri) as client,
        client.subscribe('orders', offset=start, timeout=HANG) as messages,
    ):
        waiting = asyncio.create_task(messages.__anext__())
        memory.cut()
        async with asyncio.timeout(HANG):
            await resolved.wait()
        memory.publish('orders', 3)
        memory.heal()
        assert [await waiting, *[await anext(messages) for _ in range(3)]] == [0, 1, 2, 3]


@pytest.mark.parametrize('offset', FROM_END)
async def test_lagging_replica_is_the_same_stream(
    offset: rbs.Offset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits until the replica has the committed messages."""
    monkeypatch.setattr(retry, 'backoff', lambda: repeat(0.0))
    lagging = iter([False, True, True, False])
    asked = []

    async def chunk_ids(connection: Connection, stream: str) -> Any:
        ids = await counting.chunk_ids(connection, stream)
        asked.append(next(lagging, False))
        return (-1, -1) if asked[-1] else ids

    monkeypatch.setattr(consuming, 'chunk_ids', chunk_ids)
    async with StreamBroker(nodes=3) as memory:
        memory.create_stream('orders')
        for i in range(5):
            memory.publish('orders', i)
        async with (
            rbs.streams_client(memory.uri) as client,
            contextlib.aclosing(
                client.subscribe('orders', offset=offset, timeout=HANG)
            ) as messages,
        ):
            waiting = await lose(client, messages, 'subscribed')
            async with outage(memory):
                memory.publish('orders', END)
            assert await waiting == (4 if offset is rbs.Offset.LAST else END)
    assert len(asked) >= 4


async def test_fast_clock_of_the_broker_does_not_indicate_another_stream(
    memory: StreamBroker,
) -> None:
    memory.create_stream('orders')
    memory.advance(3600)
    memory.publish('orders', 0)
    async with (
        rbs.streams_client(memory.uri) as client,
        contextlib.aclosing(
            client.subscribe('orders', offset=rbs.Offset.NEXT, timeout=HANG)
        ) as messages,
    ):
        waiting = await lose(client, messages, 'subscribed')
        async with outage(memory):
            memory.publish('orders', 1)
        assert await waiting == 1


async def test_offset_applies_to_a_recreated_stream_if_no_message_was_read(
    memory: StreamBroker,
) -> None:
    memory.create_stream('orders')
    async with (
        rbs.streams_client(memory.uri) as client,
        contextlib.aclosing(
            client.subscribe('orders', offset=rbs.Offset.offset(2), timeout=HANG)
        ) as messages,
    ):
        waiting = await lose(client, messages, 'subscribed')
        async with outage(memory):
            memory.delete_stream('orders')
            memory.create_stream('orders')
            for i in range(4):
                memory.publish('orders', i)
        assert await waiting == 2


async def test_subscription_starts_at_the_first_message_after_a_deletion_error(
    memory: StreamBroker,
) -> None:
    """It ignores its starting offset, even if it has read no message."""
    memory.create_stream('orders')
    async with (
        rbs.streams_client(memory.uri) as client,
        contextlib.aclosing(
            client.subscribe('orders', offset=rbs.Offset.offset(2), timeout=HANG)
        ) as messages,
    ):
        waiting = await lose(client, messages, 'subscribed')
        memory.delete_stream('orders')
        with pytest.raises(StreamDoesNotExist):
            await waiting
        memory.create_stream('orders')
        memory.publish('orders', 0)
        assert await anext(messages) == 0


# -- stored offsets


async def test_highest_stored_offset_is_the_one_before_the_first_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    """A consumer group that starts in an empty stream stores it."""
    await write(client, stream, [0], [1])
    await client.write_offset(stream, 'reader', 2**64 - 1)
    offset = rbs.Offset.reference('reader')
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        assert await anext(messages) == 0
