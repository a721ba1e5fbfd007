"""The function that a program passes as `on_revoke`, for what it does before a handover."""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.group_members import HANG, NewClient, hand_over_late, publish, take, until_active
from tests.inside import session_of
from tests.super_streams import subscribe_to

# A slow broker must not give the timer time to store an offset that the test does not expect.
AT_THE_END = rbs.OffsetTracking(every=0, interval=0)


class Buffer:
    """A program that collects messages, and writes and commits them in `on_revoke` or at the end.

    :ivar revoked: the streams for which RbFly has called `on_revoke`.
    :ivar rows: what it has written.
    """

    def __init__(self) -> None:
        self.messages: Any = None
        self.held: dict[str, list[rbs.MessageCtx[Any]]] = {}
        self.revoked: list[str] = []
        self.rows: list[Any] = []

    async def flush(self, stream: str) -> None:
        self.revoked.append(stream)
        held = self.held.pop(stream, [])
        if held:
            self.rows += [message.body for message in held]
            last = held[-1].stream_offset
            assert last is not None
            is_super = isinstance(self.messages, rbs.SuperStreamSubscription)
            await self.messages.commit({stream: last} if is_super else last)

    async def read(self) -> None:
        async for message in self.messages.messages():
            self.held.setdefault(str(message.stream), []).append(message)

    @property
    def count(self) -> int:
        return sum(map(len, self.held.values()))


def join(
    client: rbs.StreamsClient,
    stream: str,
    group: str,
    on_revoke: Callable[[str], Awaitable[object]],
    *,
    super_stream: bool = False,
    commit: Any = 'manual',
) -> Any:
    settings = rbs.Group(group, on_revoke=on_revoke, handover_timeout=HANG)
    return subscribe_to(client, stream, super_stream=super_stream, group=settings, commit=commit)


async def load(client: rbs.StreamsClient, super_stream: str, numbers: range) -> None:
    orders = client.super_stream(super_stream)
    async with orders.publisher(route=rbs.by_hash(str)) as publisher:
        await publisher.send_many(numbers)


async def test_buffer_repeats_nothing(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """Members join and close; none of them has written a message before it hands over."""
    count = 60
    await load(client, super_stream, range(count))
    members: list[tuple[Buffer, asyncio.Task[None]]] = []

    def hold(messages: int) -> bool:
        return sum(buffer.count + len(buffer.rows) for buffer, _ in members) == messages

    for joined in range(4):
        buffer = Buffer()
        buffer.messages = join(clients(), super_stream, group, buffer.flush, super_stream=True)
        members.append((buffer, asyncio.create_task(buffer.read())))
        if joined:
            await until(lambda: members[-1][0].messages.active, 'the member is active', HANG)
        if joined == 3:
            break
        end = count * (joined + 1)
        await until(functools.partial(hold, end), 'the members hold all messages', HANG)
        if joined == 2:
            await members[0][0].messages.aclose()
            assert members[0][0].count == 0
        await load(client, super_stream, range(end, end + count))
    await until(functools.partial(hold, 4 * count), 'the members hold all messages', HANG)
    for buffer, task in members:
        await buffer.messages.aclose()
        await task
    assert all(buffer.revoked for buffer, _ in members)
    rows = Counter(row for buffer, _ in members for row in buffer.rows)
    assert rows == Counter(range(4 * count))


@pytest.mark.parametrize('how', ['aclose', 'stop', 'async with'])
async def test_closing_calls_the_hook(
    clients: NewClient, stream: str, group: str, how: str
) -> None:
    client, buffer = clients(), Buffer()
    await publish(client, stream, range(10))
    buffer.messages = messages = join(client, stream, group, buffer.flush)
    if how == 'async with':
        async with messages:
            buffer.held[stream] = [await anext(messages.messages()) for _ in range(10)]
    else:
        reading = asyncio.create_task(buffer.read())
        await until(lambda: buffer.count == 10, 'the program holds all messages')
        if how == 'stop':
            messages.stop()
        else:
            await messages.aclose()
        await reading
    assert buffer.rows == [*range(10)]
    assert buffer.revoked == [stream]
    assert await client.read_offset(stream, group) == 9
    await messages.aclose()
    assert buffer.revoked == [stream]


async def test_offset_is_stored_after_the_hook(clients: NewClient, stream: str, group: str) -> None:
    client = clients()
    found: list[int | None] = []

    async def look(name: str) -> None:
        found.append(await client.read_offset(name, group))

    await publish(client, stream, range(10))
    async with join(client, stream, group, look, commit=AT_THE_END) as messages:
        assert await take(messages, 10) == [*range(10)]
    assert found == [None]
    assert await client.read_offset(stream, group) == 8  # the last one is not finished


async def test_hook_waits_for_the_message_in_hand(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    order: list[str] = []

    async def note(name: str) -> None:
        order.append('revoked')

    await publish(client, stream, range(10))
    async with join(client, stream, group, note) as messages:
        assert await take(messages, 5) == [*range(5)]
        session_of(messages)._member._on_update(100, False)
        await client.ping(None)
        order.append('asks')
        waiting = asyncio.create_task(anext(messages))
        await until(lambda: len(order) == 2, 'the hook is called')
        waiting.cancel()
    assert order == ['asks', 'revoked']


class FlushError(Exception):
    pass


async def fail(stream: str) -> None:
    raise FlushError(stream)


async def test_next_iteration_raises_the_error_of_the_hook(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    await load(client, super_stream, range(30))
    messages = join(clients(), super_stream, group, fail, super_stream=True, commit=AT_THE_END)
    seen: list[Any] = []

    async def read() -> None:
        async for body in messages:
            seen.append(body)

    reading = asyncio.create_task(read())
    await until(lambda: len(seen) == 30, 'all is read')
    other = clients().super_stream(super_stream).subscribe(group=group)
    repeated: list[Any] = []

    async def read_other() -> None:
        async for message in other.messages():
            repeated.append((message.stream, message.body))

    reading_other = asyncio.create_task(read_other())
    with pytest.raises(FlushError) as caught:
        await asyncio.wait_for(reading, HANG)
    partition = caught.value.args[0]
    where = f'raised by on_revoke of group {group!r}, for stream {partition!r}'
    assert caught.value.__notes__ == [where]
    await until(lambda: other.active == (partition,), 'the other member is active')
    left = await stored_in(client, partition)
    await until(lambda: len(repeated) == len(left), 'messages without a stored offset are repeated')
    assert repeated == [(partition, body) for body in left]
    reading = asyncio.create_task(read())  # the iteration continues with the other partitions
    await load(client, super_stream, range(30, 60))
    await until(lambda: len(seen) + len(repeated) == 60 + len(left), 'all is read')
    with pytest.raises(FlushError):
        await messages.aclose()
    await reading
    await other.aclose()
    await reading_other


async def stored_in(client: rbs.StreamsClient, partition: str) -> list[Any]:
    found = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now', timeout=HANG)
    return [body async for body in found]


async def test_closing_raises_the_error_of_the_hook(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    messages = join(client, stream, group, fail, commit=AT_THE_END)
    with pytest.raises(FlushError):
        async with messages:
            assert await take(messages, 5) == [*range(5)]
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        async with join(client, stream, group, fail, commit=AT_THE_END) as messages:
            assert await take(messages, 5) == [*range(5)]  # no offset is stored
            raise ZeroDivisionError
    assert 'closing the subscription also failed: FlushError' in caught.value.__notes__[0]
    messages = join(client, stream, group, fail, commit=AT_THE_END)
    assert await take(messages, 5) == [*range(5)]
    messages.stop()
    with pytest.raises(FlushError):
        await anext(messages)
    assert await client.read_offset(stream, group) is None


async def test_hook_that_hangs_while_closing(clients: NewClient, stream: str, group: str) -> None:
    client = clients()
    ended: list[str] = []
    await publish(client, stream, range(10))

    async def hang(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    messages = join(client, stream, group, hang)
    assert await take(messages, 5) == [*range(5)]
    hand_over_late(messages, 0.1)
    with pytest.raises(rbs.OffsetNotStored, match=r'on_revoke has not ended within 0\.1 s'):
        await messages.aclose()
    await until(lambda: ended == [stream], 'the hook is cancelled')


async def test_hook_that_hangs_delays_a_handover_no_longer_than_the_timeout(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    await load(client, super_stream, range(30))
    hanging = True
    ended: list[str] = []

    async def hang(name: str) -> None:
        try:
            while hanging:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            ended.append(name)
            raise

    own = clients()
    found = own.events()
    messages = join(own, super_stream, group, hang, super_stream=True)
    async with messages:
        assert sorted(await take(messages, 30)) == [*range(30)]
        hand_over_late(messages, 0.2)
        waiting = asyncio.create_task(anext(messages))
        async with clients().super_stream(super_stream).subscribe(group=group) as other:
            await other.open()
            await until(lambda: bool(other.active), 'the other member is active')
            [partition] = other.active
            assert ended == [partition]
            hand_over_late(messages, HANG)  # it has time to start again
        hanging = False
        waiting.cancel()
    await own.close()
    kept = [item async for item in found if isinstance(item, rbs.HandoverLate)]
    assert kept == [rbs.HandoverLate(partition, group)]


@pytest.mark.parametrize('running', [False, True])
async def test_lost_connection_does_not_call_the_hook(
    clients: NewClient, stream: str, group: str, running: bool
) -> None:
    """It cancels a hook that runs; an event says that messages come again."""
    client = clients()
    found = client.events()
    called = asyncio.Event()
    ended: list[str] = []
    await publish(client, stream, range(10))

    async def flush(name: str) -> None:
        called.set()
        if running:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

    messages = join(client, stream, group, flush)
    assert await take(messages, 5) == [*range(5)]
    closing = asyncio.create_task(messages.aclose()) if running else None
    if closing is not None:
        await called.wait()
    connection = session_of(messages).registration.connection
    connection.abort()
    if closing is not None:
        with pytest.raises(rbs.OffsetNotStored, match='was cancelled'):
            await closing
        assert ended == [stream]
    else:
        assert await take(messages, 10) == [*range(10)]
        assert not called.is_set()
        await messages.aclose()
        assert called.is_set()
    await client.close()
    lost = [item.lost async for item in found if isinstance(item, rbs.Deactivated)]
    assert lost == ([True] if running else [True, False])


async def test_cancelled_close_cancels_the_hook(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    called, ended = asyncio.Event(), asyncio.Event()
    await publish(client, stream, range(10))

    async def hang(name: str) -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    messages = join(client, stream, group, hang)
    assert await take(messages, 5) == [*range(5)]
    closing = asyncio.create_task(messages.aclose())
    await called.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(HANG):
        await ended.wait()
    async with client.subscribe(stream, group=group) as again:
        assert await take(again, 10) == [*range(10)]


@pytest.mark.parametrize('during', ['handover', 'close'])
async def test_hook_that_closes_the_subscription(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient, during: str
) -> None:
    await load(client, super_stream, range(30))
    revoked: list[str] = []

    async def close(name: str) -> None:
        revoked.append(name)
        await messages.aclose()

    messages = join(clients(), super_stream, group, close, super_stream=True)
    assert sorted(await take(messages, 30)) == [*range(30)]
    joining = clients()
    await joining.get_protocol()
    async with asyncio.timeout(HANG / 2):  # not after handover_timeout
        if during == 'close':
            await messages.aclose()
        else:
            waiting = asyncio.create_task(anext(messages))
            async with joining.super_stream(super_stream).subscribe(group=group) as other:
                await other.open()
                with pytest.raises(StopAsyncIteration):
                    await waiting
                await until(lambda: len(other.active) == 3, 'the other member reads all')
    assert sorted(revoked) == sorted(await client.super_stream(super_stream).partitions())


async def test_standby_member_calls_no_hook(clients: NewClient, stream: str, group: str) -> None:
    async with clients().subscribe(stream, group=group) as active:
        await active.open()
        await until_active(active)
        buffer = Buffer()
        async with join(clients(), stream, group, buffer.flush) as standby:
            await standby.open()
    assert not buffer.revoked


async def test_repeated_request_calls_the_hook_once(
    clients: NewClient, stream: str, group: str
) -> None:
    """RabbitMQ 4.3 repeats its request to hand over."""
    client = clients()
    called: list[str] = []
    go_on = asyncio.Event()
    await publish(client, stream, range(10))

    async def flush(name: str) -> None:
        called.append(name)
        await go_on.wait()

    messages = join(client, stream, group, flush)
    async with messages:
        assert await take(messages, 10) == [*range(10)]
        waiting = asyncio.create_task(anext(messages))
        member = session_of(messages)._member
        for number in range(100, 103):
            member._on_update(number, False)
            await until(lambda: bool(called), 'the hook runs')
        go_on.set()
        await until(lambda: not member._unanswered, 'the member has answered')
        assert called == [stream]
        waiting.cancel()
    assert called == [stream]


async def test_task_that_an_earlier_hook_has_created_closes_the_subscription(
    clients: NewClient, super_stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """It is no longer in the hook: closing calls the hook of the next activity."""
    revoked: list[str] = []
    closing: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def close_later() -> None:
        await go_on.wait()
        await messages.close()

    async def flush(name: str) -> None:
        revoked.append(name)
        closing.append(asyncio.create_task(close_later()))

    messages = join(clients(), super_stream, group, flush, super_stream=True)
    waiting = asyncio.create_task(anext(messages))
    await until(lambda: len(messages.active) == 3, 'the member is active')
    async with clients().super_stream(super_stream).subscribe(group=group) as other:
        await other.open()
        await until(lambda: len(messages.active) < 3, 'the member has handed over')
    await until(lambda: len(messages.active) == 3, 'the member is active again')
    earlier = [*revoked]
    go_on.set()
    async with asyncio.timeout(HANG):
        await asyncio.gather(*closing)
    names = await client.super_stream(super_stream).partitions()
    assert sorted(revoked) == sorted([*earlier, *names])
    with pytest.raises(StopAsyncIteration):
        await waiting
