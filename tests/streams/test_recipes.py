"""The programs of `examples`, which the recipes show: killed, started again, and right."""

import asyncio
import contextlib
import csv
import json
import os
import runpy
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pika
import pytest
import trustme

import rbfly.streams as rbs
from brokers import RabbitMQ
from brokers.proxy import Direction, Proxy
from brokers.state import free_ports
from rbfly.amqp import AMQPProperties
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.super_streams import read_partition
from tests.user_programs import EXAMPLES, HANG, end, run, started


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
        async with started('examples/loader', proxy.uri, stream, path) as process:
            # a row has at least 30 bytes
            limits[:] = [proxy.bytes['up'] + rng.randrange(10 * count)]
            async with asyncio.timeout(2 * HANG):
                statuses.append(await process.wait())
    assert statuses[0] == -signal.SIGKILL
    limits.clear()
    await run('examples/loader', proxy.uri, stream, path)
    expected = 0
    async for batch in client.subscribe(stream, offset=rbs.Offset.FIRST, until='now').batches():
        for row in batch:
            assert row == {'id': str(expected), 'item': 'book'}
            expected += 1
    assert expected == count


# -- the worker


class Worker:
    """The worker, of which one process runs at a time."""

    def __init__(self, uri: str, stream: str, output: Path) -> None:
        self.arguments = 'examples/worker', uri, stream
        self.output = output
        output.touch()

    def billed(self) -> list[int]:
        """The ids of the orders that were billed."""
        lines = self.output.read_text().rpartition('\n')[0].splitlines()  # complete ones
        return [int(line.split()[1]) for line in lines if line.startswith('billed')]

    @contextlib.asynccontextmanager
    async def until_billed(self, count: int) -> AsyncIterator[None]:
        """Run it until it has billed orders; stop it by SIGTERM at the end of the block."""
        async with started(*self.arguments, output=self.output) as process:
            await until(lambda: len({*self.billed()}) >= count, 'orders are billed', HANG)
            yield
            await end(process)


def order(id: int, amount: float = 2.5) -> dict[str, Any]:
    return {'id': id, 'customer': f'customer {id % 7}', 'amount': amount}


async def test_worker_goes_on_after_the_stored_offset(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path
) -> None:
    worker = Worker(broker_uri, stream, tmp_path / 'output')
    try:
        # each run has new orders, since one may bill all of them before this test stops it
        for last, count in ((60, 10), (120, 100), (180, 180)):
            async with client.publisher(stream) as publisher:
                await publisher.send_many(map(order, range(last - 60, last)))
            stored = await client.read_offset(stream, 'billing')
            start = rbs.Offset.FIRST if stored is None else rbs.Offset.offset(stored + 1)
            async with client.subscribe(stream, offset=start) as messages:
                first = (await anext(messages))['id']
            before = len(worker.billed())
            async with worker.until_billed(count):
                pass
            billed = worker.billed()[before:]
            assert min(billed) == first
            for customer in range(7):
                numbers = [i for i in billed if i % 7 == customer]
                assert numbers == sorted(numbers)
    finally:
        await client.delete_stream(f'{stream}-failed')
    assert {*worker.billed()} == {*range(180)}


async def test_worker_puts_bad_orders_aside(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path
) -> None:
    worker = Worker(broker_uri, stream, tmp_path / 'output')
    failed = f'{stream}-failed'
    async with client.publisher(stream) as publisher:
        await publisher.send_many(order(i, -1.0 if i % 20 == 3 else 2.5) for i in range(60))
    try:
        async with (
            worker.until_billed(57),
            client.subscribe(failed, offset=rbs.Offset.FIRST) as letters,
        ):
            source = letters.messages()
            found = [await anext(source) for _ in range(3)]
    finally:
        await client.delete_stream(failed)
    assert {message.body['id'] for message in found} == {3, 23, 43}
    assert {message.app_properties['dead-letter-tries'] for message in found} == {3}
    reasons = {message.app_properties['dead-letter-reason'] for message in found}
    assert reasons == {'ValueError: the amount is -1.0'}
    assert sorted(worker.billed()) == [i for i in range(60) if i % 20 != 3]


# -- rows and offset in one transaction


class Table:
    """A table that programs fill, read while they run."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none while there is no table."""
        with (
            contextlib.closing(sqlite3.connect(self.path, timeout=HANG)) as db,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            return db.execute(sql).fetchall()
        return []

    def count(self) -> int:
        return sum(count for (count,) in self.query(f'SELECT count(*) FROM {self.name}'))


async def test_each_order_has_one_row(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path, rng: Random
) -> None:
    """Although processes are killed, and two of them run at once."""
    table = Table(tmp_path / 'orders.db', 'orders')
    arguments = 'examples/rows', broker_uri, stream, table.path
    count = 20_000

    async def publish(start: int) -> None:
        async with client.publisher(stream) as publisher:
            await publisher.send_many({'id': i, 'amount': 0.5} for i in range(start, start + count))

    for i in range(3):
        publishing = asyncio.create_task(publish(i * count))
        wanted = table.count() + rng.randrange(1, count // 2)
        async with started(*arguments) as process:
            await until(lambda wanted=wanted: table.count() >= wanted, 'rows are written', HANG)  # type: ignore[misc]
            process.kill()
            await process.wait()
        await publishing
    async with started(*arguments) as first, started(*arguments) as second:
        await until(lambda: table.count() >= 3 * count, 'all rows are written', HANG)
        await end(first)
        await end(second)
    assert table.query('SELECT id FROM orders ORDER BY rowid') == [(i,) for i in range(3 * count)]


# -- the outbox


class Shop:
    """An application with an outbox."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = Table(path, 'outbox')
        self._program = runpy.run_path(str(EXAMPLES / 'outbox.py'))
        with self.open() as db:
            db.executescript(self._program['CREATE'])

    def open(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(sqlite3.connect(self.path, timeout=HANG))

    def place_orders(self, count: int) -> None:
        with self.open() as db:
            db.execute('PRAGMA synchronous = OFF')  # the test needs many transactions
            for i in range(count):
                self._program['place_order'](db, i)

    async def published(self) -> None:
        await until(lambda: not self.table.count(), 'all rows are published', HANG)


async def orders_in(client: rbs.StreamsClient, stream: str) -> list[int]:
    return [event['order'] for event in await read_partition(client, stream)]


async def test_each_row_of_the_outbox_is_published_once(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path, rng: Random
) -> None:
    """Although relays are killed, rows are there again, and two relays run at once."""
    shop = Shop(tmp_path / 'shop.db')
    arguments = 'examples/outbox', broker_uri, stream, shop.path
    shop.place_orders(3000)
    backup = shutil.copy(shop.path, tmp_path / 'backup.db')
    for _ in range(3):
        # a relay may publish all rows before this test kills it
        left = max(0, shop.table.count() - rng.randrange(1, 1000))
        async with started(*arguments) as process:
            await until(lambda left=left: shop.table.count() <= left, 'it publishes rows', HANG)  # type: ignore[misc]
            process.kill()
            await process.wait()
    shutil.copy(backup, shop.path)  # as if no relay had deleted anything
    async with started(*arguments) as first, started(*arguments) as second:
        await shop.published()
        await asyncio.to_thread(shop.place_orders, 500)
        await shop.published()
        await end(first)
        await end(second)
    assert await orders_in(client, stream) == [*range(1, 3501)]


# -- Debezium


def event(op: str, id: int, name: str, schema: bool = False) -> rbs.Message:
    """Return a change event as Debezium Server writes it."""
    row = {'id': id, 'name': name, 'email': f'{name}@example.com'}
    payload: dict[str, Any] = {'op': op, 'source': {'table': 'customers'}, 'ts_ms': 1}
    payload |= {'before': row if op in 'ud' else None, 'after': None if op == 'd' else row}
    body = json.dumps({'schema': {}, 'payload': payload} if schema else payload).encode()
    return rbs.Message(body, properties=AMQPProperties(message_id=json.dumps({'id': id})))


async def test_table_follows_the_changes(
    client: rbs.StreamsClient, broker_uri: str, stream: str, tmp_path: Path
) -> None:
    table = Table(tmp_path / 'copy.db', 'customers')
    arguments = 'examples/debezium', broker_uri, stream, table.path

    async def publish(*messages: rbs.Message) -> None:
        async with client.publisher(stream) as publisher:
            await publisher.send_many(messages)

    async def shows(*rows: tuple[int, str]) -> None:
        sql = 'SELECT id, name FROM customers ORDER BY id'
        await until(lambda: table.query(sql) == [*rows], f'the table has {rows}', HANG)

    async with started(*arguments) as process:
        await publish(event('r', 1, 'alice'), event('r', 2, 'bob'), event('c', 3, 'carol'))
        await shows((1, 'alice'), (2, 'bob'), (3, 'carol'))
        await publish(event('u', 2, 'bill', schema=True), event('d', 1, 'alice'))
        await publish(rbs.Message(b'default'))  # the tombstone
        await shows((2, 'bill'), (3, 'carol'))
        process.kill()
        await process.wait()
    await publish(event('c', 4, 'dave'), event('c', 4, 'dave'))  # Debezium repeats changes
    async with started(*arguments) as process:
        await shows((2, 'bill'), (3, 'carol'), (4, 'dave'))
        await end(process)


# -- AMQP 0.9.1


async def test_stream_receives_what_an_exchange_does(
    own_client: rbs.StreamsClient, own_broker: RabbitMQ, stream_name: str, tmp_path: Path
) -> None:
    output = tmp_path / 'output'
    exchange = f'{stream_name}-exchange'
    amqp_uri = str(own_broker.amqp_uri)
    arguments = amqp_uri, own_broker.uri, exchange, stream_name
    with pika.BlockingConnection(pika.URLParameters(amqp_uri)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, 'topic', durable=True)
        channel.confirm_delivery()
        try:
            async with started('examples/amqp091', *arguments, output=output) as process:
                await until(lambda: bound(connection, stream_name), 'the stream exists')
                for i in range(5):
                    region = pika.BasicProperties(headers={'region': 'emea'} if i % 2 else None)
                    body = json.dumps({'id': i})
                    while not output.read_text():  # the stream may not be bound at first
                        channel.basic_publish(exchange, 'order.placed', b'0', region)
                        await asyncio.sleep(0.01)
                    channel.basic_publish(exchange, 'order.placed', body, region)
                await until(lambda: "{'id': 4}" in output.read_text(), 'all is read')
                await end(process)
        finally:
            channel.exchange_delete(exchange)
            await own_client.delete_stream(stream_name)
    lines = [line for line in output.read_text().splitlines() if 'id' in line]
    assert lines == [f"order.placed {'emea' if i % 2 else None} {{'id': {i}}}" for i in range(5)]


async def test_consumers_of_amqp_091_receive_what_the_recipe_says(
    own_client: rbs.StreamsClient, own_broker: RabbitMQ, own_stream: str
) -> None:
    """Messages of sub-entries arrive one by one; a body that is not bytes is encoded."""
    for compression in ('none', 'gzip'):
        async with own_client.publisher(
            own_stream, sub_entry_size=10, compression=compression
        ) as publisher:
            await publisher.send_many([compression.encode()] * 2)
    async with own_client.publisher(own_stream) as publisher:
        await publisher.send_many([b'alone', {'id': 1}])

    def read() -> list[tuple[bytes, str | None]]:
        found: list[tuple[bytes, str | None]] = []
        with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            first = {'x-stream-offset': 'first'}
            for _, properties, body in channel.consume(own_stream, arguments=first):
                found.append((body, properties.type))
                if properties.type:
                    return found
        return found

    *found, (_, kind) = await asyncio.to_thread(read)
    bodies = [b'none', b'none', b'gzip', b'gzip', b'alone']
    assert found == [(body, None) for body in bodies]
    assert kind == 'amqp-1.0'


def bound(connection: pika.BlockingConnection, queue: str) -> bool:
    """Return whether a queue exists."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    channel.close()
    return True


# -- Django and Celery


FORK = """
import os
import shop_streams

for i in range(2):
    if not os.fork():
        os._exit(not shop_streams.publish_order({'id': i}))
assert [os.wait()[1] for _ in range(2)] == [0, 0]
assert shop_streams.publish_order({'id': 2})
"""


async def test_publisher_opens_after_the_fork(
    client: rbs.StreamsClient, broker_uri: str, stream: str
) -> None:
    variables = {'RBFLY_URI': broker_uri, 'ORDERS_STREAM': stream, 'PYTHONPATH': str(EXAMPLES)}
    command = [sys.executable, '-X', 'dev', '-W', 'error', '-c', FORK]
    result = await asyncio.to_thread(
        subprocess.run, command, env=os.environ | variables, timeout=HANG, check=False
    )
    assert result.returncode == 0
    found = await read_partition(client, stream)
    assert sorted(order['id'] for order in found) == [0, 1, 2]


# -- a deployment


@contextlib.asynccontextmanager
async def deployed(
    uri: str, user: str, token: str, ca_file: Path, stream: str, folder: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, Path]]:
    """Start the program; yield its process, the port of its metrics, and its output."""
    [port] = free_ports(1)  # no connection takes it before the program does
    (folder / 'token').write_text(f'{token}\n')
    variables = {
        'RBFLY_URI': uri,
        'CA_FILE': str(ca_file),
        'TOKEN_FILE': str(folder / 'token'),
        'RABBITMQ_USER': user,
        'METRICS_PORT': str(port),
        'STREAM': stream,
    }
    output = folder / 'output'
    async with started('examples/deployed', output=output, **variables) as process:
        yield process, port, output


def read_page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG) as response:
        page: bytes = response.read()
    return page.decode()


async def check_deployed(
    process: asyncio.subprocess.Process, port: int, output: Path, count: int
) -> None:
    await until(lambda: output.read_text().count('billed') >= count, 'all are billed', HANG)
    metrics = await asyncio.to_thread(read_page, f'http://127.0.0.1:{port}/metrics')
    [line] = [line for line in metrics.splitlines() if line.startswith('rabbitmq_stream_consumed')]
    assert float(line.split()[-1]) == count
    await end(process)


@pytest.mark.examples
async def test_deployment_in_memory(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('127.0.0.1').configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / 'ca.pem')
    async with StreamBroker(ssl=context, users={'': 'token-1'}) as broker:
        broker.create_stream('orders')
        broker.publish('orders', *({'id': i} for i in range(10)))
        uri = f'rabbitmq-stream+tls://127.0.0.1:{broker.port}/'
        arguments = uri, '', 'token-1', tmp_path / 'ca.pem', 'orders', tmp_path
        async with deployed(*arguments) as program:
            await check_deployed(*program, 10)


async def test_deployment_on_rabbitmq(
    own_client: rbs.StreamsClient, own_broker: RabbitMQ, own_stream: str, tmp_path: Path
) -> None:
    async with own_client.publisher(own_stream) as publisher:
        await publisher.send_many({'id': i} for i in range(10))
    assert own_broker.tls_uri is not None
    assert own_broker.ca_file is not None
    arguments = own_broker.tls_uri, 'guest', 'guest', own_broker.ca_file, own_stream, tmp_path
    async with deployed(*arguments) as program:
        await check_deployed(*program, 10)
