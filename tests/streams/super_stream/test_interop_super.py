"""The official clients for Go and Java use the same super stream, with the same routing by hash."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import RabbitMQ, wire
from perf import programs, super_stream_wire

COUNT = 5_000
PARTITIONS = 8
BOTH = [
    pytest.param('go', marks=pytest.mark.go),
    pytest.param('java', marks=pytest.mark.java),
]


def body(number: int) -> bytes:
    """The body of a message, which is also its key."""
    return b'%010d' % number


EXPECTED: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
for data in map(body, range(COUNT)):
    EXPECTED[super_stream_wire.partition_of(data, PARTITIONS)].append(data)


@pytest_asyncio.fixture
async def super_stream(broker: RabbitMQ, stream_name: str) -> AsyncIterator[list[str]]:
    """The partitions of a super stream."""
    connection = await asyncio.to_thread(wire.Connection, broker.uri)
    partitions = super_stream_wire.partitions_of(stream_name, PARTITIONS)
    await asyncio.to_thread(super_stream_wire.create, connection, stream_name, partitions)
    yield partitions
    await asyncio.to_thread(super_stream_wire.delete, connection, stream_name)
    await asyncio.to_thread(connection.close)


@asynccontextmanager
async def started(program: str, kind: str, broker: RabbitMQ, stream: str) -> AsyncIterator[Any]:
    """Start a program that publishes or consumes; yield a function that asks it."""
    command = await asyncio.to_thread(programs.command, program, kind)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)

    async def ask(**order: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b'\n')
        async with asyncio.timeout(60):
            answer = json.loads(await process.stdout.readline())
        assert 'error' not in answer
        return answer

    try:
        await ask(do='open', address=broker.uri, stream=stream)
        await ask(do='prepare', count=COUNT)
        yield ask
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(30):
            await process.wait()


async def read(client: rbs.StreamsClient, stream: str) -> dict[str | None, list[Any]]:
    """Read the bodies of all partitions as one subscription."""
    found: dict[str | None, list[Any]] = {}
    async with client.super_stream(stream).subscribe(
        offset=rbs.Offset.FIRST, timeout=20
    ) as subscription:
        count = 0
        async for message in subscription.messages():
            found.setdefault(message.stream, []).append(message.body)
            count += 1
            if count == COUNT:
                break
    return found


@pytest.mark.parametrize('program', BOTH)
async def test_program_publishes_each_key_to_the_partition_that_rbfly_expects(
    program: str,
    broker: RabbitMQ,
    client: rbs.StreamsClient,
    stream_name: str,
    super_stream: list[str],
) -> None:
    async with started(program, 'super-window', broker, stream_name) as ask:
        assert (await ask(do='run'))['count'] == COUNT
    assert await read(client, stream_name) == dict(zip(super_stream, EXPECTED, strict=True))


@pytest.mark.parametrize('program', BOTH)
async def test_program_reads_what_rbfly_publishes_by_key(
    program: str,
    broker: RabbitMQ,
    client: rbs.StreamsClient,
    stream_name: str,
    super_stream: list[str],
) -> None:
    async with client.super_stream(stream_name).publisher(
        route=rbs.by_hash(bytes.decode)
    ) as publisher:
        assert await publisher.send_many(map(body, range(COUNT))) == COUNT
    # the program checks that the numbers in each partition increase
    async with started(program, 'super-consume', broker, stream_name) as ask:
        assert (await ask(do='run'))['count'] == COUNT
    assert await read(client, stream_name) == dict(zip(super_stream, EXPECTED, strict=True))


@pytest.mark.parametrize('program', BOTH)
async def test_program_reads_atomic_batches(
    program: str,
    broker: RabbitMQ,
    client: rbs.StreamsClient,
    stream_name: str,
    super_stream: list[str],
) -> None:
    async with client.super_stream(stream_name).publisher(
        route=rbs.by_hash(bytes.decode)
    ) as publisher:
        for bodies in EXPECTED:
            for start in range(0, len(bodies), 100):
                await publisher.send_atomic(bodies[start : start + 100])
    async with started(program, 'super-consume', broker, stream_name) as ask:
        assert (await ask(do='run'))['count'] == COUNT
