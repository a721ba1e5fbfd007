"""Waiting for messages of a source; dropping chunks in the queue."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.protocol._chunk import Chunk
from rbfly.protocol._cursor import MessageCursor
from rbfly.protocol._decoder import Decoder
from rbfly.streams._consume import waiter
from rbfly.streams._consume._iteration import FastSubscription
from rbfly.streams._consume.waiter import MessageWaiter
from rbfly.streams.error import MessageTimeout, StreamDoesNotExist, SubscriptionError
from tests.brokers import until
from tests.fake_subscription import HANG, stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of
from tests.stream_wire import plain_chunk

pytestmark = pytest.mark.both_loops


class Source:
    """A source without a broker."""

    def __init__(self, waiter: MessageWaiter) -> None:
        self.cursor = MessageCursor(
            self, Decoder(False), None, waiter.wake, waiter.turn, 10, 'test'
        )
        self.waiter = waiter
        self.waits = 0
        self.error: Exception | None = None
        self.end = 0
        waiter.attach(self)

    def put(self, *messages: bytes) -> None:
        self.cursor.queue.push(Chunk.parse(plain_chunk(list(messages), self.end)))
        self.end += len(messages)

    @property
    def failed(self) -> bool:
        return self.error is not None

    def on_wait(self, *, finished: bool = True) -> None:
        self.waits += 1
        if self.error is not None:
            raise self.error

    async def finish(self) -> None:
        self.waiter.close()

    def on_chunk_consumed(self, chunk: Chunk) -> None:
        """A source has no credit."""

    def parts(self) -> list[Any]:
        return [self]

    on_yield = on_progress = on_replaced = on_end = lambda self: None


class Reader(FastSubscription):
    """Reads a source."""

    def __init__(self, timeout: float | None = None) -> None:
        self.waiter_ = MessageWaiter(lambda: None, timeout)
        self.source = Source(self.waiter_)
        super().__init__(self.source.cursor, self.waiter_)


async def waiting(reader: Reader, work: 'asyncio.Task[Any]') -> None:
    await until(lambda: reader.waiter_.is_waiting() or work.done(), 'the task waits')


async def test_each_message_wakes_the_task() -> None:
    reader = Reader()
    for body in (b'a', b'b', b'c'):
        task = asyncio.ensure_future(anext(reader))
        await waiting(reader, task)
        reader.source.put(body)
        assert await task == body
    assert reader.source.waits == 3


async def test_iteration_ends_without_a_source() -> None:
    reader = Reader()
    reader.source.put(b'a')
    assert await anext(reader) == b'a'
    task = asyncio.ensure_future(anext(reader))
    await waiting(reader, task)
    reader.waiter_.close()
    with pytest.raises(StopAsyncIteration):
        await task


async def test_iteration_continues_after_an_error() -> None:
    reader = Reader()
    reader.source.error = StreamDoesNotExist('test')
    with pytest.raises(StreamDoesNotExist):
        await anext(reader)
    reader.source.error = None
    reader.source.put(b'a')
    assert await anext(reader) == b'a'


async def test_timeout_and_two_tasks() -> None:
    reader = Reader(0.01)
    with pytest.raises(MessageTimeout, match=r'no message within 0\.01 s'):
        await anext(reader)
    reader = Reader(HANG)
    task = asyncio.ensure_future(anext(reader))
    await waiting(reader, task)
    with pytest.raises(SubscriptionError, match='another task'):
        await anext(reader)
    reader.source.put(b'b')
    assert await task == b'b'


# -- dropping the queue


@pytest.mark.parametrize('taken', [1, 2, 3, 4])
async def test_dropped_queue_returns_its_credit_and_loses_no_message(taken: int) -> None:
    stream = stream_of_chunks(3, 3, 3, 3)
    async with subscribe_to_fake(stream, initial_credit=2) as messages:
        session = session_of(messages)
        found = [await anext(messages)]
        await until(lambda: len(session.cursor.queue.chunks) == 1, 'both chunks have arrived')
        found += [await anext(messages) for _ in range(taken - 1)]
        session.drop_queue()
        assert not session.cursor.queue.chunks
        assert session.cursor.position == taken
        await until(lambda: stream.reader.granted == 2, 'the credit of both chunks is returned')
        session.registration.reset()
        found += [await anext(messages) for _ in range(12 - taken)]
    assert found == [b'%d' % i for i in range(12)]
    assert len(stream.readers) == 2


async def test_credit_beyond_the_limit_of_a_frame_is_returned() -> None:
    stream = stream_of_chunks(*[1] * 40_000)
    async with subscribe_to_fake(stream, initial_credit=65_535) as messages:
        session = session_of(messages)
        await anext(messages)
        await until(lambda: len(session.cursor.queue.chunks) == 39_999, 'all chunks have arrived')
        session.drop_queue()
        await until(lambda: stream.reader.granted == 40_000, 'all credit is returned')


@pytest.mark.parametrize(('credit', 'grants'), [(2, [1]), (10, [6, 3])])
async def test_chunks_of_one_turn_return_their_credit_together(
    monkeypatch: pytest.MonkeyPatch, credit: int, grants: list[int]
) -> None:
    """A turn ends after more than half of the credit, and the program never waits."""
    monkeypatch.setattr(waiter, 'TURN', 3600.0)
    stream = stream_of_chunks(*[1] * credit)
    async with subscribe_to_fake(stream, initial_credit=credit) as messages:
        queue = cursor_of(messages).queue
        await messages.open()
        await until(lambda: len(queue.chunks) == credit, 'all chunks have arrived')
        assert [await anext(messages) for _ in range(credit)] == [b'%d' % i for i in range(credit)]
        await until(lambda: stream.reader.granted == credit - 1, 'the credit is returned')
    assert stream.reader.grants == grants


async def test_closed_while_a_task_lets_others_run() -> None:
    """The task ends its iteration, rather than wait forever."""
    stream = stream_of_chunks(*[1] * 12)
    closing: list[asyncio.Future[None]] = []

    async def read(messages: rbs.Subscription) -> None:
        async for _ in messages:
            if cursor_of(messages).must_yield:
                closing.append(asyncio.ensure_future(messages.aclose()))

    async with subscribe_to_fake(stream, initial_credit=12) as messages:
        await anext(messages)
        await until(lambda: len(cursor_of(messages).queue.chunks) == 11, 'all chunks have arrived')
        await asyncio.wait_for(read(messages), HANG / 2)
        await asyncio.gather(*closing)
    assert closing
