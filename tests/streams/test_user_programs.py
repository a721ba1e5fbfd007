"""Programs that a user might write with the documentation: see tests/programs.

Each one runs unchanged, in processes of its own.
"""

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers.proxy import Proxy
from tests.brokers import until
from tests.super_streams import read_partition
from tests.user_programs import HANG, end, run, started


async def test_first_publisher(
    client: rbs.StreamsClient, broker_uri: str, stream_name: str
) -> None:
    assert await run('first_publisher', broker_uri, stream_name) == ['1000 orders are stored']
    found = await read_partition(client, stream_name)
    assert found[0] == {'id': 0, 'items': ['book', 'pen']}
    assert found[1:] == [{'id': i} for i in range(1, 1000)]


SOON = 0.5  # seconds


class Customers:
    """Send orders to the request handler, many at once.

    :ivar statuses: by the number of the order.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: dict[int, int] = {}

    async def order(self, count: int, patience: float) -> set[int]:
        """Send orders; return their statuses.

        :param patience: seconds until the request handler gives up.
        """
        start = len(self.statuses)
        numbers = range(start, start + count)
        async with asyncio.timeout(2 * HANG):
            await asyncio.gather(*(self._send(number, patience) for number in numbers))
        return {self.statuses[i] for i in numbers}

    async def _send(self, number: int, patience: float) -> None:
        reader, writer = await asyncio.open_connection('127.0.0.1', self.port)
        writer.write(b'{"id": %d, "patience": %f}\n' % (number, patience))
        self.statuses[number] = int(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async def until_stored(self) -> None:
        async with asyncio.timeout(HANG):
            while await self.order(1, SOON) != {201}:
                pass


async def test_request_handler(client: rbs.StreamsClient, stream: str, proxy: Proxy) -> None:
    """Each status tells the truth, without a broker and while connections are cut or stalled."""
    proxy.refuse()
    async with started('request_handler', proxy.uri, stream) as process:
        assert process.stdout is not None
        customers = Customers(int(await process.stdout.readline()))
        assert await customers.order(50, SOON) == {503}
        proxy.accept()
        await customers.until_stored()
        assert await customers.order(200, HANG) == {201}
        orders = asyncio.create_task(customers.order(200, HANG))
        proxy.cut_after(1000)
        assert await orders <= {201, 504}
        await customers.until_stored()
        proxy.stall()
        assert await customers.order(50, SOON) == {504}
        proxy.resume()
        await customers.until_stored()
        await end(process)
    found = {order['id'] for order in await read_partition(client, stream)}
    by_status = {
        status: {number for number, item in customers.statuses.items() if item == status}
        for status in (201, 503, 504)
    }
    assert by_status[201] <= found
    assert not by_status[503] & found
    assert found <= by_status[201] | by_status[504]


async def publish_orders(orders: rbs.SuperStream, stop: asyncio.Event) -> int:
    """Publish orders with rising ids until an event is set; return their number."""
    count = 0
    route = rbs.by_hash(lambda order: str(order['id']))
    async with orders.publisher(route=route, name='orders') as publisher:
        while not stop.is_set():
            await publisher.send_many({'id': i} for i in range(count, count + 50))
            count += 50
            await asyncio.sleep(0.01)
    return count


class Archivers:
    """Workers that write to one database."""

    def __init__(self, uri: str, stream: str, path: Path, rng: Random) -> None:
        self.command = 'archiver', uri, stream, path
        self.rng = rng
        # A frozen worker may lock the database: a query waits no longer than this.
        self.db = sqlite3.connect(path, timeout=0.1)
        self.workers: list[tuple[asyncio.subprocess.Process, contextlib.AsyncExitStack]] = []

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none while there is no table."""
        with contextlib.suppress(sqlite3.OperationalError):
            return self.db.execute(sql).fetchall()
        return []

    def rows(self) -> int:
        return sum(count for (count,) in self.query('SELECT count(*) FROM orders'))

    async def written(self, more: int) -> None:
        """Wait until more rows are written, or for a while: the group may wait for a member."""
        wanted = self.rows() + more
        with contextlib.suppress(AssertionError):
            await until(lambda: self.rows() >= wanted, 'rows are written', 8)

    async def start(self) -> None:
        stack = contextlib.AsyncExitStack()
        process = await stack.enter_async_context(started(*self.command))
        self.workers.append((process, stack))

    async def signal(self, number: int) -> None:
        """Send a signal that ends one of the workers."""
        process, stack = self.workers.pop(self.rng.randrange(len(self.workers)))
        process.send_signal(number)
        async with asyncio.timeout(HANG):
            status = await process.wait()
        # A worker that has just started has no handler of SIGTERM.
        assert status in ({0, -number} if number == signal.SIGTERM else {-number})
        await stack.aclose()

    async def freeze(self) -> None:
        """Freeze a worker for a moment."""
        process, _ = self.rng.choice(self.workers)
        process.send_signal(signal.SIGSTOP)
        await self.written(self.rng.randrange(1000))
        process.send_signal(signal.SIGCONT)

    async def replace(self) -> None:
        """Freeze a worker until another one writes its orders."""
        process, _ = self.rng.choice(self.workers)
        process.send_signal(signal.SIGSTOP)
        before = {*self.query('SELECT stream, next FROM positions')}
        with contextlib.suppress(AssertionError):  # it may lock the database
            await until(
                lambda: not before & {*self.query('SELECT stream, next FROM positions')},
                'rows of all partitions are written',
                15,
            )
        process.send_signal(signal.SIGCONT)

    async def close(self) -> None:
        for _, stack in self.workers:
            await stack.aclose()
        self.db.close()


@pytest.mark.parametrize('steps', [6, pytest.param(40, marks=pytest.mark.nightly)])
async def test_archiver(
    steps: int,
    client: rbs.StreamsClient,
    super_stream: str,
    broker_uri: str,
    tmp_path: Path,
    rng: Random,
) -> None:
    """Each order has one row, whatever happens to the workers."""
    orders = client.super_stream(super_stream)
    stop = asyncio.Event()
    publishing = asyncio.create_task(publish_orders(orders, stop))
    work = Archivers(broker_uri, super_stream, tmp_path / 'orders.db', rng)
    try:
        for i in range(steps):
            while len(work.workers) < rng.randrange(2, 5):
                await work.start()
            await work.written(rng.randrange(1000))
            match i if i < 4 else rng.randrange(9):  # each of them at least once
                case 0:
                    await work.replace()
                case 1 | 4:
                    await work.freeze()
                case 2 | 5 | 6:
                    await work.signal(signal.SIGKILL)
                case _:
                    await work.signal(signal.SIGTERM)
        stop.set()
        count = await publishing
        while work.workers:  # RabbitMQ may have lost track of the group, see consumer-groups.rst
            await work.signal(signal.SIGTERM)
        await work.start()
        await until(lambda: work.rows() >= count, 'all rows are written', HANG)
        await work.signal(signal.SIGTERM)
        found = work.query('SELECT id FROM orders')
        assert Counter(found) == Counter((i,) for i in range(count))
    finally:
        publishing.cancel()
        await work.close()


async def test_tail(client: rbs.StreamsClient, stream: str, broker_uri: str) -> None:
    async def publish(numbers: range) -> None:
        for i in numbers:
            await publisher.send({'id': i})
            await client.write_offset(stream, 'billing', i, wait=True)  # takes up an offset

    async def printed(what: str) -> list[int]:
        lines = await run('tail', broker_uri, stream, what)
        return [int(line.split()[1]) for line in lines]

    assert await printed('last') == await printed('hour') == await printed('all') == []
    async with client.publisher(stream) as publisher:
        await publish(range(80))
        messages = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now').messages()
        since = max([message.stream_timestamp async for message in messages]) + 0.001
        await until(lambda: time.time() > since, 'a chunk has another timestamp')
        await publish(range(80, 150))
        assert await printed('last') == [*range(50, 150)]
        assert await printed('hour') == await printed('all') == [*range(150)]
        iso = datetime.fromtimestamp(since, timezone(timedelta(hours=5))).isoformat()
        assert await printed(iso) == [*range(80, 150)]


async def test_partitions(
    client: rbs.StreamsClient, super_stream: str, broker_uri: str, tmp_path: Path, rng: Random
) -> None:
    """Each order has one row, although the program is killed while it copies."""
    orders = client.super_stream(super_stream)
    path = tmp_path / 'orders.db'
    count = 20_000

    async def publish(numbers: range) -> None:
        route = rbs.by_hash(lambda order: str(order['id']))
        async with orders.publisher(route=route) as publisher:
            await publisher.send_many({'id': i} for i in numbers)

    with contextlib.closing(sqlite3.connect(path, timeout=HANG)) as db:

        def rows() -> int:
            with contextlib.suppress(sqlite3.OperationalError):  # no table yet
                return int(db.execute('SELECT count(*) FROM orders').fetchone()[0])
            return 0

        await publish(range(count))
        killed = 0
        while killed < 3:
            if rows() == count:  # the program was done before it could be killed
                await publish(range(count, 2 * count))
                count *= 2
            wanted = min(rows() + rng.randrange(1, 3000), count)
            async with started('partitions', broker_uri, super_stream, path) as process:
                await until(lambda wanted=wanted: rows() >= wanted, 'rows')  # type: ignore[misc]
                process.kill()
                await process.wait()
                killed += process.returncode == -signal.SIGKILL
        await publish(range(count, count + 10))
        await run('partitions', broker_uri, super_stream, path)
        found = db.execute('SELECT stream, id FROM orders ORDER BY rowid').fetchall()
    assert sorted(number for _, number in found) == [*range(count + 10)]
    for partition in await orders.partitions():
        numbers = [order['id'] for order in await read_partition(client, partition)]
        assert [number for name, number in found if name == partition] == numbers


async def test_monitor(
    client: rbs.StreamsClient, stream: str, proxy: Proxy, tmp_path: Path, group: str
) -> None:
    output = tmp_path / 'output'

    async def printed(text: str, times: int = 1) -> None:
        await until(lambda: output.read_text().count(text) >= times, f'{text!r} is printed')

    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(100))
    await client.write_offset(stream, group, 19, wait=True)
    async with started('monitor', proxy.uri, stream, group, output=output) as process:
        await printed(f'{stream}: Activated in monitor\n')
        await printed(f'{stream}: 100 messages, {group} is behind by 80\n')
        proxy.cut()
        await printed('lost the connection to ')
        await printed(f'{stream}: Deactivated in monitor\n')
        await printed(f'{stream}: trying again in ')
        await printed(f'{stream}: open again\n')
        await printed(f'{stream}: Activated in monitor\n', 2)
        await client.write_offset(stream, group, 99, wait=True)
        await printed(f' messages, {group} is behind by 0\n')
        await end(process)
    assert output.read_text().count(f'{stream}: Deactivated in monitor\n') == 2


@pytest.mark.parametrize(
    ('name', 'printed', 'bodies'),
    [
        ('publish', ['next id 11'], ['hello'] * 10),
        ('publish_batch', [], [{'id': i} for i in range(1000)]),
        ('publish_batch_limit', [], range(200)),
        ('deduplicate', [], [f'message {i}' for i in range(1, 11)]),
        ('filtering', [f"{i} {{'region': 'emea'}}" for i in (1, 3, 5, 7, 9)], range(10)),
        ('data_types', ['True'], None),
        ('raw', ["{'id': 1} 4", "{'id': 1}"], [{'id': 1}]),
    ],
)
async def test_publisher_of_rbfly_010(
    name: str,
    printed: list[str],
    bodies: Sequence[object] | None,
    client: rbs.StreamsClient,
    broker_uri: str,
    stream_name: str,
) -> None:
    assert await run(f'rbfly010/{name}', broker_uri, stream_name) == printed
    found = await read_partition(client, stream_name)
    if name == 'publish_batch_limit':  # two tasks take turns
        assert all(
            [i for i in found if i in part] == [*part] for part in (range(100), range(100, 200))
        )
        found.sort()
    assert bodies is None or found == [*bodies]


async def test_subscriber_of_rbfly_010(
    client: rbs.StreamsClient, broker_uri: str, stream: str
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many(range(12))
    found = [f'{i} {i}' for i in range(12)]
    printed = await run('rbfly010/subscribe', broker_uri, stream)
    assert printed == [*found, 'no message for five seconds']
    for start in (0, 5):
        printed = await run('rbfly010/subscribe_reference', broker_uri, stream)
        assert printed == [str(i) for i in range(start, start + 5)]


async def test_connections_of_rbfly_010(
    client: rbs.StreamsClient, broker_uri: str, stream_name: str
) -> None:
    printed = await run('rbfly010/generator', broker_uri, stream_name)
    assert printed == ['last True', 'connected: False']
    assert not await client.stream_exists(stream_name)
