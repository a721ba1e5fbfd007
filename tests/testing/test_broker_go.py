"""The Go client publishes and consumes, on the in-memory broker as on RabbitMQ."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.testing import StreamBroker

SOURCE = Path(__file__).parent.parent / 'data' / 'go'
BEFORE = [b'%d' % -i for i in range(100)]
COUNT = 1000
HANG = 20.0  # seconds; only a bug makes a test wait that long


async def run(*command: str, cwd: Path | None = None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out


@pytest.fixture(scope='module')
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the compiled Go program."""
    made = tmp_path_factory.mktemp('go') / 'roundtrip'
    asyncio.run(run('go', 'build', '-o', str(made), '.', cwd=SOURCE))
    return str(made)


async def round_trip(program: str, uri: str, stream: str) -> list[Any]:
    """Publish with both clients, consume with both, and return what the stream contains."""
    async with rbs.streams_client(uri) as client:
        await client.create_stream(stream)
        async with client.publisher(stream) as publisher:
            await publisher.send_many(BEFORE)
        port = str(urlsplit(uri).port)
        out = await run(program, port, stream, str(COUNT), str(len(BEFORE)))
        found = json.loads(out)
        total = len(BEFORE) + 2 * COUNT
        async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
            bodies: list[Any] = [await anext(messages) for _ in range(total)]
        assert found['messages'] == [body.decode() for body in bodies]
        assert found['offset'] == total - 1
        assert await client.read_offset(stream, 'go') == total - 1
        await client.delete_stream(stream)
    return [found['sequence'], bodies]


@pytest.mark.go
async def test_go(program: str) -> None:
    with StreamBroker() as memory:
        sequence, bodies = await round_trip(program, memory.uri, 'orders')
    assert sequence == COUNT  # publishing ids start at 1
    assert bodies == BEFORE + [b'%d' % i for i in range(2 * COUNT)]


@pytest.mark.go
async def test_go_with_rabbitmq(program: str, broker: RabbitMQ) -> None:
    with StreamBroker() as memory:
        there = await round_trip(program, memory.uri, 'orders')
    assert await round_trip(program, broker.uri, f'test-{uuid4()}') == there


async def super_streams(program: str, uri: str, name: str) -> Any:
    """Create and use super streams with the Go client, and one of them with RbFly."""
    port = str(urlsplit(uri).port)
    found = json.loads(await run(program, port, name, '100', 'super'))
    async with rbs.streams_client(uri) as client:
        await client.super_stream(name).create(partitions=3)  # the same as that of Go
        for partition in await client.super_stream(name).partitions():
            bodies = {body for body, item in found['hashed'].items() if item == partition}
            stored = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now')
            assert {body.decode() async for body in stored} == bodies
        await client.super_stream(name).delete()
    return json.loads(json.dumps(found).replace(name, 'orders'))


@pytest.mark.go
async def test_super_streams_of_go(program: str) -> None:
    with StreamBroker(nodes=3) as memory:
        found = await super_streams(program, memory.uri, 'orders')
    numbers = {'0': (2, 5, 7, 9), '1': (1, 3, 8, 88), '2': (4, 6, 10)}  # from the Go client's tests
    for partition, members in numbers.items():
        for number in members:
            assert found['hashed'][f'hello{number}'] == f'orders-{partition}'
    assert found['keyed'] == {'emea': 'orders-keys-emea', 'apac': 'orders-keys-apac'}
    assert found['partitions'] == ['orders-keys-emea', 'orders-keys-apac']
    assert found['unbound'] == 0


@pytest.mark.go
async def test_super_streams_of_go_with_rabbitmq(program: str, broker: RabbitMQ) -> None:
    with StreamBroker() as memory:
        there = await super_streams(program, memory.uri, 'orders')
    assert await super_streams(program, broker.uri, f'test-{uuid4()}') == there
