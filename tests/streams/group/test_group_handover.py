"""How a member of a consumer group answers the broker, in the in-memory broker."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.protocol.const import Key
from rbfly.streams import events
from rbfly.streams._consume import watchdog
from rbfly.streams._group.member import Activity, Member
from rbfly.streams._offsets.queries import end_of_messages
from rbfly.testing import StreamBroker
from rbfly.testing.group import ACTIVE, WAITING
from rbfly.testing.stream import Stream
from tests.brokers import until
from tests.group_members import take
from tests.inside import cluster_of, cursor_of, session_of

HANG = 20.0  # seconds; only a bug makes a test wait that long
GROUP = 'billing'
OPTIONS: Any = {'group': GROUP, 'commit': 'auto', 'offset': rbs.Offset.FIRST}


@pytest.fixture
def broker() -> Iterator[StreamBroker]:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish('orders', *range(10))
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uri) as client:
        yield client


def member_of(messages: Any) -> Member:
    found = session_of(messages)._member
    assert isinstance(found, Member)
    return found


class Answers:
    """Correlation ids of the answers that a member writes to a ConsumerUpdate, and the offsets."""

    def __init__(self, messages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[int, rbs.Offset | None]] = []
        connection = session_of(messages).registration.connection
        write = connection.write

        def record(data: bytes) -> None:
            if int.from_bytes(data[4:6], 'big') == Key.CONSUMER_UPDATE | 0x8000:
                reader = commands.Reader(data[8:])
                response = commands.Response.read(commands.ConsumerUpdate, reader)
                self.found.append((response.correlation_id, response.value))
            write(data)

        monkeypatch.setattr(connection, 'write', record)


async def test_repeated_requests_to_hand_over(
    client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 4.3 repeats them, and the first answer activates the next member."""
    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await anext(messages) == 0
        assert await anext(messages) == 1
        answers = Answers(messages, monkeypatch)
        member = member_of(messages)
        member._on_update(100, False)
        member._on_update(101, False)
        await asyncio.sleep(0.01)
        member._on_update(102, False)
        assert member.activity is Activity.LEAVING
        assert not messages.active
        assert not answers.found
        waiting = asyncio.ensure_future(anext(messages))  # finishes the message
        await until(lambda: len(answers.found) == 3, 'the member has answered')
        assert answers.found == [(100, None), (101, None), (102, None)]
        assert await client.read_offset('orders', GROUP) == 1
        waiting.cancel()


async def test_late_handover_is_reported_once(
    client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 4.3 may repeat its request while the member stores its offset."""
    reached, stored = asyncio.Event(), asyncio.Event()

    async def store(self: Member) -> None:
        reached.set()
        await stored.wait()

    found = client.events()
    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await anext(messages) == 0
        member = member_of(messages)
        monkeypatch.setattr(Member, '_store', store)
        member._on_update(100, False)
        member._leave_by = 0  # long ago
        await reached.wait()
        reached.clear()
        member._on_update(101, False)
        await reached.wait()
        stored.set()
        await until(lambda: not member._unanswered, 'the member has answered')
    await client.disconnect()
    kinds = [type(item) async for item in found]
    assert kinds.count(events.HandoverLate) == 1


async def test_handover_returns_the_credit(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    """The member also returns the credit of chunks that arrive during the handover.

    The broker grants no new credit when the member becomes active again.
    """
    for number in range(10, 15):
        broker.publish('orders', number)
    async with client.subscribe('orders', initial_credit=3, **OPTIONS) as messages:
        assert await anext(messages) == 0
        [found] = cluster_of(broker).groups[broker._stream('orders', None), GROUP].members

        def returned() -> bool:
            return bool(found._next == 6 and found._credit >= 3)

        await until(lambda: broker._call(lambda: found._credit) == 0, 'three chunks are sent')
        member_of(messages)._on_update(100, False)
        await until(lambda: broker._call(returned), 'the credit of all six chunks is returned')
        assert broker._call(lambda: found._credit) == 3


async def test_update_for_a_subscription_that_has_ended(
    client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection answers the update; the member does not act on it."""
    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await anext(messages) == 0
        answers = Answers(messages, monkeypatch)
        registration: Any = session_of(messages).registration
        connection, found = registration.connection, registration.id
        registration.reset()
        request = commands.ConsumerUpdate(found, True).encode(100)
        connection._on_consumer_update(request[8:])
        assert answers.found == [(100, None)]
        member = member_of(messages)
        assert member.activity is Activity.STANDBY
        assert member._task is None


async def test_active_again_before_the_answer(
    client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member finishes its messages first, and then starts after them."""
    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await anext(messages) == 0
        answers = Answers(messages, monkeypatch)
        member = member_of(messages)
        member._on_update(100, False)
        member._on_update(101, True)
        await asyncio.sleep(0.01)
        assert not answers.found
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(answers.found) == 2, 'the member has answered')
        start = rbs.Offset.offset(1)
        assert answers.found == [(100, start), (101, start)]
        assert messages.active
        waiting.cancel()


async def test_limit_for_a_member_that_is_active_again(
    client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must answer the first update, too, before the broker closes the connection."""
    monkeypatch.setattr('rbfly.streams._group.member.STORE_TIMEOUT', 0.001)
    hang = False

    async def ask(stream: str) -> rbs.Offset:
        if hang:
            await asyncio.Event().wait()
        return rbs.Offset.FIRST

    async with client.subscribe('orders', group=GROUP, offset=ask) as messages:
        assert await anext(messages) == 0
        hang = True
        member = member_of(messages)
        member._on_update(100, False)
        member._on_update(101, True)
        member._leave_by = 0  # long ago
        await until(lambda: not member._unanswered, 'the member has answered')
        with pytest.raises(rbs.StreamConnectionError, match=r'within 0\.1 s'):
            await anext(messages)


async def test_deactivated_while_it_determines_its_start(client: rbs.StreamsClient) -> None:
    asked = asyncio.Event()

    async def ask(stream: str) -> rbs.Offset:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with client.subscribe('orders', group=GROUP, offset=ask) as messages:
        await messages.open()
        await asyncio.wait_for(asked.wait(), HANG)
        member = member_of(messages)
        assert member.activity is Activity.STARTING
        member._on_update(100, False)
        await until(lambda: member.activity is Activity.STANDBY, 'it stands by')
        assert member._task is None


async def test_handover_drops_a_batch_that_waits_for_more(client: rbs.StreamsClient) -> None:
    async with client.subscribe('orders', **OPTIONS) as messages:
        waiting = asyncio.ensure_future(anext(messages.batches(max_wait=1)))
        await until(lambda: cursor_of(messages).has_messages, 'the batch waits')
        member_of(messages)._on_update(100, False)
        await until(lambda: member_of(messages).activity is Activity.STANDBY, 'it stands by')
        await asyncio.sleep(1.1)  # longer than the batch would have waited
        connection: Any = session_of(messages).registration.connection
        connection._transport.abort()  # joins again
        assert [*await asyncio.wait_for(waiting, HANG)] == [*range(10)]


async def test_late_answer_that_starts_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes an answer to an earlier update for that to a later one, and delivers from
    the first message, until the answer arrives that says where the member starts."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        for number in range(100):
            broker.publish('orders', number)
        async with (
            rbs.streams_client(broker.uri) as client,
            rbs.streams_client(broker.uri) as other,
            contextlib.aclosing(other.subscribe('orders', **OPTIONS)) as first,
            contextlib.aclosing(client.subscribe('orders', **OPTIONS)) as second,
        ):
            await client.write_offset('orders', GROUP, 20, wait=True)
            await first.open()
            await until(lambda: first.active, 'the first member is active')
            await second.open()
            reading = asyncio.ensure_future(take(second, 79))
            left = asyncio.Event()
            registration = session_of(second).registration
            reset = registration.reset

            def leave() -> object:
                left.set()
                return reset()

            monkeypatch.setattr(registration, 'reset', leave)

            def update() -> None:
                found = cluster_of(broker).groups[broker._stream('orders', None), GROUP].members
                found[0].state, found[1].state = WAITING, ACTIVE
                found[1].notify(False)
                found[1].notify(True)

            broker._call(update)
            await asyncio.wait_for(left.wait(), HANG)
            await first.aclose()
            assert await asyncio.wait_for(reading, HANG) == [*range(21, 100)]


@pytest.mark.parametrize('active', [False, True])
async def test_cancelled_task_of_a_member(client: rbs.StreamsClient, active: bool) -> None:
    """A program may cancel all tasks of its loop: without an answer, the broker would wait."""
    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await anext(messages) == 0
        member = member_of(messages)
        member._on_update(100, active)
        assert member._task is not None
        await asyncio.sleep(0)
        member._task.cancel()
        with pytest.raises(rbs.StreamConnectionError, match='its task was cancelled'):
            await asyncio.wait_for(anext(messages), HANG)
        assert await asyncio.wait_for(anext(messages), HANG) == 0


@pytest.mark.parametrize('error', [False, True])
async def test_handover_with_an_undecodable_message(
    broker: StreamBroker, client: rbs.StreamsClient, error: bool
) -> None:
    """A message that is not AMQP 1.0 follows the one that the program has received."""
    async with client.publisher('orders', amqp=False) as publisher:
        await publisher.send(b'\x00')
    async with client.subscribe('orders', **OPTIONS) as messages:
        async for batch in messages.batches():
            if 9 in [*batch]:
                break
        if error:
            with pytest.raises(rbs.AMQPDecoderError):
                await anext(messages.batches())
        member_of(messages)._on_update(100, False)
        waiting = asyncio.ensure_future(messages.fetch())
        await until(lambda: member_of(messages).activity is Activity.STANDBY, 'it stands by')
        waiting.cancel()
        assert broker.offsets('orders') == {GROUP: 10 if error else 9}


async def test_stopped_member_does_not_become_active(client: rbs.StreamsClient) -> None:
    messages = client.subscribe('orders', **OPTIONS)
    assert await anext(messages) == 0
    messages.stop()
    member = member_of(messages)
    member._on_update(100, False)
    member._on_update(101, True)
    assert session_of(messages).registration.connection is None
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(messages), HANG)


async def test_standby_member_stops_at_once(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with (
        client.subscribe('orders', **OPTIONS) as first,
        rbs.streams_client(broker.uri) as other,
        other.subscribe('orders', **OPTIONS) as second,
    ):
        assert await anext(first) == 0
        await second.open()
        second.stop()
        assert [body async for body in second] == []
        await until(lambda: len(broker.members('orders', GROUP)) == 1, 'the second has left')


async def test_closing_a_member_that_hands_over(
    broker: StreamBroker, client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer leaves before Unsubscribe: without it, the broker closes the connection later."""
    messages = client.subscribe('orders', **OPTIONS)
    assert await anext(messages) == 0
    assert await anext(messages) == 1
    answers = Answers(messages, monkeypatch)
    member_of(messages)._on_update(100, False)
    await messages.aclose()
    assert answers.found == [(100, None)]
    assert broker.offsets('orders') == {GROUP: 0}


async def test_offsets_of_an_active_member_only(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """After it has handed over, a member stores nothing, though the timer of its tracking runs."""
    tracking = rbs.OffsetTracking(interval=0.01)
    async with client.subscribe('orders', **OPTIONS | {'commit': tracking}) as messages:
        assert await anext(messages) == 0
        assert await anext(messages) == 1
        await until(lambda: broker.offsets('orders') == {GROUP: 0}, 'the offset is stored')
        member_of(messages)._on_update(100, False)
        member_of(messages)._leave_by = 0  # long ago
        await until(lambda: member_of(messages).activity is Activity.STANDBY, 'it stands by')
        async with rbs.streams_client(broker.uri) as other:  # as the next member would
            await other.write_offset('orders', GROUP, 7, wait=True)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.05)  # several intervals
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert broker.offsets('orders') == {GROUP: 7}


async def test_offsets_are_stored_by_count(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    tracking = rbs.OffsetTracking(every=3, interval=0)
    async with client.subscribe('orders', **OPTIONS | {'commit': tracking}) as messages:
        for number in range(4):
            assert await anext(messages) == number
        await until(lambda: broker.offsets('orders') == {GROUP: 2}, 'the offset is stored')


async def test_silent_stream(
    broker: StreamBroker, client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member stays active while only stored offsets follow, but not if the broker is stuck."""
    monkeypatch.setattr(watchdog, 'SILENCE', 0.01)
    monkeypatch.setattr(watchdog, 'GRACE', 0.001)
    looked = asyncio.Event()

    async def look(*args: Any) -> int:
        found = await end_of_messages(*args)
        asyncio.get_running_loop().call_soon(looked.set)
        return found

    monkeypatch.setattr(watchdog, 'end_of_messages', look)
    found = client.events()
    async with client.subscribe('orders', group=GROUP, offset=rbs.Offset.FIRST) as messages:
        assert await take(messages, 10) == [*range(10)]
        await client.write_offset('orders', 'other', 3, wait=True)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.wait_for(looked.wait(), HANG)
        assert messages.active
        [member] = cluster_of(broker).groups[broker._stream('orders', None), GROUP].members
        member._delivering = False
        broker.publish('orders', 'new')
        assert await asyncio.wait_for(waiting, HANG) == 0  # nothing was stored
    await client.disconnect()
    changes = [type(item) async for item in found if isinstance(item, events.GroupEvent)]
    assert changes == [events.Activated, events.Deactivated] * 2


async def test_commit_of_an_earlier_activity(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """The member has lost its activity since, and another one may have stored a later offset."""
    options = OPTIONS | {'commit': rbs.OffsetTracking(manual=True)}
    async with client.subscribe('orders', **options) as messages:
        assert await take(messages, 5) == [*range(5)]
        await messages.commit(0)
        lock = session_of(messages).offsets._lock
        assert lock is not None
        async with lock:
            committing = asyncio.ensure_future(messages.commit())
            await asyncio.sleep(0)
            member_of(messages)._on_update(100, False)
            member_of(messages)._on_update(101, True)
            member_of(messages)._leave_by = asyncio.get_running_loop().time()
            await until(lambda: session_of(messages).offsets.term == 2, 'it is active again')
            await client.write_offset('orders', GROUP, 7, wait=True)
        with pytest.raises(rbs.OffsetNotStored, match='not active in between'):
            await committing
    assert broker.offsets('orders') == {GROUP: 7}


async def test_stream_that_is_created_later(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    offset = rbs.Offset.offset(2)
    async with contextlib.aclosing(
        client.subscribe('later', group=GROUP, offset=offset, timeout=HANG)
    ) as messages:
        with pytest.raises(rbs.StreamDoesNotExist):
            await anext(messages)
        broker.create_stream('later')
        broker.publish('later', 'a', 'b', 'c')
        assert await anext(messages) == 'c'


async def test_start_before_the_first_message(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """At `Offset.NEXT` in an empty stream, 2**64 - 1 is stored: the next member starts at 0."""
    broker.create_stream('empty')
    async with client.subscribe('empty', group=GROUP, offset=rbs.Offset.NEXT) as messages:
        await messages.open()
        await until(lambda: messages.active, 'the member is active')
        assert broker.offsets('empty') == {GROUP: 2**64 - 1}
    broker.publish('empty', 'a', 'b')
    async with client.subscribe(
        'empty', group=GROUP, offset=rbs.Offset.NEXT, timeout=HANG
    ) as messages:
        assert await anext(messages) == 'a'
    assert await client.lag('empty', GROUP) == 3  # the stored offset counts
    after = rbs.Offset.reference(GROUP)
    assert await client.resolve_offset('empty', after) == 0
    async with client.subscribe('empty', offset=after, timeout=HANG) as plain:
        assert await anext(plain) == 'a'


async def test_start_is_stored_again(
    broker: StreamBroker, client: rbs.StreamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored offset can be lost together with the leader of the stream."""
    broker.create_stream('empty')
    lost: list[int] = []
    store = Stream.store_offset

    def lose(self: Stream, reference: str, offset: int) -> None:
        if lost:
            store(self, reference, offset)
        else:
            lost.append(offset)

    monkeypatch.setattr(Stream, 'store_offset', lose)
    async with client.subscribe('empty', group=GROUP, offset=rbs.Offset.NEXT) as messages:
        await messages.open()
        await until(lambda: messages.active, 'the member is active')
    assert lost == [2**64 - 1]
    assert broker.offsets('empty') == {GROUP: 2**64 - 1}


async def test_group_on_a_stream_that_was_created_again(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    async with client.subscribe('orders', timeout=HANG, **OPTIONS) as messages:
        assert await anext(messages) == 0
        broker.delete_stream('orders')
        broker.create_stream('orders')
        broker.publish('orders', 'new')
        found = []
        while 'new' not in found:
            try:
                found.append(await anext(messages))
            except rbs.StreamDoesNotExist:
                pass


async def test_dropped_member_is_released(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    gc.disable()
    try:
        messages = client.subscribe(
            'orders', **OPTIONS | {'group': rbs.Group(GROUP, stranded_after=60)}
        )
        assert await anext(messages) == 0
        assert await anext(messages) == 1
        session = weakref.ref(session_of(messages))
        del messages
        await until(lambda: session() is None, 'the session is released')
    finally:
        gc.enable()
    await until(lambda: not broker.members('orders', GROUP), 'the member has left')
    assert broker.offsets('orders') == {GROUP: 0}


@pytest.mark.parametrize('active', [False, True])
async def test_bug_while_handing_over_reaches_the_program(
    client: rbs.StreamsClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    active: bool,
) -> None:
    """Only errors of the broker and of the network are logged as an offset that is not stored."""

    async def fail(_: object) -> None:
        raise TypeError('a bug')

    async with client.subscribe('orders', **OPTIONS) as messages:
        assert await take(messages, 10) == [*range(10)]
        member = member_of(messages)
        monkeypatch.setattr(member._offsets, 'verify', fail)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        member._on_update(100, False)
        if active:
            member._on_update(101, True)
        with pytest.raises(TypeError, match='a bug'):
            await asyncio.wait_for(waiting, HANG)
        monkeypatch.undo()
    assert 'cannot store' not in caplog.text
