"""`rbfly lag` and `rbfly offset`."""

import json
import re
from uuid import uuid4

import pytest

from brokers import RabbitMQ
from rbfly.testing import StreamBroker
from tests.command_line import in_terminal, publish, rbfly, started, super_stream


def stored(uri: str, stream: str) -> int | None:
    done = rbfly('offset', 'get', stream, 'billing', '--json', RBFLY_URI=uri)
    (row,) = json.loads(done.stdout)
    assert row['stream'] == stream
    assert done.returncode == (row['stored'] is None)
    found: int | None = row['stored']
    return found


def test_offset_is_stored(broker: RabbitMQ, stream: str) -> None:
    publish(broker.uri, stream, *'abc')
    assert stored(broker.uri, stream) is None
    done = rbfly('offset', 'set', stream, 'billing', '1', RBFLY_URI=broker.uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
    assert stored(broker.uri, stream) == 1
    done = rbfly('offset', 'get', stream, 'billing', RBFLY_URI=broker.uri)
    assert done.stdout.splitlines()[1].split() == [stream, '1']


PLACES = {'start': 2**64 - 1, '2': 1, '+2': 1, '-2': 7, '@2020-01-01': 2**64 - 1, 'end': 9}


@pytest.mark.parametrize(('place', 'expected'), PLACES.items(), ids=PLACES)
def test_reset(broker: RabbitMQ, stream: str, place: str, expected: int) -> None:
    publish(broker.uri, stream, *range(10))
    done = rbfly(
        'offset', 'reset', stream, 'billing', '--to', place, '--json', RBFLY_URI=broker.uri
    )
    assert json.loads(done.stdout) == [{'stream': stream, 'stored': expected}]
    assert stored(broker.uri, stream) == expected


def test_reset_of_all_partitions(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        publish(broker.uri, partitions[0], *'ab')
        publish(broker.uri, partitions[1], *'abcd')
        done = rbfly('offset', 'reset', name, 'billing', '--to', 'end', RBFLY_URI=broker.uri)
        assert done.returncode == 0
        done = rbfly('offset', 'get', name, 'billing', RBFLY_URI=broker.uri)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        assert rows == [[partitions[0], '1'], [partitions[1], '3']]
        done = rbfly('offset', 'set', name, 'billing', '1', RBFLY_URI=broker.uri)
        assert done.returncode == 1
        assert 'is a super stream: name one of its partitions' in done.stderr


def test_lag(broker: RabbitMQ, stream: str) -> None:
    publish(broker.uri, stream, *range(10))
    done = rbfly('lag', stream, 'billing', RBFLY_URI=broker.uri)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ['STREAM', 'STORED', 'OFFSET', 'NEXT', 'OFFSET', 'LAG'],
        [stream, '-', '10', '-'],
    ]
    rbfly('offset', 'set', stream, 'billing', '3', RBFLY_URI=broker.uri)
    done = rbfly('lag', stream, 'billing', '--json', RBFLY_URI=broker.uri)
    (row,) = json.loads(done.stdout)
    assert row['end'] >= 10  # the stored offset may take up one
    assert {**row, 'end': 10} == {'stream': stream, 'stored': 3, 'end': 10, 'lag': 6}


def test_lag_of_partitions_has_a_total(broker: RabbitMQ) -> None:
    name = f'test-{uuid4()}'
    with super_stream(broker.uri, name, 2) as partitions:
        for partition in partitions:
            publish(broker.uri, partition, *range(5))
            rbfly('offset', 'set', partition, 'billing', '1', RBFLY_URI=broker.uri)
        done = rbfly('lag', name, 'billing', RBFLY_URI=broker.uri)
    lags = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in lags] == [
        (partitions[0], '3'),
        (partitions[1], '3'),
        ('total', '6'),
    ]


def test_total_of_a_lag_that_is_unknown() -> None:
    """It is not the lag of the other partitions."""
    with StreamBroker() as broker:
        broker.create_super_stream('orders', partitions=2)
        for partition in ('orders-0', 'orders-1'):
            broker.publish(partition, 'x')
        rbfly('offset', 'set', 'orders-0', 'billing', '0', RBFLY_URI=broker.uri)
        done = rbfly('lag', 'orders', 'billing', RBFLY_URI=broker.uri)
    lags = [line.split()[-1] for line in done.stdout.splitlines()]
    assert lags == ['LAG', '0', '-', '-']


def test_watch_in_a_pipe(broker: RabbitMQ, stream: str) -> None:
    options = ('--watch', '--json', '--interval', '0.1')
    with started('lag', stream, 'billing', *options, RBFLY_URI=broker.uri) as process:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert first['at'] < second['at']
        assert first['lag'] == second['lag']
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b''


def test_watch_in_a_terminal(broker: RabbitMQ, stream: str) -> None:
    """Each table is drawn over the one before."""
    options = ('--watch', '--interval', '0.1')
    with in_terminal('lag', stream, 'billing', *options, RBFLY_URI=broker.uri) as terminal:
        terminal.read_until('\x1b[3A')
        terminal.type('\x03')
        assert terminal.wait() == 130
    assert re.match(r'\d\d:\d\d:\d\d\x1b\[K\r\n\x1b\[1mSTREAM', terminal.output)
    assert 'Traceback' not in terminal.output


@pytest.mark.parametrize('command', [['lag'], ['offset', 'get']])
def test_missing_stream(broker: RabbitMQ, command: list[str]) -> None:
    done = rbfly(*command, 'no-such-stream', 'billing', RBFLY_URI=broker.uri)
    assert done.returncode == 1
    assert "stream 'no-such-stream'" in done.stderr


@pytest.mark.parametrize(('place', 'reason'), [('1:2', 'is a range'), ('last', 'neither start')])
def test_mistake(place: str, reason: str) -> None:
    done = rbfly('offset', 'reset', 'orders', 'billing', '--to', place)
    assert done.returncode == 2
    assert reason in done.stderr


def test_reference_with_control_characters() -> None:
    """They are escaped, as in messages."""
    with StreamBroker() as broker:
        broker.create_stream('orders')
        reference = 'red\x1b[31m\nline'
        rbfly('offset', 'set', 'orders', reference, '0', RBFLY_URI=broker.uri)
        done = rbfly('stream', 'references', 'orders', RBFLY_URI=broker.uri)
    _, row = done.stdout.splitlines()
    assert row.split() == ['orders', r'red\x1b[31m\nline', '0']
