"""Members of a group that keep their offsets in a database, under random faults.

The members are processes. They are stopped, killed and frozen; connections are cut; a member works
on a batch for longer than `handover_timeout`, so that batches of two members overlap; the stream is
deleted and created again. Every message has its effect exactly once.
"""

import asyncio
import contextlib
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests import seed
from tests.brokers import until

HANG = 60.0  # seconds; only a bug makes a test wait that long
MEMBERS = 3  # at most
PROGRAM = """
import asyncio, contextlib, random, signal, sqlite3, sys
import rbfly.streams as rbs

async def main(uri, stream, path, kind, seed):
    choice = random.Random(seed).choice
    expected = {}

    async def start(stream):
        return rbs.Offset.offset(read(stream)[1])

    def read(stream):
        expected[stream] = db.execute(
            'SELECT incarnation, next FROM positions WHERE stream = ?', [stream]
        ).fetchone()
        return expected[stream]

    def store(batch):
        # The effects and the next offset, in one transaction, if no other member has moved it.
        stream, incarnation = batch.stream, batch[0][0]
        if stream not in expected or expected[stream][0] != incarnation:
            read(stream)
        while expected[stream][0] == incarnation:  # else the stream before, which is processed
            rows = [
                body
                for body, offset in zip(batch, batch.offsets, strict=True)
                if offset >= expected[stream][1]
            ]
            if not rows:
                return
            with db:
                db.execute('BEGIN IMMEDIATE')
                moved = db.execute(
                    'UPDATE positions SET next = ?'
                    ' WHERE stream = ? AND incarnation = ? AND next = ?',
                    [batch.next_offset, stream, *expected[stream]],
                )
                if moved.rowcount:
                    db.executemany('INSERT INTO effects VALUES (?, ?)', rows)
                    expected[stream] = incarnation, batch.next_offset
                    return
            read(stream)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as db:
        async with (
            rbs.streams_client(uri) as client,
            (client.super_stream(stream) if kind == 'super' else client).subscribe(
                *([stream] * (kind != 'super')),
                group=rbs.Group('work', handover_timeout=0.2),
                offset=start,
            ) as messages,
        ):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
            batches = messages.batches(choice([7, 20, 1000]))
            print('ready', flush=True)
            while True:
                try:
                    async for batch in batches:
                        await asyncio.sleep(choice([0, 0, 0, 0.01, 0.05, 0.4]))
                        store(batch)
                    break
                except (rbs.StreamDoesNotExist, rbs.ConnectTimeout):  # within handover_timeout
                    expected.clear()
                    batches = messages.batches(7)

asyncio.run(main(*sys.argv[1:]))
"""


class Walk:
    """A stream, its database and its members.

    :ivar published: the messages, as the incarnation of the stream and a number.
    """

    def __init__(self, source: random.Random, directory: Path, broker: StreamBroker) -> None:
        self.source = source
        self.broker = broker
        self.kind = source.choice(['plain', 'super'])
        self.path = directory / 'work.db'
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        self.client = rbs.streams_client(broker.uri)
        self.members: list[asyncio.subprocess.Process] = []
        self.published: list[tuple[int, int]] = []
        self.incarnation = 0
        self.log: list[str] = []

    async def open(self) -> None:
        self.db.execute('PRAGMA journal_mode = WAL')
        self.db.execute('CREATE TABLE effects (incarnation, number)')
        self.db.execute('CREATE TABLE positions (stream PRIMARY KEY, incarnation, next)')
        await self.create()

    async def create(self) -> None:
        if self.kind == 'super':
            await self.client.super_stream('work').create(partitions=3)
            streams = await self.client.super_stream('work').partitions()
        else:
            await self.client.create_stream('work')
            streams = ('work',)
        for stream in streams:
            self.db.execute('REPLACE INTO positions VALUES (?, ?, 0)', [stream, self.incarnation])

    async def recreate(self) -> None:
        """Delete the stream when all of it is processed, and create it again."""
        await self.settle()
        if self.kind == 'super':
            await self.client.super_stream('work').delete()
        else:
            await self.client.delete_stream('work')
        self.incarnation += 1
        await self.create()

    async def publish(self) -> None:
        count = self.source.choice([1, 20, 100])
        begin = len(self.published)
        bodies = [(self.incarnation, number) for number in range(begin, begin + count)]
        opener: Any = self.client.publisher('work', name=f'load-{begin}')
        if self.kind == 'super':
            work = self.client.super_stream('work')
            opener = work.publisher(name=f'load-{begin}', route=rbs.by_hash(str))
        async with opener as publisher:
            await publisher.send_many(bodies)
        self.published += bodies

    async def start(self) -> None:
        if len(self.members) == MEMBERS:
            return
        arguments = (self.broker.uri, 'work', str(self.path), self.kind)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, '-W', 'error', '-c', PROGRAM, *arguments),
            str(self.source.randrange(2**32)),
            stdout=asyncio.subprocess.PIPE,
        )
        self.members.append(process)
        assert process.stdout is not None
        assert await process.stdout.readline() == b'ready\n'

    async def stop(self, how: signal.Signals) -> None:
        if self.members:
            process = self.members.pop(self.source.randrange(len(self.members)))
            process.send_signal(how)
            status = await process.wait()
            assert status == (-how if how is signal.SIGKILL else 0)

    async def term(self) -> None:
        await self.stop(signal.SIGTERM)

    async def kill(self) -> None:
        await self.stop(signal.SIGKILL)

    async def freeze(self) -> None:
        """Freeze a member, so that the broker closes its connection when another one joins."""
        if self.members:
            process = self.source.choice(self.members)
            process.send_signal(signal.SIGSTOP)
            try:
                await self.start()
                await asyncio.sleep(self.source.choice([0.1, 0.7, 1.5]))
            finally:
                process.send_signal(signal.SIGCONT)

    async def cut(self) -> None:
        self.broker.cut()

    async def wait(self) -> None:
        await asyncio.sleep(self.source.choice([0, 0.05, 0.3]))

    async def settle(self) -> None:
        """Wait until the members have processed everything."""
        await self.start()

        def done() -> bool:
            (count,) = self.db.execute('SELECT count(*) FROM effects').fetchone()
            return bool(count >= len(self.published))

        await until(done, 'everything is processed', HANG)

    async def step(self) -> None:
        steps = {self.publish: 8, self.start: 4, self.cut: 3, self.wait: 3, self.freeze: 2}
        steps |= {self.term: 2, self.kill: 2, self.recreate: 1}
        (step,) = self.source.choices(list(steps), list(steps.values()))
        self.log.append(step.__name__)
        await step()

    def check(self) -> None:
        effects = self.db.execute('SELECT incarnation, number FROM effects').fetchall()
        assert Counter(effects) == Counter(self.published)

    async def close(self) -> None:
        for process in self.members:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()
        await self.client.disconnect()
        self.db.close()


@contextlib.asynccontextmanager
async def walk(source: random.Random, directory: Path) -> AsyncIterator[Walk]:
    with StreamBroker(heartbeat=1, consumer_update_timeout=0.5) as broker:
        found = Walk(source, directory, broker)
        try:
            await found.open()
            yield found
        finally:
            await found.close()


@pytest.mark.long
@pytest.mark.parametrize('number', range(4))
async def test_every_message_has_its_effect_once(number: int, tmp_path: Path) -> None:
    source = random.Random(f'{seed.seed_of_run()} database members {number}')
    async with walk(source, tmp_path) as work:
        for _ in range(source.randrange(10, 30)):
            await work.step()
        work.log.append('settle')
        await work.settle()
        for _ in range(len(work.members)):
            await work.term()
        work.check()
