"""
Tests for the brokers command: addresses, state, ports, and the commands it would run.

No test starts a broker.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokers
from brokers import cli, inside, install, kafka, node, probe, rabbitmq, sandbox, state
from perf import cli as perf

CHECKOUT = Path(__file__).resolve().parents[1]
HANG = 40.0  # seconds; only a bug makes a test wait that long, and no process runs as long


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the tests from this machine's environment."""
    monkeypatch.setenv('RBFLY_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setenv('RBFLY_ENGINE', 'none')
    addresses = ('RBFLY_URI', 'RBFLY_TLS_URI', 'RBFLY_TLS_CA', 'RBFLY_AMQP_URI', 'RBFLY_KAFKA')
    secure = ('RBFLY_KAFKA_TLS', 'RBFLY_KAFKA_CA')
    for name in (*addresses, *secure, 'RBFLY_RABBITMQ', install.INSIDE):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """Listen on a port and answer each received frame with the next of `answers`."""
    with socket.create_server(('127.0.0.1', 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as sock:
                for answer in answers:
                    (length,) = struct.unpack('>I', probe.read_exactly(sock, 4))
                    probe.read_exactly(sock, length)
                    sock.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(5)


def peer_properties_frame(code: int = 1, **properties: str) -> bytes:
    """Encode a PeerProperties response."""
    body = struct.pack('>HHIHI', 0x8011, 1, 1, code, len(properties))
    for text in (t for pair in properties.items() for t in pair):
        body += struct.pack('>h', len(text.encode())) + text.encode()
    return struct.pack('>I', len(body)) + body


# --- folders and state -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('env', 'expected'),
    [
        ({'RBFLY_CACHE': '/a', 'XDG_CACHE_HOME': '/b', 'HOME': '/c'}, '/a'),
        ({'XDG_CACHE_HOME': '/b', 'HOME': '/c'}, '/b/rbfly'),
        ({'RBFLY_CACHE': '', 'XDG_CACHE_HOME': '', 'HOME': '/c'}, '/c/.cache/rbfly'),
    ],
)
def test_cache_folder(env: dict[str, str], expected: str) -> None:
    """The most specific variable determines the folder."""
    assert state.cache_folder(env) == Path(expected)


def test_state_round_trip(tmp_path: Path) -> None:
    """Reading returns the written state, and no temporary file remains."""
    state.write_state(tmp_path, {'kind': 'rabbitmq', 'nodes': [1, 2]})
    found = state.read_state(tmp_path)
    assert found is not None
    assert found['nodes'] == [1, 2]
    assert [f.name for f in tmp_path.iterdir()] == ['state.json']


@pytest.mark.parametrize('text', ['', '{', '[]', '{}', '{"version": 0}'])
def test_invalid_state_is_ignored(tmp_path: Path, text: str) -> None:
    """A state file that is broken or has another version is ignored."""
    assert state.read_state(tmp_path) is None
    (tmp_path / 'state.json').write_text(text)
    assert state.read_state(tmp_path) is None


def test_save_and_load_rabbitmq(tmp_path: Path) -> None:
    """Loading restores the saved nodes, sandbox and options."""
    nodes = node.make_nodes(2, range(20_000, 20_010), advertised_ports=[None, 5])
    made = rabbitmq.RabbitMQ(
        nodes,
        sandbox=sandbox.Root(tmp_path, 'x', Path('/root-fs'), (12, 34)),
        epmd_port=7,
        plugins=['rabbitmq_mqtt'],
        extra=['heartbeat = 3'],
        cookie='c',
    )
    state.write_state(tmp_path, made.save())
    found = rabbitmq.RabbitMQ.load(tmp_path)
    assert found is not None
    assert found.nodes == nodes
    assert found.save() == made.save()
    assert found.variables() == made.variables()


def test_save_and_load_kafka(tmp_path: Path) -> None:
    """Loading restores the saved port and sandbox."""
    box = sandbox.Container(tmp_path, 'x', 'podman', kafka.IMAGE)
    made = kafka.Kafka(1234, tls_port=5678, sandbox=box)
    state.write_state(tmp_path, made.save())
    found = kafka.Kafka.load(tmp_path)
    assert found is not None
    assert found.save() == made.save()
    assert found.variables() == {
        'RBFLY_KAFKA': '127.0.0.1:1234',
        'RBFLY_KAFKA_TLS': '127.0.0.1:5678',
        'RBFLY_KAFKA_CA': f'{tmp_path}/srv/server.pem',
    }


def test_kafka_without_tls_listener(tmp_path: Path) -> None:
    """The state of a Kafka that was started without a TLS listener still loads."""
    box = sandbox.Container(tmp_path, 'x', 'podman', kafka.IMAGE)
    saved = kafka.Kafka(1234, sandbox=box).save()
    del saved['tls_port']
    state.write_state(tmp_path, saved)
    found = kafka.Kafka.load(tmp_path)
    assert found is not None
    assert found.variables() == {'RBFLY_KAFKA': '127.0.0.1:1234'}


def test_process_is_identified_by_start_time() -> None:
    """A process with the same PID but another start time is a different process."""
    with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE) as process:
        started = state.start_time(process.pid)
        assert started is not None
        assert state.is_running(process.pid, started)
        assert not state.is_running(process.pid, started + 1)
        process.kill()
        # until we reap it, it is a zombie, which does not count as running
        assert state.wait_until(lambda: not state.is_running(process.pid, started), HANG)
    assert state.start_time(process.pid) is None


def test_processes_of_an_instance() -> None:
    """Only a complete match of the marker identifies a process."""
    env = {**os.environ, state.MARKER: 'test-instance-1'}
    with subprocess.Popen(
        [sys.executable, '-c', 'print(flush=True); input()'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert state.processes_of('test-instance-1') == [process.pid]
        assert state.processes_of('test-instance') == []
        process.kill()


def test_lock_blocks_second_command() -> None:
    """A second command reports that it is waiting, and continues after the first."""
    output, order = io.StringIO(), []

    def second() -> None:
        with state.locked('x', state.Progress(output)):
            order.append('second')

    thread = threading.Thread(target=second)
    with state.locked('x'):
        thread.start()
        assert state.wait_until(lambda: 'waiting' in output.getvalue(), HANG)
        order.append('first')
    thread.join(HANG)
    assert order == ['first', 'second']


def test_sweep_removes_dead_private_instances() -> None:
    """Sweeping removes folders of dead private instances only."""
    run = state.cache_folder() / 'run'
    started = state.start_time(os.getpid())
    dead, living, shared = run / 'private-1-a', run / 'private-1-b', run / 'rabbitmq'
    for folder, main in ((dead, (os.getpid(), 0)), (living, (os.getpid(), started))):
        folder.mkdir(parents=True)
        state.write_state(folder, {'main': main})
        os.utime(folder, (0, 0))
    shared.mkdir()
    state.sweep()
    assert sorted(f.name for f in run.iterdir()) == ['private-1-b', 'rabbitmq']


# --- ports and addresses -----------------------------------------------------------------------


def test_ports_are_reserved() -> None:
    """Brokers bind their ports seconds later, so two calls never return the same port."""
    assert not set(state.free_ports(500)) & set(state.free_ports(500))


def test_free_ports() -> None:
    """Ports are distinct, free, and outside the range for outgoing connections."""
    ports = state.free_ports(16)
    assert len(set(ports)) == 16
    assert not set(ports) & set(state.ephemeral_ports())
    for port in ports:
        assert not state.accepts('127.0.0.1', port)


def test_ports_in_use_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that are in use are skipped."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(
            random.SystemRandom, 'shuffle', lambda self, values: values.insert(0, taken)
        )
        assert taken not in state.free_ports(5)


@pytest.mark.parametrize(
    ('uri', 'expected'),
    [
        ('rabbitmq-stream://', None),
        ('amqp://localhost', None),
        ('rabbitmq-stream://h:x', None),
        ('rabbitmq-stream://h:70000', None),
        ('rabbitmq-stream://h', probe.Address('h', 5552)),
        ('rabbitmq-stream+tls://h/', probe.Address('h', 5551, True)),
        ('rabbitmq-stream://[::1]:7/', probe.Address('::1', 7)),
        (
            'rabbitmq-stream://u%40x:p%2F%C5%BC@h:7/%2Fv',
            probe.Address('h', 7, False, 'u@x', 'p/ż', '/v'),
        ),
    ],
)
def test_parse_uri(uri: str, expected: probe.Address | None) -> None:
    """All parts of a URI are parsed; invalid URIs are refused."""
    if expected is None:
        with pytest.raises(brokers.BrokerError, match='not a stream URI'):
            probe.parse_uri(uri)
    else:
        assert probe.parse_uri(uri) == expected


@pytest.mark.parametrize(
    'uri',
    [
        'rabbitmq-stream://user:s3cret@host:x/',
        'rabbitmq-stream://user:s3cret/x@host/',
        'rabbitmq-stream://user:x@y/s3cret@host/',
        'rabbitmq-stream://user:[s3cret@host/',
        'amqp://user:s3cret@host/',
        'user:s3cret@host',
    ],
)
def test_errors_of_tools_do_not_show_the_password(uri: str) -> None:
    with pytest.raises(brokers.BrokerError) as caught:
        probe.parse_uri(uri)
    assert 's3cret' not in str(caught.value)


def test_addresses_of_tools_do_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ('127.0.0.1', '::1'):
        address = probe.Address(host, 5552, user='user', password='s3cret')
        assert 's3cret' not in repr(address) + str(address)
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv('RBFLY_URI', f'rabbitmq-stream://user:s3cret@127.0.0.1:{port}/')
        with pytest.raises(
            brokers.BrokerError, match=rf'RBFLY_URI=127\.0\.0\.1:{port}: '
        ) as caught:
            rabbitmq.up()
    assert 's3cret' not in str(caught.value)


@pytest.mark.parametrize(
    'address',
    [
        probe.Address('127.0.0.1', 5552),
        probe.Address('::1', 1, True, 'ż@/:', 'p?#%', 'a/b'),
    ],
)
def test_uri_round_trip(address: probe.Address) -> None:
    """Parsing restores what was formatted, whatever characters it contains."""
    uri = probe.stream_uri(
        address.host,
        address.port,
        tls=address.tls,
        user=address.user,
        password=address.password,
        vhost=address.vhost,
    )
    assert probe.parse_uri(uri) == address


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('h:1', ('h', 1)), ('h', ('h', 9092)), ('[::1]:2,b:3', ('::1', 2)), ('h:x', None), ('', None)],
)
def test_parse_kafka(text: str, expected: tuple[str, int] | None) -> None:
    """The first address is parsed; invalid ones are refused."""
    if expected is None:
        with pytest.raises(brokers.BrokerError):
            probe.parse_kafka(text)
    else:
        assert probe.parse_kafka(text) == expected


def test_peer_properties() -> None:
    """A PeerProperties response identifies a stream port."""
    with answering(peer_properties_frame(product='RabbitMQ', version='4.0.5')) as port:
        found = probe.peer_properties(probe.Address('127.0.0.1', port))
    assert found == {'product': 'RabbitMQ', 'version': '4.0.5'}


@pytest.mark.parametrize(
    'answer',
    [
        b'',
        b'AMQP\x00\x00\x09\x01',
        peer_properties_frame(code=2),
        peer_properties_frame(product='x')[:-1] + b'\xff',
        b'\x00\x00\x00\x04\x80\x11\x00\x01',
    ],
)
def test_other_answers_raise_os_error(answer: bytes) -> None:
    """No answer, another protocol, an error or garbage: each raises `OSError`."""
    with answering(answer) as port, pytest.raises(OSError):  # noqa: PT011
        probe.peer_properties(probe.Address('127.0.0.1', port), timeout=2)


def test_kafka_answers() -> None:
    """Kafka answers with its API versions and at least one cluster member."""

    def frame(body: bytes) -> bytes:
        return struct.pack('>I', len(body)) + body

    versions = frame(struct.pack('>ihi', 1, 0, 0))
    for members in (1, 0):
        with answering(versions, frame(struct.pack('>ii', 2, members))) as port:
            assert probe.kafka_answers('127.0.0.1', port) is bool(members)
    with answering(frame(struct.pack('>ih', 1, 35))) as port:
        assert not probe.kafka_answers('127.0.0.1', port)


# --- configuration and commands ----------------------------------------------------------------


def test_configuration_of_a_cluster() -> None:
    """All listeners are on loopback; the first node forms the cluster and the others join it."""
    nodes = node.make_nodes(
        3, range(20_000, 20_015), [None, 7001, None], [None, 'proxy', None], [7002, None, None]
    )
    texts = [node.configuration(n, nodes, ['rabbitmq_stream'], ['x = y']) for n in nodes]
    for text in texts:
        assert all(
            line.split(' = ')[1].startswith('127.0.0.1:')
            for line in text.splitlines()
            if '.listeners.' in line
        )
        assert text.endswith('x = y\n')
        assert 'mqtt' not in text
    assert 'stream.advertised_port = 20000' in texts[0]
    assert 'stream.advertised_tls_port = 7002' in texts[0]
    assert 'stream.advertised_port = 7001' in texts[1]
    assert 'stream.advertised_host = proxy' in texts[1]
    assert 'n2@localhost' not in texts[0]
    assert 'n1@localhost' in texts[2]
    assert 'n2@localhost' not in texts[2]


def test_configuration_of_plugins() -> None:
    """Plugins add the settings that enable them and keep them on loopback."""
    nodes = node.make_nodes(1, range(20_000, 20_005))
    text = node.configuration(nodes[0], nodes, ['rabbitmq_mqtt', 'rabbitmq_auth_mechanism_ssl'], [])
    assert 'mqtt.listeners.tcp.1 = 127.0.0.1:20003' in text
    assert 'auth_mechanisms.3 = EXTERNAL' in text


def test_one_advertised_port_for_each_node() -> None:
    """A wrong number of advertised ports is refused."""
    with pytest.raises(ValueError, match='each node'):
        node.make_nodes(2, range(20_000, 20_010), [1])


def test_variables(tmp_path: Path) -> None:
    """The addresses are available as shell variables."""
    nodes = node.make_nodes(2, range(20_000, 20_010))
    broker = rabbitmq.RabbitMQ(nodes, sandbox=sandbox.Root(tmp_path, 'x', Path('/r')))
    assert broker.variables() == {
        'RBFLY_URI': 'rabbitmq-stream://guest:guest@127.0.0.1:20000/',
        'RBFLY_TLS_URI': 'rabbitmq-stream+tls://guest:guest@localhost:20001/',
        'RBFLY_TLS_CA': f'{tmp_path}/srv/tls/ca.pem',
        'RBFLY_AMQP_URI': 'amqp://guest:guest@127.0.0.1:20002/',
        'RBFLY_URIS': 'rabbitmq-stream://guest:guest@127.0.0.1:20000/,'
        'rabbitmq-stream://guest:guest@127.0.0.1:20005/',
    }


def test_kafka_properties() -> None:
    """All listeners are on loopback."""
    text = kafka.properties(1, 2, 3, '/d', 'CERTIFICATE\nA=\n', 'KEY\nB\n')
    lines = dict(line.split('=', 1) for line in text.splitlines() if line)
    secure = 'SSL://127.0.0.1:3'
    assert lines['listeners'] == f'PLAINTEXT://127.0.0.1:1,{secure},CONTROLLER://127.0.0.1:2'
    assert lines['ssl.keystore.certificate.chain'] == 'CERTIFICATE\\nA=\\n'
    assert lines['ssl.keystore.key'] == 'KEY\\nB\\n'
    assert lines['controller.quorum.voters'] == '1@127.0.0.1:2'
    assert lines['log.dirs'] == '/d'


def test_root_commands(tmp_path: Path) -> None:
    """In a root filesystem, arguments stay separate words; commands enter its namespaces."""
    started = state.start_time(os.getpid())
    assert started is not None
    living = sandbox.Root(tmp_path, 'x', Path('/r'), (os.getpid(), started))
    command = living.command(['ctl', 'a b', "$'"], {'A': '1 2'}, user='u')
    assert command[:2] == ['nsenter', f'--target={os.getpid()}']
    assert command[command.index('--') + 1 :][:2] == ['chroot', '/r']
    assert '--reuid=u' in command
    assert command[-6:] == ['env', '-i', 'A=1 2', 'ctl', 'a b', "$'"]

    dead = sandbox.Root(tmp_path, 'x', Path('/r'), (os.getpid(), started + 1))
    with pytest.raises(brokers.BrokerError, match='is not running'):
        dead.command(['ctl'], {})


def test_container_commands(tmp_path: Path) -> None:
    """A container uses the host's network and its own PATH, and is removed when it exits."""
    box = sandbox.Container(tmp_path, 'x', 'podman', 'image:1', 'u:u')
    run = box.main_command(['epmd'], {'PATH': '/p', 'A': 'b'}, private=True)
    assert run[:3] == ['podman', 'run', '--rm']
    assert '--network host --user 0' in ' '.join(run)
    assert f'--volume {tmp_path}/srv:/srv --env A=b --entrypoint sh image:1' in ' '.join(run)
    assert run[-4:] == ['sh', 'u:u', '1', 'epmd']
    assert box.command(['ctl', 'a b'], {'PATH': '/p', 'A': 'b'}, user='u') == [
        'podman',
        'exec',
        '--user',
        'u',
        '--env',
        'A=b',
        'rbfly-x',
        'ctl',
        'a b',
    ]


@pytest.mark.parametrize(
    ('wanted', 'answer', 'expected'),
    [
        ('none', '27', None),
        ('', '27', 'docker'),
        ('', '', None),
        ('docker', '', 'error'),
        ('docker', '27', 'docker'),
    ],
)
def test_engine_must_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    answer: str,
    expected: str | None,
) -> None:
    """A client whose engine does not answer is ignored."""
    client = tmp_path / 'docker'
    client.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/arguments\necho {answer}\n')
    client.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:/nowhere')
    if expected == 'error':
        with pytest.raises(brokers.BrokerError, match='container engine does not answer'):
            sandbox.engine({'RBFLY_ENGINE': wanted})
    else:
        assert sandbox.engine({'RBFLY_ENGINE': wanted}) == expected


@pytest.mark.parametrize('private', [True, False])
def test_private_sandbox_ends_with_its_owner(tmp_path: Path, private: bool) -> None:
    """Closing the pipe ends a private sandbox and removes its folder, but not a shared sandbox."""
    folder = tmp_path / 'run'
    folder.mkdir()
    host = sandbox.Host(folder, f'test-{tmp_path.name}-{private}')
    host.start(['sleep', '60'], {}, private=private)
    assert host.alive()
    assert state.processes_of(host.instance)
    if private:
        host.release()
        assert state.wait_until(lambda: not folder.exists(), HANG)
    else:
        state.write_state(folder, host.save())
        saved = state.read_state(folder)
        assert saved is not None
        again = sandbox.load(folder, saved)
        assert again.alive()
        again.kill()
    assert state.wait_until(lambda: not host.alive(), HANG)
    assert state.wait_until(lambda: not state.processes_of(host.instance), HANG)


def test_private_sandbox_ends_with_its_last_holder(tmp_path: Path) -> None:
    """A second holder keeps the sandbox alive; `hold` reports a sandbox that has ended."""
    folder = tmp_path / 'run'
    folder.mkdir()
    first = sandbox.Host(folder, f'test-{tmp_path.name}')
    first.start(['sleep', '60'], {}, private=True)
    second = sandbox.load(folder, {**first.save(), 'main': None})
    assert second.hold()
    assert first.held_by_others()
    first.release()
    assert second.alive()
    assert not second.held_by_others()
    second.release()
    assert state.wait_until(lambda: not folder.exists(), HANG)
    assert not second.hold()


def test_failed_start_of_a_sandbox_shows_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the output of the failed main process, without waiting for a timeout."""
    host = sandbox.Host(tmp_path, f'test-{tmp_path.name}')
    command = ['sh', '-c', 'echo broken on purpose; exit 3']
    monkeypatch.setattr(host, 'main_command', lambda argv, env, private: command)
    begin = time.monotonic()
    with pytest.raises(brokers.BrokerError, match='broken on purpose'):
        host.start(['epmd'], {}, private=False)
    assert time.monotonic() - begin < host.start_timeout


def test_missing_programs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names each missing program and the package that provides it."""
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(brokers.BrokerError, match=r'missing: prog-x \(package pack-y\)'):
        install.ensure_programs({'prog-x': 'pack-y'}, state.Progress(quiet=True))


@pytest.mark.parametrize(
    ('text', 'version'),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('nonsense', 0),
    ],
)
def test_java_version(text: str, version: int) -> None:
    """Both formats of Java's version output are parsed."""
    assert install.parse_java_version(text) == version


# --- versions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('option', 'variable', 'expected'),
    [
        (None, None, '4.0'),
        (None, '', '4.0'),
        (None, '4.3', '4.3'),
        ('4.0', '4.3', '4.0'),
        ('4.3', 'nonsense', '4.3'),
    ],
)
def test_version_selection(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str | None, expected: str
) -> None:
    """The option takes precedence over the variable; without either it is 4.0."""
    if variable is not None:
        monkeypatch.setenv('RBFLY_RABBITMQ', variable)
    assert rabbitmq.RabbitMQ.chosen(option) == expected
    assert rabbitmq.RabbitMQ.shared(option) == f'rabbitmq-{expected}'


def test_unknown_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error lists the available versions, and nothing is installed."""
    monkeypatch.setenv('RBFLY_RABBITMQ', '3.13')
    for command in (['up'], ['exec', 'rabbitmq', 'true'], ['status']):
        assert cli.main(command) == 1
        assert "unknown version '3.13'; choose from 4.0, 4.3" in capsys.readouterr().err
    with pytest.raises(brokers.BrokerError, match=r"'3\.13'"):
        rabbitmq.RabbitMQ.private()
    with pytest.raises(SystemExit):
        cli.main(['up', '--version', '3.13'])
    assert not list(state.cache_folder().glob('rabbitmq*'))


def installed(monkeypatch: pytest.MonkeyPatch, suite: str) -> Path:
    """Create a root filesystem as if debootstrap had done it."""
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    monkeypatch.setattr(install, 'UNSHARE', ('env',))  # works without root
    root = state.cache_folder() / f'rabbitmq-{suite}-1'
    root.mkdir(parents=True)
    return root


@pytest.mark.parametrize(('version', 'suite'), [('4.0', 'trixie'), ('4.3', 'forky')])
def test_each_version_has_its_root(
    monkeypatch: pytest.MonkeyPatch, version: str, suite: str
) -> None:
    """Private brokers use the root filesystem of the version that the environment selects."""
    root = installed(monkeypatch, suite)
    monkeypatch.setenv('RBFLY_RABBITMQ', version)
    assert rabbitmq.RabbitMQ.private().save()['root'] == str(root)
    monkeypatch.delenv('RBFLY_RABBITMQ')
    assert rabbitmq.RabbitMQ.private(version=version).save()['root'] == str(root)


@pytest.mark.parametrize('version', ['4.0', '4.3'])
def test_image_has_the_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """With a container engine, the image has the selected version."""
    monkeypatch.setattr(sandbox, 'engine', lambda: 'podman')
    assert rabbitmq.RabbitMQ.private(version=version).save()['image'] == f'rabbitmq:{version}'


def test_root_has_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a root filesystem, only its own version is available."""
    env = inside.passed_environment({'RBFLY_RABBITMQ': '4.0'}, '4.3')
    for name, value in env.items():
        if name.startswith('RBFLY_'):
            monkeypatch.setenv(name, value)
    assert rabbitmq.RabbitMQ.private().save()['root'] == '/'
    with pytest.raises(brokers.BrokerError, match=r'has RabbitMQ 4\.3; 4\.0 is not available'):
        rabbitmq.RabbitMQ.private(version='4.0')


def test_suite_unknown_to_debootstrap(tmp_path: Path) -> None:
    """For a Debian release that debootstrap does not know, its script for trixie is used."""
    (tmp_path / 'trixie').touch()
    assert install.suite_script('forky', tmp_path) == tmp_path / 'trixie'
    (tmp_path / 'forky').touch()
    assert install.suite_script('forky', tmp_path) == tmp_path / 'forky'


def test_versions_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each version is found and stopped separately; the shell variables are the selected one's."""
    started = state.start_time(os.getpid())
    ports = {'4.0': 20_000, '4.3': 20_005}
    for version, port in ports.items():
        folder = state.run_folder(f'rabbitmq-{version}')
        (folder / 'srv').mkdir(parents=True)
        main = (os.getpid(), started or 0)
        made = rabbitmq.RabbitMQ(
            node.make_nodes(1, range(port, port + 5)),
            sandbox=sandbox.Root(folder, 'x', tmp_path, main),
        )
        made._complete = True
        state.write_state(folder, made.save())
    monkeypatch.setattr(
        rabbitmq, 'peer_properties', lambda address, timeout: {'version': str(address.port)}
    )
    for chosen in ports:
        monkeypatch.setenv('RBFLY_RABBITMQ', chosen)
        found = rabbitmq.RabbitMQ.running()
        assert found is not None
        assert found.uri.endswith(f':{ports[chosen]}/')
        cli.main(['status'])
        lines = capsys.readouterr().out.splitlines()
        assert f'# rabbitmq 4.3: not running (root), release {ports["4.3"]}' in lines
        uris = [line for line in lines if line.startswith('RBFLY_URI')]
        assert len(uris) == 2
        assert uris[-1] == f'RBFLY_URI={found.uri}'
        cli.main(['status', '--version', '4.0', '--json'])
        (entry,) = json.loads(capsys.readouterr().out)
        assert (entry['version'], entry['release']) == ('4.0', '20000')
    ended: list[str] = []
    monkeypatch.setattr(rabbitmq.RabbitMQ, 'stop', lambda self: ended.append(self.uri[-6:]))
    assert cli.main(['down', '--version', '4.3']) == 0
    assert ended == ['20005/']
    assert cli.main(['down']) == 0
    assert sorted(ended[1:]) == ['20000/', '20005/']


# --- exec --------------------------------------------------------------------------------------


def test_split_exec() -> None:
    """Options precede `--`; everything after it is the command, unchanged."""
    options, command = cli.split_exec(
        [
            '--version',
            '4.3',
            '--install',
            'a',
            'b',
            '--bind',
            '/x:/y',
            '--',
            'sh',
            '--',
            '--install',
        ]
    )
    assert options.version == '4.3'
    assert options.install == ['a', 'b']
    assert options.bind == ['/x:/y']
    assert command == ['sh', '--', '--install']
    assert cli.split_exec(['ls', '-l'])[1] == ['ls', '-l']
    with pytest.raises(brokers.BrokerError, match='no command given'):
        cli.split_exec(['--'])


def test_inside_environment() -> None:
    """Settings are passed on, except those that only make sense outside."""
    env = inside.passed_environment(
        {
            'PIP_CERT': '/c',
            'RBFLY_URI': 'u',
            'RBFLY_CACHE': '/x',
            'PATH': '/mine',
            'HOME': '/h',
            'VIRTUAL_ENV': '/v',
            'CI': 'true',
        },
        '4.0',
    )
    assert env['PIP_CERT'] == '/c'
    assert env['RBFLY_URI'] == 'u'
    assert env['CI'] == 'true'
    assert env['HOME'] == '/root'
    assert '/mine' not in env['PATH']
    assert not {'RBFLY_CACHE', 'VIRTUAL_ENV'} & set(env)


EXEC = """
from pathlib import Path
from brokers import inside, install
install.rabbitmq_root = lambda *_: Path('/')
inside.SCRIPT = 'shift 3; exec "$@"'  # works without root
inside.sandbox.UNSHARE = ()
inside.default_binds = lambda *_: []
inside.run(['sh', '-c', 'trap "" TERM; echo started; exec sleep 600'])
"""


def test_command_inside_ends_with_brokers_exec() -> None:
    """A command that ignores SIGTERM ends with `brokers exec`."""
    command = [sys.executable, '-c', EXEC]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == 'started\n'
        process.terminate()
        assert process.communicate(timeout=HANG)[0] == ''  # no process has the pipe open


@pytest.mark.parametrize(
    ('works', 'expected'),
    [('install', ['install']), ('update', ['install', 'update', 'install'])],
)
def test_packages_are_installed_from_existing_lists(
    tmp_path: Path, works: str, expected: list[str]
) -> None:
    """The package lists are updated only if installing from the existing ones fails."""
    apt, log = tmp_path / 'apt-get', tmp_path / 'log'
    apt.write_text(f'#!/bin/sh\necho "$@" >>{log}\ngrep -q {works} {log}\n')
    apt.chmod(0o755)
    env = {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    subprocess.run(['sh', '-c', inside.INSTALL, 'sh', 'a', 'b'], env=env, check=True)
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines] == expected
    assert lines[-1].endswith(' a b')


def test_nothing_is_installed_against_the_wish_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('RBFLY_INSTALL', '0')
    monkeypatch.setattr(install, 'apt_install', pytest.fail)
    with pytest.raises(brokers.BrokerError, match=r'no-program \(package nothing\)'):
        install.ensure_programs({'no-program': 'nothing'}, brokers.Progress(quiet=True))


def test_binds(tmp_path: Path) -> None:
    """The checkout, and a certificate that a variable refers to, are mounted."""
    binds = inside.default_binds({'RBFLY_TLS_CA': f'{tmp_path}/ca.pem', 'HOME': '/h'}, CHECKOUT)
    assert binds[0] == (str(CHECKOUT), '/checkout')
    assert (str(tmp_path), str(tmp_path)) in binds
    assert inside.parse_bind(f'{tmp_path}:/in') == (str(tmp_path), '/in')
    for wrong in ('x', f'{tmp_path}:in', f'{tmp_path}:/../x', '/does/not/exist:/in'):
        with pytest.raises(brokers.BrokerError):
            inside.parse_bind(wrong)


# --- the command -------------------------------------------------------------------------------


def test_nothing_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    """`status` exits with 1 if nothing is running; `down` succeeds anyway."""
    assert cli.main(['status']) == 1
    assert '# rabbitmq 4.0: not running' in capsys.readouterr().out
    assert cli.main(['status', 'kafka', '--json']) == 1
    assert json.loads(capsys.readouterr().out) == [
        {'kind': 'kafka', 'version': install.KAFKA_VERSION, 'running': False}
    ]
    assert cli.main(['down']) == 0


def test_up_uses_external_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` uses the broker in RBFLY_URI and starts none; it refuses one of another version."""
    with answering(peer_properties_frame(product='RabbitMQ', version='4.0.5')) as port:
        uri = f'rabbitmq-stream://u:p@127.0.0.1:{port}/'
        monkeypatch.setenv('RBFLY_URI', uri)
        assert cli.main(['up']) == 0
    output = capsys.readouterr()
    assert output.out == f'RBFLY_URI={uri}\n'
    assert 'RabbitMQ 4.0.5' in output.err
    assert not (state.cache_folder() / 'run').exists()
    for version, expected in (('4.0', 0), ('4.3', 1)):
        with answering(peer_properties_frame(product='RabbitMQ', version='4.0.5')) as port:
            monkeypatch.setenv('RBFLY_URI', f'rabbitmq-stream://u:p@127.0.0.1:{port}/')
            assert cli.main(['up', '--version', version]) == expected
    assert 'RabbitMQ 4.0.5, but 4.3 was requested' in capsys.readouterr().err
    with pytest.raises(brokers.BrokerError, match='a broker that was not started here'):
        rabbitmq.RabbitMQ.ctl(rabbitmq.RabbitMQ.named() or pytest.fail('none'), 'status')


@pytest.mark.parametrize(
    ('name', 'value', 'kind'),
    [
        ('RBFLY_URI', 'rabbitmq-stream://127.0.0.1:{}/', 'rabbitmq'),
        ('RBFLY_KAFKA', '127.0.0.1:{}', 'kafka'),
    ],
)
def test_external_broker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    kind: str,
) -> None:
    """The error names the variable; no other broker is started instead."""
    monkeypatch.setenv(name, value.format(state.free_ports(1)[0]))
    assert cli.main(['up', kind]) == 1
    assert f'brokers: {name}=' in capsys.readouterr().err
    assert cli.main(['status', kind]) == 1


def test_benchmark_provides_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m perf brokers` is an alias; its help refers to the real name."""
    assert perf.main(['brokers', 'status', 'kafka']) == 1
    assert capsys.readouterr().out == f'# kafka {install.KAFKA_VERSION}: not running\n'
    with pytest.raises(SystemExit):
        perf.main(['brokers', 'up', '--help'])
    assert 'usage: python -m brokers up' in capsys.readouterr().out


def test_kafka_refuses_options_of_rabbitmq(capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka refuses RabbitMQ's options; a cluster has at least one node."""
    for wrong in ('up kafka --nodes 3', 'up kafka --version 4.0', 'status kafka --version 4.0'):
        assert cli.main(wrong.split()) == 2
        assert 'Kafka does not support' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(['up', '--nodes', '0'])


def test_help_only_needs_the_standard_library() -> None:
    """`--help` works without any installed package."""
    done = subprocess.run(
        [
            sys.executable,
            '-I',
            '-S',
            '-c',
            f'import sys; sys.path.insert(0, {str(CHECKOUT)!r}); '
            'from brokers.cli import main; main(["--help"])',
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert 'RBFLY_CACHE' in done.stdout


def test_progress_on_a_terminal_and_elsewhere() -> None:
    """A terminal shows one line updated in place; other streams get separate lines."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream in (io.StringIO(), Terminal()):
        progress = state.Progress(stream)
        with progress.step('working'):
            progress._printed = 0.0
            progress.update('half done')
        text = stream.getvalue()
        assert 'half done' in text
        assert 'brokers: working: done in' in text
        assert ('\r' in text) is stream.isatty()


PRINTING = pytest.mark.parametrize(
    'command',
    [['perf', 'list'], ['perf', '--help'], ['proofs', 'list'], ['brokers', '--help'],
     ['brokers', 'status', '--json'], ['rbfly', '--help'], ['rbfly', 'broker', '--help']],
    ids=' '.join,
)  # fmt: skip
# As in Python 3.11.2, whose argparse raises the error of a broken pipe, and flushes.
RAISING_HELP = """
import argparse, runpy, sys

def print_message(self, message, file=None):
    if message:
        (file or sys.stderr).write(message)
        (file or sys.stderr).flush()

argparse.ArgumentParser._print_message = print_message
sys.argv[0] = sys.argv[1]
runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)
"""


@PRINTING
@pytest.mark.parametrize(
    'how', [['-m'], ['-u', '-m'], ['-c', RAISING_HELP]], ids=lambda how: how[0]
)
def test_closed_output_is_silent(command: list[str], how: list[str]) -> None:
    """As with `| head`: neither the program nor Python's shutdown reports a broken pipe."""
    reader, writer = os.pipe()
    os.close(reader)  # before the start
    result = subprocess.run(
        [sys.executable, '-X', 'dev', *how, *command],
        cwd=CHECKOUT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert result.stderr == ''


def test_demo_with_a_closed_output_shows_only_its_progress() -> None:
    command = [sys.executable, '-m', 'perf', 'demo', '--count', '100', '--broker', 'memory']
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        command, cwd=CHECKOUT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    os.close(writer)
    assert 'BrokenPipe' not in result.stderr
    assert 'consume: 100 of 100 messages' in result.stderr or result.returncode == 0


@PRINTING
def test_output_that_is_closed_before_the_start_is_silent(command: list[str]) -> None:
    """As with `>&-`: nothing is printed as an error instead."""
    line = shlex.join([sys.executable, '-m', *command]) + ' >&-'
    result = subprocess.run(
        line, shell=True, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert result.stderr == ''
