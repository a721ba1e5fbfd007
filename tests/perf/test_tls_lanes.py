"""Lanes over TLS do their work, and tables compare them with the same lanes without TLS."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from brokers import BrokerError, RabbitMQ, certificate, kafka, wire
from perf import CommandError, broker_address, clients, lanes, report, store, table, worker
from perf.clients.base import Target
from perf.delayed_broker import DelayedBroker
from perf.results import Settings, read
from perf.store import RabbitStore
from rbfly.testing import StreamBroker
from tests.perf.test_perf import filled

COUNT = 1_000
PUBLISH = [
    f'{library}-tls-{kind}'
    for library, kinds in {
        'raw-socket': ('single', 'batch', 'window', 'window-1k', 'sub-publish'),
        'raw-socket-polling': ('single', 'batch', 'window', 'window-1k', 'sub-publish'),
        'rbfly': ('single', 'batch', 'window', 'window-1k', 'tasks-100', 'sub-publish'),
        'rbfly-aiofastnet': ('single', 'batch', 'window', 'window-1k', 'tasks-100'),
        'rstream': ('batch', 'window-1k'),
    }.items()
    for kind in kinds
]
CONSUME = [
    f'{library}-tls-consume{size}'
    for library in ('raw-socket', 'raw-socket-polling', 'rbfly', 'rbfly-batches', 'rstream')
    for size in ('', '-1k')
] + ['rbfly-aiofastnet-tls-consume']
IN_MEMORY = [name for name in PUBLISH if name.startswith(('raw-socket', 'rbfly'))]


def run(name: str, target: Target, count: int) -> list[int]:
    """Run two rounds of a lane on its event loop."""
    lane = lanes.find(name)

    async def rounds() -> list[int]:
        work = clients.make(lane, target)
        await work.open()
        try:
            counts = []
            for _ in range(2):
                await work.prepare(count)
                counts.append((await worker.measure(work))['count'])
            return counts
        finally:
            await work.close()

    with asyncio.Runner(loop_factory=worker.loop_factory(lane.use.loop)) as runner:
        return runner.run(rounds())


# -- RabbitMQ


@pytest.fixture
def secure(own_broker: RabbitMQ, stream_name: str) -> Iterator[RabbitStore]:
    """A store that counts without TLS what lanes publish with it."""
    assert own_broker.tls_uri
    found = RabbitStore(own_broker.uri, own_broker.tls_uri, str(own_broker.ca_file))
    found.create(stream_name)
    yield found
    found.delete(stream_name)
    found.connection.close()


def count_of(name: str) -> int:
    """Messages per round, in whole batches."""
    kind = lanes.find(name).kind
    return 200 if kind.size == 1 else kind.whole(COUNT)


@pytest.mark.rabbitmq
@pytest.mark.parametrize('name', PUBLISH)
def test_lane_publishes_each_message_once(name: str, secure: RabbitStore, stream_name: str) -> None:
    count = count_of(name)
    target = Target(secure.address, stream_name, secure.ca_file)
    assert run(name, target, count) == [count, count]
    assert secure.count(stream_name) == 2 * count


@pytest.mark.rabbitmq
@pytest.mark.parametrize('name', CONSUME)
def test_lane_consumes_all_messages(name: str, secure: RabbitStore, stream_name: str) -> None:
    """Lanes check the last body, and RbFly's the first ones."""
    stored = lanes.find(name).kind.stored
    assert stored is not None
    count = 2 * stored.frame
    secure.fill(stream_name, count, stored)
    target = Target(secure.address, stream_name, secure.ca_file)
    assert all(found >= count for found in run(name, target, count))


@pytest.mark.rabbitmq
def test_store_gives_lanes_the_tls_listener(
    own_broker: RabbitMQ, stream_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in own_broker.variables().items():
        monkeypatch.setenv(name, value)
    lane = lanes.find('rbfly-tls-single')
    found = store.connect(lane.broker, DelayedBroker, lambda: own_broker)
    assert isinstance(found, RabbitStore)
    with closing(found.connection):
        assert (found.address, found.ca_file) == (own_broker.tls_uri, str(own_broker.ca_file))
        assert found.uri == own_broker.uri
    monkeypatch.delenv('RBFLY_TLS_CA')
    with pytest.raises(CommandError, match='set RBFLY_TLS_URI and RBFLY_TLS_CA'):
        store.connect(lane.broker, DelayedBroker, lambda: own_broker)


# -- the in-memory broker


@pytest.fixture
def authority(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """A context of a server, and the certificate of its authority."""
    made = trustme.CA()
    path = tmp_path / 'ca.pem'
    made.cert_pem.write_to_path(path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.issue_cert('localhost', '127.0.0.1').configure_cert(context)
    return context, str(path)


@pytest.mark.parametrize('name', IN_MEMORY)
def test_lane_publishes_in_memory(name: str, authority: tuple[ssl.SSLContext, str]) -> None:
    context, ca_file = authority
    count = count_of(name)
    with StreamBroker(ssl=context) as broker:
        with closing(wire.Connection(broker.uri, ca_file=ca_file)) as connection:
            connection.create_stream('orders')
        assert run(name, Target(broker.uri, 'orders', ca_file), count) == [count, count]


def test_other_authority_is_refused(authority: tuple[ssl.SSLContext, str], tmp_path: Path) -> None:
    other = tmp_path / 'other.pem'
    trustme.CA().cert_pem.write_to_path(other)
    with StreamBroker(ssl=authority[0]) as broker, pytest.raises(ssl.SSLCertVerificationError):
        wire.Connection(broker.uri, ca_file=str(other))


@pytest.mark.parametrize('name', ['localhost', '127.0.0.1'])
def test_certificate_of_a_listener_is_its_own_authority(tmp_path: Path, name: str) -> None:
    chain, key = tmp_path / 'server.pem', tmp_path / 'server.key'
    certificate.make(chain, key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    client = ssl.create_default_context(cafile=str(chain))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with context.wrap_socket(theirs, server_side=True) as accepted:
            accepted.sendall(b'hello')

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname=name) as connected:
        assert connected.recv(5) == b'hello'
    thread.join()


def test_certificate_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match='openssl cannot create a certificate'):
        certificate.make(tmp_path / 'missing' / 'server.pem', tmp_path / 'server.key')


# -- Kafka's address


class Listening:
    """Kafka with a TLS listener, or without one."""

    def __init__(self, address: str) -> None:
        self.tls_address = address
        self.ca_file = Path('ca.pem')


def test_address_of_the_tls_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, 'up', lambda: Listening('127.0.0.1:9093'))
    assert broker_address.find_tls('kafka') == ('127.0.0.1:9093', 'ca.pem')
    monkeypatch.setattr(kafka, 'up', lambda: Listening(''))
    with pytest.raises(CommandError, match='set RBFLY_KAFKA_TLS and RBFLY_KAFKA_CA, or restart'):
        broker_address.find_tls('kafka')


# -- the lanes and their tables


def test_each_lane_with_tls_has_one_without() -> None:
    secure = [lane for lane in lanes.LANES.values() if lane.kind.plain]
    assert len(secure) > 50
    for lane in secure:
        plain = lanes.find(lane.plain)
        assert lane.broker == f'{plain.broker}-tls'
        assert (lane.library, lane.use) == (plain.library, plain.use)
        for same in ('work', 'full', 'size', 'frame', 'window', 'body', 'stored', 'tasks', 'floor'):
            assert getattr(lane.kind, same) == getattr(plain.kind, same)


def two_to_one(path: Path) -> Path:
    """Results of lanes that are half as fast with TLS."""
    rates: dict[str, float] = {
        'raw-socket-plain-window': 2000,
        'raw-socket-tls-window': 1000,
        'rbfly-plain-window': 2000,
        'rbfly-tls-window': 1000,
    }
    counts = {'plain-window': 500, 'tls-window': 500}
    filled(path, rates, Settings(3, 42, counts, list(rates)))
    return path


def test_summary_divides_by_the_lane_without_tls(tmp_path: Path) -> None:
    results = read(two_to_one(tmp_path / 'r.jsonl'))
    lines = [line for line in table.summary(results) if line.startswith('rbfly-')]
    assert len(lines) == 2
    assert ' 0.50 [' not in lines[0]
    assert ' 0.50 [' in lines[1]


def test_page_divides_by_the_lane_without_tls(tmp_path: Path) -> None:
    path = two_to_one(tmp_path / 'r.jsonl')
    text = report.page.compose(report.Report.read([path]))
    parts = text.split('.. list-table::')[1:3]
    plain, secure = (part.split('\n\n')[1] for part in parts)
    assert 'rate, ÷ plain' in secure
    assert 'rate, ÷ plain' not in plain
    assert secure.count('0.50 [0.50, 0.50]') == 2
