"""`python -m rbfly broker`."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import rbfly.streams as rbs
from rbfly.protocol import commands
from rbfly.protocol.const import Key
from rbfly.streams.error import StreamConnectionError
from rbfly.testing import StreamBroker
from tests.raw_client import connect_and_open

COMMAND = [sys.executable, '-X', 'dev', '-W', 'error', '-m', 'rbfly', 'broker', '--port']


@contextlib.contextmanager
def run_quietly(*options: str) -> Iterator[tuple[list[str], str]]:
    """Run the command with `--quiet`: its output after the address, at the end, and the address."""
    command = [*COMMAND, '0', '--quiet', *options]
    output: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield output, process.stdout.readline().strip()
        finally:
            process.terminate()
            output.append(process.stdout.read())


def test_broker_runs_until_interrupted() -> None:
    async def use(uri: str) -> None:
        async with rbs.streams_client(uri, connection_name='my-app') as client:
            await client.create_stream('orders')
            async with client.publisher('orders') as publisher:
                await publisher.send(1)

    # A background process may ignore interrupts, and its children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*COMMAND, '0'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        uri = process.stdout.readline().strip()
        asyncio.run(use(uri))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ''
    lines = output.splitlines()
    assert any("'my-app" in line and "opened '/' as 'guest'" in line for line in lines)
    assert sum('closed' in line for line in lines) == sum('opened' in line for line in lines)


@pytest.mark.parametrize('port', ['taken', '70000'])
def test_unusable_port(port: str) -> None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        if port == 'taken':
            port = str(taken.getsockname()[1])
        result = subprocess.run(
            [*COMMAND, port], capture_output=True, text=True, timeout=30, check=False
        )
    assert result.returncode == 1
    assert result.stdout == ''
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(('version', 'known'), [('4.0', False), ('4.3', True)])
def test_version(version: str, known: bool) -> None:
    async def use(uri: str) -> None:
        async with connect_and_open(uri) as client:
            found = await client.value(commands.ExchangeCommandVersions({}))
            assert (Key.RESOLVE_OFFSET_SPEC in found) is known

    with run_quietly('--version', version) as (_, uri):
        asyncio.run(use(uri))


def test_version_is_that_of_the_library_by_default() -> None:
    async def version(uri: str) -> str:
        async with rbs.streams_client(uri) as client:
            await client.ping()
            return client.server_properties['version']

    with run_quietly() as (_, uri), StreamBroker() as broker:
        assert asyncio.run(version(uri)) == asyncio.run(version(broker.uri))


def test_quiet() -> None:
    async def use(uri: str) -> None:
        async with rbs.streams_client(uri) as client:
            await client.create_stream('orders')

    with run_quietly() as (output, uri):
        asyncio.run(use(uri))
    assert output == ['']


def test_ends_when_the_reader_of_its_output_has_gone() -> None:
    command = [*COMMAND, '0']
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        uri = process.stdout.readline().strip()
        process.stdout.close()

        async def use() -> None:
            with contextlib.suppress(StreamConnectionError):
                async with rbs.streams_client(uri, connect_timeout=5) as client:
                    await client.get_protocol()  # the broker prints a line

        asyncio.run(use())
        assert process.stderr is not None
        errors = process.stderr.read()
    assert 'BrokenPipeError' not in errors
    assert process.returncode == 0
