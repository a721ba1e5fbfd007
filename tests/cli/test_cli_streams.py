"""`rbfly stream` and `rbfly super-stream`."""

import asyncio
import json
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.testing import StreamBroker
from tests.command_line import in_terminal, publish, rbfly, super_stream


def exists(uri: str, stream: str) -> bool:
    async def main() -> bool:
        async with rbs.streams_client(uri) as client:
            return await client.stream_exists(stream)

    return asyncio.run(main())


def test_stream_is_created_and_deleted(broker: RabbitMQ, stream_name: str) -> None:
    options = ['--max-length-bytes', '20GiB', '--max-age', '7d', '--filter-size', '32']
    options += ['--segment-size', '500MB', '--leader-locator', 'balanced']
    for _ in range(2):
        done = rbfly('stream', 'create', stream_name, *options, RBFLY_URI=broker.uri)
        assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
    other = rbfly('stream', 'create', stream_name, '--max-age', '8d', RBFLY_URI=broker.uri)
    assert other.returncode == 1
    (line,) = other.stderr.splitlines()
    assert 'max-age=691200s' in line
    for _ in range(2):
        done = rbfly('stream', 'delete', stream_name, RBFLY_URI=broker.uri)
        assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
        assert not exists(broker.uri, stream_name)


def test_argument_is_passed_on(broker: RabbitMQ, stream_name: str) -> None:
    options = ('--max-age', '7d', '--argument', 'max-age=8d')
    done = rbfly('stream', 'create', stream_name, *options, RBFLY_URI=broker.uri)
    assert done.stderr == "rbfly: argument 'max-age' is passed twice: as '604800s' and '8d'\n"


@pytest.mark.parametrize(('answer', 'code'), [('y\n', 0), ('n\n', 1), ('\x04', 130)])
def test_deleting_asks_in_a_terminal(broker: RabbitMQ, stream: str, answer: str, code: int) -> None:
    with in_terminal('stream', 'delete', stream, RBFLY_URI=broker.uri) as terminal:
        terminal.read_until('[y/N]')
        terminal.type(answer)
        assert terminal.wait() == code
    assert exists(broker.uri, stream) is (code != 0)


def test_deleting_does_not_ask_with_yes(broker: RabbitMQ, stream: str) -> None:
    with in_terminal('stream', 'delete', stream, '--yes', RBFLY_URI=broker.uri) as terminal:
        assert terminal.wait() == 0
    assert not exists(broker.uri, stream)


def test_stats(broker: RabbitMQ, stream: str) -> None:
    publish(broker.uri, stream, *'abc')
    done = rbfly('stream', 'stats', stream, '--json', RBFLY_URI=broker.uri)
    assert json.loads(done.stdout) == [
        {
            'stream': stream,
            'first_chunk_id': 0,
            'last_chunk_id': 2,
            'committed_chunk_id': 2,
            'next_offset': 3,
        }
    ]
    done = rbfly('stream', 'stats', stream, RBFLY_URI=broker.uri)
    title, line = done.stdout.splitlines()
    assert title.split()[0] == 'STREAM'
    assert title.endswith('COMMITTED CHUNK  NEXT OFFSET')
    assert line.split() == [stream, '0', '2', '2', '3']


def test_stats_of_a_missing_stream(broker: RabbitMQ, stream: str) -> None:
    done = rbfly('stream', 'stats', stream, 'no-such-stream', RBFLY_URI=broker.uri)
    assert done.returncode == 3
    assert 'no-such-stream' in done.stderr
    assert stream in done.stdout
    assert rbfly('stream', 'stats', 'no-such-stream', RBFLY_URI=broker.uri).returncode == 1


def test_super_stream_is_created_and_deleted(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    create = ('super-stream', 'create', name)
    done = rbfly(*create, '--binding-keys', 'emea, apac', RBFLY_URI=broker.uri)
    assert (done.returncode, done.stderr) == (0, '')
    done = rbfly('super-stream', 'partitions', name, RBFLY_URI=broker.uri)
    assert done.stdout.splitlines() == [f'{name}-emea', f'{name}-apac']
    other = rbfly(*create, '--partitions', '3', RBFLY_URI=broker.uri)
    assert 'exists with other partitions' in other.stderr
    assert other.returncode == 1
    done = rbfly('super-stream', 'delete', name, RBFLY_URI=broker.uri)
    assert (done.returncode, done.stderr) == (0, '')
    done = rbfly('super-stream', 'partitions', name, RBFLY_URI=broker.uri)
    assert done.returncode == 1
    assert done.stderr.endswith('; create it with `rbfly super-stream create`\n')


def test_super_stream_is_no_stream(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 1):
        done = rbfly('stream', 'delete', name, RBFLY_URI=broker.uri)
        assert done.returncode == 1
        assert 'is a super stream' in done.stderr
        assert 'create it' not in done.stderr


def test_super_stream_stats(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        publish(broker.uri, partitions[1], *'ab')
        done = rbfly('super-stream', 'stats', name, '--json', RBFLY_URI=broker.uri)
    found = [(item['stream'], item['next_offset']) for item in json.loads(done.stdout)]
    assert found == [(partitions[0], 0), (partitions[1], 2)]


MISTAKES = {
    'stream create orders --max-age 7': "'7' is no time: write 90s, 12h, 7d or 1d12h",
    'stream create orders --max-length-bytes 20G': "'20G' is no size",
    'stream create orders --max-age 9999999999d': "'9999999999d' is too large",
    'stream create orders --argument x': "'x' is not NAME=VALUE",
    'lag orders billing --interval nan': "'nan' is not a number",
    'publish orders --rate nan': "'nan' is not a number",
    'perf --time nan': "'nan' is not a number",
    'doctor orders --watch nan': "'nan' is not a number",
    'tail orders --connect-timeout nan': "'nan' is not a number",
    'super-stream create orders --binding-keys a,': '--binding-keys has an empty key',
    'super-stream create orders': 'pass either --partitions or --binding-keys',
}


@pytest.mark.parametrize(('args', 'reason'), MISTAKES.items(), ids=MISTAKES)
def test_mistake(args: str, reason: str) -> None:
    done = rbfly(*args.split())
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert done.returncode == 2


def test_references(broker: RabbitMQ, stream: str) -> None:
    for reference, offset in (('shipping', 5), ('billing', 7)):
        rbfly('offset', 'set', stream, reference, str(offset), RBFLY_URI=broker.uri)
    done = rbfly('stream', 'references', stream, RBFLY_URI=broker.uri)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert rows == [[stream, 'billing', '7'], [stream, 'shipping', '5']]
    done = rbfly('stream', 'references', stream, '--json', RBFLY_URI=broker.uri)
    assert json.loads(done.stdout)[0] == {'stream': stream, 'reference': 'billing', 'stored': 7}


def test_references_of_partitions(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        rbfly('offset', 'set', partitions[1], 'billing', '7', RBFLY_URI=broker.uri)
        done = rbfly('stream', 'references', name, '--json', RBFLY_URI=broker.uri)
    assert json.loads(done.stdout) == [
        {'stream': partitions[1], 'reference': 'billing', 'stored': 7}
    ]


@pytest.mark.parametrize('options', [(), ('--json',)], ids=['', '--json'])
def test_output_is_utf8(options: tuple[str, ...]) -> None:
    """As that of `tail`, whatever the locale or the code page says."""
    with StreamBroker() as broker:
        broker.create_super_stream('żółw', partitions=1)
        args = ('super-stream', 'partitions', 'żółw', *options)
        done = rbfly(*args, RBFLY_URI=broker.uri, PYTHONIOENCODING='latin-1')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'żółw-0' in done.stdout
