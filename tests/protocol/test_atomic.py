"""Atomic batches in the publish window: exact entries, limits, ids, callers that give up."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from rbfly.amqp import encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPEncoderError, ArgumentError, MessageTooLarge, PublisherError
from rbfly.protocol._atomic import ATOMIC_MAX, AtomicBatch
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._publish import PublishWindow
from rbfly.streams._publish._confirm import ConfirmFuture
from rbfly.streams._publish._core import PublisherCore
from rbfly.streams._publish.semaphore import WindowSemaphore
from tests.entry_reader import read_entries
from tests.protocol.test_publish_window import Feed, add, explicit, make, settle, take_all

FRAME = 1000
HEADERS = 9 + 8  # bytes of a frame before its first entry, without the size, and its id
LAST = 2**64 - 1

Put = Callable[..., ConfirmFuture]


@pytest_asyncio.fixture
async def put() -> Put:
    """Puts a batch into a window; returns what its caller awaits."""
    loop = asyncio.get_running_loop()

    def put(window: PublishWindow, *messages: Any, publish_id: int | None = None) -> ConfirmFuture:
        core = PublisherCore(loop, window, WindowSemaphore)
        batch = AtomicBatch(window)
        batch.extend(messages)
        batch.close()
        assert batch.count == len(messages)
        return core.put_atomic(batch, publish_id)

    return put


def filling(limit: int, code: int = 0, compress: Any = None) -> PublishWindow:
    """A window of a publisher that fills sub-entries."""
    return PublishWindow(3, 0, 10_000, 0, None, False, SubEntry(limit, code, compress))


def entries(window: PublishWindow) -> list[tuple[int, int | None, list[bytes]]]:
    return [entry for data in take_all(window) for entry in read_entries(data)]


# -- entries


async def test_batch_is_one_entry_between_messages(put: Put) -> None:
    window = make()
    add(window, b'before')
    put(window, b'a', b'', b'c' * 500)
    add(window, b'behind', b'last')
    assert window.next_id == 4
    (frame,) = take_all(window)
    assert read_entries(frame) == [
        (0, None, [b'before']),
        (1, 0, [b'a', b'', b'c' * 500]),
        (2, None, [b'behind']),
        (3, None, [b'last']),
    ]


async def test_messages_are_encoded_as_amqp(put: Put) -> None:
    window = make(amqp=True)
    bodies: list[Any] = ['text', {'a': 1}, stream_message_ctx(b'x', properties=None)]
    put(window, *bodies)
    encoded = [encode_amqp_bytes(stream_message_ctx(b)) for b in (*bodies[:2], b'x')]
    assert entries(window) == [(0, 0, encoded)]


async def test_batch_of_one_message_is_a_message(put: Put) -> None:
    window = make()
    put(window, b'alone')
    assert entries(window) == [(0, None, [b'alone'])]


async def test_batch_follows_the_messages_of_an_open_sub_entry(put: Put) -> None:
    window = filling(10)
    add(window, b'1', b'2')
    put(window, b'a', b'b')
    add(window, b'3', b'4')
    found = entries(window)
    assert found == [(0, 0, [b'1', b'2']), (1, 0, [b'a', b'b']), (2, 0, [b'3', b'4'])]


async def test_batch_is_compressed_as_sub_entries(put: Put) -> None:
    window = filling(2, 1, lambda data: zlib.compress(data, wbits=31))
    messages = [b'%d' % i * 1000 for i in range(50)]
    put(window, *messages)
    (frame,) = take_all(window)
    assert len(frame) < 5000
    assert read_entries(frame) == [(0, 1, messages)]


# -- confirms


async def test_confirm_settles_the_batch(put: Put) -> None:
    window = make()
    first, second = put(window, b'a', b'b', b'c'), put(window, b'd', b'e')
    assert window.queued == 5
    take_all(window)
    assert (window.in_flight, window.published) == (5, 5)
    assert settle(window, 1) == [second]
    assert (window.in_flight, window.confirmed) == (3, 2)
    assert settle(window, 0) == [first]
    assert (window.unsettled, window.confirmed) == (0, 5)


async def test_refused_batch_has_one_error(put: Put) -> None:
    window = make()
    wait = put(window, b'a', b'b', b'c')
    take_all(window)
    assert Feed(window).refuse((0, 17)) == [wait]
    assert (wait.errors, window.refused, window.unsettled) == ([(0, 17)], 3, 0)


async def test_batch_larger_than_the_window_is_sent_alone(put: Put) -> None:
    window = make(max_unconfirmed=10)
    add(window, b'before')
    put(window, *[b'x'] * 100)
    add(window, b'behind')
    assert [len(read_entries(data)) for data in take_all(window)] == [1]
    settle(window, 0)
    (data,) = take_all(window)
    assert [(i, len(messages)) for i, _, messages in read_entries(data)] == [(1, 100)]
    settle(window, 1)
    assert entries(window) == [(2, None, [b'behind'])]


# -- limits


@pytest.mark.parametrize('over', [0, 1])
async def test_largest_batch_fills_a_frame(put: Put, over: int) -> None:
    window = make(frame_max=FRAME)
    free = FRAME - HEADERS - 11 - 2 * 4
    messages = b'a' * 100, b'b' * (free - 100 + over)
    add(window, b'before')
    if not over:
        put(window, *messages)
        before, batch = take_all(window)
        assert (read_entries(before), len(batch)) == ([(0, None, [b'before'])], FRAME + 4)
        assert read_entries(batch) == [(1, 0, [*messages])]
        return
    with pytest.raises(MessageTooLarge, match=r'2 messages of it have 984 bytes; the limit is 983'):
        put(window, *messages)
    assert (window.queued, window.next_id) == (1, 1)


async def test_compression_lets_more_into_a_frame(put: Put) -> None:
    window = PublishWindow(
        3, FRAME, 100, 0, None, False, SubEntry(2, 1, lambda data: zlib.compress(data, wbits=31))
    )
    messages = [b'a' * 900] * 20
    put(window, *messages)
    assert entries(window) == [(0, 1, messages)]


@pytest.mark.parametrize('over', [0, 1])
async def test_number_of_messages_is_limited(put: Put, over: int) -> None:
    window = make()
    messages = [b''] * (ATOMIC_MAX + over)
    if over:
        with pytest.raises(ArgumentError, match='at most 65,535 messages'):
            put(window, *messages)
        assert window.next_id == 0
        return
    put(window, *messages)
    assert entries(window) == [(0, 0, messages)]


async def test_frames_of_the_connection_became_smaller(put: Put) -> None:
    window = make(frame_max=FRAME)
    core = PublisherCore(asyncio.get_running_loop(), window, WindowSemaphore)
    batch = AtomicBatch(window)
    batch.extend([b'a' * 300, b'b' * 300])
    batch.close()
    window.replay(3, 500)
    with pytest.raises(MessageTooLarge, match='the limit is'):
        core.put_atomic(batch)
    assert (window.queued, window.next_id) == (0, 0)


async def test_batch_in_flight_does_not_fit_into_the_next_connection(put: Put) -> None:
    window = make(frame_max=FRAME)
    wait = put(window, b'a' * 300, b'b' * 300)
    take_all(window)
    assert window.replay(3, 500) == [wait]
    assert wait.too_large == (0, 627, 491, 2)
    assert (window.unsettled, window.refused) == (0, 2)


def test_filter_values() -> None:
    with pytest.raises(ArgumentError, match='filter'):
        AtomicBatch(make(filter_extract=lambda ctx: 'x'))


@pytest.mark.parametrize(
    ('wrong', 'error'),
    [(object(), AMQPEncoderError), (explicit(7), ArgumentError), (b'x' * 2000, MessageTooLarge)],
)
def test_message_that_cannot_be_sent(wrong: Any, error: type[Exception]) -> None:
    window = make(frame_max=FRAME, amqp=True)
    batch = AtomicBatch(window)
    with pytest.raises(error):
        batch.extend([b'a', b'b', wrong, b'c'])
    assert batch.count == 2  # the number of the message
    assert (window.queued, window.next_id) == (0, 0)


# -- ids


async def test_explicit_ids_ascend_with_those_of_messages(put: Put) -> None:
    window = make()
    add(window, explicit(5))
    put(window, b'a', b'b', publish_id=7)
    for used in (5, 6, 7):
        with pytest.raises(ArgumentError, match='is not above'):
            put(window, b'c', b'd', publish_id=used)
        with pytest.raises(ArgumentError, match='is not above'):
            add(window, explicit(used))
    add(window, explicit(8))
    put(window, b'e', b'f')
    assert [i for i, _, _ in entries(window)] == [5, 7, 8, 9]


async def test_highest_id(put: Put) -> None:
    window = make()
    put(window, b'a', b'b', publish_id=LAST)
    with pytest.raises(PublisherError, match='used up'):
        put(window, b'c', b'd')
    assert [i for i, _, _ in entries(window)] == [LAST]


# -- callers that give up


async def test_batch_that_was_not_sent_is_withdrawn(put: Put) -> None:
    window = make()
    add(window, b'before')
    wait = put(window, b'a', b'b', b'c')
    add(window, b'behind')
    assert window.give_up(1, wait)
    assert not window.give_up(1, wait)
    assert (window.queued, window.awaited, window.given_up) == (2, 2, 0)
    assert entries(window) == [(0, None, [b'before']), (2, None, [b'behind'])]


async def test_last_batch_is_withdrawn_and_its_id_used_again(put: Put) -> None:
    window = make()
    wait = put(window, b'a', b'b', publish_id=5)
    assert window.give_up(5, wait)
    other = put(window, b'c', b'd', publish_id=5)
    assert not window.give_up(5, wait)
    assert not window.resume(5, wait)
    assert entries(window) == [(5, 0, [b'c', b'd'])]
    assert settle(window, 5) == [other]


@pytest.mark.parametrize('named', [True, False])
async def test_caller_gives_up_a_batch_in_flight(put: Put, named: bool) -> None:
    window = make()
    window.set_named(named)
    given_up, other = put(window, b'a', b'b', b'c'), put(window, b'd', b'e')
    take_all(window)
    assert not window.give_up(0, given_up)
    assert (window.in_flight, window.given_up, window.awaited) == (5, 3, 2)
    window.replay(3, 0)
    found = [i for i, _, _ in entries(window)]
    assert found == ([0, 1] if named else [1])
    settle(window, *found)
    assert (window.unsettled, window.given_up, window.awaited) == (0, 0, 0)
    assert other.remaining == 0


async def test_confirm_of_a_batch_whose_caller_gave_up(put: Put) -> None:
    window = make()
    wait = put(window, b'a', b'b', b'c')
    take_all(window)
    window.give_up(0, wait)
    settle(window, 0)
    assert (window.unsettled, window.given_up, window.awaited) == (0, 0, 0)


@pytest.mark.parametrize('messages', [[b'a', b'b'], [b'a']])  # one has no sub-entry
async def test_batch_is_never_joined(put: Put, messages: list[bytes]) -> None:
    window = make()
    put(window, *messages, publish_id=5)
    assert window.join(explicit(5, b'a'), ConfirmFuture(None)) is None  # type: ignore[arg-type]


async def test_replay_sends_batches_and_messages_in_order(put: Put) -> None:
    window = make()
    add(window, b'1')
    put(window, b'a', b'b')
    add(window, b'2')
    sent = entries(window)
    put(window, b'c', b'd')
    window.replay(9, 0)
    assert entries(window) == [*sent, (3, 0, [b'c', b'd'])]
    assert (window.published, window.repeated, window.resent) == (6, 4, 4)
