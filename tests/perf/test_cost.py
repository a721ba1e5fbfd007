"""The cost of a turn: processor time of the broker, bytes on the wire, and the card."""

import asyncio
import os
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import process_time

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from brokers import RabbitMQ, wire
from brokers.state import free_ports
from perf import cost, lanes, report, runner, stats, table
from perf.clients.base import Target, bodies
from perf.results import Results, Settings, Writer, read
from perf.store import RabbitStore
from tests.perf.test_benchmark import perf, results_in
from tests.perf.test_lanes_pika import make, measure
from tests.perf.test_perf import header

COUNT = 1_000_000
LANES = ['raw-socket-cost-consume', 'rbfly-batches-cost-consume', 'rstream-cost-consume']


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, 'RESAMPLES', 40)


# -- the meter


def test_processor_time_is_that_of_the_process() -> None:
    before = process_time()
    found = cost.cpu_times([os.getpid()])[os.getpid()]
    assert before <= found <= process_time()


def test_processes_are_those_that_listen() -> None:
    with socket.create_server(('127.0.0.1', 0)) as server:
        assert os.getpid() in cost.processes(server.getsockname()[1])
    (port,) = free_ports(1)
    with pytest.raises(OSError, match=f'no process listens on port {port}'):
        list(cost.processes(port))


@contextmanager
def connected(address: tuple[str, int], server: socket.socket) -> Iterator[list[socket.socket]]:
    """A client of this process, and the server's side of its connection."""
    client = socket.create_connection(address)
    with client, server.accept()[0] as accepted:
        yield [client, accepted]


def transfer(client: socket.socket, accepted: socket.socket) -> None:
    """1,000 bytes to the server, and 500 back."""
    client.sendall(b'x' * 1_000)
    assert accepted.recv(1_000, socket.MSG_WAITALL) == b'x' * 1_000
    accepted.sendall(b'y' * 500)
    assert client.recv(500, socket.MSG_WAITALL) == b'y' * 500


def test_meter_counts_the_bytes_of_the_client() -> None:
    """Those of connections that were open, that are opened, and that end meanwhile."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        address = server.getsockname()
        with connected(address, server) as first, connected(address, server) as second:
            transfer(*first)
            where = f'rabbitmq-stream://{address[0]}:{address[1]}/'
            with cost.meter(where, [os.getpid()]) as found:
                transfer(*first)
                transfer(*second)
                for one in second:
                    one.close()
                with connected(address, server) as third:
                    transfer(*third)
    # the end of a connection counts as a byte
    assert (found['sent'], found['received']) == (3_000, 1_500 + 2)
    assert found['broker_cpu'] > 0
    assert {*found} == {*cost.COLUMNS}


OTHER = """
import socket, sys
with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as client:
    client.sendall(b'x' * 1_000)
    input()
"""


def test_meter_leaves_out_connections_of_other_processes() -> None:
    """Even if they end meanwhile, when they no longer name their process."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        host, port = server.getsockname()
        command = [sys.executable, '-c', OTHER, str(port)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE) as other,
            server.accept()[0] as accepted,
        ):
            assert accepted.recv(1_000, socket.MSG_WAITALL) == b'x' * 1_000
            with cost.meter(f'{host}:{port}', [os.getpid()]) as found:
                other.communicate(b'\n')
                accepted.close()
    assert (found['sent'], found['received']) == (0, 0)


def test_meter_leaves_out_a_connection_that_ends_before_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def events(port: int, last: socket.socket) -> Iterator[Iterator[str]]:
        with watching(port, last) as lines:
            for one in pair:
                one.close()
            yield lines

    watching = cost.events
    monkeypatch.setattr(cost, 'events', events)
    with socket.create_server(('127.0.0.1', 0)) as server:
        host, port = server.getsockname()
        with connected((host, port), server) as pair:
            transfer(*pair)
            with cost.meter(f'{host}:{port}', [os.getpid()]) as found:
                pass
    assert (found['sent'], found['received']) == (0, 0)


def test_meter_ends_with_the_turn() -> None:
    with socket.create_server(('127.0.0.1', 0)) as server:
        host, port = server.getsockname()
        before = psutil.Process().children()
        with pytest.raises(TimeoutError), cost.meter(f'{host}:{port}', [os.getpid()]):
            raise TimeoutError
        assert set(psutil.Process().children()) <= set(before)


def test_lines_of_connections() -> None:
    text = (
        'ESTAB 0 0 127.0.0.1:40000 127.0.0.1:5552 users:(("python",pid=7,fd=6)) cubic rto:204'
        ' bytes_sent:1300 bytes_retrans:300 bytes_acked:1001 bytes_received:20\n'
        'ESTAB 0 0 127.0.0.1:40001 127.0.0.1:5552 users:(("python",pid=7,fd=7)) cubic rto:204'
        ' bytes_received:5\n'
    )
    expected = {'127.0.0.1:40000': (1_000, 20), '127.0.0.1:40001': (0, 5)}
    assert cost.counted(text.splitlines()) == expected


# -- tables and drawings


def written(path: Path, broker: float = 1.0) -> Results:
    """Results in which a million messages cost rstream ten times the processor time."""
    settings = Settings(3, 42, {'cost-consume': COUNT}, LANES)
    about = header(settings)
    about['environment'] |= {
        'libraries': {'rstream': '1.1.1'},
        'brokers': {'rabbitmq': {'product': 'RabbitMQ', 'version': '4.0.5'}},
    }
    writer = Writer.create(path, about)
    for number in range(1, 4):
        for name, cpu in zip(LANES, (0.25, 0.5, 2.5), strict=True):
            answer = {
                'count': COUNT,
                'seconds': 1.0,
                'cpu_user': cpu,
                'cpu_sys': 0.0,
                'max_rss': 30 * 2**20,
                'broker_cpu': broker * number,
                'sent': 5_000_000,
                'received': 70_000_000,
            }
            writer.write(runner.record(lanes.find(name), number, answer))
    writer.close()
    return read(path)


def line_of(lines: list[str], name: str) -> list[str]:
    """Cells of the last line of a lane."""
    return next(line for line in reversed(lines) if line.startswith(name)).split()


def test_card_has_costs_of_a_million_messages(tmp_path: Path) -> None:
    lines = list(table.summary(written(tmp_path / 'r.jsonl')))
    assert line_of(lines, 'rstream') == (
        [
            'rstream-cost-consume',
            '2.5',
            '[2.5,',
            '2.5]',
            '2',
            '[1,',
            '3]',
            '5',
            '[5,',
            '5]',
            '70',
            '[70,',
            '70]',
            '10.00',
            '[10.00,',
            '10.00]',
        ]
    )
    assert line_of(lines, 'raw-socket')[-1] == '70]'  # the floor has no ratio to itself
    assert 'versions: rstream 1.1.1, rabbitmq 4.0.5' in lines


def test_compare_divides_costs(tmp_path: Path) -> None:
    a, b = written(tmp_path / 'a.jsonl'), written(tmp_path / 'b.jsonl', broker=3.0)
    head, *rows = list(table.compare(a, b))[-4:]
    assert head.split('  ')[0] == 'lane'
    assert len(rows) == 3
    assert all(' 3.00 [' in row and row.count(' 1.00 [1.00, 1.00]') == 3 for row in rows)


def test_page_has_a_table_and_a_figure(tmp_path: Path) -> None:
    written(tmp_path / 'r.jsonl')
    text = report.page.compose(report.Report.read([tmp_path / 'r.jsonl']))
    assert 'client ÷ floor' in text
    assert '10 [10, 10]' in text
    path = report.draw(tmp_path / 'r.jsonl', 'cost')
    assert path == tmp_path / 'r.svg'
    figure = ET.parse(path).getroot()
    assert figure.tag == '{http://www.w3.org/2000/svg}svg'
    markers = list(figure.iter('{http://www.w3.org/2000/svg}polygon'))
    assert len(markers) == 2 * len(LANES) + 2  # and the legend


# -- a run


@pytest.mark.rabbitmq
async def test_command_measures_and_draws(
    private_broker: Callable[[], RabbitMQ], tmp_path: Path
) -> None:
    broker = await asyncio.to_thread(private_broker)  # other tests' connections would count
    path = tmp_path / 'run.jsonl'
    words = ('--lanes', 'raw-socket,rbfly-batches', '--scale', '0.02', '--rounds', '1')
    output = await perf('cost', *words, '--out', str(path), uri=broker.uri)
    assert 'cost of a million messages' in output
    assert path.with_suffix('.svg').exists()
    rows = results_in(path.with_name('run.jsonl.xz'))
    assert len(rows) == 3
    assert all(row['broker_cpu'] > 0 for row in rows)
    frames = wire.publish_frames(bodies(20_000), 1_000)
    sent = {row['sent'] for row in rows if row['lane'] == 'raw-socket-cost-publish'}
    assert sent == {sum(map(len, frames))}
    received = [row['received'] for row in rows if 'consume' in row['lane']]
    assert min(received) > 20_000 * 10


@pytest.mark.rabbitmq
async def test_pika_consumes_a_stream(own_broker: RabbitMQ, own_stream: str) -> None:
    kind = lanes.KINDS['cost-consume']
    assert kind.stored is not None
    assert own_broker.amqp_uri is not None
    store = RabbitStore(own_broker.uri)
    with closing(store.connection):
        store.fill(own_stream, 8_000, kind.stored)
    work = make('pika_consume', Target(own_broker.amqp_uri, own_stream), kind.name)
    await work.open()
    try:
        for count in (8_000, 4_000):
            assert (await measure(work, count))['count'] == count
    finally:
        await work.close()
