"""pytest runs the fixtures; without them it imports nothing of RbFly."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import asyncio
import sys
import threading

import pytest

assert 'rbfly.testing.broker' not in sys.modules

def test_nothing_is_imported():
    assert not {'rbfly.testing.broker', 'rbfly.amqp', 'rbfly.error'} & set(sys.modules)
    assert threading.active_count() == 1

def test_blocking(rbfly_broker, rbfly_stream):
    import rbfly.streams as rbs

    async def publish():
        async with rbs.streams_client(rbfly_broker.uri) as client:
            async with client.publisher(rbfly_stream) as publisher:
                await publisher.send('blocking')

    asyncio.run(publish())
    assert rbfly_broker.messages(rbfly_stream) == ['blocking']

@pytest.mark.asyncio
async def test_asyncio(rbfly_broker, rbfly_stream):
    import rbfly.streams as rbs

    assert rbfly_broker.messages(rbfly_stream) == []
    rbfly_broker.publish(rbfly_stream, 1)
    async with rbs.streams_client(rbfly_broker.uri) as client:
        async with client.subscribe(rbfly_stream, offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 1

names = set()

@pytest.mark.parametrize('creates', [True, False])
def test_name_of_a_stream_that_the_program_creates(rbfly_broker, rbfly_stream_name, creates):
    import rbfly.streams as rbs

    async def program():
        async with rbs.streams_client(rbfly_broker.uri) as client:
            assert not await client.stream_exists(rbfly_stream_name)
            if creates:
                await client.create_stream(rbfly_stream_name, max_length_bytes=20 * 2**30)
                async with client.publisher(rbfly_stream_name) as publisher:
                    await publisher.send('created')

    asyncio.run(program())
    assert rbfly_stream_name not in names
    names.add(rbfly_stream_name)
    if creates:
        assert rbfly_broker.messages(rbfly_stream_name) == ['created']

@pytest.fixture
def streams_afterwards(rbfly_broker):
    yield
    assert rbfly_broker.streams == ['kept']

def test_stream_is_deleted_afterwards(streams_afterwards, rbfly_broker, rbfly_stream_name):
    rbfly_broker.create_stream('kept')
    rbfly_broker.create_stream(rbfly_stream_name)

def test_end():
    assert threading.active_count() == 1
"""


def test_fixtures(tmp_path: Path) -> None:
    (tmp_path / 'test_program.py').write_text(TESTS)
    options = ['-W', 'error', '-p', 'no:cacheprovider', '-p', 'no:timeout', '-p', 'no:xdist']
    options += ['-o', 'asyncio_default_fixture_loop_scope=function']
    result = subprocess.run(
        [sys.executable, '-X', 'dev', '-m', 'pytest', '-q', *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    assert '7 passed' in result.stdout


def test_fixtures_are_listed(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '--fixtures', '-q'],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert 'rbfly_broker' in result.stdout
    assert 'rbfly_stream' in result.stdout
    assert 'rbfly_stream_name' in result.stdout
