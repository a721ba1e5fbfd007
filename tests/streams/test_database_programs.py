"""Documented programs that keep offsets in a database are exact, whatever happens in mid-batch.

The programs are those of the documentation. In the tests of cuts and handovers, `Paused` stands
between the program and its client: it holds a batch that the program has received, but not stored.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from tests.brokers import until
from tests.examples import examples
from tests.group_members import HANG, NewClient, hand_over_late, publish
from tests.inside import session_of
from tests.super_streams import subscribe_to

pytestmark = pytest.mark.examples

COUNT = 50
KILLS = 4
PAGES = {'plain': 'guides/offsets', 'group': 'guides/consumer', 'super': 'guides/offsets'}
# As the page says how to read a super stream.
ONE_STREAM = "client.subscribe('orders', offset=start)"
SUPER_STREAM = "client.super_stream('orders').subscribe(offset=start)"


def source(kind: str, stream: str) -> str:
    """Return the functions of a program, the last of which copies orders."""
    [code] = [
        code
        for page, code in examples()
        if page.startswith(PAGES[kind]) and 'UPDATE positions' in code
    ]
    code = code[: code.index('async def main(')]
    if kind == 'super':
        assert ONE_STREAM in code
        code = code.replace(ONE_STREAM, SUPER_STREAM)
    return code.replace("'orders'", repr(stream))


# Runs a program, and sends a signal to its own process in the middle of a transaction.
PRELUDE = """
import os, sqlite3

class Killer(sqlite3.Connection):
    left = int(os.environ['BATCHES'])

    def executemany(self, sql, rows):
        found = super().executemany(sql, rows)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), int(os.environ['SIGNAL']))
        return found

connect = sqlite3.connect
sqlite3.connect = lambda name: connect(name, factory=Killer)
"""
RUN = """
import asyncio

async def run():
    async with rbs.streams_client(os.environ['URI']) as client:
        with closing(sqlite3.connect('orders.db')) as db:
            await work(client, db)

asyncio.run(run())
"""


Hook = Callable[[rbs.MessageBatch, Any], Awaitable[None]]


class Paused:
    """A client whose subscriptions call a hook with each batch, before the program has it.

    :param size: maximum number of messages of a batch.
    :param options: further arguments of `subscribe`.
    """

    def __init__(self, client: rbs.StreamsClient, size: int, hook: Hook, **options: Any) -> None:
        self._client, self._size, self._hook, self._options = client, size, hook, options
        self.messages: Any = None
        self._stream = ''

    def super_stream(self, name: str) -> 'Paused':
        self._stream, self._options = name, self._options | {'super_stream': True}
        return self

    def subscribe(self, stream: str = '', **options: Any) -> 'Paused':
        name = stream or self._stream
        self.messages = subscribe_to(self._client, name, **options | self._options)
        return self

    async def __aenter__(self) -> 'Paused':
        await self.messages.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.messages.__aexit__(*error)

    def stop(self) -> None:
        self.messages.stop()

    async def batches(self, **_: Any) -> AsyncIterator[rbs.MessageBatch]:
        async for batch in self.messages.batches(self._size):
            await self._hook(batch, self.messages)
            yield batch


class Program:
    """A program that runs in a task of this process.

    :ivar held: the batches that it has received, in order.
    """

    def __init__(
        self, kind: str, stream: str, db: Path, client: rbs.StreamsClient, size: int, **options: Any
    ) -> None:
        self.held: list[rbs.MessageBatch] = []
        self.limit = 0  # batches that may go on
        self._go = asyncio.Event()
        namespace: dict[str, Any] = {}
        exec(source(kind, stream), namespace)
        self.client = Paused(client, size, self._hook, **options)
        self._copy = namespace['work']
        self._db = db
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._db)) as db:
            await self._copy(self.client, db)

    async def _hook(self, batch: rbs.MessageBatch, messages: Any) -> None:
        self.held.append(batch)
        while len(self.held) > self.limit:
            self._go.clear()
            await self._go.wait()

    def go(self, batches: int) -> None:
        """Let the program process batches, and then hold the next one."""
        self.limit += batches
        self._go.set()

    async def hold(self, batches: int) -> None:
        """Wait until the program has received that many batches, and holds the last one."""

        def holds() -> bool:
            if self.task.done():
                self.task.result()
            return len(self.held) >= batches

        await until(holds, 'the program holds a batch')

    async def stop(self) -> None:
        self.go(COUNT)
        self.client.stop()
        async with asyncio.timeout(HANG):
            await self.task


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / 'orders.db'


def rows(database: Path) -> list[int]:
    """Return the orders in the database."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        try:
            return [row[0] for row in db.execute('SELECT id FROM orders ORDER BY rowid')]
        except sqlite3.OperationalError:  # no table yet
            return []


async def all_copied(database: Path, count: int = COUNT) -> None:
    await until(lambda: len(rows(database)) >= count, 'all orders are copied')


def orders(*numbers: int) -> Any:
    return ({'id': i} for i in range(*numbers))


def connections(messages: Any) -> list[Any]:
    session = session_of(messages)
    sessions = session.sessions.values() if hasattr(session, 'sessions') else [session]
    return [item.registration.connection for item in sessions]


async def cut(messages: Any) -> None:
    """Cut the connection of a subscription, and wait until that has noticed it."""
    found = [item for item in connections(messages) if item is not None]
    for connection in found:
        connection._transport.abort()
    await until(lambda: not set(found) & set(connections(messages)), 'the cut is noticed')


@pytest.fixture(params=['plain', 'group', 'super'])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_cut_in_the_middle_of_a_batch(
    kind: str, clients: NewClient, stream: str, super_stream: str, database: Path
) -> None:
    client = clients()
    partition = stream
    if kind == 'super':
        stream = super_stream
        partition = (await client.super_stream(stream).partitions())[0]
    await publish(client, partition, orders(COUNT))
    program = Program(kind, stream, database, clients(), 10)
    await program.hold(1)
    for i in range(3):
        await cut(program.client.messages)
        program.go(1)
        await program.hold(i + 2)
    program.go(COUNT)
    await all_copied(database)
    await program.stop()
    assert rows(database) == [*range(COUNT)]


@pytest.mark.parametrize('how', ['cut', 'late'])
async def test_members_with_overlapping_batches(
    how: str, clients: NewClient, super_stream: str, database: Path
) -> None:
    """The first member still works on a batch of a partition that the second one reads now."""
    client = clients()
    # The second member takes over the partition 1 when it joins.
    partition = (await client.super_stream(super_stream).partitions())[how == 'late']
    await publish(client, partition, orders(COUNT), sub_entry_size=COUNT)
    reported = client.events()
    first = Program('group', super_stream, database, client, 10, super_stream=True)
    await first.hold(1)
    if how == 'late':
        hand_over_late(first.client.messages)
    second = Program('group', super_stream, database, clients(), 7, super_stream=True)
    if how == 'late':
        async for event in reported:
            if isinstance(event, events.HandoverLate):
                break
    else:
        # RabbitMQ before 4.1.2 may strand a group whose member is cut off while it hands over.
        await until(
            lambda: second.client.messages is not None and bool(second.client.messages.active),
            'the second member is active',
        )
        await cut(first.client.messages)
    await second.hold(1)
    second.go(1)
    await second.hold(2)
    assert list(first.held[0].offsets) == [*range(10)]
    assert list(second.held[1].offsets) == [*range(7, 14)]
    first.go(1)  # stores the last three of its ten messages
    await all_copied(database, 10)
    second.go(COUNT)
    first.go(COUNT)
    await all_copied(database)
    await first.stop()
    await second.stop()
    assert rows(database) == [*range(COUNT)]


@pytest.mark.parametrize('kind', ['plain', 'super'])
async def test_two_programs_by_mistake(
    kind: str, clients: NewClient, stream: str, super_stream: str, database: Path
) -> None:
    partition = stream
    if kind == 'super':
        stream = super_stream
        partition = (await clients().super_stream(stream).partitions())[0]
    await publish(clients(), partition, orders(COUNT), sub_entry_size=COUNT)
    first = Program(kind, stream, database, clients(), 10)
    second = Program(kind, stream, database, clients(), 7)
    await first.hold(1)
    await second.hold(1)
    second.go(1)
    await second.hold(2)
    first.go(COUNT)
    second.go(COUNT)
    await all_copied(database)
    await first.stop()
    await second.stop()
    assert rows(database) == [*range(COUNT)]


class Process:
    """A program in a process of its own."""

    def __init__(self, kind: str, uri: str, stream: str, folder: Path) -> None:
        self._code = PRELUDE + source(kind, stream) + RUN
        self._uri, self._folder = uri, folder

    async def start(self, number: int = 0, batches: int = 0) -> asyncio.subprocess.Process:
        """Start the program; it sends a signal to itself in a transaction."""
        settings = {'URI': self._uri, 'SIGNAL': str(number), 'BATCHES': str(batches)}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, '-W', 'error', '-c', self._code),
            cwd=self._folder,
            env=os.environ | settings,
        )


async def test_signals_in_the_middle_of_a_batch(
    kind: str,
    client: rbs.StreamsClient,
    stream: str,
    super_stream: str,
    broker_uri: str,
    database: Path,
    rng: Random,
) -> None:
    count = 2000
    partition = stream
    if kind == 'super':
        stream = super_stream
        partition = (await client.super_stream(stream).partitions())[0]
    await publish(client, partition, orders(count))
    program = Process(kind, broker_uri, stream, database.parent)
    started: list[asyncio.subprocess.Process] = []

    async def start(*settings: int) -> asyncio.subprocess.Process:
        started.append(await program.start(*settings))
        return started[-1]

    try:
        for number in [signal.SIGKILL, signal.SIGTERM] * (KILLS // 2):
            worker = await start(number, rng.randrange(1, 4))
            async with asyncio.timeout(HANG):
                status = await worker.wait()
            assert status == (0 if (kind, number) == ('group', signal.SIGTERM) else -number)
        last = await start()
        await all_copied(database, count)
        last.terminate()
        async with asyncio.timeout(HANG):
            assert await last.wait() == (0 if kind == 'group' else -signal.SIGTERM)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert rows(database) == [*range(count)]
