"""Programs that a user might write with the documentation: see tests/programs.

Each one runs unchanged, in processes of its own.
"""

import asyncio
import contextlib
import csv
import os
import runpy
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
import rstream

import rbfly.streams as rbs
from brokers.proxy import Direction, Proxy
from tests.brokers import until
from tests.super_streams import read_partition

HANG = 60.0  # seconds; only a bug makes a test wait that long
FOLDER = Path(__file__).parents[1] / 'programs'
PYTHON = (sys.executable, '-X', 'dev', '-W', 'error')


@contextlib.asynccontextmanager
async def started(
    name: str, *arguments: object, output: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; kill it at the end.

    :param output: file for what it prints; None for a pipe.
    """
    with contextlib.ExitStack() as stack:
        target = (
            asyncio.subprocess.PIPE if output is None else stack.enter_context(output.open('ab'))
        )
        process = await asyncio.create_subprocess_exec(
            *PYTHON,
            str(FOLDER / f'{name}.py'),
            *map(str, arguments),
            stdout=target,
            env=os.environ | {'PYTHONUNBUFFERED': '1'},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(name: str, *arguments: object) -> list[str]:
    """Run a program to its end; return the lines that it prints."""
    async with started(name, *arguments) as process, asyncio.timeout(HANG):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode().splitlines()


async def end(process: asyncio.subprocess.Process) -> None:
    """Stop a program by SIGTERM."""
    process.terminate()
    async with asyncio.timeout(HANG):
        assert await process.wait() == 0


async def test_first_publisher(
    client: rbs.StreamsClient, broker_uri: str, stream_name: str
) -> None:
    assert await run('first_publisher', broker_uri, stream_name) == ['1000 orders are stored']
    found = await read_partition(client, stream_name)
    assert found[0] == {'id': 0, 'items': ['book', 'pen']}
    assert found[1:] == [{'id': i} for i in range(1, 1000)]


class Customers:
    """Send orders to the request handler, many at once.

    :ivar statuses: by the number of the order.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: dict[int, int] = {}

    async def order(self, count: int) -> set[int]:
        """Send orders; return their statuses."""
        start = len(self.statuses)
        numbers = range(start, start + count)
        async with asyncio.timeout(HANG):
            await asyncio.gather(*map(self._send, numbers))
        return {self.statuses[i] for i in numbers}

    async def _send(self, number: int) -> None:
        reader, writer = await asyncio.open_connection('127.0.0.1', self.port)
        writer.write(b'{"id": %d}\n' % number)
        self.statuses[number] = int(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async def until_stored(self) -> None:
        async with asyncio.timeout(HANG):
            while await self.order(1) != {201}:
                pass


async def test_request_handler(client: rbs.StreamsClient, stream: str, proxy: Proxy) -> None:
    """Each status tells the truth, without a broker and while connections are cut or stalled."""
    proxy.refuse()
    async with started('request_handler', proxy.uri, stream) as process:
        assert process.stdout is not None
        customers = Customers(int(await process.stdout.readline()))
        assert await customers.order(50) == {503}
        proxy.accept()
        await customers.until_stored()
        assert await customers.order(200) == {201}
        orders = asyncio.create_task(customers.order(200))
        proxy.cut_after(1000)
        assert await orders <= {201, 504}
        await customers.until_stored()
        proxy.stall()
        assert await customers.order(50) == {504}
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


@pytest.mark.parametrize('count', [20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
async def test_loader(
    count: int,
    client: rbs.StreamsClient,
    stream: str,
    proxy: Proxy,
    tmp_path: Path,
    rng: Random,
) -> None:
    """Each row is stored once, although the loader is killed while the broker stores its rows."""
    path = tmp_path / 'orders.csv'
    with path.open('w', newline='') as file:
        rows = csv.writer(file)
        rows.writerow(['id', 'item'])
        rows.writerows([i, 'book'] for i in range(count))

    limits: list[int] = []  # bytes after which to kill the loader

    def watch(number: int, direction: Direction, data: bytes) -> None:
        if limits and proxy.bytes['up'] > limits[0]:
            limits.clear()
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    proxy.watch = watch
    statuses = []
    for _ in range(3):
        async with started('loader', proxy.uri, stream, path) as process:
            # a row has at least 30 bytes
            limits[:] = [proxy.bytes['up'] + rng.randrange(10 * count)]
            async with asyncio.timeout(2 * HANG):
                statuses.append(await process.wait())
    assert statuses[0] == -signal.SIGKILL
    limits.clear()
    await run('loader', proxy.uri, stream, path)
    expected = 0
    async for batch in client.subscribe(stream, offset=rbs.Offset.FIRST, until='now').batches():
        for row in batch:
            assert row == {'id': str(expected), 'item': 'book'}
            expected += 1
    assert expected == count


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


@pytest.mark.parametrize('first', ['before', 'after'])
async def test_migration_from_rstream(
    first: str, client: rbs.StreamsClient, broker_uri: str, stream_name: str, tmp_path: Path
) -> None:
    """Both programs print the same; each continues where the other one has stopped."""
    parts = urlsplit(broker_uri)
    output = tmp_path / 'output'
    output.touch()
    addresses = {'before': (parts.hostname, parts.port), 'after': (broker_uri,)}
    names = ['before', 'after'] if first == 'before' else ['after', 'before']

    def lines() -> list[str]:
        return output.read_text().splitlines()

    async def consume(name: str) -> None:
        """Run a program until it has read ten more orders."""
        wanted = len(lines()) + 10
        address = addresses[name]
        async with started(
            f'rstream_{name}', 'consume', *address, stream_name, output=output
        ) as it:
            await until(lambda: len(lines()) >= wanted, 'ten orders are read')
            await end(it)
        assert await client.read_offset(stream_name, 'billing') == int(lines()[-1].split()[0])

    for name in names:
        await run(f'rstream_{name}', 'publish', *addresses[name], stream_name)
        await consume(name)
    orders = [line.split(maxsplit=1)[1] for line in lines()]
    assert orders == [f"{{'id': {i}}} emea" for i in (*range(10), *range(10))]


async def test_route_of_rstream(
    client: rbs.StreamsClient, super_stream: str, broker_uri: str
) -> None:
    """The documented function chooses the partition that rstream chooses."""
    route = runpy.run_path(str(FOLDER / 'rstream_route.py'))['route']
    parts = urlsplit(broker_uri)

    async def key(message: rstream.AMQPMessage) -> str:
        return str(message.application_properties['customer'])

    numbers = range(30)
    async with rstream.SuperStreamProducer(
        parts.hostname or '',
        parts.port or 0,
        username='guest',
        password='guest',
        super_stream=super_stream,
        routing_extractor=key,
    ) as producer:
        for i in numbers:
            properties = {'customer': f'customer {i}'}
            message = rstream.AMQPMessage(body=b'%d' % i, application_properties=properties)
            await producer.send(message)
    orders = client.super_stream(super_stream)
    async with orders.publisher(route=route) as publisher:
        for i in numbers:
            properties = {'customer': f'customer {i}'}
            await publisher.send(rbs.Message(b'%d' % i, app_properties=properties))
    partitions = await orders.partitions()
    for partition in partitions:
        found = await read_partition(client, partition)
        half = len(found) // 2
        assert found[:half] == found[half:]
    assert sum(
        [len(await read_partition(client, partition)) for partition in partitions]
    ) == 2 * len(numbers)


def by_partition(lines: list[str]) -> dict[str, list[str]]:
    """Return the orders that a program has printed, by partition."""
    found: dict[str, list[str]] = {}
    for line in lines:
        partition, order = line.split(maxsplit=1)
        found.setdefault(partition, []).append(order)
    return found


async def kafka_program(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run the program for Kafka with its clients replaced; return what it prints.

    The replacements check the arguments of each call.
    """
    from aiokafka import ConsumerRecord, TopicPartition  # of the extra `perf`

    program = runpy.run_path(str(FOLDER / 'aiokafka_before.py'))
    names = ('AIOKafkaProducer', 'AIOKafkaConsumer', 'AIOKafkaAdminClient')
    classes = {name: mock.create_autospec(program[name]) for name in names}
    producer, consumer, admin = (item.return_value for item in classes.values())
    for item in (producer, consumer):
        item.__aenter__.return_value = item
    program['publish'].__globals__.update(classes)
    await program['publish']('localhost:9092', 'orders')
    admin.create_topics.assert_awaited_once()
    producer.flush.assert_awaited_once()
    values = [call.args[1] for call in producer.send.await_args_list]

    records = [
        ConsumerRecord('orders', 0, i, 0, 0, b'', value, None, 0, len(value), ())
        for i, value in enumerate(values)
    ]
    answers = [{TopicPartition('orders', 0): records}]

    async def getmany(timeout_ms: int) -> dict[Any, Any]:
        if answers:
            return answers.pop()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(timeout_ms / 1000)
        return {}

    consumer.getmany.side_effect = getmany
    await program['consume']('localhost:9092', 'orders')
    consumer.commit.assert_awaited()
    return capsys.readouterr().out.splitlines()


async def test_migration_from_aiokafka(
    client: rbs.StreamsClient,
    broker_uri: str,
    stream_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both programs print the same orders, those of a customer in order."""
    output = tmp_path / 'output'
    output.touch()

    def lines() -> list[str]:
        return output.read_text().splitlines()

    orders = client.super_stream(stream_name)
    try:
        await run('aiokafka_after', 'publish', broker_uri, stream_name)
        for count in (100, 200):  # the second one continues after the first one
            arguments = 'consume', broker_uri, stream_name
            async with started('aiokafka_after', *arguments, output=output) as process:
                await until(lambda count=count: len(lines()) >= count, 'all is read')  # type: ignore[misc]
                await end(process)
            await run('aiokafka_after', 'publish', broker_uri, stream_name)
        found = by_partition(lines())
        assert {*found} <= {*await orders.partitions()}
        assert len(found) > 1
        from_kafka = await kafka_program(capsys)
        [before] = by_partition(from_kafka).values()
        for customer in range(10):
            wanted = of_customer(customer, before)
            assert len(wanted) == 10
            [part] = [of_customer(customer, part) for part in found.values() if wanted[0] in part]
            assert part == wanted * 2
    finally:
        await orders.delete()


def of_customer(number: int, orders: list[str]) -> list[str]:
    return [order for order in orders if f"'customer {number}'" in order]


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
    assert printed == [*found, 'no message for half a second']
    for start in (0, 5):
        printed = await run('rbfly010/subscribe_reference', broker_uri, stream)
        assert printed == [str(i) for i in range(start, start + 5)]


async def test_connections_of_rbfly_010(
    client: rbs.StreamsClient, broker_uri: str, stream_name: str
) -> None:
    printed = await run('rbfly010/generator', broker_uri, stream_name)
    assert printed == ['last True', 'connected: False']
    assert not await client.stream_exists(stream_name)
