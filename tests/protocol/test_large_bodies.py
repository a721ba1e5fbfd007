"""Large bodies are sent from where they are: the same frames as of short ones, without a copy."""

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import settings

from rbfly.amqp import MessageCtx, encode_amqp_bytes, stream_message_ctx
from rbfly.protocol._engine import Engine
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.streams.error import MessageTooLarge
from tests.protocol.test_publish_window import Model, add, make, settle, take_all, taken
from tests.sizes import sized
from tests.stream_wire import publish, read_publish

LARGE = 2**12
FRAME_MAX = 2**20
HEAD = 9 + 12  # bytes of the size field's frame before its first message
SIZES = [LARGE - 1, LARGE, LARGE + 1, 100_000, 2**18]


def numbered(number: int, size: int) -> bytes:
    return bytes([number % 256]) * size


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('amqp', [False, True])
def test_frame_of_one_message(size: int, amqp: bool) -> None:
    window = make(amqp=amqp)
    body = numbered(7, size)
    add(window, body)
    encoded = encode_amqp_bytes(body) if amqp else body
    assert take_all(window) == [publish(3, [(0, encoded)])]


@pytest.mark.parametrize('amqp', [False, True])
def test_large_and_short_messages_share_a_frame(amqp: bool, rng: random.Random) -> None:
    sizes = [rng.choice([0, 1, 10, 255, 256, 5000, LARGE - 1, LARGE, 60_000]) for _ in range(40)]
    bodies = [numbered(i, size) for i, size in enumerate(sizes)]
    window = make(amqp=amqp)
    add(window, *bodies)
    encoded = [encode_amqp_bytes(body) if amqp else body for body in bodies]
    assert take_all(window) == [publish(3, enumerate(encoded))]


def test_messages_of_other_types_follow_a_large_body() -> None:
    window = make(amqp=True)
    messages: list[Any] = [bytes(LARGE), 'text', {'a': 1}, bytearray(LARGE), bytes(LARGE), 7]
    add(window, *messages)
    encoded = [encode_amqp_bytes(message) for message in messages]
    assert take_all(window) == [publish(3, enumerate(encoded))]


def test_large_bodies_are_not_copied() -> None:
    bodies = [numbered(i, 2**20 - 100) for i in range(20)]
    window = make(frame_max=FRAME_MAX, amqp=True)
    tracemalloc.start()
    try:
        add(window, *bodies)
        window.replay(4, FRAME_MAX)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()
    assert taken(window) == [[(i, encode_amqp_bytes(body))] for i, body in enumerate(bodies)]


def test_settled_frame_releases_its_bodies() -> None:
    window = make(frame_max=FRAME_MAX)
    tracemalloc.start()
    try:
        add(window, *(numbered(i, 2**20 - 100) for i in range(10)))
        take_all(window)
        settle(window, *range(1, 10))  # the first frame is still in flight
        assert tracemalloc.get_traced_memory()[0] < 3 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('slack', range(-2, 3))
def test_frame_is_cut_at_its_limit_to_the_byte(slack: int) -> None:
    size = 20_000
    limit = 9 + 3 * (12 + size) + slack
    window = make(frame_max=limit)
    add(window, *(numbered(i, size) for i in range(6)))
    frames = take_all(window)
    assert max(len(data) - 4 for data in frames) <= limit
    assert [len(read_publish(data)[1]) for data in frames] == ([3, 3] if slack >= 0 else [2, 2, 2])


@pytest.mark.parametrize('short', [10, 300, LARGE - 1])
def test_short_messages_count_the_large_ones_before_them(short: int) -> None:
    """Whichever way they are appended: alone, or one after the other."""
    limit = 9 + 12 + 30_000 + 2 * (12 + short)
    for many in (False, True):
        window = make(frame_max=limit)
        messages = [bytes(30_000), *[bytes(short)] * 3]
        if many:
            assert not window.extend(iter(messages), 10, ConfirmWaiter())
        else:
            add(window, *messages)
        assert [[i for i, _ in entries] for entries in taken(window)] == [[0, 1, 2], [3]]


@pytest.mark.parametrize('amqp', [False, True])
def test_longest_message_of_a_frame(amqp: bool) -> None:
    longest = 100_000 - HEAD - (8 if amqp else 0)
    window = make(frame_max=100_000, amqp=amqp)
    with pytest.raises(MessageTooLarge, match='does not fit into a frame'):
        add(window, bytes(longest + 1))
    add(window, bytes(longest))
    assert [len(data) for data in take_all(window)] == [100_004]


def test_replay_resends_what_is_not_settled() -> None:
    bodies = [numbered(i, 30_000 if i % 3 else 100) for i in range(12)]
    window = make(frame_max=70_000)
    waiter = ConfirmWaiter(None, True)
    add(window, *bodies, waiter=waiter)
    take_all(window)
    gone = [0, 2, 3, 7]
    settle(window, *gone)
    window.replay(9, 100_000)
    frames = take_all(window)
    left = [i for i in range(12) if i not in gone]
    assert {data[8] for data in frames} == {9}
    assert all(len(data) <= 100_004 for data in frames)
    entries = [entry for data in frames for entry in read_publish(data)[1]]
    assert entries == [(i, bodies[i]) for i in left]
    assert settle(window, *left) == [waiter]


def test_replay_refuses_large_messages_that_no_longer_fit() -> None:
    window = make(frame_max=70_000)
    waiters = [ConfirmWaiter(i, True) for i in range(3)]
    for size, waiter in zip((50_000, 20_000, 40_000), waiters, strict=True):
        window.append(numbered(size, size), waiter)
    take_all(window)
    assert window.replay(3, 30_000) == [waiters[0], waiters[2]]
    assert waiters[0].too_large == (0, 50_012, 30_000 - 9, 1)
    assert taken(window) == [[(1, numbered(20_000, 20_000))]]


def test_withdrawn_message() -> None:
    window = make()
    waiters = [ConfirmWaiter(None, True) for _ in range(4)]
    for i, waiter in enumerate(waiters):
        window.append(numbered(i, 20_000), waiter)
    assert window.give_up(1, waiters[1])
    assert taken(window) == [[(i, numbered(i, 20_000)) for i in (0, 2, 3)]]


@pytest.mark.parametrize('sent', [False, True])
@pytest.mark.parametrize('same', [False, True])
def test_join_compares_the_large_body(sent: bool, same: bool) -> None:
    window = make()
    window.append(bytes(20_000), ConfirmWaiter(None, True))
    if sent:
        take_all(window)
    body = bytes(20_000) if same else bytes(19_999) + b'x'
    message: MessageCtx = stream_message_ctx(body, publish_id=0)
    assert window.join(message, ConfirmWaiter(None, True)) == (0 if same else None)


def test_giving_up_all_of_them() -> None:
    window = make()
    waiters = [ConfirmWaiter(i, True) for i in range(3)]
    for waiter in waiters:
        window.append(bytes(20_000), waiter)
    assert window.fail_pending() == waiters
    add(window, b'next')
    assert [body for entries in taken(window) for _, body in entries] == [b'next']


def test_filter_values_and_large_bodies() -> None:
    window = make(filter_extract=lambda ctx: 'f')
    add(window, bytes(20_000))
    assert take_all(window) == [publish(3, [(0, bytes(20_000))], [b'\0\x01f'])]


# -- against the model of the window, with bodies around the limit from which they are not copied


class LargeModel(Model):
    unit = LARGE // 30


TestLargeModel = LargeModel.TestCase
TestLargeModel.settings = settings(max_examples=sized(20, 150), stateful_step_count=60)


# -- what the engine passes on


class Sink(Engine):
    def on_frame(self, key: int, version: int, body: bytes) -> None:
        raise AssertionError

    def on_failure(self, error: Exception) -> None:
        raise error


def test_engine_writes_parts_without_joining_them() -> None:
    engine, written = Sink(), list[object]()
    engine.send_to(written.append, written.append)
    parts = [b'abc', bytes(LARGE), b'd']
    engine.write(parts)
    assert written == [parts]
    assert engine.wrote
    assert engine.counters.bytes_sent == LARGE + 4


def test_engine_joins_parts_for_a_sink_of_bytes() -> None:
    engine, written = Sink(), list[bytes]()
    engine.send_to(written.append)
    engine.write([b'ab', b'c'])
    assert written == [b'abc']
    assert engine.counters.bytes_sent == 3


def test_engine_drops_parts_while_nothing_may_be_sent() -> None:
    engine, written = Sink(), list[object]()
    engine.send_to(written.append, written.append)
    engine.send_to(None)
    engine.write([b'ab', b'c'])
    assert written == []
    assert not engine.wrote
