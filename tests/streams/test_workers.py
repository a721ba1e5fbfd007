"""Documented programs that run until they are stopped: killed at random under load.

The programs are those of the documentation, except for the broker's address and the stream.
"""

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.environments import python_for
from tests.examples import examples
from tests.streams.test_examples import ADDRESS, WORKER

pytestmark = pytest.mark.examples

KILLS = 6
HANG = 120.0  # seconds; only a bug makes a test wait that long
WORKERS = [(name, code) for name, code in examples() if WORKER in code]


class Worker:
    """A documented program, started again after each signal.

    :param marker: a part of the program's text that no other one has.
    """

    def __init__(self, marker: str, uri: str, stream: str, folder: Path) -> None:
        [(name, code)] = [(name, code) for name, code in WORKERS if marker in code]
        self._python = python_for(name)
        self._code = code.replace(ADDRESS, uri).replace("'orders'", repr(stream))
        self._folder = folder
        self.output = folder / 'output'
        self.output.touch()

    async def run(self, number: int, condition: Callable[[], bool]) -> int:
        """Run the program until a condition holds, then send a signal; return its exit status."""
        with self.output.open('ab') as output:
            process = await asyncio.create_subprocess_exec(
                *(self._python, '-W', 'error', '-c', self._code),
                cwd=self._folder,
                env=os.environ | {'PYTHONUNBUFFERED': ''},  # a line is written at once
                stdout=output,
            )
        try:
            await until(condition, 'the worker has processed enough', HANG)
            process.send_signal(number)
            return await asyncio.wait_for(process.wait(), HANG)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def load(client: rbs.StreamsClient, stream: str) -> AsyncIterator[Callable[[], int]]:
    """Publish the numbers from 0; the function that it yields stops that and returns their end."""
    n, stopped = 0, False

    async def publish() -> None:
        nonlocal n
        async with client.publisher(stream) as publisher:
            while not stopped:
                for _ in range(20):
                    publisher.batch({'id': n})
                    n += 1
                await publisher.flush()
                await asyncio.sleep(0.005)

    def stop() -> int:
        nonlocal stopped
        stopped = True
        return n

    publishing = asyncio.create_task(publish())
    try:
        yield stop
        await publishing
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])


async def test_rows_and_position_in_one_transaction(
    client: rbs.StreamsClient, stream_name: str, broker_uri: str, tmp_path: Path, rng: Random
) -> None:
    """Each message has its effect exactly once, whenever the program is killed."""
    await client.create_stream(stream_name, max_length_bytes=20 * 2**30)
    worker = Worker('orders.db', broker_uri, stream_name, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / 'orders.db')) as db:

        def rows() -> int:
            with contextlib.suppress(sqlite3.OperationalError):  # no table yet, or locked
                return int(db.execute('SELECT count(*) FROM orders').fetchone()[0])
            return 0

        async with load(client, stream_name) as stop:
            for _ in range(KILLS):
                number = rng.choice([signal.SIGKILL, signal.SIGTERM])
                wanted = rows() + rng.randrange(300)
                status = await worker.run(number, lambda wanted=wanted: rows() >= wanted)  # type: ignore[misc]
                assert status == -number
            end = stop()
        await worker.run(signal.SIGTERM, lambda: rows() >= end)
        found = [row[0] for row in db.execute('SELECT id FROM orders ORDER BY rowid')]
    assert found == list(range(end))


async def test_stored_offsets_and_stop(
    client: rbs.StreamsClient, stream: str, broker_uri: str, tmp_path: Path, rng: Random
) -> None:
    """Nothing is lost; after SIGTERM, the worker receives no message again."""
    worker = Worker('shipping', broker_uri, stream, tmp_path)

    def shipped() -> list[int]:
        # A file may have the start of a line, if that crosses a page.
        return [*map(int, re.findall(r'shipping (\d+)\n', worker.output.read_text()))]

    async def run(number: int, condition: Callable[[], bool]) -> None:
        """Run the worker until a condition holds, and check what it has shipped."""
        before = shipped()
        status = await worker.run(number, condition)
        found = shipped()[len(before) :]
        assert found == list(range(found[0], found[0] + len(found)))
        following = before[-1] + 1 if before else 0
        assert found[0] == following if stopped else found[0] <= following
        assert status == (0 if number == signal.SIGTERM else -number)

    stopped = True
    async with load(client, stream) as stop:
        for _ in range(KILLS):
            number = rng.choice([signal.SIGKILL, signal.SIGTERM])
            wanted = len(shipped()) + rng.randrange(1, 1000)
            await run(number, lambda wanted=wanted: len(shipped()) >= wanted)  # type: ignore[misc]
            stopped = number == signal.SIGTERM
        end = stop()
    async with client.publisher(stream) as publisher:
        await publisher.send({'id': end})
    await run(signal.SIGTERM, lambda: shipped()[-1] == end)
    assert set(shipped()) == set(range(end + 1))


async def test_buffers_are_written_before_a_handover(
    client: rbs.StreamsClient, super_stream: str, broker_uri: str, tmp_path: Path, rng: Random
) -> None:
    """No row is written twice, although members join and stop with messages in their buffers."""
    worker = Worker('archive.db', broker_uri, super_stream, tmp_path)
    orders = client.super_stream(super_stream)
    with contextlib.closing(sqlite3.connect(tmp_path / 'archive.db')) as db:

        def rows() -> int:
            with contextlib.suppress(sqlite3.OperationalError):  # no table yet, or locked
                return int(db.execute('SELECT count(*) FROM orders').fetchone()[0])
            return 0

        n, stopped = 0, False

        async def publish() -> None:
            nonlocal n
            async with orders.publisher(route=rbs.by_hash(str)) as publisher:
                while not stopped:
                    await publisher.send_many({'id': number} for number in range(n, n + 200))
                    n += 200
                    await asyncio.sleep(0.01)

        publishing = asyncio.create_task(publish())
        try:
            limits = [rng.randrange(2000, 20_000) for _ in range(5)]
            found = await asyncio.gather(
                *(worker.run(signal.SIGTERM, lambda n=n: rows() >= n) for n in limits)  # type: ignore[misc]
            )
            assert 0 in found
            assert {*found} <= {0, -signal.SIGTERM}  # before the program handles it
            stopped = True
            await publishing
        finally:
            publishing.cancel()
        written = sorted(row[0] for row in db.execute('SELECT id FROM orders'))
    committed: list[int] = []
    for partition, offset in (await orders.read_offset('archive')).items():
        start = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now')
        async for message in start.messages():
            if offset is not None and (message.stream_offset or 0) <= offset:
                committed.append(message.body['id'])
    assert len(written) >= min(limits)
    assert written == sorted(committed)
