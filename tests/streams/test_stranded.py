"""A member of a group that makes no progress joins again, on a virtual clock."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import stranded
from rbfly.testing import StreamBroker
from rbfly.testing import group as testing_group

GROUP = 'billing'
AFTER = 60.0  # seconds without progress
LATEST = AFTER * (1 + 2 * 1.5 / stranded.POLLS) + 1  # until a member notices that
REJOIN, CLOSE = 'subscribing again', 'closing the connection of its member'

pytestmark = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


async def when(condition: Callable[[], bool]) -> float:
    """Return after how many seconds a condition holds, within a second; fail after an hour."""
    begun = now()
    while not condition():
        await asyncio.sleep(1)
        assert now() < begun + 3600
    return now() - begun


class Reader:
    """A member that reads in a task of its own.

    :param pause: seconds that it takes for each message.
    """

    def __init__(self, broker: StreamBroker, pause: float = 0.0, **options: Any) -> None:
        self.client = rbs.streams_client(broker.uri)
        arguments: dict[str, Any] = {
            'group': GROUP,
            'offset': rbs.Offset.FIRST,
            'auto_offset': rbs.OffsetTracking(every=1),
            'stranded_after': AFTER,
        }
        self.messages: Any = self.client.subscribe('orders', **arguments | options)
        self.bodies: list[Any] = []
        self._pause = pause
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for body in self.messages:
            await asyncio.sleep(self._pause)
            self.bodies.append(body)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.client.disconnect()


@contextlib.asynccontextmanager
async def readers(
    *pauses: float, **options: Any
) -> AsyncIterator[tuple[StreamBroker, list[Reader]]]:
    """A broker and members that have joined; the first one is active, and has read a message."""
    async with StreamBroker() as broker, contextlib.AsyncExitStack() as stack:
        broker.create_stream('orders')
        found: list[Reader] = []
        for pause in pauses:
            found.append(Reader(broker, pause, **options))
            stack.push_async_callback(found[-1].close)
            await found[-1].messages.open()
        broker.publish('orders', 'first')
        await when(lambda: found[0].bodies != [])
        await asyncio.sleep(10)  # the offset is stored
        yield broker, found


class Attempts:
    """What members have done about a group without progress, and when."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[float, str]] = []
        caplog.set_level(logging.CRITICAL)

        def warning(text: str, *arguments: Any) -> None:
            assert arguments[1:4] == (GROUP, 'orders', AFTER)
            self.found.append((now(), arguments[4]))

        monkeypatch.setattr(stranded.logger, 'warning', warning)


@pytest.fixture
def attempts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(caplog, monkeypatch)


async def when_read(members: list[Reader], body: str) -> float:
    return await when(lambda: any(body in member.bodies for member in members))


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
        await when(lambda: member.messages.active)
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


async def test_attempts_alternate_with_pauses(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not recover."""
    async with readers(0.0) as (broker, _):
        monkeypatch.setattr(testing_group.Group, '_activate', lambda *_: None)
        broker.strand('orders', GROUP)
        broker.publish('orders', 'second')
        for count in range(1, 7):
            await when(lambda count=count: len(attempts.found) == count)  # type: ignore[misc]
    times, found = zip(*attempts.found, strict=True)
    assert found == (REJOIN, CLOSE) * 3
    for before, after in itertools.pairwise(times):
        assert stranded.PAUSE <= after - before <= stranded.PAUSE + LATEST


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
    async with readers(0.0, 0.0, stranded_after=None) as (broker, members):
        broker.strand('orders', GROUP)
        broker.publish('orders', 'second')
        await asyncio.sleep(2 * 3600)
        assert not attempts.found
        assert not any(member.messages.active for member in members)
