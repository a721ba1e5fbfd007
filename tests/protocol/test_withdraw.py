"""Callers that give up: messages are withdrawn, stay in flight, or are joined by another caller."""

import random
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rbfly.error import ArgumentError, MessageTooLarge
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams._publish._confirm import ConfirmGroup
from tests.protocol.test_publish_window import Feed, explicit, make, settle, take_all, taken
from tests.sizes import sized
from tests.stream_wire import publish, read_publish

LAST = 2**64 - 1


def put(window: PublishWindow, *messages: Any) -> list[tuple[int, ConfirmWaiter]]:
    """Append messages, each with a waiter of its own; return ids and waiters."""
    found = []
    for message in messages:
        waiter = ConfirmWaiter(None, True)
        found.append((window.append(message, waiter), waiter))
    return found


def ids(window: PublishWindow) -> list[int]:
    return [i for entries in taken(window) for i, _ in entries]


# -- withdrawing


@pytest.mark.parametrize('size', [10, 100, 5000])
@pytest.mark.parametrize('which', [slice(0, 1), slice(0, 20, 2), slice(5, 15), slice(19, 20)])
def test_message_that_was_not_sent_is_withdrawn(which: slice, size: int) -> None:
    window = make(frame_max=6000)
    messages = put(window, *[bytes([i]) * size for i in range(20)])
    gone = messages[which]
    assert [window.give_up(*message) for message in gone] == [True] * len(gone)
    assert [window.give_up(*message) for message in gone] == [False] * len(gone)
    left = [i for i, _ in messages if i not in dict(gone)]
    assert (window.queued, window.awaited, window.given_up) == (len(left), len(left), 0)
    entries = [entry for frame in taken(window) for entry in frame]
    assert entries == [(i, bytes([i]) * size) for i in left]
    assert settle(window, *left) == [waiter for i, waiter in messages if i in left]
    assert window.unsettled == 0


def test_all_messages_are_withdrawn() -> None:
    window = make()
    for message in put(window, *[b'x'] * 100):
        assert window.give_up(*message)
    assert (window.queued, window.unsettled, window.take()) == (0, 0, None)
    put(window, b'y')
    assert taken(window) == [[(100, b'y')]]


def test_withdrawn_message_leaves_the_message_behind_it_in_place() -> None:
    window = make()
    first, _ = put(window, b'a', b'b')
    assert window.take()
    withdrawn, _ = put(window, b'c', b'd')
    assert window.give_up(*withdrawn)
    assert not window.give_up(*first)  # in flight
    assert (window.in_flight, window.queued, window.given_up, window.awaited) == (2, 1, 1, 2)
    assert taken(window) == [[(3, b'd')]]
    assert len(settle(window, 0, 1, 2, 3)) == 3
    assert (window.unsettled, window.given_up, window.awaited) == (0, 0, 0)


def test_frame_that_was_moved_takes_no_message_beyond_the_limit() -> None:
    window = make(max_unconfirmed=1)
    _, withdrawn = put(window, b'a', b'b')
    window.give_up(*withdrawn)
    put(window, explicit(withdrawn[0], b'c'))
    assert window.take()
    assert (window.in_flight, window.queued) == (1, 1)


def test_withdrawn_messages_give_their_capacity_back() -> None:
    window = make(max_unconfirmed=10)
    for _ in range(1000):
        for message in put(window, *[b'x'] * 10):
            assert window.give_up(*message)
        assert window.unsettled == 0


def test_withdrawn_messages_do_not_accumulate() -> None:
    window = make(max_unconfirmed=100)
    put(window, *[b'kept'] * 10)
    tracemalloc.start()
    try:
        for i in range(5000):
            [message] = put(window, bytes(10_000))
            assert window.give_up(*message)
            if i == 100:
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 500_000
    assert ids(window) == list(range(10))


def test_ids_of_withdrawn_messages_are_used_again_in_linear_time() -> None:
    """Each caller sends its message again as soon as it has given up."""

    def seconds(count: int) -> float:
        window = make(max_unconfirmed=count)
        messages = put(window, *[explicit(i) for i in range(count)])
        start = time.process_time()
        for publish_id, waiter in messages[:-1]:
            assert window.give_up(publish_id, waiter)
            with pytest.raises(ArgumentError) as caught:
                put(window, explicit(publish_id))
            assert caught.value.outcome == 'not_sent'
            window.check_ids([b'x'], 0, 1)
        return time.process_time() - start

    few, many = (min(seconds(count) for _ in range(2)) for count in (1000, 16_000))
    assert many < 100 * few  # 16 times the messages; 256 if it were quadratic


def test_refused_message_is_not_counted_as_given_up() -> None:
    window = make()
    feed = Feed(window)
    [message] = put(window, b'x')
    assert window.take()
    assert not window.give_up(*message)
    assert feed.refuse((0, 0x11)) == [message[1]]
    assert (window.given_up, window.awaited, window.unsettled) == (0, 0, 0)


def test_message_with_filter_value_is_withdrawn() -> None:
    window = make(filter_extract=lambda ctx: 'f')
    first, second = put(window, b'a', b'b')
    window.give_up(*first)
    assert take_all(window) == [publish(3, [(1, b'b')], [b'\0\x01f'])]
    assert settle(window, 1) == [second[1]]


def test_message_in_a_sub_entry_is_not_withdrawn() -> None:
    window = PublishWindow(3, 0, 100, 0, None, False, SubEntry(2, 0, None))
    messages = put(window, b'a', b'b', b'c')
    assert not any(window.give_up(*message) for message in messages)
    assert (window.queued, window.given_up) == (3, 0)
    assert len(settle(window, 0)) == 0
    assert len(take_all(window)) == 1
    assert len(settle(window, 0, 1)) == 3


def test_only_its_own_caller_withdraws_a_message() -> None:
    window = make()
    [(publish_id, _)] = put(window, b'x')
    assert not window.give_up(publish_id, ConfirmWaiter(None, True))
    assert not window.give_up(publish_id + 1, ConfirmWaiter(None, True))
    assert ids(window) == [0]


def test_caller_gives_up_while_the_window_encodes() -> None:
    window = make(filter_extract=lambda ctx: withdraw(ctx.body))
    done: list[bool] = []

    def withdraw(body: Any) -> None:
        if body == b'b':
            done.append(window.give_up(*first))

    [first] = put(window, b'a')
    put(window, b'b')
    assert done == [False]
    assert window.queued == 2


# -- ids


def test_withdrawn_id_may_be_used_again_until_a_higher_id_is_taken() -> None:
    window = make()
    messages = put(window, *[explicit(i) for i in (3, 5, 7)])
    for message in messages[1:]:
        assert window.give_up(*message)
    with pytest.raises(ArgumentError):
        put(window, explicit(3, b'y'))
    put(window, explicit(5, b'again'))
    with pytest.raises(ArgumentError):
        put(window, explicit(5, b'y'))
    put(window, explicit(7, b'again'))
    assert taken(window) == [[(3, b'x'), (5, b'again'), (7, b'again')]]
    assert len(settle(window, 3, 5, 7)) == 3


def test_withdrawn_id_below_a_message_that_stays_is_used_up() -> None:
    window = make()
    first, _ = put(window, explicit(1), explicit(2))
    assert window.give_up(*first)
    with pytest.raises(ArgumentError):
        put(window, explicit(1))
    assert ids(window) == [2]


@pytest.mark.parametrize('publish_id', [0, 1, LAST])
def test_lowest_and_highest_id_may_be_used_again(publish_id: int) -> None:
    window = make()
    for _ in range(3):
        [message] = put(window, explicit(publish_id))
        assert window.give_up(*message)
    put(window, explicit(publish_id))
    assert ids(window) == [publish_id]
    with pytest.raises(ArgumentError):
        put(window, explicit(publish_id))


def test_send_many_may_use_withdrawn_ids() -> None:
    window = make()
    put(window, explicit(1))
    for message in put(window, explicit(2), explicit(3)):
        assert window.give_up(*message)
    assert window.check_ids([explicit(2), explicit(3)], 0, 2) == 3


def test_id_that_was_written_is_used_up() -> None:
    window = make()
    [message] = put(window, explicit(5))
    assert window.take()
    window.replay(3, 0)
    assert not window.give_up(*message)  # the earlier connection may have stored it
    assert ids(window) == []
    with pytest.raises(ArgumentError):
        put(window, explicit(5))


def test_ids_of_messages_never_sent_may_be_used_again_after_a_failure() -> None:
    window = make()
    put(window, explicit(1))
    assert window.take()
    put(window, explicit(4), explicit(6))
    window.fail_pending()
    with pytest.raises(ArgumentError):
        put(window, explicit(1))
    put(window, explicit(4))
    assert ids(window) == [4]


# -- after a reconnect


@pytest.mark.parametrize('named', [False, True])
@pytest.mark.parametrize('when', ['in flight', 'queued again'])
def test_only_a_named_publisher_resends_what_its_callers_gave_up(named: bool, when: str) -> None:
    window = make()
    window.set_named(named)
    messages = put(window, b'a', b'b', b'c')
    assert window.take()
    messages += put(window, b'd')
    if when == 'queued again':
        window.replay(3, 0)
    assert not window.give_up(*messages[1])
    assert window.given_up == (named or when == 'in flight')
    if when == 'in flight':
        window.replay(3, 0)
    assert window.awaited == 3
    assert ids(window) == ([0, 1, 2, 3] if named else [0, 2, 3])
    window.replay(3, 0)  # once more
    assert ids(window) == ([0, 1, 2, 3] if named else [0, 2, 3])
    done = settle(window, 0, 1, 2, 3)
    assert len(done) == 3 + named
    assert (window.unsettled, window.given_up) == (0, 0)


def test_message_too_large_for_the_new_connection_may_be_given_up() -> None:
    window = make()
    window.set_named(True)
    sent, unsent = put(window, bytes(1000), bytes(1000))[0], None
    assert window.take()
    assert not window.give_up(*sent)
    [unsent] = put(window, bytes(1000))
    done = window.replay(3, 200)
    assert set(done) >= {sent[1], unsent[1]}
    assert (sent[1].doubtful, unsent[1].doubtful) == (True, False)
    assert (window.unsettled, window.given_up) == (0, 0)


def test_messages_that_no_caller_knows_of_are_counted() -> None:
    window = make()
    given_up, _, reported = put(window, b'a', b'b', b'c')
    assert window.take()
    put(window, b'd')
    assert not window.give_up(*given_up)
    reported[1].reported = True
    assert window.count_unreported() == (1, 1)


# -- the same message again


def test_second_caller_waits_for_the_same_confirm() -> None:
    window = make()
    [(_, first)] = put(window, explicit(7))
    second, third = ConfirmWaiter(None, True), ConfirmWaiter(None, True)
    assert window.join(explicit(7), second) == 7
    assert ids(window) == [7]
    assert window.join(explicit(7), third) == 7
    [done] = settle(window, 7)
    assert done.future == [first, second, third]
    assert window.join(explicit(7), second) is None  # confirmed


@pytest.mark.parametrize('kept', range(3))
@pytest.mark.parametrize('sent', [False, True])
def test_message_stays_while_one_of_its_callers_waits(kept: int, sent: bool) -> None:
    window = make()
    [(_, first)] = put(window, explicit(7))
    if sent:
        assert window.take()
    callers = [first, ConfirmWaiter(None, True), ConfirmWaiter(None, True)]
    for caller in callers[1:]:
        assert window.join(explicit(7), caller) == 7
    last = callers.pop(kept)
    assert not any(window.give_up(7, caller) for caller in callers)
    assert (window.awaited, window.count_unreported()) == (1, (sent, not sent))
    window.replay(3, 0)
    assert (window.awaited, window.unsettled) == (1, 1)
    assert window.give_up(7, last) is not sent
    assert (window.awaited, window.unsettled, window.take()) == (0, 0, None)


def test_message_given_up_in_flight_is_awaited_again() -> None:
    window = make()
    [message] = put(window, explicit(7))
    assert window.take()
    window.give_up(*message)
    again = ConfirmWaiter(None, True)
    assert window.join(explicit(7), again) == 7
    assert (window.given_up, window.awaited, window.count_unreported()) == (0, 1, (1, 0))
    window.replay(3, 0)
    assert ids(window) == [7]
    assert [waiter.future for waiter in settle(window, 7)] == [[again]]


@pytest.mark.parametrize(
    'message', [b'x', explicit(6), explicit(7, b'y'), explicit(7, b'xx'), explicit(8)]
)
@pytest.mark.parametrize('sent', [False, True])
def test_another_message_does_not_join(message: Any, sent: bool) -> None:
    window = make()
    put(window, explicit(7))
    if sent:
        assert window.take()
    assert window.join(message, ConfirmWaiter(None, True)) is None
    put(window, b'y')
    assert sum(len(entries) for entries in taken(window)) == 2 - sent


def test_other_kinds_of_callers_are_not_joined() -> None:
    window, single = make(), ConfirmWaiter(None, True)
    window.append(explicit(1), ConfirmGroup())
    window.put(explicit(2), object())
    for publish_id in (1, 2):
        assert window.join(explicit(publish_id), single) is None


def test_message_that_cannot_be_encoded_does_not_join() -> None:
    window = make(frame_max=200)
    put(window, b'a', explicit(7))
    with pytest.raises(TypeError):
        window.join(explicit(7, 'text'), ConfirmWaiter(None, True))
    with pytest.raises(MessageTooLarge):
        window.join(explicit(7, bytes(1000)), ConfirmWaiter(None, True))
    assert taken(window) == [[(0, b'a'), (7, b'x')]]


def test_joined_message_with_a_filter_value() -> None:
    values: list[str | None] = ['a', 'a', 'b']
    window = make(filter_extract=lambda ctx: values.pop(0))
    put(window, explicit(7))
    assert window.join(explicit(7), ConfirmWaiter(None, True)) == 7
    assert window.join(explicit(7), ConfirmWaiter(None, True)) is None  # another filter value


# -- against a model


class Message:
    """One message in the model."""

    def __init__(self, publish_id: int, body: bytes, waiter: ConfirmWaiter) -> None:
        self.id = publish_id
        self.body = body
        self.waiters = [waiter]  # callers that have not given up
        self.written = False


class Withdrawing(RuleBasedStateMachine):
    """The window against plain lists: what a caller gave up is never sent, or stays as it must."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[Message] = []
        self.flying: list[Message] = []
        self.free: set[int] = set()  # ids of withdrawn messages
        self.taken = -1  # highest id of the other messages
        self.bodies = 0

    @initialize(named=st.booleans(), limit=st.sampled_from([1, 5, 12, 40, 300]))
    def open(self, named: bool, limit: int) -> None:
        self.named = named
        self.publisher_id = 0
        self.limit = limit
        self.window = make(0, 120, limit)
        self.window.set_named(named)
        self.feed = Feed(self.window)

    @property
    def all(self) -> list[Message]:
        return self.flying + self.queued

    def body(self, size: int) -> bytes:
        self.bodies += 1
        return b'%d' % self.bodies + b'.' * size

    def added(self, publish_id: int, body: bytes, waiter: ConfirmWaiter) -> None:
        self.queued.append(Message(publish_id, body, waiter))
        self.taken = publish_id
        self.free.discard(publish_id)

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            body, waiter = self.body(size), ConfirmWaiter(None, True)
            self.added(self.window.append(body, waiter), body, waiter)

    @rule(jump=st.integers(0, 3), size=st.integers(0, 60))
    def append_explicit(self, jump: int, size: int) -> None:
        body, waiter = self.body(size), ConfirmWaiter(None, True)
        publish_id = self.window.next_id + jump
        assert self.window.append(explicit(publish_id, body), waiter) == publish_id
        self.added(publish_id, body, waiter)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def use_again(self, data: st.DataObject) -> None:
        publish_id = data.draw(st.sampled_from(sorted(self.free)))
        body, waiter = self.body(5), ConfirmWaiter(None, True)
        if publish_id > self.taken:
            assert self.window.check_ids([explicit(publish_id)], 0, 1) == publish_id
            assert self.window.append(explicit(publish_id, body), waiter) == publish_id
            self.added(publish_id, body, waiter)
        else:
            with pytest.raises(ArgumentError):
                self.window.append(explicit(publish_id, body), waiter)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), count=st.integers(1, 20))
    def give_up(self, data: st.DataObject, count: int) -> None:
        for message in data.draw(st.lists(st.sampled_from(self.all), max_size=count)):
            if not message.waiters:
                continue
            waiter = data.draw(st.sampled_from(message.waiters))
            message.waiters.remove(waiter)
            stays = message.waiters or message in self.flying or (self.named and message.written)
            withdrawn = self.window.give_up(message.id, waiter)
            assert withdrawn is not (bool(stays) or message.written)
            if not stays:
                self.queued.remove(message)
                if not message.written:
                    self.free.add(message.id)
                    self.note_taken()

    def note_taken(self) -> None:
        """Find the highest id that cannot be used again, after messages were withdrawn."""
        self.taken = max([self.floor, *(message.id for message in self.all)])

    floor = -1  # highest id that was ever written

    @precondition(lambda self: self.all)
    @rule(data=st.data(), same=st.booleans())
    def join(self, data: st.DataObject, same: bool) -> None:
        message = data.draw(st.sampled_from(self.all))
        waiter = ConfirmWaiter(None, True)
        body = message.body if same else message.body + b'x'
        found = self.window.join(explicit(message.id, body), waiter)
        if same:
            assert found == message.id
            message.waiters.append(waiter)
        else:
            assert found is None

    @rule()
    def take(self) -> None:
        data = self.window.take()
        if data is None:
            assert not self.queued or self.flying
            return
        assert len(data) - 4 <= self.window.frame_max
        publisher_id, entries = read_publish(data)
        assert publisher_id == self.publisher_id
        assert entries
        sent, self.queued = self.queued[: len(entries)], self.queued[len(entries) :]
        assert entries == [(message.id, message.body) for message in sent]
        for message in sent:
            message.written = True
            self.floor = max(self.floor, message.id)
        self.flying += sent

    @rule(data=st.data(), code=st.sampled_from([0, 0x11]))
    def settle(self, data: st.DataObject, code: int) -> None:
        known = [message.id for message in self.all] + sorted(self.free)[-3:] + [10**9]
        chosen = data.draw(st.lists(st.sampled_from(known), max_size=10, unique=True))
        if code:
            done = self.feed.refuse(*((i, code) for i in chosen))
        else:
            done = self.feed.confirm(*chosen)
        expected = [message for message in self.flying if message.id in chosen]
        self.flying = [message for message in self.flying if message not in expected]
        assert len(done) == len(expected)
        woken = [w for one in done for w in (one.future or ([] if one.future == [] else [one]))]
        waiting = [waiter for message in expected for waiter in message.waiters]
        assert set(waiting) <= set(woken)
        assert all((one.errors is not None) is bool(code) for one in done)

    @rule(publisher_id=st.integers(0, 255), frame_max=st.integers(110, 200))
    def replay(self, publisher_id: int, frame_max: int) -> None:
        self.feed.set_publisher(self.publisher_id, None)
        assert self.window.replay(publisher_id, frame_max) == []
        self.feed.set_publisher(publisher_id, self.window)
        self.publisher_id = publisher_id
        self.queued = [m for m in self.all if m.waiters or self.named]
        self.flying = []

    @rule()
    def fail_pending(self) -> None:
        done = self.window.fail_pending()
        assert len(done) == len(self.all)
        self.free |= {message.id for message in self.queued if not message.written}
        self.queued, self.flying = [], []
        self.note_taken()

    @invariant()
    def counts(self) -> None:
        window = self.window
        given_up = sum(not message.waiters for message in self.all)
        assert window.in_flight == len(self.flying) <= max(self.limit, 1)
        assert window.queued == len(self.queued)
        assert window.given_up == given_up
        assert window.awaited == len(self.all) - given_up
        assert window.count_unsent() == sum(not message.written for message in self.queued)

    def teardown(self) -> None:
        """Whatever happened, the remaining messages can be sent and confirmed."""
        if not hasattr(self, 'window'):
            return
        while self.all:
            self.take()
            chosen = [message.id for message in self.flying]
            assert len(self.feed.confirm(*chosen)) == len(chosen)
            self.flying = []
        self.counts()


TestWithdrawing = Withdrawing.TestCase
TestWithdrawing.settings = settings(
    max_examples=sized(20, 60), stateful_step_count=40, phases=[Phase.generate]
)


@pytest.mark.parametrize('named', [False, True])
@pytest.mark.parametrize('walk', range(4))
def test_long_random_run(walk: int, named: bool, rng: random.Random) -> None:
    """Many messages through a ring that wraps and grows, of which callers give up a part."""
    window = make(0, 2000, 500)
    window.set_named(named)
    feed = Feed(window)
    waiting: dict[int, ConfirmWaiter] = {}
    flying: list[int] = []
    written: set[int] = set()
    withdrawn: set[int] = set()
    confirmed: set[int] = set()
    total = 20_000
    appended = 0
    while appended < total or window.awaited:
        for _ in range(rng.randrange(200)):
            if appended < total and window.unsettled < 500:
                waiter = ConfirmWaiter(None, True)
                waiting[window.append(b'%d' % appended, waiter)] = waiter
                appended += 1
        share = rng.choice([0, 0, 0.01, 0.3, 1])
        for publish_id, waiter in list(waiting.items()):
            if rng.random() < share:
                if window.give_up(publish_id, waiter):
                    assert publish_id not in written
                    withdrawn.add(publish_id)
                del waiting[publish_id]
        for _ in range(rng.choice([0, 1, 100])):
            data = window.take()
            if data is None:
                break
            entries = read_publish(data)[1]
            assert all(body == b'%d' % i for i, body in entries)
            assert not withdrawn.intersection(i for i, _ in entries)
            flying += [i for i, _ in entries]
        assert flying == sorted(set(flying))
        written.update(flying)
        if rng.random() < 0.1:
            feed.set_publisher(window.publisher_id, None)
            window.replay(rng.randrange(256), rng.randrange(100, 4000))
            feed.set_publisher(window.publisher_id, window)
            flying.clear()
            continue
        if rng.random() < 0.3:
            rng.shuffle(flying)
        count = rng.randrange(len(flying) + 1)
        feed.confirm(*flying[:count])
        for publish_id in flying[:count]:
            confirmed.add(publish_id)
            waiting.pop(publish_id, None)
        flying = sorted(flying[count:])
    assert not waiting
    assert not withdrawn & written
    assert confirmed | withdrawn <= set(range(total))
    if named:  # everything that was ever written is sent again until it is confirmed
        assert len(written - confirmed) == window.unsettled == window.given_up
    assert len(withdrawn) > 100
    assert len(confirmed) > 100
