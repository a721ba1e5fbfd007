"""`rbfly tail`."""

import asyncio
import base64
import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams import Message
from rbfly.testing import StreamBroker
from tests.command_line import COMMAND, in_terminal, publish, rbfly, started, super_stream

JUNK = b'\x00\x01junk'


@pytest.fixture
def lines(broker: RabbitMQ, stream: str) -> list[str]:
    """The stream has twelve messages."""
    found = [f'line {number}' for number in range(12)]
    publish(broker.uri, stream, *found)
    return found


RANGES = {
    '-10': slice(2, 12),
    'start': slice(0, 12),
    '7': slice(7, 12),
    '+2': slice(2, 12),
    '-3': slice(9, 12),
    '3:5': slice(3, 5),
    ':5': slice(0, 5),
    '11:40': slice(11, 12),
    '@-1h:end': slice(0, 12),
    '@:-1h': slice(0, 0),
    '@2020-01-01': slice(0, 12),
}


@pytest.mark.parametrize(('offset', 'expected'), RANGES.items(), ids=RANGES)
def test_range(
    broker: RabbitMQ, stream: str, lines: list[str], offset: str, expected: slice
) -> None:
    done = rbfly('tail', stream, '-o', offset, '--uri', broker.uri)
    assert done.stderr == ''
    assert done.stdout.splitlines() == lines[expected]
    assert done.returncode == 0


def test_last_ten_messages_are_the_default(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    assert rbfly('--uri', broker.uri, 'tail', stream).stdout.splitlines() == lines[2:]


def test_limit(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    done = rbfly('tail', stream, '-o', 'start', '-n', '4', RBFLY_URI=broker.uri)
    assert done.stdout.splitlines() == lines[:4]


def test_empty_stream(broker: RabbitMQ, stream: str) -> None:
    done = rbfly('tail', stream, RBFLY_URI=broker.uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


def test_follow_shows_what_is_published_then(
    broker: RabbitMQ, stream: str, lines: list[str]
) -> None:
    with started('tail', stream, '-f', '-o', '-1', RBFLY_URI=broker.uri) as process:
        assert process.stdout.readline() == b'line 11\n'
        publish(broker.uri, stream, 'later')
        assert process.stdout.readline() == b'later\n'


def test_end_waits_for_new_messages(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    with started('tail', stream, '-o', 'end', '-n', '1', '-v', RBFLY_URI=broker.uri) as process:
        # The subscription reads from here on, which no line says: publish until it does.
        while process.poll() is None:
            publish(broker.uri, stream, 'new')
        assert process.stdout.read() == b'new\n'


@pytest.mark.parametrize(
    ('number', 'code'),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=['Ctrl-C', 'SIGTERM', 'SIGHUP'],
)
def test_interruption(
    broker: RabbitMQ, stream: str, lines: list[str], number: signal.Signals, code: int
) -> None:
    with started('tail', stream, '-f', RBFLY_URI=broker.uri) as process:
        process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (code, b'')


def test_hangup_does_not_end_it_after_nohup(
    broker: RabbitMQ, stream: str, lines: list[str]
) -> None:
    nohup = ['nohup', *COMMAND]
    options = ('-f', '-o', '-1')
    with started('tail', stream, *options, command=nohup, RBFLY_URI=broker.uri) as process:
        assert process.stdout.readline() == b'line 11\n'
        process.send_signal(signal.SIGHUP)
        publish(broker.uri, stream, 'later')
        assert process.stdout.readline() == b'later\n'
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (143, b'')


def test_ends_when_the_reader_has_gone(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    """Also while there is nothing to write."""
    with started('tail', stream, '-f', '-o', '-1', RBFLY_URI=broker.uri) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b''


def test_ends_in_the_middle_of_its_output(broker: RabbitMQ, stream: str) -> None:
    publish(broker.uri, stream, *['x' * 100_000] * 5)
    with started('tail', stream, RBFLY_URI=broker.uri) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b''


@pytest.fixture
def messages(broker: RabbitMQ, stream: str) -> str:
    """The stream has messages of several kinds; the second one is not AMQP 1.0."""
    body = {'id': 1, 'city': 'Łódź', 'raw': b'\xff', 'when': datetime(2026, 1, 1, tzinfo=UTC)}
    publish(broker.uri, stream, Message(body, app_properties={'region': 'emea'}))
    publish(broker.uri, stream, JUNK, amqp=False)
    publish(broker.uri, stream, b'\x00bytes', 'two\nlines', None)
    return stream


def test_json(broker: RabbitMQ, messages: str) -> None:
    done = rbfly('tail', messages, '-F', 'json', RBFLY_URI=broker.uri)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(item.pop('stream'), item.pop('offset')) for item in found] == [
        (messages, number) for number in range(5)
    ]
    for item in found:
        age = datetime.now(UTC) - datetime.fromisoformat(item.pop('timestamp'))
        assert abs(age.total_seconds()) < 600
    error = found[1].pop('error')
    assert 'constructor 0x01' in error
    assert found == [
        {
            'app_properties': {'region': 'emea'},
            'body': {
                'id': 1,
                'city': 'Łódź',
                'raw': 'base64:/w==',
                'when': '2026-01-01T00:00:00.000Z',
            },
        },
        {'raw': f'base64:{base64.b64encode(JUNK).decode()}'},
        {'body': '\0bytes'},
        {'body': 'two\nlines'},
        {'body': None},
    ]
    assert done.stderr == 'rbfly tail: 1 message is not AMQP 1.0, and shown as bytes\n'
    assert done.returncode == 0


def test_text_has_the_bytes_of_bodies(broker: RabbitMQ, messages: str) -> None:
    done = rbfly('tail', messages, '-o', '1:4', RBFLY_URI=broker.uri)
    assert done.stdout.encode() == JUNK + b'\n\0bytes\ntwo\nlines\n'


def test_hex(broker: RabbitMQ, messages: str) -> None:
    done = rbfly('tail', messages, '-o', '1:3', '-F', 'hex', RBFLY_URI=broker.uri)
    first, second = done.stdout.strip().split('\n\n')
    title, line = first.splitlines()
    assert title.startswith(f'{messages} offset 1, 20')
    assert title.endswith(', 6 bytes, not AMQP 1.0')
    assert line.split() == ['00000000', '00', '01', '6a', '75', '6e', '6b', '|..junk|']
    assert second.endswith('|.Su...bytes|')


def test_pattern(broker: RabbitMQ, messages: str) -> None:
    pattern = r'%t[%o] %S %x %h %j %%\t\x41\n'
    done = rbfly('tail', messages, '-o', '2:4', '-F', pattern, RBFLY_URI=broker.uri)
    assert done.stdout == (
        f'{messages}[2] 6 006279746573 {{}} "\\u0000bytes" %\tA\n'
        f'{messages}[3] 9 74776f0a6c696e6573 {{}} "two\\nlines" %\tA\n'
    )


@pytest.mark.parametrize('pattern', ['%q', 'xml', r'%s\q'])
def test_unknown_format(pattern: str) -> None:
    done = rbfly('tail', 'orders', '-F', pattern)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("rbfly tail: Invalid value for '-F' / '--format'")


def test_terminal_shows_where_messages_are(broker: RabbitMQ, stream: str) -> None:
    """And no message can change what the terminal does."""
    publish(broker.uri, stream, 'calm', '\x1b[2Jclears\nthe screen', b'\xff\x9b')
    with in_terminal('tail', stream, RBFLY_URI=broker.uri) as terminal:
        assert terminal.wait() == 0
    dim, plain = '\x1b[2m', '\x1b[0m'
    first, second, third = terminal.output.splitlines()
    assert first.startswith(f'{dim}       0  20')
    assert first.endswith(f'Z{plain}  calm')
    assert second.endswith(rf'{plain}  \x1b[2Jclears\nthe screen')
    assert third.endswith(rf'{plain}  \xff\x9b')


def test_terminal_without_colors(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    with in_terminal('tail', stream, RBFLY_URI=broker.uri, NO_COLOR='1') as terminal:
        assert terminal.wait() == 0
    assert '\x1b' not in terminal.output
    assert len(terminal.output.splitlines()) == 10


def test_ctrl_c_in_a_terminal(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    with in_terminal('tail', stream, '-f', RBFLY_URI=broker.uri) as terminal:
        terminal.read_until('line 11')
        terminal.type('\x03')
        assert terminal.wait() == 130
    assert 'Traceback' not in terminal.output


def test_grep(broker: RabbitMQ, stream: str, lines: list[str]) -> None:
    done = rbfly('tail', stream, '-o', 'start', '--grep', '[05]$', RBFLY_URI=broker.uri)
    assert done.stdout.splitlines() == ['line 0', 'line 5', 'line 10']


@pytest.fixture
def regions(broker: RabbitMQ, stream: str) -> str:
    """The stream has chunks with the filter values `emea`, `apac`, and none."""

    async def main() -> None:
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher(
                stream, filter_extract=lambda message: message.app_properties.get('region')
            ) as publisher,
        ):
            for region in ('emea', 'apac', None):
                headers = {'region': region} if region else None
                await publisher.send(Message(f'of {region}', app_properties=headers))

    asyncio.run(main())
    return stream


FILTERS = {
    '--filter emea': ['of emea'],
    '--filter emea --filter apac': ['of emea', 'of apac'],
    '--filter emea --match-unfiltered': ['of emea', 'of None'],
    '--filter apac --filter-field region': ['of apac'],
}


@pytest.mark.parametrize(('options', 'expected'), FILTERS.items(), ids=FILTERS)
def test_filter(broker: RabbitMQ, regions: str, options: str, expected: list[str]) -> None:
    done = rbfly('tail', regions, '-o', 'start', *options.split(), RBFLY_URI=broker.uri)
    assert (done.stdout.splitlines(), done.stderr) == (expected, '')


def test_filter_by_a_field_of_the_body(broker: RabbitMQ, stream: str) -> None:
    async def main() -> None:  # all in one chunk, which the broker sends
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher(stream, filter_extract=lambda _: 'emea') as publisher,
        ):
            for body in ({'region': 'emea'}, {'region': 'apac'}, '{"region": "emea"}', 'emea'):
                publisher.batch(body)

    asyncio.run(main())
    options = ('--filter', 'emea', '--filter-field', 'region')
    done = rbfly('tail', stream, '-F', '%o ', *options, RBFLY_URI=broker.uri)
    assert done.stdout == '0 2 '


def test_super_stream(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        for partition in partitions:
            publish(broker.uri, partition, *range(5))
        done = rbfly('tail', name, '-o', '+2', '-F', '%t %o %s\n', RBFLY_URI=broker.uri)
        assert sorted(done.stdout.splitlines()) == [
            f'{partition} {number} {number}' for partition in partitions for number in (2, 3, 4)
        ]
        done = rbfly('tail', name, '-o', '1:3', '-F', '%s ', RBFLY_URI=broker.uri)
        assert sorted(done.stdout.split()) == ['1', '1', '2', '2']


def test_missing_stream(broker: RabbitMQ) -> None:
    done = rbfly('tail', 'no-such-stream', RBFLY_URI=broker.uri)
    (line,) = done.stderr.splitlines()
    assert line.startswith("rbfly: stream 'no-such-stream'")
    assert line.endswith('; create it with `rbfly stream create`')
    assert done.returncode == 1


MISTAKES = {
    '-f -o 1:5': '--follow has no end',
    '--filter-field region': '--filter-field and --match-unfiltered need --filter',
    '-o tomorrow': "'tomorrow' is neither start, end nor an offset",
    '-n 0': "Invalid value for '-n'",
    '--grep (': "'(': missing ), unterminated subpattern",
}


@pytest.mark.parametrize(('options', 'reason'), MISTAKES.items(), ids=MISTAKES)
def test_mistake(options: str, reason: str) -> None:
    done = rbfly('tail', 'orders', *options.split())
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert line.endswith('(see `rbfly tail --help`)')
    assert done.returncode == 2


@pytest.mark.parametrize(
    ('regex', 'expected'),
    [('(?i)^ŻÓŁW', 'żółw\n'), ('^....$', 'żółw\n'), ('\udcff', '\udcff\n')],
    ids=['case', 'length', 'byte'],
)
def test_regular_expression_of_characters(regex: str, expected: str) -> None:
    """Bodies are UTF-8; any other byte matches itself."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish('orders', 'żółw', b'\xff', 'two words')
        done = rbfly('tail', 'orders', '-o', 'start', '--grep', regex, RBFLY_URI=broker.uri)
    assert (done.stdout, done.stderr) == (expected, '')


@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_part_of_a_message_is_written(unbuffered: str, tmp_path: Path) -> None:
    """The file ends within it, as on a full disk: it is an error, also if Python has no buffer."""
    path = tmp_path / 'messages'
    script = ['sh', '-c', 'ulimit -f 1 && exec "$@" > "$0"', str(path), *COMMAND]
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish('orders', 'x' * 5000)
        options: dict[str, str] = {'RBFLY_URI': broker.uri, 'PYTHONUNBUFFERED': unbuffered}
        done = rbfly('tail', 'orders', command=script, **options)
    assert 0 < path.stat().st_size < 5000
    assert done.stderr == 'rbfly: [Errno 27] File too large\n'
    assert done.returncode == 1
