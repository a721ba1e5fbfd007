"""`rbfly publish`."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from brokers import RabbitMQ
from rbfly.cli.publish import Job, Publishing
from rbfly.testing import StreamBroker
from tests.command_line import (
    COMMAND,
    bodies,
    in_terminal,
    rbfly,
    started,
    super_stream,
    wait_until,
)


def job_of(*files: Path, rate: float | None = None) -> Job:
    """Return the options of the command without most of them."""
    return Job(
        stream='orders',
        files=files,
        format='text',
        name=None,
        key=None,
        route='hash',
        filter_field=None,
        rate=rate,
        sub_entries=None,
        compression=None,
        failed=None,
        quiet=True,
    )


def test_lines_of_standard_input(broker: RabbitMQ, stream: str) -> None:
    done = rbfly('publish', stream, stdin='one\r\ntwo\n\nżółw', RBFLY_URI=broker.uri)
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == '4 lines confirmed\n'
    assert bodies(broker.uri, stream) == ['one', 'two', '', 'żółw']


def test_lines_of_files(broker: RabbitMQ, stream: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in 'ab']
    paths[0].write_text('1\n2')
    paths[1].write_text('3\n')
    done = rbfly('publish', stream, *paths, '-', stdin='4\n', RBFLY_URI=broker.uri)
    assert done.stdout == '4 lines confirmed\n'
    assert bodies(broker.uri, stream) == ['1', '2', '3', '4']


def test_json(broker: RabbitMQ, stream: str) -> None:
    values = [{'id': 1, 'tags': ['a', None]}, 'text', 1.5, True, None]
    lines = '\n'.join(map(json.dumps, values)) + '\n\n'
    done = rbfly('publish', stream, '-F', 'json', stdin=lines, RBFLY_URI=broker.uri)
    assert done.stdout == '5 lines confirmed\n'
    assert bodies(broker.uri, stream) == values


def test_numbers_of_lines(broker: RabbitMQ, stream: str) -> None:
    """They count blank lines, which are no messages."""
    done = rbfly('publish', stream, '-F', 'json', stdin='\n\n{"id": \n', RBFLY_URI=broker.uri)
    assert done.stderr.startswith('rbfly publish: line 3: not JSON: ')
    assert done.stdout == '0 of 1 line confirmed, 1 failed\n'


def test_bytes(broker: RabbitMQ, stream: str) -> None:
    lines = [b'\xff\x00', b'ends with \r']
    done = rbfly('publish', stream, '-F', 'bytes', stdin=b'\n'.join(lines), RBFLY_URI=broker.uri)
    assert done.returncode == 0
    assert bodies(broker.uri, stream) == lines


def test_many_lines(broker: RabbitMQ, stream: str) -> None:
    """More than the window and the blocks in memory hold; with lines that span blocks."""
    lines = [f'{number} {"x" * (number % 300)}' for number in range(40_000)]
    lines[100] = 'y' * 600_000
    options = ('--name', f'test-{stream}', '--sub-entries', '50', '--compression', 'gzip')
    done = rbfly('publish', stream, *options, stdin='\n'.join(lines), RBFLY_URI=broker.uri)
    assert (done.stdout, done.stderr) == ('40,000 lines confirmed\n', '')
    assert bodies(broker.uri, stream) == lines


def test_failed_lines_are_kept(broker: RabbitMQ, stream: str, tmp_path: Path) -> None:
    lines = ['{"id": 1}', '{"id": ', '[1, 2]', f'{2**64}', '{"id": 2}']
    kept = tmp_path / 'failed.txt'
    options = ('--format', 'json', '--failed', str(kept))
    done = rbfly('publish', stream, *options, stdin='\n'.join(lines), RBFLY_URI=broker.uri)
    assert done.returncode == 3
    assert done.stdout == f'3 of 5 lines confirmed, 2 failed, kept in {kept}\n'
    first, second = done.stderr.splitlines()
    assert first.startswith('rbfly publish: line 2: not JSON: ')
    assert second.startswith('rbfly publish: line 4: ')
    assert kept.read_text().splitlines() == [lines[1], lines[3]]
    assert bodies(broker.uri, stream) == [{'id': 1}, [1, 2], {'id': 2}]


def test_failed_lines_are_described_up_to_a_limit(broker: RabbitMQ, stream: str) -> None:
    lines = b'\xff\n' * 30 + b'good\n' + b'z' * 2_000_000
    done = rbfly('publish', stream, stdin=lines, RBFLY_URI=broker.uri)
    assert done.stdout == '1 of 32 lines confirmed, 31 failed\n'
    assert len(done.stderr.splitlines()) == 11
    assert 'line 1: not UTF-8 at byte 0: see --format bytes\n' in done.stderr
    assert done.returncode == 3
    assert bodies(broker.uri, stream) == ['good']


def test_refused_lines_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / 'failed.txt'
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish_error(count=2)
        options = ('--failed', str(kept))
        done = rbfly('publish', 'orders', *options, stdin='a\nb\nc\n', RBFLY_URI=broker.uri)
        assert done.returncode == 3
        assert done.stdout == f'1 of 3 lines confirmed, 2 failed, kept in {kept}\n'
        assert kept.read_text() == 'a\nb\n'
        assert broker.messages('orders') == ['c']


def test_stream_is_deleted_meanwhile(tmp_path: Path) -> None:
    """Every line that is not confirmed is in the file, also those that come after."""
    kept = tmp_path / 'failed.txt'
    with StreamBroker() as broker:
        broker.create_stream('orders')
        options = ('--failed', str(kept))
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'first\n')
            wait_until(lambda: broker.messages('orders') == ['first'])
            broker.delete_stream('orders')
            output, errors = process.communicate(b'second\nthird\n', timeout=60)
    assert output.decode() == f'1 of 3 lines confirmed, 2 failed, kept in {kept}\n'
    *log, line = errors.decode().splitlines()
    assert all(item.startswith('[rbfly publish] ') for item in log)
    assert line.startswith("rbfly publish: stream 'orders'")
    assert process.returncode == 3
    assert kept.read_text() == 'second\nthird\n'


def test_stream_is_deleted_without_a_file() -> None:
    """The command ends at once: it reads no lines that it cannot publish."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        with started('publish', 'orders', RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'first\n')
            wait_until(lambda: broker.messages('orders') == ['first'])
            broker.delete_stream('orders')
            process.stdin.write(b'second\n')
            assert process.wait(60) == 3
            output = process.stdout.read().decode()
    assert output == '1 of 2 lines confirmed, 1 failed; the lines after them were not read\n'


def has_more_than(broker: StreamBroker, count: int) -> bool:
    return len(broker.messages('orders')) > count


def test_broker_that_loses_connections() -> None:
    """Lines are stored once, as the publisher has a name."""
    lines = [str(number) for number in range(5000)]
    with StreamBroker() as broker:
        broker.create_stream('orders')
        options = ('--name', 'shop', '--rate', '5000')
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write('\n'.join(lines).encode())
            process.stdin.close()
            for count in (500, 2000, 3500):
                wait_until(partial(has_more_than, broker, count))
                broker.close_connections()
            output = process.stdout.read()
            assert process.wait(60) == 0
        assert output == b'5,000 lines confirmed\n'
        assert broker.messages('orders') == lines


@pytest.mark.parametrize(
    ('number', 'code'),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=['Ctrl-C', 'SIGTERM', 'SIGHUP'],
)
def test_interruption_reports_what_is_confirmed(
    broker: RabbitMQ, stream: str, number: signal.Signals, code: int
) -> None:
    """Also while the command waits for input."""
    with started('publish', stream, RBFLY_URI=broker.uri) as process:
        process.stdin.write(b'one\ntwo\n')
        wait_until(lambda: bodies(broker.uri, stream) == ['one', 'two'])
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stdout.read() == b'2 lines confirmed; interrupted\n'
        assert process.stderr.read() == b''


def test_interruption_keeps_lines_without_a_confirm(tmp_path: Path) -> None:
    kept = tmp_path / 'failed.txt'
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.withhold_confirms()
        options = ('--failed', str(kept))
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'one\n')
            wait_until(lambda: broker.messages('orders') == ['one'])
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            output = process.stdout.read().decode()
    assert output == f'0 of 1 line confirmed, 1 failed, kept in {kept}; interrupted\n'
    assert kept.read_text() == 'one\n'


def test_reader_of_the_result_has_gone() -> None:
    """The exit code still reports the result."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        with started('publish', 'orders', RBFLY_URI=broker.uri) as process:
            process.stdout.close()
            process.stdin.write(b'\xff\n')
            process.stdin.close()
            assert process.wait(60) == 3
            (line,) = process.stderr.read().decode().splitlines()
    assert line.startswith('rbfly publish: line 1: not UTF-8')


FULL = 'rbfly publish: cannot write /dev/full: No space left on device'


def test_file_for_failed_lines_is_full(broker: RabbitMQ, stream: str) -> None:
    """The command stops and reports how many lines are confirmed."""
    lines = b'one\n\xff\ntwo\n'
    options = ('--failed', '/dev/full')
    done = rbfly('publish', stream, *options, stdin=lines, RBFLY_URI=broker.uri)
    assert done.returncode == 3
    text = '1 of 3 lines confirmed, 2 failed; the lines after them were not read\n'
    assert done.stdout == text
    assert done.stderr.splitlines()[1:] == [FULL]


def test_file_for_failed_lines_is_full_after_an_interruption() -> None:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.withhold_confirms()
        options = ('--failed', '/dev/full')
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'one\n')
            wait_until(lambda: broker.messages('orders') == ['one'])
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.startswith(b'0 of 1 line confirmed, 1 failed; ')
    assert errors.decode().splitlines() == [FULL]


def test_file_for_failed_lines_is_full_after_another_error() -> None:
    """The command reports both."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        options = ('--failed', '/dev/full')
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'first\n')
            wait_until(lambda: broker.messages('orders') == ['first'])
            broker.delete_stream('orders')
            _, errors = process.communicate(b'second\n', timeout=60)
    lines = errors.decode().splitlines()
    first, second = (line for line in lines if not line.startswith('['))  # else of the log
    assert first == FULL
    assert second.startswith("rbfly publish: stream 'orders'")
    assert process.returncode == 3


def test_name_of_the_file_is_not_utf8(broker: RabbitMQ, stream: str, tmp_path: Path) -> None:
    kept = tmp_path / '\udcff'
    done = rbfly('publish', stream, '--failed', kept, stdin=b'\xff\n', RBFLY_URI=broker.uri)
    assert done.stdout == f'0 of 1 line confirmed, 1 failed, kept in {kept}\n'
    assert done.returncode == 3


class FullPublisher:
    """Takes no line.

    :ivar asked: set when a line waits.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def submit(self, body: object) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It has nothing in flight."""


async def test_interruption_keeps_the_line_that_waits(tmp_path: Path) -> None:
    lines, kept = tmp_path / 'lines', BytesIO()
    lines.write_text('one\ntwo\n')
    publishing, publisher = Publishing(job_of(lines), kept), FullPublisher()
    task = asyncio.create_task(publishing.send_all(cast(Any, publisher)))
    await publisher.asked.wait()
    task.cancel()
    await task
    assert publishing.interrupted
    assert publishing.failed == 1
    assert kept.getvalue() == b'one\n'


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM], ids=['Ctrl-C', 'SIGTERM'])
def test_second_interruption_keeps_lines(tmp_path: Path, number: signal.Signals) -> None:
    """It does not wait for confirms."""
    kept = tmp_path / 'failed.txt'
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.withhold_confirms()
        options = ('--failed', str(kept), '-vv')
        with started('publish', 'orders', *options, RBFLY_URI=broker.uri) as process:
            process.stdin.write(b'one\ntwo\n')
            wait_until(lambda: broker.messages('orders') == ['one', 'two'])
            process.send_signal(number)
            while b'active -> closing' not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
    assert output.decode() == f'0 of 2 lines confirmed, 2 failed, kept in {kept}; interrupted\n'
    assert all(line.startswith('[rbfly publish] ') for line in errors.decode().splitlines())
    assert process.returncode == 128 + number
    assert kept.read_text() == 'one\ntwo\n'


class TimedPublisher:
    """Confirms each line at once.

    :ivar times: when it took each line.
    """

    def __init__(self) -> None:
        self.times: list[float] = []

    async def submit(self, body: object) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self.times.append(loop.time())
        confirmed = loop.create_future()
        confirmed.set_result(None)
        return confirmed

    async def close(self) -> None:
        """It has nothing in flight."""


@pytest.mark.own_clock
async def test_rate_after_a_pause() -> None:
    """Lines that come after a pause of the input do not make up for it."""

    async def lines() -> AsyncIterator[list[bytes]]:
        yield [b'first']
        await asyncio.sleep(1000)
        yield [b'line'] * 10

    publishing, publisher = Publishing(job_of(Path('-'), rate=2), None), TimedPublisher()
    publishing._lines = cast(Any, lines())
    await publishing.send_all(cast(Any, publisher))
    assert publishing.confirmed == 11
    _, first, *_, last = publisher.times
    assert last - first > 4  # nine lines, two per second


def test_progress_in_a_terminal(broker: RabbitMQ, stream: str) -> None:
    with in_terminal('publish', stream, '--rate', '20', RBFLY_URI=broker.uri) as terminal:
        terminal.type('line\n' * 10)
        terminal.read_until(' confirmed, ')
        terminal.type('\x04')
        assert terminal.wait() == 0
    assert terminal.output.endswith('\r\x1b[K10 lines confirmed\r\n')


def test_quiet(broker: RabbitMQ, stream: str) -> None:
    with in_terminal('publish', stream, '-q', RBFLY_URI=broker.uri) as terminal:
        terminal.type('line\n\x04')
        assert terminal.wait() == 0
    assert terminal.output.splitlines() == ['line']  # the terminal's echo
    assert bodies(broker.uri, stream) == ['line']


def test_super_stream_by_key(broker: RabbitMQ) -> None:
    """Equal keys are in one partition, and others elsewhere."""
    name = f'test-{uuid4()}'
    lines = [json.dumps({'customer': number % 7, 'id': number}) for number in range(70)]
    lines.append('{"id": 70}')
    with super_stream(broker.uri, name, 3) as partitions:
        options = ('--format', 'json', '--key', 'customer')
        done = rbfly('publish', name, *options, stdin='\n'.join(lines), RBFLY_URI=broker.uri)
        assert done.stderr == "rbfly publish: line 71: it has no field 'customer'\n"
        found = [bodies(broker.uri, partition) for partition in partitions]
    customers = [{body['customer'] for body in part} for part in found]
    assert sum(map(len, customers)) == 7
    assert max(map(len, customers)) < 7
    assert sorted(body['id'] for part in found for body in part) == [*range(70)]


def test_super_stream_by_binding_key(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    lines = ['{"n": 1, "to": "0"}', '{"n": 2, "to": "1"}', '{"n": 3, "to": "2"}']
    with super_stream(broker.uri, name, 2) as partitions:
        options = ('--format', 'json', '--key', 'to', '--route', 'key')
        done = rbfly('publish', name, *options, stdin='\n'.join(lines), RBFLY_URI=broker.uri)
        assert done.stdout == '2 of 3 lines confirmed, 1 failed\n'
        found = [[body['n'] for body in bodies(broker.uri, item)] for item in partitions]
    assert found == [[1], [2]]


def test_partitions_take_turns_without_a_key(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        assert rbfly('publish', name, stdin='a\nb\nc\nd', RBFLY_URI=broker.uri).returncode == 0
        found = [bodies(broker.uri, partition) for partition in partitions]
    assert found == [['a', 'c'], ['b', 'd']]


def test_filter_value(broker: RabbitMQ, stream: str) -> None:
    for region in ('emea', 'apac'):  # in chunks of their own
        line = json.dumps({'region': region})
        options = ('--format', 'json', '--filter-field', 'region')
        done = rbfly('publish', stream, *options, stdin=line, RBFLY_URI=broker.uri)
        assert done.returncode == 0
    done = rbfly('tail', stream, '--filter', 'apac', RBFLY_URI=broker.uri)
    assert done.stdout == '{"region": "apac"}\n'


@pytest.mark.parametrize(
    ('value', 'wanted'),
    [
        ('true', 'true'),
        ('1.5', '1.5'),
        ('["ä"]', '["ä"]'),
        ('{"b": 1, "a": 2}', '{"a": 2, "b": 1}'),
    ],
)
def test_filter_value_that_is_no_string(
    broker: RabbitMQ, stream: str, value: str, wanted: str
) -> None:
    """`tail` and `copy` find the value that `publish` has set."""
    line = f'{{"field": {value}}}'
    options = ('--format', 'json', '--filter-field', 'field')
    assert rbfly('publish', stream, *options, stdin=line, RBFLY_URI=broker.uri).returncode == 0
    options = ('--filter', wanted, '--filter-field', 'field')
    done = rbfly('tail', stream, *options, RBFLY_URI=broker.uri)
    assert done.stdout == line + '\n'


def test_missing_stream(broker: RabbitMQ) -> None:
    done = rbfly('publish', 'no-such-stream', stdin='x', RBFLY_URI=broker.uri)
    assert done.returncode == 1
    assert 'create it with `rbfly stream create`' in done.stderr
    assert done.stdout == ''


def test_file_with_failed_lines_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / 'failed.txt'
    path.write_text('kept\n')
    done = rbfly('publish', 'orders', path, '--failed', path)
    assert done.returncode == 2
    assert path.read_text() == 'kept\n'


def test_standard_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / 'failed.txt'
    path.write_text('kept\n')
    script = ['sh', '-c', 'exec "$@" < "$0"', str(path), *COMMAND]
    done = rbfly('publish', 'orders', '--failed', path, command=script)
    assert done.returncode == 2
    assert f'{path} would be overwritten while it is read' in done.stderr
    assert path.read_text() == 'kept\n'


@pytest.mark.parametrize('options', [(), ('--failed', '/dev/null')], ids=['', '--failed'])
def test_file_that_cannot_be_read(
    broker: RabbitMQ, stream: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The lines before it are confirmed."""
    path = tmp_path / 'lines'
    path.write_text('1\n2\n')
    done = rbfly('publish', stream, path, '/proc/self/mem', *options, RBFLY_URI=broker.uri)
    assert done.returncode == 3
    assert done.stdout == '2 lines confirmed; the lines after them were not read\n'
    assert done.stderr.startswith('rbfly publish: cannot read /proc/self/mem: ')
    assert bodies(broker.uri, stream) == ['1', '2']


def test_standard_input_is_closed(broker: RabbitMQ, stream: str) -> None:
    script = ['sh', '-c', 'exec "$@" <&-', 'sh', *COMMAND]
    done = rbfly('publish', stream, command=script, RBFLY_URI=broker.uri)
    assert done.returncode == 1
    assert done.stderr == 'rbfly publish: standard input is closed: name a file\n'


def test_failed_lines_of_an_earlier_run_remain_without_a_connection(tmp_path: Path) -> None:
    path = tmp_path / 'failed.txt'
    path.write_text('kept\n')
    options = ('--uri', 'rabbitmq-stream://localhost:1', '--connect-timeout', '0.2')
    done = rbfly('publish', 'orders', '--failed', path, *options, stdin='x')
    assert done.returncode == 1
    assert path.read_text() == 'kept\n'


MISTAKES = {
    '--key customer': '--key and --filter-field need --format json',
    '--compression gzip': '--compression needs --sub-entries',
    '--rate 0': "Invalid value for '--rate'",
    'no-such-file': "Invalid value for '[FILE]...'",
}


@pytest.mark.parametrize(('args', 'reason'), MISTAKES.items(), ids=MISTAKES)
def test_mistake(args: str, reason: str) -> None:
    done = rbfly('publish', 'orders', *args.split())
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert done.returncode == 2


def test_key_of_a_stream(broker: RabbitMQ, stream: str) -> None:
    options = ('--format', 'json', '--key', 'id')
    done = rbfly('publish', stream, *options, RBFLY_URI=broker.uri)
    assert done.returncode == 2
    assert 'is no super stream: omit --key' in done.stderr
