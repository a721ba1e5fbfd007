"""`rbfly doctor`: each fault is found, and named with what to do about it."""

import asyncio
import json
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.cli import reachability
from rbfly.cli.reachability import Node
from rbfly.net.uri import parse_uri
from rbfly.testing import ResponseCode, StreamBroker
from tests.closed_port import closed_port
from tests.command_line import environment
from tests.command_line import rbfly as run

# Without -X dev: asyncio would log that a callback took 0.1 s.
COMMAND = [sys.executable, '-W', 'error', '-m', 'rbfly']
AUTHORITY = trustme.CA(organization_name='Test authority')

# RabbitMQ 4.0 sometimes accepts no connection for 5 s, see `until`: as long as the command waits.
TRIES = 3
rbfly = partial(run, command=COMMAND)
Finding = dict[str, str]


@pytest.fixture
def memory() -> Iterator[StreamBroker]:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        yield broker


def doctor(
    uri: str, stream: str | None, *options: str, tries: int = TRIES
) -> dict[str, list[Finding]]:
    """Run the command with `--json`, check what is common to all runs, and return its findings."""
    arguments = [] if stream is None else [stream]
    done = rbfly('doctor', *arguments, '--json', *options, RBFLY_URI=uri)
    found = findings_of(stream, done.returncode, done.stdout, done.stderr)
    if is_unanswered(found) and tries > 1:
        return doctor(uri, stream, *options, tries=tries - 1)
    return found


def is_unanswered(found: dict[str, list[Finding]]) -> bool:
    """Return whether the node has not answered in time."""
    return any('no answer within' in item['detail'] for item in found.get('user', ()))


def findings_of(
    stream: str | None, code: int | None, out: str, err: str
) -> dict[str, list[Finding]]:
    assert err == ''
    found = json.loads(out)
    failed = [item for item in found['checks'] if item['result'] == 'failed']
    assert found['stream'] == stream
    assert found['ok'] is (not failed)
    assert code == (1 if failed else 0)
    assert all(item['advice'] for item in found['checks'] if item['result'] != 'ok')
    by_check: dict[str, list[Finding]] = {}
    for item in found['checks']:
        by_check.setdefault(item['check'], []).append(item)
    return by_check


def check(found: dict[str, list[Finding]], name: str, result: str, *parts: str) -> Finding:
    """Check the only finding of a check, and the other ones: no other one fails."""
    (finding,) = found[name]
    assert finding['result'] == result
    for part in parts:
        assert part in finding['detail']
    others = [item['result'] for key, items in found.items() for item in items if key != name]
    assert 'failed' not in others
    return finding


def run_advice(broker: RabbitMQ, finding: Finding) -> None:
    """Run the commands that a finding names, on RabbitMQ's node."""
    commands = re.findall(r'`(rabbitmq[^`]+)`', finding['advice'])
    commands = [command for command in commands if ' ' in command and 'set_perm' not in command]
    assert commands
    for command in commands:
        name, *arguments = shlex.split(command)
        broker.tool(name, *arguments, timeout=200)


# -- nothing is wrong


async def live(uri: str, stream: str, *options: str, group: str = '') -> dict[str, list[Finding]]:
    """Run the command while messages are published, and a group processes them."""
    async with (
        rbs.streams_client(uri) as client,
        client.publisher(stream, name='shop') as publisher,
    ):
        number = 0
        for _ in range(TRIES):
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *('doctor', stream, '--json', *options),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(RBFLY_URI=uri),
            )
            ended = asyncio.create_task(process.communicate())
            while not ended.done():
                await publisher.send(number)
                if group:
                    await client.write_offset(stream, group, number)
                number += 1
                await asyncio.wait([ended], timeout=0.05)
            out, err = ended.result()
            found = findings_of(stream, process.returncode, out.decode(), err.decode())
            if not is_unanswered(found):
                break
    return found


async def test_all_is_well(broker_uri: str, stream: str) -> None:
    # It ends as soon as everything has moved: the limit is for a busy machine.
    options = ('-g', 'billing', '-n', 'shop', '--watch', '60')
    found = await live(broker_uri, stream, *options, group='billing')
    results = {item['result'] for items in found.values() for item in items}
    assert results <= {'ok', 'warning'}
    moving = {'messages': 'more in', 'publisher': 'has stored ids', 'group': 'has moved from'}
    for name, part in moving.items():
        (finding,) = found[name]
        assert part in finding['detail']
    assert [*found][-9:] == [
        'virtual host', 'stream', 'leader', 'advertised', 'rights', 'delivery', 'messages',
        'publisher', 'group',
    ]  # fmt: skip
    check(found, 'delivery', 'ok', 'the last message has offset')


def test_text(memory: StreamBroker) -> None:
    memory.publish('orders', *range(10))
    done = rbfly('doctor', 'orders', '--watch', '0', RBFLY_URI=memory.uri)
    assert (done.returncode, done.stderr) == (0, '')
    *lines, advice, empty, conclusion = done.stdout.splitlines()
    assert all(line.startswith('ok       ') for line in lines[:-1])
    assert lines[-1].startswith('warning  messages      offsets 0 to 9; none was published in ')
    assert advice.startswith('         -> ')
    assert (empty, conclusion) == ('', '1 warning')


def test_it_only_reads(memory: StreamBroker) -> None:
    memory.publish('orders', *range(10))
    before = memory.published
    options = ['-g', 'billing', '-n', 'shop', '--filter', 'x', '--watch', '0.6']
    doctor(memory.uri, 'orders', *options)
    assert memory.published == before
    assert memory.offsets('orders') == {}
    assert memory.members('orders', 'billing') == []
    assert memory.streams == ['orders']
    assert memory.connections == 0


def test_without_a_stream_it_checks_the_node(memory: StreamBroker) -> None:
    found = doctor(memory.uri, None)
    assert [*found] == ['port', 'user', 'virtual host']
    done = rbfly('doctor', '-g', 'billing', RBFLY_URI=memory.uri)
    assert done.returncode == 2
    assert 'need a stream' in done.stderr


# -- the node cannot be reached


def test_nothing_listens() -> None:
    with closed_port() as port:
        found = doctor(f'rabbitmq-stream://127.0.0.1:{port}', 'orders')
    finding = check(found, 'port', 'failed', '127.0.0.1: refused')
    assert 'rabbitmq-plugins enable' in finding['advice']


def test_name_without_an_address() -> None:
    found = doctor('rabbitmq-stream://nowhere.invalid', 'orders')
    check(found, 'name', 'failed', 'nowhere.invalid has no address')


def test_one_of_two_nodes_cannot_be_reached(memory: StreamBroker) -> None:
    with closed_port() as port:
        done = rbfly(
            *('--uri', f'rabbitmq-stream://127.0.0.1:{port}', '--uri', memory.uri),
            *('doctor', 'orders', '--watch', '0', '--json'),
        )
    found = findings_of('orders', done.returncode, done.stdout, done.stderr)
    assert [item['result'] for item in found['port']] == ['failed', 'ok']
    assert found['stream'][0]['result'] == 'ok'


def test_port_does_not_answer() -> None:
    with socket.create_server(('127.0.0.1', 0)) as silent:
        port = silent.getsockname()[1]
        found = doctor(f'rabbitmq-stream://127.0.0.1:{port}', 'orders', tries=1)
    check(found, 'user', 'failed', 'no answer within')


# -- the node refuses


def test_wrong_password(memory: StreamBroker) -> None:
    uri = memory.uri.replace('guest:guest', 'guest:secret')
    found = doctor(uri, 'orders')
    finding = check(found, 'user', 'failed', 'the user or the password is wrong')
    assert 'rabbitmqctl authenticate_user guest' in finding['advice']
    assert 'secret' not in str(found)


def test_user_of_loopback_only(memory: StreamBroker) -> None:
    memory.fail_authentication(ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK)
    finding = check(doctor(memory.uri, 'orders'), 'user', 'failed')
    assert 'rabbitmqctl add_user' in finding['advice']


def test_missing_virtual_host(memory: StreamBroker) -> None:
    finding = check(doctor(f'{memory.uri}shop', 'orders'), 'virtual host', 'failed', "'shop'")
    assert 'rabbitmqctl list_vhosts' in finding['advice']


@pytest.mark.broker
def test_user_without_rights(own_broker: RabbitMQ, own_stream: str) -> None:
    user = f'user-{uuid4().hex[:8]}'
    own_broker.ctl('add_user', user, 'password')
    try:
        own_broker.ctl('set_permissions', user, '', '', '^other$')
        uri = own_broker.uri.replace('guest:guest', f'{user}:password')
        found = doctor(uri, own_stream, '--watch', '0')
        finding = check(found, 'rights', 'failed')
        assert re.search('no right|permission', finding['detail'])
        assert f'list_user_permissions {user}' in finding['advice']
        run_advice(own_broker, finding)
        own_broker.ctl('set_permissions', user, '', '', '.*')
        check(doctor(uri, own_stream, '--watch', '0'), 'rights', 'ok')
    finally:
        own_broker.ctl('delete_user', user)


@pytest.mark.broker
async def test_commands_in_advice_about_groups_work(own_broker: RabbitMQ, own_stream: str) -> None:
    async with rbs.streams_client(own_broker.uri) as client:
        async with client.publisher(own_stream) as publisher:
            await publisher.send_many(range(10))
        async with client.subscribe(own_stream, group='billing', commit='manual') as messages:
            await anext(messages)
            await messages.commit()
            found = await asyncio.to_thread(
                doctor, own_broker.uri, own_stream, '-g', 'billing', '--watch', '0.6'
            )
            await asyncio.to_thread(run_advice, own_broker, check(found, 'group', 'failed'))


# -- TLS


@contextmanager
def tls_broker(certificate: trustme.LeafCert) -> Iterator[StreamBroker]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    with StreamBroker(ssl=context) as broker:
        broker.create_stream('orders')
        yield broker


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    file = tmp_path / 'ca.pem'
    AUTHORITY.cert_pem.write_to_path(file)
    return str(file)


def issue(
    begins: float = -1,
    ends: float = 365,
    name: str = '127.0.0.1',
    now: datetime | None = None,
) -> trustme.LeafCert:
    """Issue a certificate.

    :param begins: days from now until its validity begins.
    :param ends: days from now until it expires.
    """
    now = now or datetime.now(UTC)
    begin, end = now + timedelta(days=begins), now + timedelta(days=ends)
    return AUTHORITY.issue_cert(name, not_before=begin, not_after=end)


@pytest.mark.parametrize(
    ('settings', 'result', 'parts'),
    [
        ({}, 'ok', ['certificate for 127.0.0.1', 'in 36']),
        ({'begins': -9, 'ends': -3}, 'failed', ['expired on DATE', 'days ago']),
        ({'begins': -9, 'ends': -0.13}, 'failed', ['expired on', '3 hours ago']),
        ({'begins': -9, 'ends': 0.06}, 'warning', ['expires on', 'in 1 hour']),
        ({'begins': -9, 'ends': 5.5}, 'warning', ['expires on', 'in 5 days']),
        ({'begins': 2, 'ends': 9}, 'failed', ['is valid from']),
        ({'name': 'rabbit-1.example'}, 'failed', ['for rabbit-1.example, not for 127.0.0.1']),
    ],
    ids=['valid', 'expired', 'just now', 'very soon', 'soon', 'not yet', 'other name'],
)
def test_certificate(settings: dict[str, Any], result: str, parts: list[str], ca_file: str) -> None:
    now = datetime.now(UTC)  # tests may run half an hour after they were collected
    date = (now + timedelta(days=settings.get('ends', 365))).strftime('%Y-%m-%d')
    with tls_broker(issue(**settings, now=now)) as broker:
        found = doctor(broker.uri, 'orders', '--tls-ca', ca_file, '--watch', '0')
        check(found, 'TLS', result, *(part.replace('DATE', date) for part in parts))
        assert ('stream' in found) is (result != 'failed')


def test_certificate_with_the_address_as_a_host_name(ca_file: str) -> None:
    certificate = AUTHORITY.issue_cert(common_name='127.0.0.1')
    with tls_broker(certificate) as broker:
        found = doctor(broker.uri, 'orders', '--tls-ca', ca_file)
    finding = check(found, 'TLS', 'failed', 'names 127.0.0.1 as a host, not as an address')
    assert 'IP:127.0.0.1' in finding['advice']


def test_tls_of_a_name_with_an_address_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, ca_file: str
) -> None:
    """The handshake is with another one, as the client tries them all."""
    context = ssl.create_default_context(cafile=ca_file)
    hosts = ['127.0.0.2', '127.0.0.1']

    def addresses(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (host, port)) for host in hosts]

    async def look(node: Node) -> list[reachability.Finding]:
        found = []
        async for finding in node.check():
            found.append(finding)
            if finding.check == 'TLS':
                break
        return found

    monkeypatch.setattr(reachability, 'PORT_LIMIT', 0.2)
    monkeypatch.setattr(reachability, 'TLS_LIMIT', 2.0)
    with tls_broker(issue(name='rabbit.example')) as broker:
        port = broker.port
        with (
            socket.create_server((hosts[0], port), backlog=0),
            socket.create_connection((hosts[0], port)),  # the queue is full
            asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
            monkeypatch.context() as patch,
        ):
            patch.setattr(socket, 'getaddrinfo', addresses)
            info = parse_uri(f'rabbitmq-stream+tls://rabbit.example:{port}', context)
            found = runner.run(look(Node(info)))
    assert 'timed out' in found[1].detail
    assert [item.result for item in found] == ['ok', 'ok', 'ok']


@pytest.mark.parametrize('name', ['\x1b[2Jnode', 'a\nok       port'])
def test_certificate_cannot_control_the_terminal(name: str, ca_file: str) -> None:
    with tls_broker(AUTHORITY.issue_cert(common_name=name)) as broker:
        done = rbfly('doctor', 'orders', '--tls-ca', ca_file, RBFLY_URI=broker.uri)
    assert 'not for 127.0.0.1' in done.stdout
    assert name not in done.stdout
    assert '\x1b' not in done.stdout


def test_unknown_authority(tmp_path: Path) -> None:
    with tls_broker(issue()) as broker:
        finding = check(doctor(broker.uri, 'orders'), 'TLS', 'failed', 'Test authority')
        assert '--tls-ca' in finding['advice']
        found = doctor(broker.uri, 'orders', '--tls-insecure', '--watch', '0')
        check(found, 'TLS', 'warning', 'is not verified', 'certificate for 127.0.0.1')


def test_port_without_tls(memory: StreamBroker) -> None:
    uri = memory.uri.replace('rabbitmq-stream:', 'rabbitmq-stream+tls:')
    finding = check(doctor(uri, 'orders'), 'TLS', 'failed', 'the handshake failed')
    assert 'rabbitmq-stream://' in finding['advice']


# -- the stream


def test_missing_stream(broker_uri: str) -> None:
    name = f'missing-{uuid4().hex}'
    finding = check(doctor(broker_uri, name), 'stream', 'failed', 'does not exist', "host '/'")
    assert f'rbfly stream create {name}' in finding['advice']


def test_super_stream(memory: StreamBroker) -> None:
    memory.create_super_stream('shop', partitions=2)
    memory.publish('shop-1', 1)
    found = doctor(memory.uri, 'shop', '--watch', '0')
    assert found['stream'][0]['detail'] == "'shop' is a super stream of 2 partitions"
    assert [item['detail'].split(':')[0] for item in found['leader']] == ['shop-0', 'shop-1']
    assert [item['detail'].split(':')[0] for item in found['delivery']] == ['shop-1']
    assert [item['detail'].split(':')[0] for item in found['messages']] == ['shop-0', 'shop-1']


def test_advertised_address_leads_nowhere(memory: StreamBroker) -> None:
    memory.publish('orders', 1)
    uri = memory.uri
    memory._cluster.nodes[0].host = 'rabbit-1.invalid'  # it listens where it did
    found = doctor(uri, 'orders', '--watch', '0')
    finding = check(found, 'advertised', 'failed', 'rabbit-1.invalid', 'has no address')
    assert 'advertised_host' in finding['advice']
    assert 'delivery' in found  # through the address of the URI
    check(doctor(uri, 'orders', '--watch', '0', '--load-balancer'), 'advertised', 'ok')


def test_advertised_address_leads_to_another_node(memory: StreamBroker) -> None:
    with StreamBroker() as other:
        uri = memory.uri
        memory._cluster.nodes[0].port = other.port
        other._cluster.nodes[0].host = 'rabbit-2'
        found = doctor(uri, 'orders', '--watch', '0')
        check(found, 'advertised', 'failed', 'leads to another node, rabbit-2:')


@pytest.mark.broker
def test_other_advertised_name_with_tls(own_broker: RabbitMQ, own_stream: str) -> None:
    """With TLS, the broker of the tests advertises `localhost`, but RabbitMQ 4.0 a leader at
    127.0.0.1."""
    assert own_broker.tls_uri is not None
    found = doctor(own_broker.tls_uri, own_stream, '--tls-ca', str(own_broker.ca_file))
    check(found, 'advertised', 'ok', 'can be reached')


def test_broker_delivers_nothing(memory: StreamBroker) -> None:
    memory.publish('orders', 1)
    memory.silence()
    found = doctor(memory.uri, 'orders', '--watch', '0')
    check(found, 'messages', 'warning', 'chunks up to 0', 'the broker withholds them')


@pytest.mark.parametrize(('value', 'result'), [('eu', 'ok'), ('us', 'failed')])
async def test_filter(value: str, result: str, broker_uri: str, stream: str) -> None:
    async with (
        rbs.streams_client(broker_uri) as client,
        client.publisher(stream, filter_extract=lambda message: 'eu') as publisher,
    ):
        await publisher.send_many(range(10))
    found = await asyncio.to_thread(doctor, broker_uri, stream, '--filter', value, '--watch', '0')
    check(found, 'filter', result, repr(value))


# -- the group


def at(offset: int | None) -> Callable[[StreamBroker], None]:
    """Return a function that fills the stream, and stores an offset for the group."""

    def prepare(broker: StreamBroker) -> None:
        broker.publish('orders', *range(10))

        async def store() -> None:
            async with rbs.streams_client(broker.uri) as client:
                if offset is not None:
                    await client.write_offset('orders', 'billing', offset, wait=True)

        asyncio.run(store())

    return prepare


@pytest.mark.parametrize(
    ('offset', 'result', 'part'),
    [
        (9, 'ok', 'has processed all messages'),
        (4, 'failed', 'has not moved in'),
        (2**64 - 1, 'failed', 'with 10 left'),
        (None, 'warning', 'has stored no offset'),
        (1000, 'failed', 'after the end of the stream'),
    ],
)
def test_group(offset: int | None, result: str, part: str, memory: StreamBroker) -> None:
    at(offset)(memory)
    found = doctor(memory.uri, 'orders', '-g', 'billing', '--watch', '0.6')
    check(found, 'group', result, "'billing'", part)


def test_group_has_lost_messages(memory: StreamBroker) -> None:
    memory.create_stream('short', max_age='1h')
    memory.publish('short', *range(10))

    async def store() -> None:
        async with rbs.streams_client(memory.uri) as client:
            await client.write_offset('short', 'billing', 3, wait=True)

    asyncio.run(store())
    memory.advance(7200)
    memory.publish('short', *range(10))
    memory.advance(7200)
    memory.publish('short', *range(10))
    found = doctor(memory.uri, 'short', '-g', 'billing', '--watch', '0')
    check(found, 'group', 'warning', 'retention has removed offsets 4 to')


def test_name_of_a_publisher_that_has_published_nothing(memory: StreamBroker) -> None:
    memory.publish('orders', 1)
    found = doctor(memory.uri, 'orders', '-n', 'shop', '--watch', '0')
    check(found, 'publisher', 'warning', "'shop' has stored nothing here")


# -- ends


def test_interrupted(memory: StreamBroker) -> None:
    memory.publish('orders', 1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*COMMAND, 'doctor', 'orders', '--watch', '100'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(RBFLY_URI=memory.uri),
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        while 'delivery' not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, '')
    assert memory.connections == 0


def test_reader_has_gone(memory: StreamBroker) -> None:
    memory.publish('orders', 1)
    with subprocess.Popen(
        [*COMMAND, 'doctor', 'orders', '--watch', '1'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(RBFLY_URI=memory.uri),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, '')


def test_mistake_in_the_uri_is_one_line() -> None:
    done = rbfly('doctor', 'orders', RBFLY_URI='amqp://localhost')
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert 'scheme must be rabbitmq-stream' in line
