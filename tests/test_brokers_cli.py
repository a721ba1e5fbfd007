"""
The brokers command: addresses, state, ports, and the commands that it would run.

No broker is started here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
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
from brokers import cli, inside, install, kafka, node, probe, rabbitmq, room, state
from perf import cli as perf

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine is looked at."""
    monkeypatch.setenv('RBFLY_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setenv('RBFLY_ENGINE', 'none')
    addresses = ('RBFLY_URI', 'RBFLY_TLS_URI', 'RBFLY_TLS_CA', 'RBFLY_AMQP_URI', 'RBFLY_KAFKA')
    for name in (*addresses, 'RBFLY_RABBITMQ', install.INSIDE):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A port on which each frame that is read is answered by the next of these."""
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
    """A PeerProperties response, as it is on the wire."""
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
    """The most specific variable that is set names the folder."""
    assert state.cache_folder(env) == Path(expected)


def test_state_is_read_as_written(tmp_path: Path) -> None:
    """What is written comes back, and leaves no temporary file."""
    state.write_state(tmp_path, {'kind': 'rabbitmq', 'nodes': [1, 2]})
    found = state.read_state(tmp_path)
    assert found is not None
    assert found['nodes'] == [1, 2]
    assert [f.name for f in tmp_path.iterdir()] == ['state.json']


@pytest.mark.parametrize('text', ['', '{', '[]', '{}', '{"version": 0}'])
def test_state_of_others_is_none(tmp_path: Path, text: str) -> None:
    """A state file that is broken or another version's counts as none."""
    assert state.read_state(tmp_path) is None
    (tmp_path / 'state.json').write_text(text)
    assert state.read_state(tmp_path) is None


def test_rabbitmq_is_found_again(tmp_path: Path) -> None:
    """Saving and loading keeps nodes, room and options."""
    nodes = node.make_nodes(2, range(20_000, 20_010), advertised_ports=[None, 5])
    made = rabbitmq.RabbitMQ(
        nodes,
        room=room.Root(tmp_path, 'x', Path('/root-fs'), (12, 34)),
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


def test_kafka_is_found_again(tmp_path: Path) -> None:
    """Saving and loading keeps the port and the room."""
    made = kafka.Kafka(1234, room=room.Container(tmp_path, 'x', 'podman', kafka.IMAGE))
    state.write_state(tmp_path, made.save())
    found = kafka.Kafka.load(tmp_path)
    assert found is not None
    assert found.save() == made.save()
    assert found.address == '127.0.0.1:1234'


def test_process_is_known_by_its_start() -> None:
    """A process with the same number but another start time is another process."""
    with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE) as process:
        started = state.start_time(process.pid)
        assert started is not None
        assert state.is_running(process.pid, started)
        assert not state.is_running(process.pid, started + 1)
        process.kill()
        # until it is waited for, it is a zombie: that does not count as running
        assert state.wait_until(lambda: not state.is_running(process.pid, started), 5)
    assert state.start_time(process.pid) is None


def test_processes_of_an_instance() -> None:
    """Processes are found by the whole of their marker."""
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


def test_lock_is_waited_for() -> None:
    """A second command says that it waits, and goes on after the first."""
    said, order = io.StringIO(), []

    def second() -> None:
        with state.locked('x', state.Progress(said)):
            order.append('second')

    thread = threading.Thread(target=second)
    with state.locked('x'):
        thread.start()
        assert state.wait_until(lambda: 'waiting' in said.getvalue(), 5)
        order.append('first')
    thread.join(5)
    assert order == ['first', 'second']


def test_leftovers_of_private_instances_are_swept() -> None:
    """The folder of a dead private instance goes, a living one's and the shared one's stay."""
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


def test_ports_are_given_once() -> None:
    """Brokers that start beside each other listen on theirs some seconds later."""
    assert not set(state.free_ports(500)) & set(state.free_ports(500))


def test_free_ports() -> None:
    """Ports are distinct, free, and not of those that outgoing connections get."""
    ports = state.free_ports(16)
    assert len(set(ports)) == 16
    assert not set(ports) & set(state.ephemeral_ports())
    for port in ports:
        assert not state.accepts('127.0.0.1', port)


def test_taken_ports_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port on which somebody listens is left out."""
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
    """URIs are read whole; what is none is refused."""
    if expected is None:
        with pytest.raises(brokers.BrokerError, match='not a stream URI'):
            probe.parse_uri(uri)
    else:
        assert probe.parse_uri(uri) == expected


@pytest.mark.parametrize(
    'address',
    [
        probe.Address('127.0.0.1', 5552),
        probe.Address('::1', 1, True, 'ż@/:', 'p?#%', 'a/b'),
    ],
)
def test_uri_is_read_as_written(address: probe.Address) -> None:
    """What is written is read back, whatever the names are."""
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
    """The first of the addresses is read; what is none is refused."""
    if expected is None:
        with pytest.raises(brokers.BrokerError):
            probe.parse_kafka(text)
    else:
        assert probe.parse_kafka(text) == expected


def test_peer_properties() -> None:
    """A stream port is known by its answer."""
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
def test_other_answers_are_no_stream_port(answer: bytes) -> None:
    """Nothing, another protocol, an error, or rubbish: an `OSError` each time."""
    with answering(answer) as port, pytest.raises(OSError):  # noqa: PT011
        probe.peer_properties(probe.Address('127.0.0.1', port), timeout=2)


def test_kafka_answers() -> None:
    """Kafka answers with its versions and at least one member."""

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
    """Every listener is on loopback; the first node waits for nobody, the others join it."""
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
    """Plugins bring the settings that keep them on loopback and make them usable."""
    nodes = node.make_nodes(1, range(20_000, 20_005))
    text = node.configuration(nodes[0], nodes, ['rabbitmq_mqtt', 'rabbitmq_auth_mechanism_ssl'], [])
    assert 'mqtt.listeners.tcp.1 = 127.0.0.1:20003' in text
    assert 'auth_mechanisms.3 = EXTERNAL' in text


def test_one_advertised_port_for_each_node() -> None:
    """Too few advertised ports are refused."""
    with pytest.raises(ValueError, match='each node'):
        node.make_nodes(2, range(20_000, 20_010), [1])


def test_variables(tmp_path: Path) -> None:
    """The addresses, for a shell."""
    nodes = node.make_nodes(2, range(20_000, 20_010))
    broker = rabbitmq.RabbitMQ(nodes, room=room.Root(tmp_path, 'x', Path('/r')))
    assert broker.variables() == {
        'RBFLY_URI': 'rabbitmq-stream://guest:guest@127.0.0.1:20000/',
        'RBFLY_TLS_URI': 'rabbitmq-stream+tls://guest:guest@localhost:20001/',
        'RBFLY_TLS_CA': f'{tmp_path}/srv/tls/ca.pem',
        'RBFLY_AMQP_URI': 'amqp://guest:guest@127.0.0.1:20002/',
        'RBFLY_URIS': 'rabbitmq-stream://guest:guest@127.0.0.1:20000/,'
        'rabbitmq-stream://guest:guest@127.0.0.1:20005/',
    }


def test_kafka_properties() -> None:
    """Every listener is on loopback."""
    lines = dict(line.split('=', 1) for line in kafka.properties(1, 2, '/d').splitlines() if line)
    assert lines['listeners'] == 'PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2'
    assert lines['controller.quorum.voters'] == '1@127.0.0.1:2'
    assert lines['log.dirs'] == '/d'


def test_root_commands(tmp_path: Path) -> None:
    """In the root filesystem, arguments stay words, and commands enter the living namespace."""
    started = state.start_time(os.getpid())
    assert started is not None
    living = room.Root(tmp_path, 'x', Path('/r'), (os.getpid(), started))
    command = living.command(['ctl', 'a b', "$'"], {'A': '1 2'}, user='u')
    assert command[:2] == ['nsenter', f'--target={os.getpid()}']
    assert command[command.index('--') + 1 :][:2] == ['chroot', '/r']
    assert '--reuid=u' in command
    assert command[-6:] == ['env', '-i', 'A=1 2', 'ctl', 'a b', "$'"]

    dead = room.Root(tmp_path, 'x', Path('/r'), (os.getpid(), started + 1))
    with pytest.raises(brokers.BrokerError, match='does not run'):
        dead.command(['ctl'], {})


def test_container_commands(tmp_path: Path) -> None:
    """The container is on the host's network, goes with its main process, and keeps its PATH."""
    box = room.Container(tmp_path, 'x', 'podman', 'image:1', 'u:u')
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
def test_engine_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    answer: str,
    expected: str | None,
) -> None:
    """A client whose engine does not answer does not count."""
    client = tmp_path / 'docker'
    client.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\necho {answer}\n')
    client.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:/nowhere')
    if expected == 'error':
        with pytest.raises(brokers.BrokerError, match='no such container engine'):
            room.engine({'RBFLY_ENGINE': wanted})
    else:
        assert room.engine({'RBFLY_ENGINE': wanted}) == expected


@pytest.mark.parametrize('private', [True, False])
def test_private_room_ends_with_its_owner(tmp_path: Path, private: bool) -> None:
    """Closing the pipe ends a private room and removes its folder; a shared room stays."""
    folder = tmp_path / 'run'
    folder.mkdir()
    host = room.Host(folder, f'test-{tmp_path.name}-{private}')
    host.start(['sleep', '60'], {}, private=private)
    assert host.alive()
    assert state.processes_of(host.instance)
    if private:
        host.release()
        assert state.wait_until(lambda: not folder.exists(), 10)
    else:
        state.write_state(folder, host.save())
        saved = state.read_state(folder)
        assert saved is not None
        again = room.load(folder, saved)
        assert again.alive()
        again.kill()
    assert state.wait_until(lambda: not host.alive(), 10)
    assert state.wait_until(lambda: not state.processes_of(host.instance), 10)


def test_private_room_ends_with_the_last_that_holds_it(tmp_path: Path) -> None:
    """Another object, as in another process, keeps it alive; of a room that is gone it is told."""
    folder = tmp_path / 'run'
    folder.mkdir()
    first = room.Host(folder, f'test-{tmp_path.name}')
    first.start(['sleep', '60'], {}, private=True)
    second = room.load(folder, {**first.save(), 'main': None})
    assert second.hold()
    assert first.held_by_others()
    first.release()
    assert second.alive()
    assert not second.held_by_others()
    second.release()
    assert state.wait_until(lambda: not folder.exists(), 10)
    assert not second.hold()


def test_room_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of what should have been the room are in the error, and come soon."""
    host = room.Host(tmp_path, f'test-{tmp_path.name}')
    command = ['sh', '-c', 'echo broken on purpose; exit 3']
    monkeypatch.setattr(host, 'main_command', lambda argv, env, private: command)
    begin = time.monotonic()
    with pytest.raises(brokers.BrokerError, match='broken on purpose'):
        host.start(['epmd'], {}, private=False)
    assert time.monotonic() - begin < host.start_timeout


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said with the package that has it."""
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(brokers.BrokerError, match=r'missing: prog-x \(package pack-y\)'):
        install.need({'prog-x': 'pack-y'}, state.Progress(quiet=True))


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
    """The major version of Java, in both ways to write it."""
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
def test_version_is_chosen(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str | None, expected: str
) -> None:
    """The option before the variable, and 4.0 where nobody says; each has a name of its own."""
    if variable is not None:
        monkeypatch.setenv('RBFLY_RABBITMQ', variable)
    assert rabbitmq.RabbitMQ.chosen(option) == expected
    assert rabbitmq.RabbitMQ.shared(option) == f'rabbitmq-{expected}'


def test_unknown_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names those that there are, and nothing is installed."""
    monkeypatch.setenv('RBFLY_RABBITMQ', '3.13')
    for command in (['up'], ['exec', 'rabbitmq', 'true'], ['status']):
        assert cli.main(command) == 1
        assert "no version '3.13', but 4.0, 4.3" in capsys.readouterr().err
    with pytest.raises(brokers.BrokerError, match=r"'3\.13'"):
        rabbitmq.RabbitMQ.private()
    with pytest.raises(SystemExit):
        cli.main(['up', '--version', '3.13'])
    assert not list(state.cache_folder().glob('rabbitmq*'))


def installed(monkeypatch: pytest.MonkeyPatch, suite: str) -> Path:
    """A root filesystem that stands there as if debootstrap had made it."""
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    monkeypatch.setattr(install, 'UNSHARE', ('env',))  # which needs no root
    root = state.cache_folder() / f'rabbitmq-{suite}-1'
    root.mkdir(parents=True)
    return root


@pytest.mark.parametrize(('version', 'suite'), [('4.0', 'trixie'), ('4.3', 'forky')])
def test_each_version_has_its_root(
    monkeypatch: pytest.MonkeyPatch, version: str, suite: str
) -> None:
    """Private brokers of the version that the environment names are in its root filesystem."""
    root = installed(monkeypatch, suite)
    monkeypatch.setenv('RBFLY_RABBITMQ', version)
    assert rabbitmq.RabbitMQ.private().save()['root'] == str(root)
    monkeypatch.delenv('RBFLY_RABBITMQ')
    assert rabbitmq.RabbitMQ.private(version=version).save()['root'] == str(root)


@pytest.mark.parametrize('version', ['4.0', '4.3'])
def test_image_has_the_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Where there is a container engine, its image is of the version."""
    monkeypatch.setattr(room, 'engine', lambda: 'podman')
    assert rabbitmq.RabbitMQ.private(version=version).save()['image'] == f'rabbitmq:{version}'


def test_root_has_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of a root filesystem there is no other version than its own."""
    env = inside.passed_environment({'RBFLY_RABBITMQ': '4.0'}, '4.3')
    for name, value in env.items():
        if name.startswith('RBFLY_'):
            monkeypatch.setenv(name, value)
    assert rabbitmq.RabbitMQ.private().save()['root'] == '/'
    with pytest.raises(brokers.BrokerError, match=r'has RabbitMQ 4\.3, not 4\.0'):
        rabbitmq.RabbitMQ.private(version='4.0')


def test_suite_that_debootstrap_does_not_know(tmp_path: Path) -> None:
    """A Debian that is younger than debootstrap is made as the one before."""
    (tmp_path / 'trixie').touch()
    assert install.suite_script('forky', tmp_path) == tmp_path / 'trixie'
    (tmp_path / 'forky').touch()
    assert install.suite_script('forky', tmp_path) == tmp_path / 'forky'


def test_versions_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is found and taken down by its version; a shell reads the addresses of the chosen."""
    started = state.start_time(os.getpid())
    ports = {'4.0': 20_000, '4.3': 20_005}
    for version, port in ports.items():
        folder = state.run_folder(f'rabbitmq-{version}')
        (folder / 'srv').mkdir(parents=True)
        main = (os.getpid(), started or 0)
        made = rabbitmq.RabbitMQ(
            node.make_nodes(1, range(port, port + 5)), room=room.Root(folder, 'x', tmp_path, main)
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
    """Options stand before `--`, and what stands behind it is the command, word for word."""
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
    with pytest.raises(brokers.BrokerError, match='no command'):
        cli.split_exec(['--'])


def test_inside_environment() -> None:
    """Settings are handed on, what belongs to the outer system is not."""
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


@pytest.mark.parametrize(
    ('works', 'expected'),
    [('install', ['install']), ('update', ['install', 'update', 'install'])],
)
def test_packages_are_installed_from_the_lists_that_are_there(
    tmp_path: Path, works: str, expected: list[str]
) -> None:
    """The lists are fetched anew only if a package is not to be had by them."""
    apt, said = tmp_path / 'apt-get', tmp_path / 'said'
    apt.write_text(f'#!/bin/sh\necho "$@" >>{said}\ngrep -q {works} {said}\n')
    apt.chmod(0o755)
    env = {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    subprocess.run(['sh', '-c', inside.INSTALL, 'sh', 'a', 'b'], env=env, check=True)
    lines = said.read_text().splitlines()
    assert [line.split()[0] for line in lines] == expected
    assert lines[-1].endswith(' a b')


def test_binds(tmp_path: Path) -> None:
    """The checkout is visible, and the certificate that a variable names."""
    binds = inside.default_binds({'RBFLY_TLS_CA': f'{tmp_path}/ca.pem', 'HOME': '/h'}, CHECKOUT)
    assert binds[0] == (str(CHECKOUT), '/checkout')
    assert (str(tmp_path), str(tmp_path)) in binds
    assert inside.parse_bind(f'{tmp_path}:/in') == (str(tmp_path), '/in')
    for wrong in ('x', f'{tmp_path}:in', f'{tmp_path}:/../x', '/does/not/exist:/in'):
        with pytest.raises(brokers.BrokerError):
            inside.parse_bind(wrong)


# --- the command -------------------------------------------------------------------------------


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Status is 1 when nothing runs; taking nothing down is no error."""
    assert cli.main(['status']) == 1
    assert '# rabbitmq 4.0: not running' in capsys.readouterr().out
    assert cli.main(['status', 'kafka', '--json']) == 1
    assert json.loads(capsys.readouterr().out) == [
        {'kind': 'kafka', 'version': install.KAFKA_VERSION, 'running': False}
    ]
    assert cli.main(['down']) == 0


def test_running_broker_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """RBFLY_URI is asked, reported, and nothing is started; of another version it is refused."""
    with answering(peer_properties_frame(product='RabbitMQ', version='4.0.5')) as port:
        uri = f'rabbitmq-stream://u:p@127.0.0.1:{port}/'
        monkeypatch.setenv('RBFLY_URI', uri)
        assert cli.main(['up']) == 0
    said = capsys.readouterr()
    assert said.out == f'RBFLY_URI={uri}\n'
    assert 'RabbitMQ 4.0.5' in said.err
    assert not (state.cache_folder() / 'run').exists()
    for version, expected in (('4.0', 0), ('4.3', 1)):
        with answering(peer_properties_frame(product='RabbitMQ', version='4.0.5')) as port:
            monkeypatch.setenv('RBFLY_URI', f'rabbitmq-stream://u:p@127.0.0.1:{port}/')
            assert cli.main(['up', '--version', version]) == expected
    assert 'RabbitMQ 4.0.5, not 4.3' in capsys.readouterr().err
    with pytest.raises(brokers.BrokerError, match='not a broker that was started here'):
        rabbitmq.RabbitMQ.ctl(rabbitmq.RabbitMQ.named() or pytest.fail('none'), 'status')


@pytest.mark.parametrize(
    ('name', 'value', 'kind'),
    [
        ('RBFLY_URI', 'rabbitmq-stream://127.0.0.1:{}/', 'rabbitmq'),
        ('RBFLY_KAFKA', '127.0.0.1:{}', 'kafka'),
    ],
)
def test_named_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    kind: str,
) -> None:
    """The error names the variable; no other broker is started instead."""
    monkeypatch.setenv(name, value.format(state.free_ports(1)[0]))
    assert cli.main(['up', kind]) == 1
    assert f'error: {name}=' in capsys.readouterr().err
    assert cli.main(['status', kind]) == 1


def test_benchmark_has_the_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m perf brokers` is another name, and its help says which one to use."""
    assert perf.main(['brokers', 'status', 'kafka']) == 1
    assert capsys.readouterr().out == f'# kafka {install.KAFKA_VERSION}: not running\n'
    with pytest.raises(SystemExit):
        perf.main(['brokers', 'up', '--help'])
    assert 'usage: python -m brokers up' in capsys.readouterr().out


def test_options_of_the_other_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka takes no options of RabbitMQ; a cluster has at least one node."""
    for wrong in ('up kafka --nodes 3', 'up kafka --version 4.0', 'status kafka --version 4.0'):
        assert cli.main(wrong.split()) == 1
        assert 'for RabbitMQ' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(['up', '--nodes', '0'])


def test_help_needs_the_standard_library_only() -> None:
    """`--help` works in an interpreter that sees no installed package."""
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
    """A terminal gets one line that is rewritten, other streams get lines."""

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
