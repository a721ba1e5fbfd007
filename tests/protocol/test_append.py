"""A run of short messages has the same effect as appending each of them by itself."""

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from rbfly.amqp import MessageCtx, stream_message_ctx
from rbfly.error import PublisherError
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.protocol.compression import Compression, compressor
from tests.entry_reader import read_entries
from tests.protocol.test_publish_window import Feed, make, take_all, taken

MAX_ID = 2**64 - 1
FIELDS = (
    *('next_id', 'queued', 'in_flight', 'unsettled', 'last_sent', 'given_up', 'awaited'),
    *('resent', 'frame_entries', 'frame_max', 'needs_redeclare'),
)


def body(ctx: MessageCtx) -> str | None:
    return None if type(ctx.body) is not bytes else ctx.body[:2].decode()


def encoded_alone(message: Any) -> Any:
    """A message that is encoded like this one, but by itself."""
    return stream_message_ctx(message) if type(message) is bytes else message


def entries(data: bytes) -> list[tuple[int, int | None, list[bytes]]]:
    return [] if data[7] == 2 else read_entries(data)  # version 2 has filter values


class Windows:
    """Two windows that take the same steps; only the first may use the path of runs."""

    def __init__(self, rng: random.Random, sub_entries: bool) -> None:
        options = (
            rng.choice([0, 120, 400, 4000]),
            rng.choice([12 if sub_entries else 1, 12, 100, 1000]),
            rng.choice([0, 0, 7, MAX_ID - 50]),
            None if sub_entries else rng.choice([None, None, None, body]),
            rng.random() < 0.5,
        )
        self.sealed = rng.random() < 0.5  # else `seal` seals all waiters
        self.rng = rng
        self.amqp = options[-1]
        size = rng.choice([2, 5, 12])
        kind = Compression(rng.choice(['none', 'gzip']))

        def new_window() -> PublishWindow:
            return PublishWindow(
                3, *options, SubEntry(size, kind.code, compressor(kind)) if sub_entries else None
            )

        self.pair = new_window(), new_window()
        # Windows of other partitions, to which the program sends messages of the same waiter.
        self.elsewhere = [Feed(new_window()) for _ in range(2)]
        self.feeds = [Feed(window) for window in self.pair]
        named = rng.random() < 0.5
        for window in self.pair:
            window.set_named(named)
        self.flying: list[int] = []
        self.waiters: list[tuple[ConfirmWaiter, ConfirmWaiter]] = []
        self.add_waiter()

    def add_waiter(self) -> None:
        number = len(self.waiters)
        self.waiters.append(
            (ConfirmWaiter(number, self.sealed), ConfirmWaiter(number, self.sealed))
        )

    def state(self, number: int) -> list[Any]:
        found: list[Any] = [getattr(self.pair[number], name) for name in FIELDS]
        for waiters in self.waiters:
            w = waiters[number]
            found.append((w.remaining, w.sealed, w.count, w.errors, w.too_large, w.reported))
            found.append((w.unsent, w.doubtful, w.first_refused))
        return found

    def both(self, call: Callable[[int, PublishWindow], Any]) -> Any:
        """Call a function with each window; the results and errors must be the same."""
        results: list[Any] = []
        for number, window in enumerate(self.pair):
            try:
                result = call(number, window)
            except Exception as ex:
                result = type(ex), str(ex)
            if isinstance(result, list) and result and isinstance(result[0], ConfirmWaiter):
                result = [waiter.future for waiter in result]
            results.append(result)
        assert results[0] == results[1]
        assert self.state(0) == self.state(1)
        return results[0]

    def message(self) -> Any:
        rng = self.rng
        text = b'%d' % rng.randrange(10**6)
        kind = rng.choice(['short'] * 20 + ['size', 'long', 'other', 'explicit', 'huge'])
        if kind == 'size':
            return text * rng.randrange(60)
        if kind == 'long':
            return bytes(rng.randrange(250, 260))
        if kind == 'other':
            return rng.choice([bytearray(text), 'text', memoryview(text), object(), [text]])
        if kind == 'explicit':
            publish_id = self.pair[0].next_id + rng.randrange(-5, 5)
            return stream_message_ctx(text, publish_id=min(max(publish_id, 0), MAX_ID))
        return bytes(rng.randrange(5000)) if kind == 'huge' else text

    def append(self) -> None:
        messages = [self.message() for _ in range(self.rng.choice([1, 3, 30, 300]))]
        sources = iter(messages), iter([encoded_alone(message) for message in messages])

        def extend(number: int, window: PublishWindow) -> bool:
            return window.extend(sources[number], 10**6, self.waiters[-1][number])

        while self.both(extend) is not False:
            pass
        if self.rng.random() < 0.2:
            self.add_waiter()

    def append_elsewhere(self) -> None:
        for feed, waiter in zip(self.elsewhere, self.waiters[-1], strict=True):
            with suppress(PublisherError):  # the highest id is used up
                publish_id = feed.window.append(b'x', waiter)
                take_all(feed.window)
                feed.confirm(publish_id)

    def seal(self) -> None:
        if not self.sealed:
            self.both(lambda number, _: [w[number].seal() for w in self.waiters])
            self.add_waiter()

    def take(self) -> None:
        for data in self.both(lambda _, window: take_all(window)):
            self.flying += [publish_id for publish_id, _, _ in entries(data)]

    def settle(self) -> None:
        count = self.rng.randrange(len(self.flying) + 1)
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.flying)
        ids, self.flying = self.flying[:count], self.flying[count:]
        if self.rng.random() < 0.7:
            self.both(lambda number, _: self.feeds[number].confirm(*ids))
        else:
            errors = [(publish_id, self.rng.choice([0x11, 0x12])) for publish_id in ids]
            self.both(lambda number, _: self.feeds[number].refuse(*errors))

    def give_up(self) -> None:
        top = self.pair[0].next_id
        ids = [self.rng.randrange(max(0, top - 50), top + 1) for _ in range(20)]
        waiters = self.rng.choices(self.waiters[-3:], k=20)

        def give_up(number: int, window: PublishWindow) -> list[bool]:
            return [window.give_up(i, w[number]) for i, w in zip(ids, waiters, strict=True)]

        if self.sealed:
            self.both(give_up)

    def replay(self) -> None:
        frame_max = self.rng.choice([0, 60, 120, 400, 4000])
        self.flying.clear()
        self.both(lambda _, window: window.replay(3, frame_max))

    def resize(self) -> None:
        size = self.rng.choice([1, 12, 100, 1000])
        self.both(lambda _, window: window.resize(size))

    def look(self) -> None:
        publish_id = min(self.pair[0].next_id + 3, MAX_ID)
        self.both(lambda _, window: (window.count_unsent(), window.count_unreported()))
        self.both(lambda number, window: window.unsettled_of(self.waiters[-1][number]))
        messages: list[Any] = [b'x', stream_message_ctx(b'y', publish_id=publish_id), b'z']
        self.both(lambda _, window: window.check_ids(messages, 0, 3))

    def join(self) -> None:
        top = self.pair[0].next_id
        message = stream_message_ctx(b'1', publish_id=self.rng.randrange(max(0, top - 9), top + 1))
        self.both(lambda _, window: window.join(message, ConfirmWaiter(None, True)))

    def fail(self) -> None:
        self.flying.clear()
        self.both(lambda _, window: window.fail_pending())
        self.add_waiter()

    def step(self) -> None:
        steps = [self.append] * 8 + [self.seal, self.take, self.settle] * 4
        steps += [self.give_up, self.replay, self.resize, self.look, self.join] * 2 + [self.fail]
        steps += [self.append_elsewhere] * 2
        self.rng.choice(steps)()


@pytest.mark.parametrize('sub_entries', [False, True])
@pytest.mark.parametrize('walk', range(40))
def test_random_steps(walk: int, sub_entries: bool, rng: random.Random) -> None:
    windows = Windows(rng, sub_entries)
    for _ in range(150):
        windows.step()
    windows.seal()
    windows.take()


def test_run_is_interrupted_while_a_message_is_encoded() -> None:
    window = make(amqp=True)
    waiter = ConfirmWaiter()

    class Trap(UserDict[str, int]):
        def __iter__(self) -> Iterator[str]:
            with pytest.raises(PublisherError):
                window.extend(iter([b'inner']), 1, ConfirmWaiter())
            with pytest.raises(PublisherError):
                window.extend(iter([b'inner']), 1, waiter)
            return super().__iter__()

    messages: list[Any] = [b'a', b'b', Trap({'key': 1}), b'c', b'd']
    window.extend(iter(messages), 100, waiter)
    assert [publish_id for publish_id, _ in taken(window)[0]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize('amqp', [False, True])
def test_highest_id_ends_a_run(amqp: bool) -> None:
    window = make(next_id=MAX_ID - 3, amqp=amqp)
    waiter = ConfirmWaiter()
    with pytest.raises(PublisherError, match='used up'):
        window.extend(iter([b'x'] * 10), 100, waiter)
    assert [publish_id for publish_id, _ in taken(window)[0]] == list(range(MAX_ID - 3, MAX_ID + 1))


def test_smaller_window_ends_a_run() -> None:
    window = make(max_unconfirmed=1000)
    waiter = ConfirmWaiter()
    window.extend(iter([b'x'] * 3), 100, waiter)
    window.resize(10)
    window.extend(iter([b'x'] * 3), 100, waiter)
    assert [len(frame) for frame in taken(window)] == [4, 1, 1]


@pytest.mark.parametrize('size', [None, 2])
def test_code_that_runs_while_messages_are_dropped(size: int | None) -> None:
    class Last:
        def __del__(self) -> None:
            with pytest.raises(PublisherError):
                window.extend(iter([b'inner']), 1, last)
            called.append(True)

    called: list[bool] = []
    window = PublishWindow(3, 0, 100, 1, sub_entry=SubEntry(size) if size else None)
    feed, last = Feed(window), ConfirmWaiter()
    confirmed: ConfirmWaiter | None = ConfirmWaiter(Last())
    assert confirmed is not None
    window.extend(iter([b'a', b'b']), 2, confirmed)
    window.extend(iter([b'c', b'd']), 2, ConfirmWaiter())
    take_all(window)
    feed.confirm(*range(1, 3 if size is None else 2))
    feed.done.clear()
    confirmed = None
    assert not called
    window.fail_pending()
    assert called
    window.extend(iter([b'x', b'y']), 2, last)
    ((_, _, messages), *_) = read_entries(take_all(window)[0])
    assert messages[0].endswith(b'x')
