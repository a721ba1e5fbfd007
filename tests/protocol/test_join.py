"""Batches of messages of several chunks."""

import gzip
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbfly.error import AMQPDecoderError, ChunkError, SubscriptionError
from rbfly.protocol._batch import MessageBatch, empty_batch
from rbfly.protocol._cursor import KINDS
from rbfly.streams.types import MessageFilter
from tests.cursors import NO_LIMIT, Cursor, amqp, drain
from tests.stream_wire import chunk, data_batch, message, plain_chunk

BATCH = KINDS['batch']
MIB = 2**20


def joined(cursor: Cursor, limit: int = NO_LIMIT) -> MessageBatch:
    """Everything that has arrived, in one batch."""
    assert cursor.join(limit, 0.0) is not None
    batch: MessageBatch = cursor.take(BATCH)
    return batch


def test_chunks_that_have_arrived_are_joined_and_their_credit_returns() -> None:
    cursor = Cursor()
    assert cursor.join(10, 5.0) is None
    cursor.push(plain_chunk([b'a', b'b'], 3))
    assert cursor.join(10, 6.0) == 0.0
    cursor.push(plain_chunk([b'c'], 7))  # stored offsets are before it
    cursor.push(plain_chunk([b'd'], 8))
    assert cursor.join(10, 8.5) == 2.5
    assert cursor.consumed == [3, 7, 8]
    batch = cursor.take(BATCH)
    assert list(batch) == [b'a', b'b', b'c', b'd']
    assert list(batch.offsets) == [3, 4, 7, 8]
    assert cursor.join(10, 9.0) is None


def test_batch_of_one_chunk_is_like_any_other() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b'], 3))
    assert joined(cursor).offsets == range(3, 5)


def test_batch_is_complete_at_its_limit() -> None:
    cursor = Cursor()
    for i in range(3):
        cursor.push(plain_chunk([b'%d' % i] * 3, 3 * i))
    assert cursor.join(7, 0.0) == math.inf
    assert list(cursor.take(BATCH).offsets) == [*range(7)]
    assert cursor.join(2, 1.0) == math.inf
    assert list(cursor.take(BATCH)) == [b'2', b'2']


def test_contexts_and_time() -> None:
    cursor = Cursor(True)
    for i in range(5):
        cursor.push(chunk([message(amqp(2 * i)), message(amqp(2 * i + 1))], 2, offset=10 * i,
                          timestamp=1000 * i))  # fmt: skip
    batch = joined(cursor)
    offsets = [10 * i + j for i in range(5) for j in range(2)]
    assert [ctx.stream_offset for ctx in batch.contexts()] == offsets
    assert [ctx.body for ctx in batch.contexts()] == list(batch) == [*range(10)]
    assert [ctx.stream_timestamp for ctx in batch.contexts()] == [i // 2 for i in range(10)]
    assert batch.timestamp == 0.0
    assert batch.context(-1).stream_offset == cursor.last.context().stream_offset == 41
    assert repr(batch) == '<MessageBatch of 10 from offset 0>'
    with pytest.raises(IndexError):
        batch.context(10)


def test_filtered() -> None:
    odd = MessageFilter(lambda ctx: str(ctx.body % 2), {'1'})
    cursor = Cursor(True, odd)
    for i in range(4):
        cursor.push(plain_chunk([amqp(3 * i + j) for j in range(3)], 3 * i))
    batch = joined(cursor)
    assert list(batch) == list(batch.offsets) == [1, 3, 5, 7, 9, 11]
    assert [ctx.body for ctx in batch.contexts()] == list(batch)


@pytest.mark.parametrize('damaged', [False, True])
def test_batch_ends_before_an_error(damaged: bool) -> None:
    cursor = Cursor(True)
    cursor.push(plain_chunk([amqp(0)], 0))
    cursor.push(
        chunk([message(amqp(1))], 1, offset=1, crc=7) if damaged
        else plain_chunk([b'\xff'], 1)
    )  # fmt: skip
    cursor.push(plain_chunk([amqp(2)], 2))
    assert cursor.join(NO_LIMIT, 0.0) == math.inf
    assert list(cursor.take(BATCH)) == [0]
    with pytest.raises(ChunkError if damaged else AMQPDecoderError):
        cursor.join(NO_LIMIT, 0.0)
    assert list(joined(cursor)) == [2]
    assert cursor.consumed == [0, 1, 2]


def test_batch_takes_no_chunk_in_while_it_keeps_16_mib_alive() -> None:
    cursor = Cursor()
    half = bytes(8 * MIB)
    packed = gzip.compress(message(half))
    sub_entry = data_batch(packed, 1, len(half) + 4, len(packed), 1)
    for i in range(3):
        cursor.push(chunk([sub_entry], 1, offset=2 * i))
        cursor.push(plain_chunk([b'x'], 2 * i + 1))
    assert cursor.join(NO_LIMIT, 0.0) == math.inf
    assert len(cursor.take(BATCH)) == 3
    for i in range(4):
        cursor.push(plain_chunk([half], 20 + i))
    assert [len(joined(cursor)) for _ in range(3)] == [4, 2, 1]


def test_partial_batch_can_be_taken_by_the_other_iteration_of_batches() -> None:
    cursor = Cursor()
    for i in range(2):
        cursor.push(plain_chunk([b'x'], i))
    cursor.join(10, 0.0)
    with pytest.raises(SubscriptionError, match='another iteration'):
        cursor.take(KINDS['context'])
    assert cursor.advance(BATCH)
    assert len(cursor.take(BATCH)) == 2


def test_batch_that_another_iteration_has_made_ready_is_completed() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a'], 0))
    cursor.push(plain_chunk([b'b'], 1))
    assert cursor.advance(BATCH)
    assert list(joined(cursor)) == [b'a', b'b']
    every = MessageFilter(lambda ctx: 'x', {'x'})
    cursor = Cursor(False, every)
    cursor.push(plain_chunk([b'a'], 0))
    assert cursor.advance(KINDS['context'])
    assert cursor.join(10, 0.0) == math.inf
    with pytest.raises(SubscriptionError, match='another iteration'):
        cursor.take(BATCH)


def test_messages_are_finished_when_more_are_asked_for() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b'], 0))
    joined(cursor)
    assert cursor.finished is None
    cursor.push(plain_chunk([b'c'], 2))
    cursor.join(10, 0.0)
    assert cursor.finished == 1
    cursor.push(plain_chunk([b'd'], 3))
    cursor.join(10, 0.0)
    cursor.take(BATCH)
    assert cursor.finished == 1
    cursor.mark_consumed()
    assert cursor.finished == 3


def test_dropping_forgets_the_partial_batch() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a'], 5))
    joined(cursor)
    for i in range(6, 9):
        cursor.push(plain_chunk([b'x'], i))
    cursor.join(10, 0.0)
    cursor.drop()
    assert cursor.position == 6
    assert cursor.join(10, 0.0) is None
    cursor.mark_consumed()
    assert cursor.finished == 5


def test_reconnect_ends_a_batch() -> None:
    """The next chunk may show that the stream is a new one."""
    cursor = Cursor()
    cursor.push(plain_chunk([b'a'], 0))
    cursor.push(plain_chunk([b'b'], 1))
    assert cursor.join(10, 0.0) == 0.0
    cursor.resume(2)
    cursor.last_chunk.seek(0, 2)
    assert cursor.join(10, 1.0) == 1.0
    cursor.push(plain_chunk([b'b'], 1))
    cursor.push(plain_chunk([b'c'], 2))
    assert cursor.join(10, 1.0) == math.inf
    assert list(cursor.take(BATCH)) == [b'a', b'b']
    assert list(joined(cursor)) == [b'c']


def test_empty_batch() -> None:
    batch = empty_batch()
    assert (len(batch), list(batch), list(batch.offsets)) == (0, [], [])
    assert (batch.timestamp, [*batch.contexts()], bool(batch)) == (0.0, [], False)
    assert repr(batch) == '<MessageBatch of 0>'
    with pytest.raises(IndexError):
        batch.context(0)


@given(
    sizes=st.lists(st.integers(0, 5), max_size=12),
    limit=st.integers(1, 12),
    arriving=st.lists(st.integers(0, 4), max_size=12),
)
def test_joined_batches_contain_every_message_once(
    sizes: list[int], limit: int, arriving: list[int]
) -> None:
    cursor, other = Cursor(), Cursor()
    chunks: list[bytes] = []
    end = 0
    for size in sizes:
        chunks.append(plain_chunk([b'%d' % (end + i) for i in range(size)], end))
        end += size + 1  # an offset that no message has
    for data in chunks:
        other.push(data)
    found: list[tuple[int, Any]] = []
    steps = [*arriving, len(chunks)]
    while steps or cursor.queue.chunks or cursor.has_messages:
        for _ in range(steps.pop(0) if steps else 0):
            if chunks:
                cursor.push(chunks.pop(0))
        age = cursor.join(limit, 0.0)
        if age == math.inf or (age is not None and not steps):
            batch = cursor.take(BATCH)
            assert 0 < len(batch) <= limit
            found += zip(batch.offsets, batch, strict=True)
            assert [(ctx.stream_offset, ctx.body) for ctx in batch.contexts()] == [
                *zip(batch.offsets, batch, strict=True)
            ]
    assert cursor.join(limit, 0.0) is None  # leaves the last chunk
    assert found == drain(other)
    assert cursor.consumed == other.consumed
