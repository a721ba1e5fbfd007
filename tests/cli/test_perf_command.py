"""`rbfly perf`, in a process of its own."""

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.command_line import environment, wait_until
from tests.command_line import rbfly as run
from tests.super_streams import super_stream_of

# Without -X dev: asyncio would log that a callback took 0.1 s.
COMMAND = [sys.executable, '-W', 'error', '-m', 'rbfly']
FOREVER = ['perf', '--rate', '200']
TIME = re.compile(r'[1-9]\d*s')  # of the first line: on a busy machine, it is late

rbfly = partial(run, command=COMMAND)


@pytest.fixture
def memory() -> Iterator[StreamBroker]:
    with StreamBroker() as broker:
        yield broker


def perf(uri: str, *options: str) -> dict[str, Any]:
    """Run the command with `--json`, and return its summary."""
    done = rbfly('perf', *options, '--json', RBFLY_URI=uri)
    assert done.stderr == ''
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def exist(uri: str, summary: dict[str, Any]) -> list[bool]:
    async with rbs.streams_client(uri) as client:
        if summary['options']['super_streams']:
            return [
                await client.super_stream(name).exists() for name in summary['options']['streams']
            ]
        return [await client.stream_exists(name) for name in summary['options']['streams']]


def count(summary: dict[str, Any]) -> list[int]:
    return [summary[name] for name in ('published', 'confirmed', 'refused', 'consumed')]


def check_latency(summary: dict[str, Any], confirmed: int, consumed: int) -> None:
    for key, number in {'confirm_latency': confirmed, 'end_to_end_latency': consumed}.items():
        found = summary[key]
        assert found['count'] == number
        assert 0 < found['p50'] <= found['p99'] <= found['p99.9'] <= found['max'] < 60
        assert found['mean'] <= found['max']


def test_each_subscription_receives_the_messages_of_all_publishers(broker_uri: str) -> None:
    summary = perf(broker_uri, '-x', '2', '-y', '3', '-C', '1500', '--size', '100')
    assert count(summary) == [3000, 3000, 0, 9000]
    check_latency(summary, 3000, 9000)
    assert summary['options']['size'] == 100
    assert summary['options']['pmessages'] == 1500
    assert asyncio.run(exist(broker_uri, summary)) == [False]


def test_publishers_and_subscriptions_are_distributed_over_streams(broker_uri: str) -> None:
    summary = perf(broker_uri, '-sc', '2', '-x', '3', '-y', '2', '-C', '200')
    assert count(summary) == [600, 600, 0, 600]
    assert asyncio.run(exist(broker_uri, summary)) == [False, False]


def test_super_stream(broker_uri: str) -> None:
    options = ['-sst', '-ssp', '2', '-C', '1000', '-r', '20000']
    summary = perf(broker_uri, *options)
    assert count(summary) == [1000, 1000, 0, 1000]
    check_latency(summary, 1000, 1000)
    assert asyncio.run(exist(broker_uri, summary)) == [False]


def test_compressed_sub_entries(broker_uri: str) -> None:
    summary = perf(broker_uri, '-ses', '50', '-co', 'gzip', '-C', '1000', '-s', '500')
    assert count(summary) == [1000, 1000, 0, 1000]
    check_latency(summary, 1000, 1000)


def test_number_of_messages_to_consume_ends_it(broker_uri: str) -> None:
    summary = perf(broker_uri, '-D', '300', '-r', '1000')
    assert summary['consumed'] >= 300
    assert summary['confirmed'] >= 300


def test_time_ends_it_and_the_summary_goes_to_a_file(broker_uri: str, tmp_path: Path) -> None:
    file = tmp_path / 'summary.json'
    done = rbfly('perf', '-z', '3', '-r', '500', '-sf', file, RBFLY_URI=broker_uri)
    assert (done.returncode, done.stderr) == (0, '')
    summary = json.loads(file.read_text())
    assert summary['seconds'] > 2.9
    assert summary['published'] == summary['confirmed'] == summary['consumed']
    assert 100 < summary['published'] <= 500 * summary['seconds'] + 10
    head, columns, first, *_, published, _, _, confirm, end_to_end = done.stdout.splitlines()
    assert 'end to end, ms' in head
    assert columns.split()[:4] == ['time', 'published', 'confirmed', 'consumed']
    assert TIME.fullmatch(first.split()[0])
    assert len(first.split()) == len(columns.split()) == 10
    assert f' {summary["published"]:,}, ' in published
    assert confirm.startswith('confirm     p50 ')
    assert end_to_end.startswith('end to end  p50 ')


def test_existing_stream_is_read_and_remains(broker_uri: str, stream: str) -> None:
    async def fill() -> None:
        async with rbs.streams_client(broker_uri) as client, client.publisher(stream) as publisher:
            await publisher.send_many([b'x' * 20, {'no': 'stamp'}, b'short'])

    asyncio.run(fill())
    summary = perf(broker_uri, '-x', '0', '-st', stream, '-o', 'first', '-D', '3')
    assert count(summary) == [0, 0, 0, 3]
    assert summary['end_to_end_latency'] == {'count': 0} | dict.fromkeys(
        ['mean', 'p50', 'p99', 'p99.9', 'max']
    )
    assert asyncio.run(exist(broker_uri, summary)) == [True]


def test_existing_super_stream_is_found(broker_uri: str) -> None:
    async def run() -> None:
        async with (
            rbs.streams_client(broker_uri) as client,
            super_stream_of(client, 2) as name,
        ):
            summary = await asyncio.to_thread(perf, broker_uri, '-st', name, '-C', '100')
            assert count(summary) == [100, 100, 0, 100]
            assert await client.super_stream(name).exists()

    asyncio.run(run())


@contextlib.contextmanager
def running(uri: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command until the test ends it; signals work, whatever they do in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(
        [*COMMAND, *FOREVER, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(RBFLY_URI=uri),
    ) as process:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGHUP, hangup)
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_it_with_the_summary(
    number: signal.Signals, memory: StreamBroker, tmp_path: Path
) -> None:
    file = tmp_path / 'summary.json'
    with running(memory.uri, '--summary-file', str(file)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert len(memory.streams) == 1
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, '')
    assert TIME.fullmatch(lines[2].split()[0])
    assert 'end to end  p50' in out
    summary = json.loads(file.read_text())
    assert summary['published'] == summary['confirmed'] == summary['consumed'] == memory.published
    assert memory.streams == []
    assert memory.connections == 0


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_before_its_time(number: signal.Signals, memory: StreamBroker) -> None:
    with running(memory.uri, '--time', '100') as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert memory.streams == []


def test_reader_of_the_summary_has_gone(memory: StreamBroker, tmp_path: Path) -> None:
    file = tmp_path / 'summary.json'
    options = ('--json', '--summary-file', str(file))
    with running(memory.uri, *options) as process:
        assert process.stdout is not None
        process.stdout.close()
        wait_until(lambda: memory.published)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert json.loads(file.read_text())['confirmed'] > 0


def test_reader_has_gone(memory: StreamBroker) -> None:
    with running(memory.uri) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=30)
    assert (process.returncode, err) == (0, '')
    assert memory.streams == []


def test_terminal_shows_a_table(memory: StreamBroker) -> None:
    import pty

    reader, writer = pty.openpty()
    command = [*COMMAND, 'perf', '-z', '1.5', '-r', '500']
    variables = environment(RBFLY_URI=memory.uri, TERM='xterm-256color')
    with subprocess.Popen(
        command, stdin=writer, stdout=writer, stderr=writer, env=variables
    ) as process:
        os.close(writer)
        data = b''
        with contextlib.suppress(OSError):  # Linux says so when the terminal is closed
            while found := os.read(reader, 65536):
                data += found
    os.close(reader)
    assert process.returncode == 0
    text = data.decode()
    assert '\x1b[' in text
    for part in ('of 1.5 s, Ctrl-C ends it', 'last second', 'end to end', 'p99.9', 'in flight'):
        assert part in text
    final = text.rpartition('rbfly perf on')[2]
    assert 'last second' not in final
    assert f'{memory.published:,}' in final


def test_refused_messages_are_counted_and_fail(memory: StreamBroker) -> None:
    memory.publish_error(count=70)
    done = rbfly('perf', '-C', '500', '--json', RBFLY_URI=memory.uri)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith('rbfly: 70 messages were refused: ')
    summary = json.loads(done.stdout)
    assert count(summary) == [500, 430, 70, 430]
    assert summary['confirm_latency']['count'] == 430
    assert 'was not stored' in summary['error']
    assert memory.streams == []


def test_missing_confirms_are_reported(memory: StreamBroker) -> None:
    memory.withhold_confirms()
    done = rbfly('perf', '-z', '0.5', '-c', '200', RBFLY_URI=memory.uri)
    assert done.returncode == 1
    assert done.stderr == 'rbfly: the broker has not confirmed 200 messages\n'
    assert ['unconfirmed', '200'] in [line.split() for line in done.stdout.splitlines()]
    assert memory.streams == []


def test_stream_is_deleted_while_it_runs(memory: StreamBroker) -> None:
    with running(memory.uri) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory.delete_stream(memory.streams[0])
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert 'does not exist' in err.splitlines()[-1]


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('127.0.0.1').configure_cert(context)
    file = tmp_path / 'ca.pem'
    authority.cert_pem.write_to_path(file)
    with StreamBroker(ssl=context) as broker:
        assert count(perf(broker.uri, '-C', '100', '--tls-ca', str(file))) == [100, 100, 0, 100]


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        (['-st', 'missing-' + uuid4().hex], 'the stream does not exist'),
        (['-x', '0', '-y', '0'], 'no producers and no consumers'),
        (['-x', '0'], '--producers 0 needs --streams'),
        (['-co', 'gzip'], '--compression needs --sub-entry-size'),
        (['-c', '10', '-ses', '20'], '--confirms must be at least --sub-entry-size'),
        (['-o', 'now'], 'is not first, last, next or a number'),
        (['-mlb', '5x'], 'is no size'),
        (['-st', ','], 'no name of a stream'),
        (['-s', '7'], '--size'),
    ],
)
def test_mistake_is_one_line(options: list[str], text: str, memory: StreamBroker) -> None:
    done = rbfly('perf', '-z', '1', *options, RBFLY_URI=memory.uri)
    assert done.returncode in (1, 2)
    assert done.stdout == ''
    (line,) = done.stderr.splitlines()
    assert text in line
    assert memory.streams == []


def test_no_broker() -> None:
    done = rbfly(
        'perf', '-z', '1', '--connect-timeout', '2', RBFLY_URI='rabbitmq-stream://127.0.0.1:1'
    )
    assert done.returncode == 1
    assert 'gave up after 2 s' in done.stderr
    assert 'may remain' not in done.stderr
