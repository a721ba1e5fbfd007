"""Sub-entries in the publish window, compared with the exact bytes and with a model."""

import gzip
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from rbfly.amqp import encode_amqp_bytes
from rbfly.error import AMQPEncoderError
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.protocol.compression import Compression, compressor
from rbfly.streams._publish._confirm import ConfirmGroup
from rbfly.streams.error import CompressionError, PublisherError
from tests.entry_reader import read_entries
from tests.protocol.test_publish_window import (
    PREFIX,
    Feed,
    TooLong,
    add,
    explicit,
    settle,
    take_all,
)
from tests.sizes import sized


def make(
    size: int = 4,
    compression: str = 'none',
    *,
    frame_max: int | None = 0,
    max_unconfirmed: int = 10_000,
    next_id: int = 0,
    amqp: bool = False,
) -> PublishWindow:
    kind = Compression(compression)
    block = SubEntry(size, kind.code, compressor(kind))
    return PublishWindow(3, frame_max, max_unconfirmed, next_id, None, amqp, block)


def entries(window: PublishWindow) -> list[tuple[int, int | None, list[bytes]]]:
    """Entries of all frames that `take` returns."""
    return [entry for data in take_all(window) for entry in read_entries(data)]


def bodies(*numbers: int) -> list[bytes]:
    return [b'%d' % i for i in numbers]


# -- bytes and ids


def test_bytes_of_a_sub_entry() -> None:
    window = make(3, next_id=258)
    assert add(window, b'abc', b'', b'd') == [258, 258, 258]
    (data,) = take_all(window)
    assert data == bytes.fromhex(
        '0000002c 0002 0001 03 00000001'
        '0000000000000102 80 0003 00000010 00000010'
        '00000003 616263 00000000 00000001 64'.replace(' ', '')
    )
    assert type(data) is bytes


def test_sub_entries_have_ids() -> None:
    window = make(4, next_id=10)
    assert add(window, *bodies(*range(10))) == [10] * 4 + [11] * 4 + [12] * 2
    assert window.next_id == 13
    assert entries(window) == [
        (10, 0, bodies(0, 1, 2, 3)),
        (11, 0, bodies(4, 5, 6, 7)),
        (12, 0, bodies(8, 9)),
    ]
    assert add(window, b'x') == [13]


def test_single_message_needs_no_sub_entry() -> None:
    window = make(4)
    add(window, b'a')
    assert entries(window) == [(0, None, [b'a'])]


def test_amqp_messages() -> None:
    window = make(2, amqp=True)
    add(window, 'text', {'a': 1})
    assert entries(window) == [(0, 0, [encode_amqp_bytes('text'), encode_amqp_bytes({'a': 1})])]


@pytest.mark.parametrize('compression', ['gzip', 'snappy', 'lz4', 'zstd'])
def test_compression(compression: str) -> None:
    window = make(100, compression)
    messages = [b'some text that is much like the next %d' % i for i in range(250)]
    add(window, *messages)
    frames = take_all(window)
    code = Compression(compression).code
    assert [entry for data in frames for entry in read_entries(data)] == [
        (0, code, messages[:100]),
        (1, code, messages[100:200]),
        (2, code, messages[200:]),
    ]
    assert sum(map(len, frames)) < sum(map(len, messages)) / 2


@pytest.mark.parametrize('compression', ['gzip', 'snappy', 'lz4', 'zstd'])
def test_incompressible_messages_are_not_compressed(compression: str, rng: random.Random) -> None:
    window = make(2, compression)
    noise = rng.randbytes(1000)
    add(window, noise, noise[::-1], b'a')
    assert entries(window) == [(0, 0, [noise, noise[::-1]]), (1, None, [b'a'])]


def test_single_large_message_is_compressed() -> None:
    window = make(4, 'gzip')
    add(window, b'a' * 10_000)
    assert entries(window) == [(0, 1, [b'a' * 10_000])]


def test_gzip_contains_no_time() -> None:
    compress = compressor(Compression.GZIP)
    assert compress is not None
    data = compress(memoryview(b'abc'))
    assert gzip.decompress(data) == b'abc'
    assert data[4:8] == bytes(4)


def test_compressions() -> None:
    assert [item.code for item in Compression] == [0, 1, 2, 3, 4]
    assert compressor(Compression.NONE) is None
    with pytest.raises(ValueError, match=r"'brotli'.*"):
        Compression('brotli')


@pytest.mark.parametrize('compression', ['snappy', 'lz4', 'zstd'])
def test_error_names_a_missing_library(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'cramjam', None)
    with pytest.raises(CompressionError, match='cramjam') as caught:
        compressor(Compression(compression))
    assert isinstance(caught.value, ImportError)
    assert compressor(Compression.GZIP) is not None


@pytest.mark.parametrize('size', [0, -1, 65536])
def test_sub_entry_size_out_of_range(size: int) -> None:
    with pytest.raises(ValueError, match='sub_entry_size'):
        SubEntry(size)


def test_largest_sub_entry() -> None:
    window = make(65535, max_unconfirmed=100_000)
    add(window, *[b''] * 65536)
    assert [len(messages) for _, _, messages in entries(window)] == [65535, 1]


def test_sub_entries_have_no_filter_values() -> None:
    with pytest.raises(ValueError, match='filter'):
        PublishWindow(0, 0, 100, 0, lambda ctx: None, True, SubEntry(5))


def test_sub_entry_larger_than_the_window() -> None:
    with pytest.raises(ValueError, match='max_unconfirmed'):
        make(11, max_unconfirmed=10)


# -- limit of a frame


@pytest.mark.parametrize('slack', range(-2, 3))
@pytest.mark.parametrize('size', [3, 100])
def test_frame_is_cut_at_its_limit_to_the_byte(slack: int, size: int) -> None:
    # three messages of five bytes in a sub-entry; of size 3 two of them in a frame
    block = 19 + 3 * 9
    limit = PREFIX + (block if size == 100 else 2 * block) + slack
    window = make(size, frame_max=limit)
    messages = [b'%05d' % i for i in range(12)]
    add(window, *messages)
    frames = take_all(window)
    sizes = [int.from_bytes(data[:4], 'big') for data in frames]
    assert sizes == [len(data) - 4 for data in frames]
    assert max(sizes) <= limit
    found = [read_entries(data) for data in frames]
    assert [m for frame in found for _, _, part in frame for m in part] == messages
    if size == 3:
        assert [len(frame) for frame in found] == ([2, 2] if slack >= 0 else [1] * 4)
    else:
        assert [len(frame[0][2]) for frame in found] == ([3] * 4 if slack >= 0 else [2] * 6)


@pytest.mark.parametrize('compression', ['none', 'gzip'])
def test_longest_message_of_a_frame(compression: str, rng: random.Random) -> None:
    window = make(4, compression, frame_max=1000)
    noise = rng.randbytes
    messages = [noise(n) for n in (979, 968, 967, 966, 979, 1)]
    for message in messages[:4]:
        add(window, message)
        with pytest.raises(PublisherError, match='979'):
            add(window, noise(980))
    add(window, *messages[4:])
    frames = take_all(window)
    assert max(map(len, frames)) == 1004
    assert [m for data in frames for _, _, part in read_entries(data) for m in part] == messages
    assert window.next_id == 6


def test_message_that_fits_no_frame_changes_nothing() -> None:
    window = make(4, frame_max=200)
    waiter = ConfirmWaiter()
    for message in (bytes(1000), 'text'):
        with pytest.raises((PublisherError, TypeError)):
            add(window, message, waiter=waiter)
        add(window, b'a', waiter=waiter)
    assert (waiter.count, waiter.remaining, window.unsettled, window.next_id) == (2, 2, 2, 1)
    assert entries(window) == [(0, 0, [b'a', b'a'])]


def test_value_that_cannot_be_encoded_changes_nothing() -> None:
    window = make(4, amqp=True)
    with pytest.raises(AMQPEncoderError):
        add(window, object())
    assert (window.unsettled, window.next_id, window.take()) == (0, 0, None)
    add(window, 'a')
    with pytest.raises(AMQPEncoderError):
        add(window, ['x' * 5000, object()])
    add(window, 'b')
    assert entries(window) == [(0, 0, [encode_amqp_bytes(item) for item in 'ab'])]


def test_sub_entry_is_at_most_64_mb() -> None:
    # what the broker accepts, whatever the frame may have
    window = make(10)
    add(window, *[bytes(2**24)] * 5)
    assert [len(messages) for _, _, messages in entries(window)] == [3, 2]


def test_sub_entry_before_the_first_connection_fits_into_a_frame() -> None:
    window = make(10, frame_max=None)
    add(window, *[bytes(200_000)] * 10, bytes(2**21))
    assert not window.replay(3, 2**21 + 100)
    assert [len(messages) for _, _, messages in entries(window)] == [5, 5, 1]


def test_frames_have_whole_sub_entries() -> None:
    window = make(30, max_unconfirmed=1000)
    assert window.frame_entries == 90
    add(window, *[b'x'] * 200)
    assert [[len(m) for _, _, m in read_entries(data)] for data in take_all(window)] == [
        [30, 30, 30],
        [30, 30, 30],
        [20],
    ]


# -- explicit ids


def test_message_with_an_explicit_id_shares_no_sub_entry() -> None:
    window = make(4)
    assert add(window, b'a', b'b', explicit(7, b'c'), b'd', b'e', explicit(9, b'f')) == [
        0, 0, 7, 8, 8, 9,
    ]  # fmt: skip
    with pytest.raises(ValueError, match='publishing id 9'):
        add(window, explicit(9))
    assert entries(window) == [
        (0, 0, [b'a', b'b']),
        (7, None, [b'c']),
        (8, 0, [b'd', b'e']),
        (9, None, [b'f']),
    ]


def test_explicit_ids_of_a_list() -> None:
    window = make(4)
    messages: list[Any] = [b'a'] * 10 + [explicit(3, b'b'), b'c', b'd', explicit(5, b'e')]
    assert window.check_ids(messages, 0, 100) == 5
    assert add(window, *messages)[-4:] == [3, 4, 4, 5]
    with pytest.raises(ValueError, match='publishing id 5'):
        window.check_ids((b'a', explicit(5)), 0, 2)


def test_no_id_follows_the_highest() -> None:
    window = make(2, next_id=2**64 - 1)
    assert add(window, b'a', b'b') == [2**64 - 1] * 2
    with pytest.raises(PublisherError):
        add(window, b'c')
    assert entries(window) == [(2**64 - 1, 0, [b'a', b'b'])]


# -- confirms


def test_confirm_of_a_sub_entry_settles_each_of_its_waiters() -> None:
    window = make(4)
    first, second, third = (ConfirmWaiter(name, True) for name in ('first', 'second', 'third'))
    for waiter in (first, first, second, first, third, first, second, second, third):
        add(window, b'x', waiter=waiter)
    assert [waiter.remaining for waiter in (first, second, third)] == [4, 3, 2]
    take_all(window)
    assert (window.in_flight, window.queued) == (9, 0)
    assert settle(window, 2, 2) == []
    assert window.in_flight == 8
    assert settle(window, 1) == [third]
    assert settle(window, 0) == [second, first]
    assert (window.in_flight, window.unsettled) == (0, 0)


def test_refused_sub_entry() -> None:
    window = make(4)
    feed = Feed(window)
    first, second = ConfirmGroup(), ConfirmGroup()
    add(window, *[b'a'] * 3, waiter=first)
    add(window, *[b'b'] * 4, waiter=second)
    add(window, b'a', waiter=first)
    assert window.unsettled_of(second) == [0, 1, 2, 3]
    take_all(window)
    for group in (first, second):
        group.seal()
    assert feed.refuse((1, 0x11)) == []
    assert window.unsettled_of(second) == [0]
    assert set(feed.confirm(0)) == {first, second}
    assert (first.errors, first.unconfirmed) == ([(1, 0x11)], ([3], [], []))
    assert (second.errors, second.unconfirmed) == ([(1, 0x11)], ([1, 2, 3], [], []))


def test_fail_pending_abandons_sub_entries() -> None:
    window = make(4)
    first, second = ConfirmGroup(), ConfirmGroup()
    add(window, *[b'a'] * 3, waiter=first)
    add(window, *[b'b'] * 4, waiter=second)
    take_all(window)
    add(window, *[b'a'] * 2, waiter=first)  # in a sub-entry that is open
    assert window.unsettled_of(first) == [0, 1, 2, 3, 4]
    assert set(window.fail_pending()) == {first, second}
    assert first.unconfirmed == ([], [3, 4], [0, 1, 2])
    assert second.unconfirmed == ([], [], [0, 1, 2, 3])


def test_window_counts_messages() -> None:
    window = make(3, max_unconfirmed=6)
    add(window, *[b'x'] * 8)
    assert window.queued == 8
    assert [len(m) for _, _, m in entries(window)] == [3, 3]
    assert (window.in_flight, window.queued) == (6, 2)
    settle(window, 0)
    assert [len(m) for _, _, m in entries(window)] == [2]
    settle(window, 1, 2)
    assert window.unsettled == 0


def test_open_sub_entry_waits_while_the_window_is_full() -> None:
    window = make(4, max_unconfirmed=4)
    add(window, *[b'x'] * 5)
    assert [len(m) for _, _, m in entries(window)] == [4]
    add(window, b'y', b'z')  # into the one that is open
    assert window.take() is None
    settle(window, 0)
    assert entries(window) == [(1, 0, [b'x', b'y', b'z'])]


# -- fail_pending, replay


def test_fail_pending_returns_each_waiter_once() -> None:
    window = make(3)
    waiters = [ConfirmWaiter(i, True) for i in range(4)]
    for i in range(10):
        add(window, b'x', waiter=waiters[i % 4])
    window.take()
    add(window, b'x', waiter=waiters[0])
    assert set(window.fail_pending()) == set(waiters)
    assert [waiter.remaining for waiter in waiters] == [0] * 4
    assert (window.unsettled, window.in_flight, window.queued) == (0, 0, 0)
    assert window.take() is None
    assert window.fail_pending() == []
    waiter = ConfirmWaiter(None, True)
    add(window, b'y', waiter=waiter)
    ((publish_id, _, messages),) = entries(window)
    assert messages == [b'y']
    assert settle(window, publish_id) == [waiter]


@pytest.mark.parametrize('compression', ['none', 'zstd'])
def test_replay_sends_the_same_sub_entries(compression: str) -> None:
    window = make(5, compression, max_unconfirmed=50)
    waiters = [ConfirmWaiter(i, True) for i in range(3)]
    for i in range(48):
        add(window, b'message %d' % i * 9, waiter=waiters[i % 3])
    before = entries(window)
    assert settle(window, 2, 5) == []
    window.replay(9, 0)
    assert (window.in_flight, window.queued) == (0, 38)
    again = take_all(window)
    assert {data[8] for data in again} == {9}
    left = [entry for entry in before if entry[0] not in (2, 5)]
    assert [entry for data in again for entry in read_entries(data)] == left
    assert set(settle(window, *(publish_id for publish_id, _, _ in left))) == set(waiters)


def test_replay_refuses_messages_too_large_for_new_frames() -> None:
    window = make(3)
    waiter = ConfirmGroup()
    add(window, b'a' * 50, b'b' * 50, b'c' * 50, b'd', waiter=waiter)
    waiter.seal()
    take_all(window)
    assert window.replay(3, 100) == []
    assert (window.queued, waiter.errors, waiter.unconfirmed) == (
        1,
        [(0, 0x0E)],
        ([], [], [0, 1, 2]),
    )
    assert waiter.too_large == (0, 8 + 11 + 3 * 54, 100 - 9, 3)
    assert [m for _, _, m in entries(window)] == [[b'd']]
    assert settle(window, 1) == [waiter]


def test_replay_fills_frames_no_more_than_the_window() -> None:
    window = make(10, max_unconfirmed=10)
    add(window, *bodies(*range(21)))
    assert len(entries(window)) == 1
    window.replay(3, 0)
    for count in (10, 10, 1):
        ((publish_id, _, messages),) = entries(window)
        assert len(messages) == count
        settle(window, publish_id)
    assert window.unsettled == 0


# -- user code that uses the window while it encodes


def test_window_cannot_be_used_while_it_encodes() -> None:
    class Trap(dict[str, int]):
        def items(self) -> Any:
            for call in (
                lambda: window.append('x', ConfirmWaiter()),
                window.take,
                window.fail_pending,
                lambda: window.replay(1, 0),
            ):
                with pytest.raises(PublisherError):
                    call()
            trapped.append(True)
            return super().items()

        def __iter__(self) -> Iterator[str]:
            self.items()
            return super().__iter__()

    trapped: list[bool] = []
    window = make(4, amqp=True)
    add(window, 'a', Trap(x=1), 'b')
    ((_, _, messages),) = entries(window)
    assert len(messages) == 3


# -- against a model


class Model(TooLong):
    """The window against plain lists: nothing is lost, duplicated, reordered or settled twice."""

    compression = 'none'

    def __init__(self) -> None:
        super().__init__()
        self.limit = 20
        self.frame_max = 150
        self.window = make(
            5,
            self.compression,
            frame_max=self.frame_max,
            max_unconfirmed=self.limit,
        )
        self.feed = Feed(self.window)
        self.count = 0
        self.bodies: dict[int, bytes] = {}  # of messages, numbered as they came
        self.ids: dict[int, int] = {}  # publishing id of each
        self.owner: dict[int, ConfirmWaiter] = {}
        self.queued: list[int] = []
        self.flying: dict[int, list[int]] = {}  # messages of each id
        self.waiter = ConfirmWaiter(None, True)
        self.last_id = -1

    def add(self, message: Any, body: bytes) -> None:
        publish_id = self.window.append(message, self.waiter)
        number = self.count
        self.count += 1
        assert publish_id >= self.last_id
        self.last_id = publish_id
        self.bodies[number] = body
        self.ids[number] = publish_id
        self.owner[number] = self.waiter
        self.queued.append(number)

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            body = bytes([self.count % 256]) * size
            self.add(body, body)

    @rule(jump=st.integers(0, 3), size=st.integers(0, 60))
    def append_explicit(self, jump: int, size: int) -> None:
        body = bytes([self.count % 256]) * size
        publish_id = self.window.next_id + jump
        self.add(explicit(publish_id, body), body)
        assert self.ids[self.count - 1] == publish_id

    @rule()
    def next_waiter(self) -> None:
        self.waiter = ConfirmWaiter(None, True)

    @rule()
    def take(self) -> None:
        data = self.window.take()
        if data is None:
            assert not self.queued or self.flying
            return
        assert len(data) - 4 <= self.frame_max
        assert data[8] == self.window.publisher_id
        found = read_entries(data)
        assert found
        for publish_id, _, messages in found:
            numbers = self.queued[: len(messages)]
            del self.queued[: len(messages)]
            assert [self.bodies[n] for n in numbers] == messages
            assert {self.ids[n] for n in numbers} == {publish_id}
            assert publish_id not in self.flying
            assert len(messages) <= 5
            self.flying[publish_id] = numbers

    def finished(self, ids: list[int]) -> set[ConfirmWaiter]:
        ended = set()
        for publish_id in ids:
            for number in self.flying.pop(publish_id, ()):
                owner = self.owner.pop(number)
                if owner not in self.owner.values():
                    ended.add(owner)
        return ended

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        known = [*self.flying, *(self.ids[n] for n in self.queued[:3])]
        sent = [i for i in known if i in self.flying or i not in self.flying]
        ids = data.draw(st.lists(st.sampled_from(sent), max_size=10))
        waiting = {self.ids[n] for n in self.queued} - set(self.flying)
        done = self.feed.confirm(*ids)
        assert len(done) == len(set(done))
        assert set(done) == self.finished([i for i in ids if i not in waiting])

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(list(self.flying)), max_size=4, unique=True))
        assert set(self.feed.refuse(*((i, 0x11) for i in ids))) == self.finished(ids)

    @rule(publisher_id=st.integers(0, 255))
    def replay(self, publisher_id: int) -> None:
        self.feed.set_publisher(self.window.publisher_id, None)
        assert self.window.replay(publisher_id, self.frame_max) == []
        self.feed.set_publisher(publisher_id, self.window)
        self.queued = sorted(n for part in self.flying.values() for n in part) + self.queued
        self.flying.clear()

    @rule()
    def fail_pending(self) -> None:
        waiters = self.window.fail_pending()
        assert len(waiters) == len(set(waiters))
        assert set(waiters) == set(self.owner.values())
        self.owner.clear()
        self.queued.clear()
        self.flying.clear()

    @invariant()
    def counts(self) -> None:
        window = self.window
        assert window.in_flight == sum(map(len, self.flying.values())) <= self.limit
        assert window.queued == len(self.queued)
        assert window.unsettled == len(self.owner)
        values = list(self.owner.values())
        for waiter in set(values):
            assert waiter.remaining == values.count(waiter)

    def teardown(self) -> None:
        """Whatever happened, the remaining messages can be sent and confirmed."""
        while self.owner:
            self.take()
            ids = list(self.flying)
            assert set(self.feed.confirm(*ids)) == self.finished(ids)
        self.counts()


class CompressedModel(Model):
    compression = 'lz4'


CHECKS = settings(max_examples=sized(40, 150), stateful_step_count=60)
TestModel = Model.TestCase
TestModel.settings = CHECKS
TestCompressedModel = CompressedModel.TestCase
TestCompressedModel.settings = CHECKS


# -- code that runs while a sub-entry is compressed


def compressing(during: Callable[[memoryview], bytes], size: int = 2) -> PublishWindow:
    """A window that compresses sub-entries with a given function."""
    return PublishWindow(3, 0, 100, 0, None, False, SubEntry(size, 1, during))


@pytest.mark.parametrize('thread', [False, True], ids=['same thread', 'another thread'])
def test_window_is_refused_while_it_compresses(thread: bool) -> None:
    """Another thread may run while the compressor has released the GIL."""
    refused: list[str] = []

    def use() -> None:
        calls: dict[str, Callable[[], object]] = {
            'append': lambda: window.append(b'x' * 10_000, ConfirmWaiter()),
            'put': lambda: window.put(b'x', None),
            'extend': lambda: window.extend(iter([b'x']), 1, ConfirmWaiter()),
            'take': window.take,
            'replay': lambda: window.replay(4, 0),
            'fail_pending': window.fail_pending,
        }
        for name, call in calls.items():
            with pytest.raises(PublisherError, match='while it encodes a message'):
                call()
            refused.append(name)

    def compress(data: memoryview) -> bytes:
        if thread:
            worker = threading.Thread(target=use)
            worker.start()
            worker.join()
        else:
            use()
        return gzip.compress(data, mtime=0)

    window = compressing(compress)
    messages = [b'%d' % i * 50 for i in range(5)]
    add(window, *messages)
    assert entries(window) == [
        (0, 1, messages[:2]),
        (1, 1, messages[2:4]),
        (2, 1, messages[4:]),
    ]
    assert len(refused) == 3 * 6


def test_messages_are_kept_when_the_compressor_fails() -> None:
    """The failing message is not queued; the next call compresses those before it."""
    failing = [True]

    def compress(data: memoryview) -> bytes:
        if failing.pop():
            raise MemoryError
        return gzip.compress(data, mtime=0)

    window = compressing(compress)
    waiter = ConfirmWaiter()
    messages = [b'%d' % i * 50 for i in range(4)]
    add(window, *messages[:2], waiter=waiter)
    with pytest.raises(MemoryError):
        add(window, messages[2], waiter=waiter)
    assert (waiter.count, window.unsettled) == (2, 2)
    failing += [False]
    add(window, messages[2], waiter=waiter)
    failing += [False, True]
    with pytest.raises(MemoryError):
        window.take()
    assert entries(window) == [(0, 1, messages[:2]), (1, 1, messages[2:3])]
