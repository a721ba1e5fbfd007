"""The publish window: exact frames, ids, confirms, replay, and a comparison with a model."""

import random
import struct
import tracemalloc
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rbfly.amqp import MessageCtx, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPEncoderError, RbFlyError
from rbfly.protocol._engine import Engine
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams._publish._confirm import ConfirmGroup
from rbfly.streams.error import PublisherError
from tests.sizes import sized
from tests.stream_wire import confirm, feed, publish, read_publish, refuse, split_frames

UNLIMITED = 0
MAX_ID = 2**64 - 1
PREFIX = 9  # bytes of the size field's frame before its first entry


def make(
    publisher_id: int = 3,
    frame_max: int = UNLIMITED,
    max_unconfirmed: int = 10_000,
    next_id: int = 0,
    filter_extract: Callable[[MessageCtx], Any] | None = None,
    amqp: bool = False,
) -> PublishWindow:
    return PublishWindow(publisher_id, frame_max, max_unconfirmed, next_id, filter_extract, amqp)


def add(window: PublishWindow, *messages: Any, waiter: ConfirmWaiter | None = None) -> list[int]:
    waiter = waiter or ConfirmWaiter()
    return [window.append(message, waiter) for message in messages]


def take_all(window: PublishWindow) -> list[bytes]:
    frames = []
    while (data := window.take()) is not None:
        frames.append(data)
    return frames


def taken(window: PublishWindow) -> list[list[tuple[int, bytes]]]:
    """Entries of each frame that `take` returns."""
    return [read_publish(data)[1] for data in take_all(window)]


def settle(window: PublishWindow, *ids: int) -> list[ConfirmWaiter]:
    """The waiters that a PublishConfirm of these ids settles."""
    return Feed(window).confirm(*ids)


def explicit(publish_id: int, body: Any = b'x') -> MessageCtx:
    return stream_message_ctx(body, publish_id=publish_id)


class Feed(Engine):
    """An engine with one publisher, to refuse messages as a broker does."""

    def __init__(self, window: PublishWindow) -> None:
        super().__init__()
        self.done: list[ConfirmWaiter] = []
        self.window = window
        window.listen(self.done.extend)
        self.set_publisher(window.publisher_id, window)

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        raise AssertionError

    def on_failure(self, error: Exception) -> None:
        raise error

    def confirm(self, *ids: int) -> list[ConfirmWaiter]:
        self.done.clear()
        feed(self, confirm(self.window.publisher_id, ids))
        return list(self.done)

    def refuse(self, *errors: tuple[int, int]) -> list[ConfirmWaiter]:
        self.done.clear()
        feed(self, refuse(self.window.publisher_id, errors))
        return list(self.done)


# -- bytes


def test_one_message() -> None:
    window = make(next_id=258)
    assert add(window, b'abc') == [258]
    data = window.take()
    assert data == bytes.fromhex(
        '00000018 0002 0001 03 00000001 0000000000000102 00000003 616263'.replace(' ', '')
    )
    assert type(data) is bytes
    assert window.take() is None


@pytest.mark.parametrize('publisher_id', [0, 1, 255])
def test_many_messages(publisher_id: int) -> None:
    messages = [b'', b'a', b'b' * 300, b'c' * 70_000, b'']
    window = make(publisher_id, next_id=10)
    assert add(window, *messages) == [10, 11, 12, 13, 14]
    assert take_all(window) == [publish(publisher_id, enumerate(messages, 10))]


@pytest.mark.parametrize('publisher_id', [-1, 256])
def test_publisher_id_out_of_range(publisher_id: int) -> None:
    with pytest.raises(OverflowError):
        make(publisher_id)


@pytest.mark.parametrize('body', [b'abc', 'text', None, {'a': [1, 2.5]}, 2**63])
def test_amqp_messages(body: Any) -> None:
    window = make(amqp=True)
    add(window, body, stream_message_ctx(body))
    encoded = encode_amqp_bytes(stream_message_ctx(body))
    assert take_all(window) == [publish(3, [(0, encoded), (1, encoded)])]


@pytest.mark.parametrize(
    'message',
    [
        b'abc',
        bytearray(b'abc'),
        memoryview(b'abc'),
        memoryview(bytearray(b'xabcx'))[1:4],
        type('Sub', (bytes,), {})(b'abc'),
    ],
)
def test_raw_messages(message: Any) -> None:
    window = make()
    add(window, message)
    if isinstance(message, bytearray):
        message[:] = b'changed'
    assert taken(window) == [[(0, b'abc')]]


@pytest.mark.parametrize('message', ['abc', 5, None, [b'a'], object()])
def test_raw_messages_are_bytes(message: Any) -> None:
    window = make()
    with pytest.raises(TypeError):
        add(window, message)
    assert window.take() is None


def test_raw_message_with_an_explicit_id() -> None:
    window = make()
    assert add(window, explicit(7, b'abc')) == [7]
    assert taken(window) == [[(7, b'abc')]]


def test_memoryview_that_is_not_contiguous() -> None:
    window = make()
    add(window, b'before')
    with pytest.raises((BufferError, TypeError)):
        add(window, memoryview(b'abcdef')[::2])
    add(window, b'behind')
    assert taken(window) == [[(0, b'before'), (1, b'behind')]]


# -- many messages at once


def test_extend_takes_only_what_it_appends() -> None:
    window = make()
    waiter = ConfirmWaiter()
    source = iter([b'%d' % i for i in range(10)])
    assert window.extend(source, 0, waiter) is True
    assert window.extend(source, 4, waiter) is True
    assert next(source) == b'4'
    assert window.extend(source, 100, waiter) is False
    assert (waiter.count, waiter.remaining, window.next_id) == (9, 9, 9)
    bodies = [b'%d' % i for i in range(10) if i != 4]
    assert taken(window) == [list(enumerate(bodies))]


def test_extend_stops_at_a_message_that_cannot_be_appended() -> None:
    window = make(frame_max=200)
    waiter = ConfirmGroup()
    source: Iterator[Any] = iter([b'a', b'b', 'text', b'c', bytes(1000), b'd'])
    with pytest.raises(TypeError):
        window.extend(source, 100, waiter)
    assert (waiter.count, waiter.unconfirmed) == (3, ([], [2], []))
    with pytest.raises(PublisherError):
        window.extend(source, 100, waiter)
    assert (waiter.count, waiter.unconfirmed) == (5, ([], [2, 4], []))
    assert list(source) == [b'd']
    assert taken(window) == [[(0, b'a'), (1, b'b'), (2, b'c')]]


def test_extend_raises_errors_of_the_iterator() -> None:
    def source() -> Iterator[bytes]:
        yield b'a'
        window.append(b'b', waiter)  # another message, meanwhile
        raise KeyError('c')

    window = make()
    waiter = ConfirmGroup()
    with pytest.raises(KeyError):
        window.extend(source(), 100, waiter)
    assert (waiter.count, waiter.unconfirmed) == (2, None)
    assert taken(window) == [[(0, b'a'), (1, b'b')]]


def test_extend_returns_after_some_bytes() -> None:
    window = make()
    waiter = ConfirmWaiter()
    source = iter([bytes(100_000)] * 10)
    runs = []
    while window.extend(source, 100, waiter):
        runs.append(waiter.count)
    assert runs == [3, 6, 9]
    assert waiter.count == 10


def test_group_lists_its_refused_messages() -> None:
    window = make(frame_max=100)
    feed = Feed(window)
    first, second = ConfirmGroup(), ConfirmGroup()
    for i in range(20):  # the first group has the even ids
        add(window, b'x' * 20, waiter=second if i % 2 else first)
    take_all(window)
    feed.confirm(0, 2, 1)
    assert (first.unconfirmed, second.unconfirmed) == (None, None)
    feed.refuse((12, 0x11))
    assert (first.unconfirmed, second.unconfirmed) == (([6], [], []), None)
    window.replay(3, 150)
    take_all(window)
    feed.refuse((18, 0x11), (8, 0x11), (15, 0x11), (10, 0x11))
    assert first.unconfirmed == ([6], [], [9, 4, 5])  # the latter may be stored
    assert second.unconfirmed == ([], [], [7])
    assert (first.first_refused, second.first_refused) == (4, 7)
    assert (first.count, second.count) == (10, 10)


def test_group_lists_its_unsettled_and_abandoned_messages() -> None:
    window = make(frame_max=100, max_unconfirmed=12)
    feed = Feed(window)
    first, second = ConfirmGroup(), ConfirmGroup()
    for i in range(20):  # the first group has the even ids
        add(window, b'x' * 20, waiter=second if i % 2 else first)
    take_all(window)
    feed.confirm(0, 2, 5, 7)
    assert window.unsettled_of(first) == [*range(2, 10)]
    assert window.unsettled_of(second) == [0, 1, *range(4, 10)]
    assert window.unsettled_of(ConfirmGroup()) == []
    take_all(window)
    written = 12 + 4  # each of four confirms made room for another one
    assert set(window.fail_pending()) == {first, second}
    assert first.unconfirmed
    assert second.unconfirmed
    assert first.unconfirmed[2] == [i for i in range(2, 10) if 2 * i < written]
    assert second.unconfirmed[2] == [i for i in (0, 1, *range(4, 10)) if 2 * i + 1 < written]
    assert first.unconfirmed[1] == [i for i in range(10) if 2 * i >= written]
    assert second.unconfirmed[1] == [i for i in range(10) if 2 * i + 1 >= written]
    assert window.unsettled_of(first) == []


# -- filter values


@pytest.mark.parametrize(
    ('value', 'wire'),
    [
        (None, b'\0\0'),
        ('', b'\0\0'),
        ('a', b'\0\x01a'),
        ('zażółć', struct.pack('>H', 10) + 'zażółć'.encode()),
        ('x' * 0xFFFE, b'\xff\xfe' + b'x' * 0xFFFE),
    ],
    ids=['none', 'empty', 'ascii', 'not ascii', 'longest'],
)
def test_filter_values(value: str | None, wire: bytes) -> None:
    window = make(filter_extract=lambda ctx: value)
    add(window, b'one', b'two')
    assert take_all(window) == [publish(3, [(0, b'one'), (1, b'two')], [wire, wire])]


@pytest.mark.parametrize(
    ('value', 'error'),
    [
        ('x' * 0xFFFF, ValueError),
        ('é' * 0x8000, ValueError),
        ('\ud800', ValueError),
        (5, TypeError),
        (b'a', TypeError),
    ],
    ids=['too long', 'too many bytes', 'surrogate', 'int', 'bytes'],
)
def test_wrong_filter_values_change_nothing(value: Any, error: type[Exception]) -> None:
    values = iter(['a', value, 'b'])
    window = make(filter_extract=lambda ctx: next(values))
    add(window, b'one')
    with pytest.raises(error):
        add(window, b'bad')
    add(window, b'two')
    assert take_all(window) == [publish(3, [(0, b'one'), (1, b'two')], [b'\0\x01a', b'\0\x01b'])]


def test_filter_sees_body_and_context() -> None:
    seen: list[MessageCtx] = []
    window = make(filter_extract=seen.append, amqp=True)
    context = stream_message_ctx('b', app_properties={'k': 'v'})
    add(window, 'a', context)
    assert [ctx.body for ctx in seen] == ['a', 'b']
    assert seen[1] is context


# -- limit of a frame


@pytest.mark.parametrize('v2', [False, True])
@pytest.mark.parametrize('slack', range(-2, 3))
def test_frame_is_cut_at_its_limit_to_the_byte(slack: int, v2: bool) -> None:
    entry = 12 + 5 + (2 if v2 else 0)
    limit = PREFIX + 3 * entry + slack
    window = make(frame_max=limit, filter_extract=(lambda ctx: None) if v2 else None)
    add(window, *[b'12345'] * 7)
    frames = take_all(window)
    sizes = [int.from_bytes(data[:4], 'big') for data in frames]
    assert sizes == [len(data) - 4 for data in frames]
    assert max(sizes) <= limit
    each = 3 if slack >= 0 else 2
    counts = [int.from_bytes(data[9:13], 'big') for data in frames]
    assert counts == [each] * (7 // each) + [7 % each]
    if not v2:
        entries = [entry for data in frames for entry in read_publish(data)[1]]
        assert entries == [(i, b'12345') for i in range(7)]


def test_longest_message_of_a_frame() -> None:
    window = make(frame_max=1000)
    add(window, b'x' * (1000 - 21))
    with pytest.raises(PublisherError, match='979'):
        add(window, b'x' * (1000 - 20))
    (data,) = take_all(window)
    assert len(data) == 1004


@pytest.mark.parametrize(
    'message',
    [
        b'x' * 980,
        'x' * 980,
        bytearray(980),
        memoryview(bytes(980)),
        memoryview(bytes(3920)).cast('i')[:245],
        stream_message_ctx(b'x' * 980),
        stream_message_ctx('x' * 980),
    ],
    ids=['bytes', 'str', 'bytearray', 'memoryview', 'memoryview of int', 'context', 'context str'],
)
def test_long_message_is_refused_with_its_size_and_the_limit(message: Any) -> None:
    window = make(frame_max=1000, amqp=True)
    add(window, 'before')
    with pytest.raises(PublisherError, match=r'message of 980 bytes .* limit is 979 bytes'):
        add(window, message)
    add(window, 'behind')
    assert len(taken(window)[0]) == 2


@pytest.mark.parametrize('message', ['ż' * 500, ['x' * 2000], {'k': bytes(2000)}])
def test_message_too_long_only_when_encoded(message: Any) -> None:
    window = make(frame_max=1000, amqp=True)
    size = len(encode_amqp_bytes(message))
    with pytest.raises(PublisherError, match=f'message of {size} bytes .* limit is 979 bytes'):
        add(window, message)
    assert window.take() is None


def test_filter_value_counts_in_the_limit() -> None:
    window = make(frame_max=1000, filter_extract=lambda ctx: 'x' * 100)
    add(window, bytes(877))
    with pytest.raises(PublisherError, match=r'message of 878 bytes .* limit is 877 bytes'):
        add(window, bytes(878))
    (data,) = take_all(window)
    assert len(data) == 1004


def test_memory_of_refused_messages_is_freed() -> None:
    window = make(frame_max=2**20, amqp=True)
    add(window, 'before')
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            with pytest.raises(PublisherError):
                add(window, ['x' * 2**24])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2**20
    add(window, 'behind')
    assert len(taken(window)[0]) == 2


@pytest.mark.parametrize('before', [0, 1, 3])
def test_message_that_fits_no_frame_changes_nothing(before: int) -> None:
    window = make(frame_max=200)
    waiter = ConfirmWaiter()
    add(window, *[b'a'] * before, waiter=waiter)
    for _ in range(3):
        with pytest.raises(PublisherError):
            add(window, b'x' * 100_000, waiter=waiter)
    assert waiter.remaining == before == window.unsettled
    assert window.next_id == before
    add(window, b'b', waiter=waiter)
    assert taken(window) == [[*((i, b'a') for i in range(before)), (before, b'b')]]


def test_message_that_opens_the_next_frame() -> None:
    window = make(frame_max=200)
    add(window, b'a' * 100, b'b' * 179, b'c' * 179, b'd')
    assert [[len(data) for _, data in frame] for frame in taken(window)] == [
        [100],
        [179],
        [179],
        [1],
    ]


@pytest.mark.parametrize('frame_max', [0, -1, 2**31, 2**40])
def test_no_limit(frame_max: int) -> None:
    window = make(frame_max=frame_max)
    add(window, b'x' * 3_000_000, b'y')
    assert len(take_all(window)) == 1


def test_several_frames_fill_the_window() -> None:
    window = make(max_unconfirmed=100)
    add(window, *[b'x'] * 25)
    assert [len(entries) for entries in taken(window)] == [10, 10, 5]


# -- when encoding fails


@pytest.mark.parametrize('bad', [object(), [1, object()], {'a': {'b': object()}}, '\ud800', 2**64])
def test_value_that_cannot_be_encoded_changes_nothing(bad: Any) -> None:
    window = make(amqp=True)
    waiter = ConfirmWaiter()
    add(window, b'before', waiter=waiter)
    with pytest.raises(AMQPEncoderError):
        add(window, bad, waiter=waiter)
    with pytest.raises(AMQPEncoderError):
        add(window, ['x' * 5000, bad], waiter=waiter)
    assert (window.next_id, window.unsettled, waiter.remaining) == (1, 1, 1)
    add(window, b'behind', waiter=waiter)
    assert taken(window) == [
        [
            (i, encode_amqp_bytes(stream_message_ctx(b)))
            for i, b in enumerate((b'before', b'behind'))
        ]
    ]


def test_explicit_id_of_a_failed_message_can_be_used() -> None:
    window = make(amqp=True)
    with pytest.raises(AMQPEncoderError):
        add(window, explicit(5, object()))
    assert add(window, explicit(5, b'x'), b'y') == [5, 6]


def test_filter_that_raises_changes_nothing() -> None:
    def extract(ctx: MessageCtx) -> str:
        if ctx.body == b'bad':
            raise KeyError('bad')
        return 'f'

    window = make(filter_extract=extract)
    add(window, b'one')
    with pytest.raises(KeyError):
        add(window, b'bad')
    add(window, b'two')
    assert take_all(window) == [publish(3, [(0, b'one'), (1, b'two')], [b'\0\x01f'] * 2)]


@pytest.mark.parametrize(
    'call',
    [
        lambda window: window.append(b'inner', ConfirmWaiter()),
        lambda window: window.take(),
        lambda window: window.replay(1, 1000),
        lambda window: window.fail_pending(),
    ],
    ids=['append', 'take', 'replay', 'fail_pending'],
)
@pytest.mark.parametrize('where', ['filter', 'items'])
def test_window_cannot_be_used_while_it_encodes(
    call: Callable[[PublishWindow], object], where: str
) -> None:
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        with pytest.raises(PublisherError):
            call(window)

    class Trap(UserDict[str, int]):
        def __iter__(self) -> Iterator[str]:
            attempt()
            return super().__iter__()

    def extract(ctx: MessageCtx) -> str:
        if ctx.body == 'trap':
            attempt()
        return 'f'

    extractor = extract if where == 'filter' else None
    window = make(amqp=True, filter_extract=extractor)
    add(window, 'before')
    add(window, 'trap' if where == 'filter' else Trap({'a': 1}))
    add(window, 'behind')
    assert attempts
    (data,) = take_all(window)
    ((_, _, body),) = split_frames(data)
    assert int.from_bytes(body[1:5], 'big') == 3
    assert settle(window, 0, 1, 2) == []
    assert window.unsettled == 0


# -- ids


def test_automatic_ids_continue_after_explicit_ones() -> None:
    window = make()
    assert add(window, b'a', explicit(5), b'b', explicit(100), b'c') == [0, 5, 6, 100, 101]
    assert window.next_id == 102


@pytest.mark.parametrize('publish_id', [4, 5])
def test_explicit_id_that_is_not_above_the_last(publish_id: int) -> None:
    window = make(next_id=5)
    add(window, b'a')
    with pytest.raises(ValueError, match=f'publishing id {publish_id}'):
        add(window, explicit(publish_id))
    assert add(window, b'b') == [6]
    assert taken(window) == [[(5, b'a'), (6, b'b')]]


def test_explicit_id_is_refused_also_after_its_confirm() -> None:
    window = make()
    add(window, explicit(5))
    take_all(window)
    settle(window, 5)
    with pytest.raises(ValueError, match='publishing id 5'):
        add(window, explicit(5))


def test_first_explicit_id_may_be_known_to_the_broker() -> None:
    # A program that republishes a file from its start relies on the broker's deduplication.
    window = make(next_id=50)
    assert add(window, explicit(1), explicit(2)) == [1, 2]
    assert add(window, b'a') == [50]


def test_no_id_follows_the_highest() -> None:
    window = make()
    assert add(window, explicit(MAX_ID)) == [MAX_ID]
    with pytest.raises(PublisherError):
        add(window, b'a')
    assert taken(window) == [[(MAX_ID, b'x')]]
    settle(window, MAX_ID)
    assert window.unsettled == 0


# -- limit of messages in flight


@pytest.mark.parametrize('limit', [1, 2, 9, 10, 25, 100])
def test_in_flight_never_exceeds_the_limit(limit: int) -> None:
    window = make(max_unconfirmed=limit)
    add(window, *[b'x'] * 250)
    confirmed = 0
    while window.unsettled:
        take_all(window)
        assert 0 < window.in_flight <= limit
        settle(window, confirmed)
        confirmed += 1
    assert confirmed == 250


def test_limit_below_one() -> None:
    with pytest.raises(ValueError, match='max_unconfirmed'):
        make(max_unconfirmed=0)


# -- confirms


def test_confirms_in_any_order(rng: random.Random) -> None:
    window = make(frame_max=100)
    waiter = ConfirmWaiter('future', True)
    ids = add(window, *[b'x' * 20] * 50, waiter=waiter)
    assert len(take_all(window)) > 10
    rng.shuffle(ids)
    for i in ids[:-1]:
        assert settle(window, i) == []
    assert settle(window, ids[-1]) == [waiter]
    assert waiter.errors is None
    assert waiter.future == 'future'
    assert (window.unsettled, window.in_flight, window.queued) == (0, 0, 0)


def test_confirm_twice_and_of_unknown_ids() -> None:
    window = make(next_id=10)
    waiter = ConfirmWaiter(None, True)
    add(window, b'a', b'b', waiter=waiter)
    take_all(window)
    assert settle(window, 0, 9, 12, MAX_ID, 10, 10) == []
    assert waiter.remaining == 1
    assert settle(window, 10) == []
    assert settle(window, 11, 11) == [waiter]
    assert settle(window, 11, 10) == []
    assert (waiter.remaining, window.in_flight) == (0, 0)


def test_confirm_of_an_unsent_message() -> None:
    window = make()
    waiter = ConfirmWaiter(None, True)
    add(window, b'a', waiter=waiter)
    assert settle(window, 0) == []
    assert window.queued == 1
    take_all(window)
    assert settle(window, 0) == [waiter]


def test_waiters_of_several_frames() -> None:
    window = make(frame_max=100)
    first, second, third = (ConfirmWaiter(name, True) for name in ('first', 'second', 'third'))
    order = [first, second, first, third, second, first, third, third]
    for waiter in order:
        add(window, b'x' * 30, waiter=waiter)
    assert [waiter.remaining for waiter in (first, second, third)] == [3, 2, 3]
    take_all(window)
    assert settle(window, 0, 2) == []
    assert settle(window, 5, 1) == [first]
    assert settle(window, 7, 6, 4, 3) == [second, third]


def test_waiter_settles_only_when_sealed() -> None:
    window = make()
    waiter = ConfirmWaiter()
    add(window, b'a', waiter=waiter)
    take_all(window)
    assert settle(window, 0) == []
    assert waiter.seal() is True
    waiter = ConfirmWaiter()
    add(window, b'b', waiter=waiter)
    take_all(window)
    assert waiter.seal() is False
    assert settle(window, 1) == [waiter]


def test_refused_messages() -> None:
    window = make()
    feed = Feed(window)
    first, second = ConfirmWaiter(None, True), ConfirmWaiter(None, True)
    add(window, b'a', b'b', b'c', waiter=first)
    add(window, b'd', waiter=second)
    take_all(window)
    assert feed.refuse((1, 0x11), (99, 0x0D), (1, 0x0D)) == []
    assert feed.confirm(0, 3) == [second]
    assert feed.refuse((2, 0x0D)) == [first]
    assert first.errors == [(1, 0x11), (2, 0x0D)]
    assert second.errors is None
    assert window.unsettled == 0


def test_messages_of_an_unknown_publisher_wait_for_its_redeclaration() -> None:
    window = make()
    feed = Feed(window)
    waiter = ConfirmWaiter(None, True)
    add(window, b'a', b'b', waiter=waiter)
    take_all(window)
    assert feed.refuse((0, 0x11), (1, 0x12)) == []
    assert (window.needs_redeclare, window.unsettled, waiter.errors) == (True, 1, [(0, 0x11)])
    assert window.replay(4, 0) == []
    assert not window.needs_redeclare
    assert taken(window) == [[(1, b'b')]]


def test_replay_refuses_messages_too_large_for_new_frames() -> None:
    window = make()
    alone, shared = ConfirmWaiter(None, True), ConfirmWaiter(None, True)
    add(window, b'a' * 50, waiter=shared)
    add(window, b'b' * 51, waiter=alone)
    add(window, b'c' * 51, waiter=shared)
    take_all(window)
    assert window.replay(3, 50 + 21) == [alone]
    assert (alone.errors, shared.errors) == ([(1, 0x0E)], [(2, 0x0E)])
    assert (alone.too_large, shared.too_large) == (
        (1, 51 + 12, 50 + 12, 1),
        (2, 51 + 12, 50 + 12, 1),
    )
    assert taken(window) == [[(0, b'a' * 50)]]
    assert window.unsettled == 1


def test_confirm_after_refusal_and_refusal_after_confirm() -> None:
    window = make()
    feed = Feed(window)
    waiter = ConfirmWaiter(None, True)
    add(window, b'a', b'b', b'c', waiter=waiter)
    take_all(window)
    feed.confirm(0)
    feed.refuse((0, 0x11), (1, 0x11))
    feed.confirm(1)
    assert waiter.remaining == 1
    assert feed.confirm(2) == [waiter]
    assert waiter.errors == [(1, 0x11)]


@pytest.mark.parametrize('code', [0, 1])
def test_publish_error_with_code_ok_confirms_nothing(code: int) -> None:
    window = make()
    waiters = [ConfirmWaiter(i, True) for i in range(2)]
    for waiter in waiters:
        add(window, b'a', waiter=waiter)
    take_all(window)
    assert Feed(window).refuse((0, code)) == waiters[:1]
    assert waiters[0].errors == [(0, code)]
    assert waiters[1].remaining == 1


# -- fail_pending


def test_fail_pending_returns_each_waiter_once() -> None:
    window = make(frame_max=100)
    waiters = [ConfirmWaiter(i, True) for i in range(4)]
    for i in range(24):
        add(window, b'x' * 30, waiter=waiters[i % 3])
    window.take()
    window.take()
    add(window, b'y', waiter=waiters[3])
    settle(window, 0)
    assert set(window.fail_pending()) == set(waiters)
    assert [waiter.remaining for waiter in waiters] == [0] * 4
    assert (window.unsettled, window.in_flight, window.queued) == (0, 0, 0)
    assert window.take() is None
    assert window.fail_pending() == []
    assert settle(window, 1, 2, 3) == []


def test_fail_pending_after_confirms_out_of_order() -> None:
    window = make(frame_max=60)
    waiters = [ConfirmWaiter(i, True) for i in range(5)]
    for waiter in waiters:
        add(window, b'x' * 30, waiter=waiter)
    assert len(take_all(window)) == 5
    assert settle(window, 1, 3) == [waiters[1], waiters[3]]
    assert window.fail_pending() == [waiters[0], waiters[2], waiters[4]]


def test_window_can_be_used_after_fail_pending() -> None:
    window = make()
    add(window, b'a', b'b')
    take_all(window)
    add(window, b'c')
    window.fail_pending()
    waiter = ConfirmWaiter(None, True)
    assert add(window, b'd', b'e', waiter=waiter) == [3, 4]
    take_all(window)
    assert window.in_flight == 2
    assert settle(window, 0, 1, 2, 4, 3) == [waiter]


# -- last_sent


def test_last_sent() -> None:
    window = make(frame_max=100, next_id=10)
    assert window.last_sent == 0
    add(window, *[b'x' * 30] * 6)
    assert window.last_sent == 0
    window.take()
    assert window.last_sent == 11
    settle(window, 10, 11)
    assert window.last_sent == 11
    take_all(window)
    window.replay(4, 100)
    assert window.last_sent == 15
    window.take()  # messages 12 and 13 again
    assert window.last_sent == 15
    window.replay(4, 100)
    assert window.count_unsent() == 0
    add(window, b'y')
    assert window.last_sent == 15
    window.fail_pending()
    assert window.last_sent == 15
    add(window, explicit(70))
    take_all(window)
    assert window.last_sent == 70


@pytest.mark.parametrize('size', [62, 63, 64, 65, 127, 128, 500])
@pytest.mark.parametrize('wrapped', [0, 1, 40])
def test_last_sent_while_the_ring_is_full_of_queued_messages(size: int, wrapped: int) -> None:
    window = make(max_unconfirmed=1000, next_id=1)
    add(window, *[b'x'] * wrapped)
    take_all(window)
    settle(window, *range(1, wrapped + 1))
    for _ in range(size):
        add(window, b'x')
        assert window.last_sent == wrapped


def test_last_sent_of_sub_entries() -> None:
    window = PublishWindow(3, 0, 100, 1, sub_entry=SubEntry(3, 0, None))
    add(window, *range(7))
    assert window.last_sent == 0
    take_all(window)
    assert window.last_sent == 3
    add(window, 'x')
    assert (window.last_sent, window.next_id) == (3, 5)


# -- count_unsent


def test_count_unsent() -> None:
    window = make(frame_max=100)
    add(window, *[b'x' * 30] * 6)
    assert window.count_unsent() == 6
    window.take()
    assert window.count_unsent() == 4
    settle(window, 0)
    assert window.count_unsent() == 4
    window.replay(4, 100)
    assert (window.unsettled, window.count_unsent()) == (5, 4)
    take_all(window)
    assert (window.unsettled, window.count_unsent()) == (5, 0)
    window.replay(5, 100)
    add(window, b'y')
    assert (window.unsettled, window.count_unsent()) == (6, 1)


# -- replay


def test_replay_omits_settled_messages() -> None:
    window = make(frame_max=100)
    waiter = ConfirmWaiter(None, True)
    add(window, *[b'%02d' % i * 10 for i in range(20)], waiter=waiter)
    take_all(window)
    gone = [0, 3, 4, 5, 6, 11, 19]
    settle(window, *gone)
    window.replay(200, 150)
    left = [i for i in range(20) if i not in gone]
    assert (window.in_flight, window.queued, waiter.remaining) == (0, 13, 13)
    frames = take_all(window)
    assert {data[8] for data in frames} == {200}
    assert all(len(data) <= 154 for data in frames)
    entries = [entry for data in frames for entry in read_publish(data)[1]]
    assert entries == [(i, b'%02d' % i * 10) for i in left]
    assert settle(window, *reversed(left)) == [waiter]


@pytest.mark.parametrize('slack', range(-2, 3))
def test_replay_cuts_frames_at_the_new_limit_to_the_byte(slack: int) -> None:
    limit = PREFIX + 3 * 17 + slack
    window = make()
    add(window, *[b'12345'] * 7)
    take_all(window)
    window.replay(3, limit)
    frames = take_all(window)
    assert max(len(data) - 4 for data in frames) <= limit
    each = 3 if slack >= 0 else 2
    counts = [len(read_publish(data)[1]) for data in frames]
    assert counts == [each] * (7 // each) + [7 % each]


def test_replay_sends_queued_messages_after_those_in_flight() -> None:
    window = make(max_unconfirmed=4)
    add(window, *[b'x'] * 10)
    assert [i for entries in taken(window) for i, _ in entries] == [0, 1, 2, 3]
    settle(window, 1)
    window.replay(3, 0)
    seen = []
    while window.unsettled:
        for entries in taken(window):
            assert window.in_flight <= 4
            seen += [i for i, _ in entries]
        settle(window, *seen)
    assert seen == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_replay_of_nothing() -> None:
    window = make()
    window.replay(4, 1000)
    assert window.take() is None
    add(window, b'a')
    take_all(window)
    settle(window, 0)
    window.replay(5, 1000)
    assert window.take() is None
    assert (window.unsettled, window.publisher_id, window.frame_max) == (0, 5, 1000)
    add(window, b'b')
    (data,) = take_all(window)
    assert read_publish(data) == (5, [(1, b'b')])


def test_second_replay_resends_each_message_once() -> None:
    window = make(frame_max=100)
    add(window, *[b'x' * 30] * 6)
    take_all(window)
    window.replay(3, 100)
    window.take()
    window.replay(3, 100)
    assert [i for entries in taken(window) for i, _ in entries] == list(range(6))


def test_replay_of_filtered_messages() -> None:
    window = make(filter_extract=lambda ctx: 'f' if ctx.body == b'b' else None)
    add(window, b'a', b'b', b'c')
    take_all(window)
    settle(window, 0)
    window.replay(8, 0)
    assert take_all(window) == [publish(8, [(1, b'b'), (2, b'c')], [b'\0\x01f', b'\0\0'])]


def test_refusal_before_a_replay_is_kept() -> None:
    window = make()
    feed = Feed(window)
    waiter = ConfirmWaiter(None, True)
    add(window, b'a', b'b', waiter=waiter)
    take_all(window)
    feed.refuse((0, 0x11))
    window.replay(3, 0)
    take_all(window)
    assert feed.confirm(1) == [waiter]
    assert waiter.errors == [(0, 0x11)]


def test_frame_is_not_changed_after_take() -> None:
    window = make(max_unconfirmed=10_000)
    add(window, b'a' * 100)
    first = window.take()
    copy = bytes(bytearray(first or b''))
    add(window, *[b'b' * 100] * 50)
    second = window.take()
    window.replay(9, 0)
    third = window.take()
    assert first == copy
    assert len({first, second, third}) == 3
    assert first is not None
    assert first[8] == 3


def test_window_errors_are_rbfly_errors() -> None:
    assert issubclass(PublisherError, RbFlyError)


# -- against a model


class TooLong(RuleBasedStateMachine):
    """Common to all models: messages that fit no frame change nothing."""

    unit = 1  # bytes; the size of everything but the heads is a multiple of it
    window: PublishWindow
    waiter: ConfirmWaiter
    frame_max: int

    @rule(size=st.integers(100, 5000))
    def append_too_long(self, size: int) -> None:
        if size * self.unit > self.frame_max - 21:
            with pytest.raises(PublisherError):
                self.window.append(bytes(size * self.unit), self.waiter)


class Model(TooLong):
    """The window against a plain list: nothing is lost, duplicated, reordered or settled twice."""

    sealed = True  # else a waiter is sealed when the next one begins

    def __init__(self) -> None:
        super().__init__()
        self.limit = 12
        self.frame_max = 120 * self.unit
        self.window = make(0, self.frame_max, self.limit, 0)
        self.feed = Feed(self.window)
        self.publisher_id = 0
        self.next_id = 0
        self.last_id = -1
        self.last_sent = 0
        self.last_written = -1
        self.queued: list[int] = []
        self.flying: list[int] = []
        self.bodies: dict[int, bytes] = {}
        self.waiting: dict[int, ConfirmWaiter] = {}  # of each unsettled message
        self.refused: dict[ConfirmWaiter, list[tuple[int, int]]] = {}
        self.waiter = ConfirmWaiter(None, self.sealed)
        self.settled: set[int] = set()

    def added(self, publish_id: int, body: bytes) -> None:
        self.queued.append(publish_id)
        self.bodies[publish_id] = body
        self.waiting[publish_id] = self.waiter
        self.last_id = max(self.last_id, publish_id)
        self.next_id = max(self.next_id, publish_id + 1)

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            body = bytes([len(self.bodies) % 256]) * (size * self.unit)
            assert self.window.append(body, self.waiter) == self.next_id
            self.added(self.next_id, body)

    @rule(jump=st.integers(-6, 3), size=st.integers(0, 60))
    def append_explicit(self, jump: int, size: int) -> None:
        publish_id = self.next_id + jump
        if publish_id < 0:
            return
        body = bytes([len(self.bodies) % 256]) * (size * self.unit)
        message = explicit(publish_id, body)
        if publish_id > self.last_id:
            assert self.window.append(message, self.waiter) == publish_id
            self.added(publish_id, body)
        else:
            with pytest.raises(ValueError, match='publishing id'):
                self.window.append(message, self.waiter)

    @rule()
    def next_waiter(self) -> None:
        if not self.sealed:
            empty = self.waiter not in self.waiting.values()
            assert self.waiter.seal() is empty
        self.waiter = ConfirmWaiter(None, self.sealed)

    @rule()
    def take(self) -> None:
        data = self.window.take()
        if data is None:
            assert not self.queued or self.flying
            return
        assert len(data) - 4 <= self.frame_max
        publisher_id, entries = read_publish(data)
        assert publisher_id == self.publisher_id
        assert entries == [(i, self.bodies[i]) for i in self.queued[: len(entries)]]
        assert entries
        del self.queued[: len(entries)]
        self.flying += [i for i, _ in entries]
        self.last_sent = max(self.last_sent, self.flying[-1])
        self.last_written = max(self.last_written, self.flying[-1])

    def finished(self, ids: list[int]) -> set[ConfirmWaiter]:
        """The waiters that end when these ids of the messages in flight are settled."""
        ended = set()
        for i in ids:
            if i in self.flying:
                self.flying.remove(i)
                waiter = self.waiting.pop(i)
                assert i not in self.settled
                self.settled.add(i)
                if waiter not in self.waiting.values() and waiter.sealed:
                    ended.add(waiter)
        return ended

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        known = sorted(self.flying) + sorted(self.queued) + sorted(self.settled)[-5:] + [10**9]
        ids = data.draw(st.lists(st.sampled_from(known), max_size=10))
        done = self.feed.confirm(*ids)
        assert len(done) == len(set(done))
        assert set(done) == self.finished(ids)

    @precondition(lambda self: self.flying)
    @rule()
    def confirm_in_order(self) -> None:
        ids = self.flying[: len(self.flying) // 2 + 1]
        assert set(self.feed.confirm(*ids)) == self.finished(ids)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), code=st.sampled_from([0x11, 0x0D]))
    def refuse(self, data: st.DataObject, code: int) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.flying), max_size=4, unique=True))
        for i in ids:
            self.refused.setdefault(self.waiting[i], []).append((i, code))
        assert set(self.feed.refuse(*((i, code) for i in ids))) == self.finished(ids)

    @rule(publisher_id=st.integers(0, 255), frame_max=st.integers(90, 200))
    def replay(self, publisher_id: int, frame_max: int) -> None:
        self.feed.set_publisher(self.publisher_id, None)
        self.frame_max = frame_max * self.unit
        self.window.replay(publisher_id, self.frame_max)
        self.feed.set_publisher(publisher_id, self.window)
        self.publisher_id = publisher_id
        self.queued = sorted(self.flying) + self.queued
        self.flying.clear()

    @rule()
    def last_id_sent(self) -> None:
        assert self.window.last_sent == self.last_sent

    @rule()
    def fail_pending(self) -> None:
        waiters = self.window.fail_pending()
        assert len(waiters) == len(set(waiters))
        assert set(waiters) == set(self.waiting.values())
        assert all(waiter.remaining == 0 for waiter in waiters)
        self.last_id = self.last_written  # higher ids may be used again
        self.waiting.clear()
        self.queued.clear()
        self.flying.clear()

    @invariant()
    def counts(self) -> None:
        window = self.window
        assert window.in_flight == len(self.flying) <= self.limit
        assert window.queued == len(self.queued)
        assert window.unsettled == len(self.waiting)
        assert window.next_id == self.next_id
        assert window.oldest == min(self.flying, default=None)
        middle = sorted(self.flying)[len(self.flying) // 2] if self.flying else 0
        known = [item for item in self.flying if item <= middle]
        assert window.count_in_flight(middle) == len(known)
        values = list(self.waiting.values())
        for waiter in set(values):
            assert waiter.remaining == values.count(waiter)
        for waiter, errors in self.refused.items():
            assert waiter.errors == errors

    def teardown(self) -> None:
        """Whatever happened, the remaining messages can be sent and confirmed."""
        while self.waiting:
            self.take()
            if self.flying:
                ids = list(self.flying)
                assert set(self.feed.confirm(*ids)) == self.finished(ids)
        self.counts()


class UnsealedModel(Model):
    sealed = False


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=sized(40, 150), stateful_step_count=60)
TestUnsealedModel = UnsealedModel.TestCase
TestUnsealedModel.settings = settings(max_examples=sized(40, 150), stateful_step_count=60)


@pytest.mark.parametrize('walk', range(4))
def test_long_random_run(walk: int, rng: random.Random) -> None:
    """Many messages through a ring that wraps and grows, with reconnects; each is settled once."""
    window = make(0, 2000, 500)
    waiters: list[ConfirmWaiter] = []
    flying: list[int] = []
    settled: list[int] = []
    finished: list[ConfirmWaiter] = []
    appended = 0
    while len(settled) < 20_000:
        for _ in range(rng.randrange(200)):
            if appended < 20_000:
                waiter = ConfirmWaiter(None, True)
                waiters.append(waiter)
                assert window.append(b'%d' % appended, waiter) == appended
                appended += 1
        while (data := window.take()) is not None:
            entries = read_publish(data)[1]
            assert all(body == b'%d' % i for i, body in entries)
            flying += [i for i, _ in entries]
        assert window.in_flight == len(flying) <= 500
        if rng.random() < 0.1:
            window.replay(rng.randrange(256), rng.randrange(100, 4000))
            flying.clear()
            continue
        if rng.random() < 0.3:
            rng.shuffle(flying)
        count = rng.randrange(len(flying) + 1)
        finished += settle(window, *flying[:count])
        settled += flying[:count]
        del flying[:count]
    assert sorted(settled) == list(range(20_000))
    assert set(finished) == set(waiters)
    assert len(finished) == len(waiters)
    assert window.unsettled == 0
