"""A member of a group that makes no progress joins again, on a virtual clock."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest

import rbfly.streams as rbs
from rbfly.streams._group import stranded
from rbfly.testing import StreamBroker
from rbfly.testing import group as testing_group
from tests.super_streams import subscribe_to

GROUP = 'billing'
AFTER = 60.0  # seconds without progress
PROMPT = rbs.Group(GROUP, handover_timeout=1, stranded_after=AFTER)
LATEST = AFTER * (1 + 2 * 1.5 / stranded.POLLS) + 1  # until a member notices that
REJOIN = 'subscribing again'
CLOSE = 'closing its connections and subscribing again'
LATER = 'subscribing again after {:g} s'

pytestmark = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


async def seconds_until(condition: Callable[[], bool]) -> float:
    """Return after how many seconds a condition holds, within a second; fail after an hour."""
    begun = now()
    while not condition():
        await asyncio.sleep(1)
        assert now() < begun + 3600
    return now() - begun


class Reader:
    """A member that reads in a task of its own.

    :param pause: seconds that it takes for each message.
    :param client: options of the client.
    """

    def __init__(
        self,
        broker: StreamBroker,
        pause: float = 0.0,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.client = rbs.streams_client(broker.uri, **client or {})
        arguments: dict[str, Any] = {
            'group': rbs.Group(GROUP, stranded_after=AFTER),
            'offset': rbs.Offset.FIRST,
            'commit': rbs.OffsetTracking(every=1),
        }
        self.messages: Any = subscribe_to(self.client, 'orders', **arguments | options)
        self.bodies: list[Any] = []
        self._pause = pause
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for body in self.messages:
            await asyncio.sleep(self._pause)
            self.bodies.append(body)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.client.disconnect()


@asynccontextmanager
async def readers(
    *pauses: float, **options: Any
) -> AsyncIterator[tuple[StreamBroker, list[Reader]]]:
    """A broker and members that have joined; the first one is active, and has read a message."""
    async with StreamBroker() as broker, AsyncExitStack() as stack:
        broker.create_stream('orders')
        found: list[Reader] = []
        for pause in pauses:
            found.append(Reader(broker, pause, **options))
            stack.push_async_callback(found[-1].close)
            await found[-1].messages.open()
        broker.publish('orders', 'first')
        await seconds_until(lambda: found[0].bodies != [])
        await asyncio.sleep(10)  # the offset is stored
        yield broker, found


class Attempts:
    """What members have done about a group without progress, and when."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[float, str]] = []
        caplog.set_level(logging.CRITICAL)

        def warning(text: str, *arguments: Any, extra: dict[str, object]) -> None:
            if 'no progress' not in text:
                return
            assert arguments[1] == GROUP
            assert arguments[2] in ('orders', 'orders-0')
            assert arguments[3] == AFTER
            self.found.append((now(), arguments[4]))

        monkeypatch.setattr(stranded.logger, 'warning', warning)


@pytest.fixture
def attempts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(caplog, monkeypatch)


async def when_read(members: list[Reader], body: str) -> float:
    return await seconds_until(lambda: any(body in member.bodies for member in members))


@pytest.mark.parametrize('count', [1, 2, 3])
async def test_member_joins_again(attempts: Attempts, count: int) -> None:
    async with readers(*[0.0] * count) as (broker, members):
        broker.strand('orders', GROUP)
        await asyncio.sleep(1)
        assert not any(member.messages.active for member in members)
        broker.publish('orders', 'second')
        assert await when_read(members, 'second') <= LATEST
        assert attempts.found
        assert {what for _, what in attempts.found} == {REJOIN}
        assert [member.messages.active for member in members].count(True) == 1
        assert len(broker.members('orders', GROUP)) == count
    bodies = [body for member in members for body in member.bodies]
    assert bodies == ['first', 'second']


async def test_group_that_has_read_nothing(attempts: Attempts) -> None:
    """The stored offset is that before the first message."""
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        member = Reader(broker, offset=rbs.Offset.NEXT)
        await member.messages.open()
        await seconds_until(lambda: member.messages.active)
        assert broker.offsets('orders') == {GROUP: 2**64 - 1}
        broker.strand('orders', GROUP)
        broker.publish('orders', 'first')
        assert await when_read([member], 'first') <= LATEST
        await member.close()


@pytest.mark.parametrize('count', [1, 2, 3])
async def test_member_that_the_broker_takes_for_the_active_one(
    attempts: Attempts, count: int
) -> None:
    async with readers(*[0.0] * count) as (broker, members):
        broker.strand('orders', GROUP, stubborn=True)
        broker.publish('orders', 'second')
        assert 0 < await when_read(members, 'second') - stranded.PAUSE <= LATEST + AFTER
        assert {what for _, what in attempts.found} == {REJOIN, CLOSE}
        assert [member.messages.active for member in members].count(True) == 1


async def test_connection_that_the_member_has_left(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still counts the subscription there; another partition keeps the connection."""
    index = -1
    monkeypatch.setattr('random.choice', lambda nodes: nodes[index])
    async with StreamBroker(nodes=3) as broker, AsyncExitStack() as stack:
        broker.create_super_stream('orders', partitions=2)
        member = Reader(broker, super_stream=True)
        stack.push_async_callback(member.close)
        await member.messages.open()
        await seconds_until(lambda: len(member.messages.active) == 2)
        broker.strand('orders-0', GROUP, stubborn=True)
        broker.publish('orders-0', 'first')
        index = 0
        await seconds_until(lambda: attempts.found != [])
        await asyncio.sleep(1)
        assert len({connection for connection, _ in broker.members('orders-0', GROUP)}) == 2
        assert await when_read([member], 'first') <= stranded.PAUSE + LATEST
        assert [what for _, what in attempts.found] == [REJOIN, CLOSE]


async def test_attempts_alternate_with_pauses(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not recover."""
    async with readers(0.0) as (broker, _):
        monkeypatch.setattr(testing_group.Group, '_activate', lambda *_: None)
        broker.strand('orders', GROUP)
        broker.publish('orders', 'second')
        for count in range(1, 7):
            await seconds_until(lambda count=count: len(attempts.found) == count)  # type: ignore[misc]
    times, found = zip(*attempts.found, strict=True)
    assert found == (REJOIN, CLOSE) * 3
    for before, after in itertools.pairwise(times):
        assert stranded.PAUSE <= after - before <= stranded.PAUSE + LATEST


@asynccontextmanager
async def stranded_partition(*joins: float, **options: Any) -> AsyncIterator[list[Reader]]:
    """Strand a partition of an old broker that has a message to read; yield the members.

    :param joins: when each member joins, in seconds; the broker strands the group after the first.
    """
    async with StreamBroker(version='4.0') as broker, AsyncExitStack() as stack:
        broker.create_super_stream('orders', partitions=1)
        found: list[Reader] = []
        begun = now()
        for at in joins:
            await asyncio.sleep(begun + at - now())
            found.append(Reader(broker, super_stream=True, **options))
            stack.push_async_callback(found[-1].close)
            await found[-1].messages.open()
            if len(found) == 1:
                await seconds_until(lambda: bool(found[0].messages.active))
                broker.strand('orders-0', GROUP)
                broker.publish('orders-0', 'first')
        yield found


@asynccontextmanager
async def partition(
    *pauses: float, version: Literal['4.0', '4.3'] = '4.0', **options: Any
) -> AsyncIterator[tuple[StreamBroker, list[Reader]]]:
    """A broker with one partition, and members that have joined its group."""
    async with StreamBroker(version=version) as broker, AsyncExitStack() as stack:
        broker.create_super_stream('orders', partitions=1)
        found: list[Reader] = []
        for pause in pauses:
            found.append(Reader(broker, pause, super_stream=True, **options))
            stack.push_async_callback(found[-1].close)
            await found[-1].messages.open()
        await seconds_until(lambda: any(member.messages.active for member in found))
        yield broker, found


@pytest.mark.parametrize('count', [1, 2, 3])
async def test_idle_group_of_an_old_broker(attempts: Attempts, count: int) -> None:
    """The formerly active member and the others count from the same message."""
    async with partition(*[0.0] * count) as (broker, members):
        await asyncio.sleep(3600)
        broker.strand('orders-0', GROUP)
        broker.publish('orders-0', 'first')
        assert AFTER < await when_read(members, 'first') <= LATEST + AFTER
        assert [what for _, what in attempts.found] == [LATER.format(AFTER)] * count


@pytest.mark.parametrize('count', [2, 3])
async def test_group_of_an_old_broker_that_has_messages_left(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The formerly active member has counted while it was active, as the others have."""
    monkeypatch.setattr('random.uniform', lambda least, _: least)
    async with partition(*[AFTER * 3] * count, group=PROMPT) as (broker, members):
        await asyncio.sleep(3600)
        broker.publish('orders-0', 'first', 'second')
        await asyncio.sleep(AFTER * 0.9)
        broker.strand('orders-0', GROUP)
        await seconds_until(lambda: len(attempts.found) == count)
        times = [at for at, _ in attempts.found]
        assert times[-1] - times[0] < AFTER / 2
        assert (
            await seconds_until(lambda: any(member.messages.active for member in members))
            <= AFTER + 1
        )


@pytest.mark.parametrize('version', ['4.0', '4.3'])
async def test_quiet_group(attempts: Attempts, version: Literal['4.0', '4.3']) -> None:
    """Each message is processed in time, but they come more seldom than `stranded_after`."""
    async with partition(AFTER / 2, AFTER / 2, version=version) as (broker, members):
        for number in range(50):
            await asyncio.sleep(AFTER * 3)
            broker.publish('orders-0', number)
        await seconds_until(lambda: sum(len(member.bodies) for member in members) == 50)
        assert not attempts.found


@pytest.mark.parametrize('count', [1, 2, 3])
async def test_members_leave_an_old_broker_at_the_same_time(attempts: Attempts, count: int) -> None:
    async with stranded_partition(*[0.0] * count) as members:
        assert AFTER < await when_read(members, 'first') <= LATEST + AFTER
        assert [what for _, what in attempts.found] == [LATER.format(AFTER)] * count
        assert [bool(member.messages.active) for member in members].count(True) == 1


async def test_members_that_have_joined_an_old_broker_at_different_times(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last one leaves, the first one is back; they leave again at full ten minutes."""
    monkeypatch.setattr(stranded, 'time', now)
    async with stranded_partition(0.0, AFTER, 2 * AFTER) as members:
        await when_read(members, 'first')
        assert AFTER < now() - 2 * stranded.PAUSE < 2 * AFTER
    times = [at for at, _ in attempts.found]
    assert len(times) == 6
    assert times[2] - times[0] > AFTER
    assert times[3] - times[2] >= stranded.PAUSE - AFTER


async def test_stays_away_for_less_than_the_reconnect_timeout(attempts: Attempts) -> None:
    async with stranded_partition(0.0, client={'reconnect_timeout': AFTER}) as members:
        assert AFTER < await when_read(members, 'first') <= LATEST + AFTER / 2
        assert [what for _, what in attempts.found] == [LATER.format(AFTER / 2)]


async def test_client_that_disconnects_while_its_member_stays_away(attempts: Attempts) -> None:
    async with stranded_partition(0.0) as [member]:
        await seconds_until(lambda: bool(attempts.found))
        begun = now()
        await member.client.disconnect()
        with pytest.raises(rbs.StreamConnectionError):
            await member.task
        assert now() < begun + 1


async def test_nothing_happens_without_lag(attempts: Attempts) -> None:
    async with readers(0.0, 0.0) as (broker, members):
        broker.strand('orders', GROUP)
        await asyncio.sleep(3600)
        assert not attempts.found
        broker.publish('orders', 'second')
        await when_read(members, 'second')


async def test_nothing_happens_while_the_offset_moves(attempts: Attempts) -> None:
    """The active member is slow, and always has messages left."""
    async with readers(AFTER * 0.9, AFTER * 0.9) as (broker, members):
        broker.publish('orders', *range(100))
        await asyncio.sleep(3600)
        assert 50 < len(members[0].bodies) < 100
        assert members[1].bodies == []
        assert not attempts.found


async def test_off_by_default(attempts: Attempts) -> None:
    async with readers(0.0, 0.0, group=GROUP) as (broker, members):
        broker.strand('orders', GROUP)
        broker.publish('orders', 'second')
        await asyncio.sleep(2 * 3600)
        assert not attempts.found
        assert not any(member.messages.active for member in members)
