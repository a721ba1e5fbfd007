"""The programs of the pages for users of other clients: both print the same."""

import asyncio
import os
import runpy
import signal
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit
from uuid import uuid4

import pika
import pytest
import rstream

import rbfly.streams as rbs
from brokers import RabbitMQ
from tests.brokers import until
from tests.super_streams import read_partition
from tests.user_programs import FOLDER, end, run, started


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


@pytest.mark.parametrize('name', ['pika', 'aio_pika'])
async def test_migration_from_queues(
    name: str, own_client: rbs.StreamsClient, own_broker: RabbitMQ, tmp_path: Path
) -> None:
    """Both programs work on each order once."""
    queue, stream = f'queue-{uuid4()}', f'test-{uuid4()}'
    try:
        before = await orders_of(f'{name}_before', str(own_broker.amqp_uri), queue, tmp_path)
        after = await orders_of(f'{name}_after', own_broker.uri, stream, tmp_path)
        assert before == after == [*range(10)] * 2
    finally:
        await own_client.delete_stream(stream)
        with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as connection:
            connection.channel().queue_delete(queue)


@pytest.mark.parametrize('name', ['pika_after', 'aio_pika_after'])
async def test_programs_instead_of_queues(
    name: str, broker_uri: str, stream_name: str, tmp_path: Path
) -> None:
    assert await orders_of(name, broker_uri, stream_name, tmp_path) == [*range(10)] * 2


async def orders_of(name: str, uri: str, place: str, folder: Path) -> list[int]:
    """Let a program publish ten orders and work on them, twice; return what it has printed."""
    output = folder / name
    output.touch()

    def lines() -> list[str]:
        return output.read_text().splitlines()

    for wanted in (10, 20):
        await run(name, 'publish', uri, place)
        async with started(name, 'consume', uri, place, output=output) as process:
            await until(lambda wanted=wanted: len(lines()) >= wanted, 'all is read')  # type: ignore[misc]
            await end(process)
    return [int(line) for line in lines()]


async def test_program_instead_of_redis(
    client: rbs.StreamsClient, broker_uri: str, stream_name: str, tmp_path: Path
) -> None:
    """Two processes share the orders; each order goes to one of them."""
    outputs = [tmp_path / name for name in 'ab']

    def ids() -> list[int]:
        return [int(line) for path in outputs for line in path.read_text().splitlines()]

    arguments = 'redis_after', 'consume', broker_uri, stream_name
    try:
        await run('redis_after', 'publish', broker_uri, stream_name)
        async with (
            started(*arguments, output=outputs[0]) as first,
            started(*arguments, output=outputs[1]) as second,
        ):
            await until(lambda: len(ids()) >= 100, 'all is read')
            await end(first)
            await end(second)
        assert {*ids()} == {*range(100)}
    finally:
        await client.super_stream(stream_name).delete()


@pytest.mark.parametrize('first', ['before', 'after'])
async def test_migration_from_rbfly_0(first: str, broker_uri: str, stream_name: str) -> None:
    """Both programs print the same; each continues where the other one has stopped."""
    names = ['before', 'after'] if first == 'before' else ['after', 'before']
    bodies: list[str] = []
    for name in names:
        await run(f'rbfly_0_{name}', 'publish', broker_uri, stream_name)
        *lines, last = await run(f'rbfly_0_{name}', 'consume', broker_uri, stream_name)
        assert last == 'no more orders'
        bodies += [line.split(maxsplit=1)[1] for line in lines]
    assert bodies == [f"{{'id': {i}}}" for i in (*range(10), *range(10))]
