"""The cursor returns the bodies, contexts or batches of chunks."""

import asyncio
import copy
import gc
import gzip
import pickle
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbfly.amqp import MessageCtx, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPDecoderError, MessageContextError
from rbfly.protocol import _chunk
from rbfly.protocol._batch import MessageBatch
from rbfly.protocol._cursor import KINDS
from rbfly.streams._consume._iteration import FastSubscription, MessageIterator
from rbfly.streams.error import ChunkError, SubscriptionError
from rbfly.streams.types import MessageFilter
from tests.cursors import Cursor, amqp, batches, contexts, drain
from tests.sizes import sized
from tests.stream_wire import chunk, data_batch, message, plain_chunk, sub_batch

JUNK = b'\xff junk'
BAD_VALUE = b'\x00\x53\x77\x56\x02'  # a value section with a boolean of 2

# -- offsets


def test_offsets_count_every_record() -> None:
    cursor = Cursor()
    entries = [message(b'a'), sub_batch([b'b', b'c']), sub_batch([]), message(b'd')]
    cursor.push(chunk(entries, 4, offset=100))
    cursor.push(plain_chunk([b'e'], 105))
    assert drain(cursor) == [(100, b'a'), (101, b'b'), (102, b'c'), (103, b'd'), (105, b'e')]
    assert cursor.consumed == [100, 105]


@pytest.mark.parametrize('start', range(98, 108))
def test_messages_below_the_start_are_dropped(start: int) -> None:
    cursor = Cursor()
    cursor.resume(start)
    entries = [message(b'a'), sub_batch([b'b', b'c', b'd']), message(b'e')]
    cursor.push(chunk(entries, 5, offset=100))
    cursor.push(plain_chunk([b'f', b'g'], 105))
    expected = list(zip(range(100, 107), [b'a', b'b', b'c', b'd', b'e', b'f', b'g'], strict=True))
    assert drain(cursor) == [item for item in expected if item[0] >= start]
    assert cursor.consumed == [100, 105]


def test_highest_offset() -> None:
    cursor = Cursor()
    cursor.resume(2**64 - 1)
    cursor.push(plain_chunk([b'a', b'b'], 2**64 - 2))
    assert drain(cursor) == [(2**64 - 1, b'b')]


def test_resume_at_the_highest_offset() -> None:
    cursor = Cursor()
    cursor.push(chunk([message(b'a')], 1, offset=2**64 - 3, timestamp=1))
    assert drain(cursor) == [(2**64 - 3, b'a')]
    cursor.resume(2**64 - 2)
    cursor.push(chunk([message(b'b')], 1, offset=2**64 - 2, timestamp=2))
    assert drain(cursor) == [(2**64 - 2, b'b')]
    assert cursor.consumed == [2**64 - 3, 2**64 - 2]


def test_resume_drops_the_current_chunk() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b'], 0))
    cursor.push(plain_chunk([b'c'], 2))
    assert cursor.advance()
    assert cursor.take() == b'a'
    cursor.resume(1)
    assert not cursor.advance()
    cursor.push(plain_chunk([b'a', b'b'], 0))
    assert drain(cursor) == [(1, b'b')]
    assert cursor.consumed == [0]


def test_dropping_leaves_the_position_after_the_last_message_returned() -> None:
    cursor = Cursor()
    assert (cursor.drop(), cursor.position) == (0, None)
    cursor.push(plain_chunk([b'a', b'b'], 0))
    assert (cursor.drop(), cursor.position) == (1, None)
    cursor.resume()
    cursor.push(plain_chunk([b'a', b'b'], 0))
    cursor.push(plain_chunk([b'c'], 2))
    assert drain_one(cursor) == b'a'
    assert (cursor.drop(), cursor.position) == (2, 1)
    cursor.push(plain_chunk([b'd'], 3))  # was in flight
    assert not cursor.advance()
    assert (cursor.consumed, cursor.position) == ([], 1)
    cursor.resume(1)
    cursor.push(plain_chunk([b'a', b'b'], 0))
    assert drain(cursor) == [(1, b'b')]


@pytest.mark.parametrize('kind', ['context', 'batch'])
@pytest.mark.parametrize('filtered', [False, True])
def test_messages_ready_when_the_chunks_are_dropped_are_returned_after_the_resume(
    kind: str, filtered: bool
) -> None:
    every = MessageFilter(lambda ctx: 'x', {'x'})
    cursor = Cursor(True, every if filtered else None)
    data = [amqp('a'), amqp('b'), JUNK, amqp('c')]
    cursor.push(plain_chunk(data, 10))
    assert drain_kind(cursor, kind) == ['a']
    assert cursor.advance(KINDS[kind], 10)
    assert (cursor.drop(), cursor.position) == (1, 11)
    cursor.resume(11)
    cursor.push(plain_chunk(data, 10))
    assert everything(cursor, kind) == [('body', 'b'), ('error', (12, JUNK)), ('body', 'c')]


def test_error_after_the_last_message_is_raised_even_if_the_chunks_are_dropped() -> None:
    cursor = Cursor(True)
    cursor.push(plain_chunk([amqp('a'), JUNK, amqp('b')], 10))
    assert cursor.advance(KINDS['batch'], 10)
    assert list(cursor.take(KINDS['batch'])) == ['a']
    assert (cursor.drop(), cursor.position) == (1, 12)
    with pytest.raises(AMQPDecoderError):
        cursor.advance()
    assert not cursor.advance()


def drain_kind(cursor: Cursor, kind: str) -> list[Any]:
    """Return the body of the next message, taken alone or as a batch of one."""
    assert cursor.advance(KINDS[kind], 1)
    found = cursor.take(KINDS[kind])
    return [found.body] if kind == 'context' else list(found)


# -- cursor


def test_advance_makes_the_same_message_ready_until_it_is_taken() -> None:
    cursor = Cursor()
    assert not cursor.advance()
    cursor.push(plain_chunk([b'a', b'b']))
    assert cursor.advance()
    assert cursor.advance()
    assert cursor.take() == b'a'
    assert cursor.take() == b'b'
    assert cursor.consumed == []
    assert not cursor.advance()
    assert not cursor.advance()
    assert cursor.consumed == [0]


def test_take_without_a_message() -> None:
    cursor = Cursor()
    with pytest.raises(SubscriptionError):
        cursor.take()
    cursor.push(plain_chunk([b'a']))
    with pytest.raises(SubscriptionError):
        cursor.take()
    assert drain(cursor) == [(0, b'a')]
    with pytest.raises(SubscriptionError):
        cursor.take()


def test_context_of_the_message_taken_last() -> None:
    cursor = Cursor(amqp=True)
    with pytest.raises(MessageContextError):
        cursor.last.context()
    cursor.push(chunk([message(amqp('x')), sub_batch([amqp('y')])], 2, offset=5, timestamp=1500))
    for offset, body in ((5, 'x'), (6, 'y')):
        assert cursor.advance()
        assert cursor.take() == body
        context = cursor.last.context()
        assert context.stream_offset == offset
        assert context.stream_timestamp == 1.5
        assert context.body == body


def test_context_outlives_its_chunk() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp('x' * 1000)]))
    cursor.advance()
    cursor.take()
    context = cursor.last.context()
    cursor.push(plain_chunk([amqp('y' * 1000)], 1))
    assert drain(cursor)[0][1] == 'y' * 1000
    assert context.body == 'x' * 1000


def test_undecodable_message_is_raised_and_iteration_continues() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp('a'), b'\xff junk', amqp('b')], 7))
    cursor.advance()
    assert cursor.take() == 'a'
    cursor.advance()
    with pytest.raises(AMQPDecoderError) as caught:
        cursor.take()
    assert caught.value.offset == 8
    assert caught.value.data == b'\xff junk'
    cursor.advance()
    assert cursor.take() == 'b'


@pytest.mark.parametrize('data', [JUNK, BAD_VALUE, b'\0'])
@pytest.mark.parametrize('policy', ['raise', 'raw'])
def test_context_of_an_undecodable_message(data: bytes, policy: Any) -> None:
    """Its offset is known, and its body is its bytes."""
    cursor = Cursor(True, None, policy)
    cursor.push(plain_chunk([amqp('a'), data, amqp('b')], 7))
    for offset, body in ((7, 'a'), (8, data), (9, 'b')):
        assert cursor.advance()
        if body is data and policy == 'raise':
            with pytest.raises(AMQPDecoderError):
                cursor.take()
        else:
            assert cursor.take() == body
        found = cursor.last.context()
        assert (found.stream_offset, found.body) == (offset, body)


def test_damaged_chunk_is_raised_once_and_iteration_continues() -> None:
    cursor = Cursor()
    cursor.push(chunk([message(b'a')], 1, offset=1, crc=0))
    cursor.push(plain_chunk([b'b'], 2))
    with pytest.raises(ChunkError):
        cursor.advance()
    assert drain(cursor) == [(2, b'b')]
    assert cursor.consumed == [1, 2]


def test_anext_returns_arrived_messages_without_a_loop() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b']))
    assert aiter(cursor.__aiter__())
    for expected in (b'a', b'b'):
        ready = cursor.__anext__()
        with pytest.raises(StopIteration) as caught:
            next(ready.__await__())
        assert caught.value.value == expected


def test_anext_of_an_error() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([b'\xff']))
    ready = cursor.__anext__()
    with pytest.raises(AMQPDecoderError):
        next(ready.__await__())


@pytest.mark.parametrize('body', [None, [], [1, 2], {'a': 1}, 0, b'', 'text', [[1], [2]]])
def test_async_for_returns_any_body_unchanged(body: Any) -> None:
    async def run() -> list[Any]:
        return [value async for value in cursor]

    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp(body)] * 2))
    cursor.push(plain_chunk([amqp(body)], 2))
    assert asyncio.run(run()) == [body] * 3
    assert cursor.consumed == [0, 2]


# -- position


def test_position_is_after_the_last_message_returned_or_dropped() -> None:
    cursor = Cursor()
    cursor.resume(11)
    assert cursor.position is None
    cursor.push(plain_chunk([b'a', b'b', b'c'], 10))
    cursor.push(plain_chunk([b'd'], 20))
    positions: list[int | None] = []
    while cursor.advance():
        positions.append(cursor.position)
        cursor.take()
    assert positions == [11, 12, 20]
    assert cursor.position == 21


def test_position_never_falls_below_the_start() -> None:
    cursor = Cursor()
    cursor.resume(100)
    cursor.push(plain_chunk([b'a', b'b'], 10))
    assert drain(cursor) == []
    assert cursor.position == 100


def test_position_at_a_damaged_chunk_is_its_first_message() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a'], 4))
    cursor.push(chunk([message(b'b')], 1, offset=9, crc=0))
    assert drain_one(cursor) == b'a'
    with pytest.raises(ChunkError):
        cursor.advance()
    assert cursor.position == 9


def drain_one(cursor: Cursor) -> Any:
    assert cursor.advance()
    return cursor.take()


@pytest.mark.parametrize('after', [-1, 9, 10, 15, 20])
def test_chunks_up_to_an_id_are_dropped(after: int) -> None:
    cursor = Cursor()
    cursor.resume(0, after)
    for offset in (10, 20):
        cursor.push(chunk([message(b'a'), sub_batch([b'b', b'c'])], 3, offset=offset))
    cursor.push(plain_chunk([b'd'], 30))
    expected = [(o + i, b'abc'[i : i + 1]) for o in (10, 20) if o > after for i in range(3)]
    assert drain(cursor) == [*expected, (30, b'd')]
    assert cursor.consumed == [10, 20, 30]


# -- progress


def test_a_message_is_finished_when_the_next_is_asked_for() -> None:
    cursor = Cursor()
    cursor.mark_consumed()
    assert cursor.finished is None
    cursor.push(plain_chunk([b'a', b'b', b'c'], 10))
    finished: list[int | None] = []
    while cursor.advance():
        cursor.take()
        finished.append(cursor.finished)
    assert finished == [None, 10, 11]
    cursor.mark_consumed()
    assert cursor.finished == 12


def test_progress_begins_at_the_first_message_returned() -> None:
    """This program has not finished the messages before its start."""
    cursor = Cursor()
    cursor.resume(12)
    cursor.push(plain_chunk([b'a', b'b', b'c'], 10))
    assert drain_one(cursor) == b'c'
    assert cursor.finished is None
    cursor.mark_consumed()
    assert cursor.finished == 12


def test_a_batch_is_finished_when_the_next_is_asked_for() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b', b'c'], 10))
    cursor.push(plain_chunk([b'd'], 20))
    finished = []
    while cursor.advance(KINDS['batch'], 2):
        cursor.take(KINDS['batch'])
        finished.append(cursor.finished)
    assert finished == [None, 11, 19]
    cursor.mark_consumed()
    assert cursor.finished == 20


def test_notification_at_an_offset() -> None:
    cursor = Cursor()
    cursor.notify_at(12)
    cursor.push(plain_chunk([b'a', b'b', b'c', b'd'], 10))
    cursor.push(plain_chunk([b'e'], 20))
    for _ in range(3):
        drain_one(cursor)
    assert cursor.progress == []
    drain_one(cursor)
    assert cursor.progress == [12]
    cursor.notify_at(20)
    drain_one(cursor)
    assert cursor.progress == [12]
    assert not cursor.advance()
    cursor.mark_consumed()
    assert cursor.progress == [12, 20]


# -- contexts


def with_property(body: Any, kind: str) -> bytes:
    data: bytes = encode_amqp_bytes(stream_message_ctx(body, app_properties={'kind': kind}))
    return data


def test_contexts() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(
        chunk(
            [message(with_property('x', 'a')), sub_batch([amqp(b'y'), amqp(None)])],
            3,
            offset=5,
            timestamp=1500,
        )
    )
    found = contexts(cursor)
    assert [ctx.stream_offset for ctx in found] == [5, 6, 7]
    assert [ctx.stream_timestamp for ctx in found] == [1.5] * 3
    assert [ctx.body for ctx in found] == ['x', b'y', None]
    assert found[0].app_properties == {'kind': 'a'}
    assert cursor.consumed == [5]
    assert cursor.last.context() is found[-1]


def test_contexts_of_raw_messages() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b''], 3))
    assert [(ctx.stream_offset, ctx.body) for ctx in contexts(cursor)] == [(3, b'a'), (4, b'')]


def test_body_of_a_context_is_copied_on_demand() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp(b'x' * 1000)]))
    (ctx,) = contexts(cursor)
    view = ctx.body_view()
    assert view.tobytes() == b'x' * 1000
    assert isinstance(view.obj, bytes)
    assert len(view.obj) > 1000


# -- batches


def entries() -> list[bytes]:
    return [message(amqp('a')), sub_batch([amqp(1), amqp(b'c')]), message(with_property(None, 'k'))]


def test_batch_is_a_chunk() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(chunk(entries(), 4, offset=100, timestamp=2500))
    cursor.push(plain_chunk([amqp('e')], 105))
    first, second = batches(cursor)
    assert list(first) == ['a', 1, b'c', None]
    assert list(second) == ['e']
    assert list(first.offsets) == [100, 101, 102, 103]
    assert list(second.offsets) == [105]
    assert first.timestamp == 2.5
    assert cursor.consumed == [100, 105]


def test_batch_is_a_sequence() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b', b'a'], 7))
    (batch,) = batches(cursor)
    assert isinstance(batch, Sequence)
    assert len(batch) == 3
    assert batch[0] == b'a'
    assert batch[-2] == b'b'
    assert batch[1:] == [b'b', b'a']
    assert list(reversed(batch)) == [b'a', b'b', b'a']
    assert b'b' in batch
    assert b'c' not in batch
    assert batch.index(b'a', 1) == 2
    assert batch.count(b'a') == 2
    assert repr(batch) == '<MessageBatch of 3 from offset 7>'
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(ValueError, match='not in list'):
        batch.index(b'c')


@pytest.mark.parametrize('limit', [1, 2, 3, 4, 5])
def test_batches_are_limited_to_max_messages(limit: int) -> None:
    cursor = Cursor(amqp=True)
    cursor.push(chunk(entries(), 4, offset=100))
    cursor.push(plain_chunk([amqp('e')], 105))
    found = batches(cursor, limit)
    assert all(1 <= len(batch) <= limit for batch in found)
    assert [body for batch in found for body in batch] == ['a', 1, b'c', None, 'e']
    assert [i for batch in found for i in batch.offsets] == [100, 101, 102, 103, 105]
    assert len(found) == -(-4 // limit) + 1


def test_contexts_of_a_batch() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(chunk(entries(), 4, offset=100, timestamp=2500))
    (batch,) = batches(cursor)
    found = list(batch.contexts())
    assert [ctx.body for ctx in found] == ['a', 1, b'c', None]
    assert [ctx.stream_offset for ctx in found] == [100, 101, 102, 103]
    assert [ctx.stream_timestamp for ctx in found] == [2.5] * 4
    assert found[3].app_properties == {'kind': 'k'}
    assert batch.context(1) == found[1]
    assert batch.context(-1).app_properties == {'kind': 'k'}
    assert batch.context(-4).stream_offset == 100
    for index in (4, -5):
        with pytest.raises(IndexError):
            batch.context(index)
    assert cursor.last.context() == found[3]


@pytest.mark.parametrize('decoded', [True, False])
def test_contexts_of_a_batch_of_many_shapes(decoded: bool) -> None:
    data: list[Any] = [b'x' * n for n in (0, 1, 10, 255, 256, 1000, 70_000)]
    bodies = [*data, 'a', *data, *data, 1, *data, b'c', 'b', *data, b'd']
    stored = [amqp(body) for body in bodies]
    packed = b''.join(map(message, stored[10:25]))
    entries = [
        *map(message, stored[:10]),
        data_batch(gzip.compress(packed), 15, len(packed), len(gzip.compress(packed)), 1),
        sub_batch(stored[25:27]),
        sub_batch([]),
        sub_batch(stored[27:30]),
        *map(message, stored[30:]),
    ]
    cursor = Cursor(amqp=decoded)
    cursor.push(chunk(entries, len(stored), offset=100))
    (batch,) = batches(cursor)
    assert list(batch) == (bodies if decoded else stored)
    assert [ctx.body for ctx in batch.contexts()] == list(batch)
    if decoded:
        assert [bytes(ctx.raw or b'') for ctx in batch.contexts()] == stored
    assert list(batch.offsets) == list(range(100, 100 + len(stored)))


def test_batch_outlives_its_chunk() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp('x' * 1000)] * 3))
    (batch,) = batches(cursor)
    cursor.push(plain_chunk([amqp('y' * 1000)] * 3, 3))
    assert batches(cursor)[0][0] == 'y' * 1000
    assert [ctx.body for ctx in batch.contexts()] == ['x' * 1000] * 3
    assert bytes(batch.context(2).raw or b'') == amqp('x' * 1000)


def test_many_messages_in_a_batch() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp(i) for i in range(10_000)], 5))
    (batch,) = batches(cursor, 2**31 - 1)
    assert list(batch) == list(range(10_000))
    assert batch.context(9_999).stream_offset == 10_004


def test_highest_offsets_of_a_batch() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b'], 2**64 - 2))
    (batch,) = batches(cursor)
    assert list(batch.offsets) == [2**64 - 2, 2**64 - 1]


def test_batch_after_single_messages() -> None:
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b', b'c'], 5))
    assert drain_one(cursor) == b'a'
    (batch,) = batches(cursor)
    assert (list(batch), list(batch.offsets)) == ([b'b', b'c'], [6, 7])


def test_iterators_of_contexts_and_batches() -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        first: MessageIterator[MessageCtx] = MessageIterator(
            FastSubscription(cursor, cursor), KINDS['context']
        )
        found = [await anext(first), await anext(first)]
        rest: MessageIterator[MessageBatch] = MessageIterator(
            FastSubscription(cursor, cursor), KINDS['batch'], 2
        )
        return [ctx.body for ctx in found], [list(batch) async for batch in rest]

    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b', b'c', b'd', b'e']))
    assert asyncio.run(run()) == ([b'a', b'b'], [[b'c', b'd'], [b'e']])


# -- undecodable messages and damaged chunks

Outcome = list[tuple[str, Any]]


def everything(cursor: Cursor, kind: str) -> Outcome:
    """Return bodies and errors in order, the errors with their offsets."""
    found: Outcome = []
    while True:
        try:
            if not cursor.advance(KINDS[kind], 1000):
                return found
            value = cursor.take(KINDS[kind])
        except AMQPDecoderError as ex:
            found.append(('error', (ex.offset, ex.data)))
        except ChunkError:
            found.append(('damage', None))
        else:
            bodies = [value]
            if kind == 'context':
                bodies = [value.body]
            elif kind == 'batch':
                bodies = list(value)
                assert [ctx.body for ctx in value.contexts()] == bodies
            found += [('body', body) for body in bodies]


MIXED = [amqp('a'), JUNK, BAD_VALUE, amqp('b'), b'\0', amqp('c')]


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
def test_undecodable_messages_are_raised(kind: str) -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk(MIXED, 10))
    cursor.push(plain_chunk([JUNK], 20))
    cursor.push(plain_chunk([amqp('d')], 30))
    assert everything(cursor, kind) == [
        ('body', 'a'),
        ('error', (11, JUNK)),
        ('error', (12, BAD_VALUE)),
        ('body', 'b'),
        ('error', (14, b'\0')),
        ('body', 'c'),
        ('error', (20, JUNK)),
        ('body', 'd'),
    ]
    assert cursor.consumed == [10, 20, 30]


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
@pytest.mark.parametrize('filtered', [False, True])
def test_undecodable_messages_are_skipped(kind: str, filtered: bool) -> None:
    every = MessageFilter(lambda ctx: 'x', {'x'})
    cursor = Cursor(True, every if filtered else None, 'skip')
    cursor.push(plain_chunk(MIXED, 10))
    cursor.push(plain_chunk([JUNK], 20))
    cursor.push(plain_chunk([amqp('d'), JUNK], 30))
    assert everything(cursor, kind) == [('body', body) for body in 'abcd']
    assert cursor.consumed == [10, 20, 30]
    assert cursor.position == 32


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
@pytest.mark.parametrize('filtered', [False, True])
def test_undecodable_messages_are_returned_raw(kind: str, filtered: bool) -> None:
    every = MessageFilter(lambda ctx: 'x', {'x'})
    cursor = Cursor(True, every if filtered else None, 'raw')
    cursor.push(plain_chunk(MIXED, 10))
    assert everything(cursor, kind) == [
        ('body', body) for body in ('a', JUNK, BAD_VALUE, 'b', b'\0', 'c')
    ]


def test_contexts_of_messages_returned_raw() -> None:
    """Contexts and batches agree: the sections before the damage are dropped."""
    damaged = with_property('x', 'a')[:-3] + b'\x56\x02'
    found = []
    for kind in ('context', 'batch'):
        cursor = Cursor(True, None, 'raw')
        cursor.push(plain_chunk([damaged, *MIXED], 10))
        items = contexts(cursor) if kind == 'context' else list(batches(cursor)[0].contexts())
        found.append([(ctx.body, ctx.raw and bytes(ctx.raw), ctx.app_properties) for ctx in items])
    assert found[0] == found[1]
    assert found[0][:2] == [(damaged, damaged, {}), ('a', amqp('a'), {})]


@pytest.mark.parametrize('data', [JUNK, with_property('x', 'a')[:-3] + b'\x56\x02'])
@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
def test_undecodable_message_is_sent_on_as_its_bytes(kind: str, data: bytes) -> None:
    cursor = Cursor(True, None, 'raw')
    cursor.push(plain_chunk([data], 10))
    if kind == 'context':
        ctx = contexts(cursor)[0]
    elif kind == 'batch':
        ctx = batches(cursor)[0].context(0)
    else:
        cursor.advance()
        cursor.take()
        ctx = cursor.last.context()
    for other in (ctx, copy.copy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert (other.body, other.app_properties, other.stream_offset) == (data, {}, 10)
        assert encode_amqp_bytes(other) == data
    ctx.body = b'new'
    assert encode_amqp_bytes(ctx) == encode_amqp_bytes(b'new')


def test_offsets_of_batches_around_skipped_messages() -> None:
    cursor = Cursor(True, None, 'skip')
    cursor.push(plain_chunk([JUNK, *MIXED], 9))
    found = [(list(batch), list(batch.offsets)) for batch in batches(cursor)]
    assert found == [(['a'], [10]), (['b'], [13]), (['c'], [15])]


def test_error_after_a_batch_is_raised_next_for_any_kind() -> None:
    cursor = Cursor(amqp=True)
    cursor.push(plain_chunk([amqp('a'), JUNK, amqp('b')], 10))
    assert cursor.advance(KINDS['batch'], 10)
    assert list(cursor.take(KINDS['batch'])) == ['a']
    with pytest.raises(AMQPDecoderError) as caught:
        cursor.advance()
    assert caught.value.offset == 11
    assert cursor.finished == 10
    assert drain_one(cursor) == 'b'


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
def test_messages_before_the_damage_in_a_chunk_are_returned(kind: str) -> None:
    cursor = Cursor(amqp=True)
    data = [message(amqp('a')), message(amqp('b')), struct.pack('>I', 100) + b'cut']
    cursor.push(chunk(data, 3, offset=10))
    cursor.push(plain_chunk([amqp('c')], 20))
    assert everything(cursor, kind) == [
        ('body', 'a'),
        ('body', 'b'),
        ('damage', None),
        ('body', 'c'),
    ]
    assert cursor.consumed == [10, 20]


# -- filters


def kinds(*values: str) -> MessageFilter:
    return MessageFilter(lambda ctx: ctx.app_properties.get('kind'), set(values))


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
def test_filter_drops_other_messages(kind: str) -> None:
    cursor = Cursor(True, kinds('a', 'ż'))
    words = ['a', 'b', 'ż', 'a', 'c']
    cursor.push(plain_chunk([with_property(i, w) for i, w in enumerate(words)], 10))
    cursor.push(plain_chunk([with_property(5, 'b')], 20))
    cursor.push(plain_chunk([with_property(6, 'a')], 30))
    assert everything(cursor, kind) == [('body', i) for i in (0, 2, 3, 6)]
    assert cursor.consumed == [10, 20, 30]


def test_offsets_of_filtered_batches() -> None:
    cursor = Cursor(True, kinds('a'))
    cursor.push(plain_chunk([with_property(i, 'ab'[i % 2]) for i in range(6)], 10))
    (batch,) = batches(cursor)
    assert list(batch) == [0, 2, 4]
    assert list(batch.offsets) == [10, 12, 14]
    assert batch.context(1).stream_offset == 12
    assert batch.context(1).app_properties == {'kind': 'a'}


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
def test_error_of_a_filter_is_raised_and_iteration_continues(kind: str) -> None:
    def extract(ctx: MessageCtx) -> str:
        return str(ctx.app_properties['kind'])

    cursor = Cursor(True, MessageFilter(extract, {'a'}))
    cursor.push(plain_chunk([with_property(0, 'a'), amqp(1), with_property(2, 'a')], 10))
    assert cursor.advance(KINDS[kind], 10)
    cursor.take(KINDS[kind])
    with pytest.raises(KeyError):
        cursor.advance(KINDS[kind], 10)
    assert everything(cursor, kind) == [('body', 2)]


# -- all kinds


@given(
    chunks=st.lists(
        st.lists(
            st.sampled_from([amqp('a'), amqp(b'b'), amqp([1]), JUNK, BAD_VALUE])
            | st.lists(st.sampled_from([amqp('a'), amqp(7), JUNK]), min_size=1, max_size=4),
            min_size=1,
            max_size=5,
        ),
        max_size=4,
    ),
    start=st.integers(0, 30),
    limit=st.integers(1, 6),
    policy=st.sampled_from(['raise', 'skip', 'raw']),
)
@settings(max_examples=sized(50, 200))
def test_kinds_agree(chunks: list[list[Any]], start: int, limit: int, policy: Any) -> None:
    def make() -> Cursor:
        cursor = Cursor(True, None, policy)
        cursor.resume(start)
        offset = 0
        for items in chunks:
            data = [sub_batch(i) if isinstance(i, list) else message(i) for i in items]
            records = sum(len(i) if isinstance(i, list) else 1 for i in items)
            cursor.push(chunk(data, records, offset=offset))
            offset += records + 1
        return cursor

    one = everything(make(), 'body')
    assert everything(make(), 'context') == one
    assert everything(make(), 'batch') == one
    cursor = make()
    found = []
    while True:
        try:
            if not cursor.advance(KINDS['batch'], limit):
                break
            batch = cursor.take(KINDS['batch'])
        except AMQPDecoderError:
            continue
        assert len(batch) <= limit
        found += list(batch.offsets)
    assert found == sorted(set(found))
    assert all(offset >= start for offset in found)
    assert len(found) == sum(name == 'body' for name, _ in one)


@pytest.mark.parametrize('kind', ['body', 'context'])
def test_resume_within_a_chunk(kind: str) -> None:
    """After a reconnect the chunk comes again, and no message is returned twice."""
    cursor = Cursor()
    cursor.push(plain_chunk([b'a', b'b', b'c'], 5))
    given = []

    def take() -> None:
        assert cursor.advance(KINDS[kind])
        item = cursor.take(KINDS[kind])
        given.append(item if kind == 'body' else item.body)

    take()
    cursor.push(plain_chunk([b'd'], 8))
    assert cursor.position == 6
    cursor.resume(6)
    assert not cursor.advance(KINDS[kind])
    for chunk_again in (plain_chunk([b'a', b'b', b'c'], 5), plain_chunk([b'd'], 8)):
        cursor.push(chunk_again)
    for _ in range(3):
        take()
    assert given == [b'a', b'b', b'c', b'd']


# -- user code that runs while a message is decoded


def packed(data: bytes) -> bytes:
    """A compressed sub-entry batch of one message."""
    plain = message(data)
    stored = gzip.compress(plain)
    return data_batch(stored, 1, len(plain), len(stored), 1)


class Finalizer:
    """Cyclic garbage that continues the iteration when it is collected."""

    def __init__(self, cursor: Cursor, taken: list[Any]) -> None:
        self.cycle = self
        self.cursor = cursor
        self.taken = taken

    def __del__(self) -> None:
        while self.cursor.advance():
            self.taken.append(self.cursor.take())


def test_message_stays_alive_while_a_finalizer_continues_the_iteration() -> None:
    """Even though the cursor leaves its sub-entry batch meanwhile."""
    bodies = [[[f'{n} of {i}' * 50] for n in range(1000)] for i in range(3)]
    cursor = Cursor(True)
    taken: list[Any] = []
    cursor.push(chunk([packed(amqp(body)) for body in bodies], 3))
    assert cursor.advance()
    gc.collect()
    Finalizer(cursor, taken)
    threshold = gc.get_threshold()
    gc.set_threshold(500)
    try:
        body = cursor.take()
    finally:
        gc.set_threshold(*threshold)
    taken += [cursor.take() for _ in range(2) if cursor.advance()]
    assert body == bodies[0]
    assert taken == bodies[1:]


@pytest.mark.parametrize('damaged', [False, True])
def test_code_that_runs_during_decompression_may_continue_the_iteration(
    monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    cursor = Cursor(False)
    taken: list[Any] = []
    decompress = _chunk.decompress  # type: ignore[attr-defined]

    def read_on(*args: Any) -> bytes:
        monkeypatch.setattr(_chunk, 'decompress', decompress)
        taken.extend(cursor.take() for _ in range(3))  # this sub-entry, b, and the next one
        if damaged:
            raise ChunkError('damaged')
        result: bytes = decompress(*args)
        return result

    monkeypatch.setattr(_chunk, 'decompress', read_on)
    cursor.push(chunk([packed(b'a'), message(b'b'), packed(b'c'), message(b'd')], 4))
    assert cursor.advance()
    if damaged:
        with pytest.raises(ChunkError):
            cursor.take()
    while cursor.advance():
        taken.append(cursor.take())
    assert taken == [b'a', b'b', b'c', b'd']


LARGE = [bytes([65 + i]) * 70_000 for i in range(4)]  # freed memory of this size is unmapped


def test_body_stays_alive_while_progress_continues_the_iteration() -> None:
    class ReadingOn(Cursor):
        def on_progress(self) -> None:
            taken.extend(self.take() for _ in range(2))

    taken: list[Any] = []
    cursor = ReadingOn(False)
    cursor.push(chunk([packed(body) for body in LARGE], 4))
    assert cursor.advance()
    assert cursor.take() == LARGE[0]
    cursor.notify_at(0)
    second = cursor.take()
    assert [second, *taken] == LARGE[1:]


def test_body_stays_alive_while_the_last_context_is_freed() -> None:
    class ReadingOn:
        def __del__(self) -> None:
            taken.extend(take() for _ in range(2))

    taken: list[Any] = []
    cursor = Cursor(False)
    take = partial(FastSubscription(cursor, cursor)._take, cursor, KINDS['body'])
    cursor.push(chunk([packed(body) for body in LARGE], 4))
    assert cursor.advance()
    assert take() == LARGE[0]
    context = cursor.last.context()
    context.body = [ReadingOn()]
    del context
    second = take()
    assert sorted([second, *taken]) == LARGE[1:]  # the finalizer may run before the message is read
