"""A consumer group shared with members that use the official clients for Go and Java."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any, NamedTuple

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from perf import programs
from tests.super_streams import subscribe_to

# Seconds; only a bug makes a test wait that long.  As the Java client leaves, it waits 10 s for
# each partition whose stored offset differs from its last one, which happens under load.
HANG = 240.0
PARTITIONS = 3
OPTIONS: dict[str, Any] = {'commit': 'auto', 'offset': rbs.Offset.FIRST}

pytestmark = [pytest.mark.go, pytest.mark.java]


class Received(NamedTuple):
    """A message that a member has received."""

    time: float  # of CLOCK_MONOTONIC
    stream: str
    offset: int
    body: str


class Ours:
    """A member that uses RbFly."""

    name = 'rbfly'
    killed = False

    def __init__(self, uri: str, stream: str, is_super: bool) -> None:
        self._client = rbs.streams_client(uri)
        self._stream = stream
        self._is_super = is_super
        self._received: list[Received] = []
        self._task = asyncio.create_task(asyncio.sleep(0))

    async def join(self, group: str, **options: Any) -> None:
        arguments = OPTIONS | {'super_stream': self._is_super, 'group': group} | options
        self._messages: Any = subscribe_to(self._client, self._stream, **arguments)
        await self._messages.open()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._messages.messages():
            where = message.stream, message.stream_offset
            self._received.append(Received(perf_counter(), *where, message.body.decode()))

    async def report(self) -> list[Received]:
        if self._task.done():
            self._task.result()
        found, self._received = self._received, []
        return found

    @property
    def active(self) -> Any:
        return self._messages.active

    async def leave(self) -> None:
        self._messages.stop()
        await self._task

    async def close(self) -> None:
        await self._client.disconnect()


class Program:
    """A member that uses another client, in a process of its own."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.killed = False
        self._process = process

    async def ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b'\n')
        answer = json.loads(await self._process.stdout.readline())
        assert 'error' not in answer, f'{self.name}: {answer}'
        return answer

    async def join(self, group: str) -> None:
        await self.ask(do='join', group=group)

    async def report(self) -> list[Received]:
        return [Received(*item) for item in (await self.ask(do='report'))['messages']]

    async def leave(self) -> None:
        await self.ask(do='leave')

    def kill(self) -> None:
        self.killed = True
        self._process.kill()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


Member = Ours | Program
NewMember = Callable[[str], Any]


class Log:
    """What the members of a group have received."""

    def __init__(self, *members: Member) -> None:
        self.members = members
        self.of: dict[str, list[Received]] = {member.name: [] for member in members}

    async def update(self) -> None:
        for member in self.members:
            if member.killed:
                continue
            self.of[member.name] += await member.report()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.02)
            await self.update()

    def numbers(self) -> list[int]:
        return [int(item.body) for found in self.of.values() for item in found]

    def runs(self) -> dict[str, list[tuple[str, list[Received]]]]:
        """Return by partition who has received which messages, in the order of time."""
        found: dict[str, list[tuple[str, list[Received]]]] = {}
        everything = [(item, name) for name, items in self.of.items() for item in items]
        for item, name in sorted(everything):
            runs = found.setdefault(item.stream, [])
            if not runs or runs[-1][0] != name:
                runs.append((name, []))
            runs[-1][1].append(item)
        return found


@contextlib.asynccontextmanager
async def members_of(
    broker: RabbitMQ, stream: str, *, is_super: bool = False
) -> AsyncIterator[tuple[Ours, Program, Program]]:
    """One member of each client, none of which has joined."""
    async with contextlib.AsyncExitStack() as stack:
        ours = Ours(broker.uri, stream, is_super)
        stack.push_async_callback(ours.close)
        others = []
        for name in ('go', 'java'):
            kind = 'super-group' if is_super else 'group'
            command = await asyncio.to_thread(programs.command, name, kind)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                limit=2**24,  # bytes of a report
            )
            others.append(Program(name, process))
            stack.push_async_callback(others[-1].close)
            await others[-1].ask(do='open', address=broker.uri, stream=stream)
        go, java = others
        yield ours, go, java


async def publish(client: rbs.StreamsClient, stream: str, numbers: range) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(b'%d' % number for number in numbers)


ROTATIONS = (0, 1, 2), (1, 2, 0), (2, 0, 1)  # each member is first once


@pytest.mark.parametrize(
    'order',
    [
        pytest.param(order, marks=() if order in ROTATIONS else pytest.mark.nightly)
        for order in itertools.permutations(range(3))
    ],
    ids=str,
)
async def test_each_member_starts_after_the_offset_that_another_has_stored(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, group: str, order: tuple[int, ...]
) -> None:
    async with members_of(broker, stream) as members, asyncio.timeout(HANG):
        log = Log(*members)
        await members[order[0]].join(group)
        count = 0
        # the second time, each one starts after an offset that it has not stored itself
        for i in range(6):
            active, standby = members[order[i % 3]], members[order[(i + 1) % 3]]
            await standby.join(group)
            await publish(client, stream, range(count, count + 50))
            count += 50
            await log.until(lambda count=count: len(log.numbers()) >= count)  # type: ignore[misc]
            await active.leave()
        await standby.leave()
        names = [members[number].name for number in order]
        runs = log.runs()[stream]
        assert [name for name, _ in runs] == names * 2
        received = [item for _, run in runs for item in run]
        assert [int(item.body) for item in received] == [*range(count)]
        assert await client.read_offset(stream, group) == received[-1].offset


async def test_members_share_the_partitions_over_joins_and_leaves(
    broker: RabbitMQ, client: rbs.StreamsClient, super_stream: str, group: str
) -> None:
    """Messages may be repeated where a member has left, but none is missing."""
    async with members_of(broker, super_stream, is_super=True) as members, asyncio.timeout(HANG):
        log, count, stopped = Log(*members), 0, False

        async def load() -> None:
            nonlocal count
            route = rbs.by_hash(bytes.decode)
            async with client.super_stream(super_stream).publisher(route=route) as publisher:
                while not stopped:
                    end = count + 30
                    await publisher.send_many(b'%d' % number for number in range(count, end))
                    count = end
                    await asyncio.sleep(0.01)

        async def until_read(*readers: Member) -> None:
            """Wait until each of some members has received messages sent from now on."""
            start = perf_counter()
            await log.until(
                lambda: all(
                    log.of[reader.name] and log.of[reader.name][-1].time > start
                    for reader in readers
                )
            )

        loading = asyncio.create_task(load())
        ours, go, java = members
        for first, second, third in ((ours, go, java), (java, ours, go), (go, java, ours)):
            await first.join(group)
            await until_read(first)
            await second.join(group)
            await until_read(first, second)
            await third.join(group)
            await until_read(first, second, third)
            await first.leave()
            await until_read(second, third)
            await second.leave()
            await until_read(third)
            await third.leave()
        stopped = True
        await loading
        await ours.join(group)
        await log.until(lambda: {*log.numbers()} == {*range(count)})
        await ours.leave()
    found = log.runs()
    assert len(found) == PARTITIONS
    for partition, runs in found.items():
        assert len(runs) <= 3 * 6 + 1  # each join or leave changes a partition's member once
        end = 0
        for _, received in runs:
            # in order; the first ones may repeat the last ones of the run before
            offsets = [item.offset for item in received]
            assert offsets == sorted({*offsets})
            assert offsets[0] >= end or offsets[-1] >= end
            end = offsets[-1] + 1
        assert await client.read_offset(partition, group) == end - 1


@pytest.mark.parametrize('name', ['go', 'java'])
async def test_others_understand_that_nothing_was_read(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, group: str, name: str
) -> None:
    """A group that starts at the end of an empty stream has stored that as 2**64 - 1.

    The Java client stores no later offset until it has processed 10,000 messages, since it compares
    unsigned numbers: it may repeat messages, but none is missing.
    """
    async with members_of(broker, stream) as (ours, *others), asyncio.timeout(HANG):
        other = next(member for member in others if member.name == name)
        log = Log(ours, other)
        await ours.join(group, offset=rbs.Offset.NEXT)
        await log.until(lambda: ours.active)
        await ours.leave()
        assert await client.read_offset(stream, group) == 2**64 - 1
        await publish(client, stream, range(10))
        await other.join(group)
        await log.until(lambda: len(log.numbers()) >= 10)
        other.kill()
        await ours.join(group, offset=rbs.Offset.NEXT)
        await log.until(lambda: len(log.of['rbfly']) >= 10)
        await ours.leave()
    for found in log.of.values():
        assert [int(item.body) for item in found] == [*range(10)]
