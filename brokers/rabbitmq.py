"""
RabbitMQ on loopback: one node or a cluster, shared or private.

The main process of the sandbox is the instance's own Erlang port mapper. The nodes run beside it
and can be started, stopped and killed one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from . import install, sandbox
from .broker import Broker
from .node import CERTIFICATES, HOST, Node, configuration, make_nodes
from .probe import Address, parse_uri, peer_properties
from .state import (
    BrokerError,
    Progress,
    free_ports,
    locked,
    read_state,
    remove,
    run_folder,
    sweep,
    wait_until,
    write_state,
)

IMAGE = 'rabbitmq:{}'
START_TIMEOUT = 120.0
USER = 'rabbitmq'
# keep Erlang's own connections on loopback
LOOPBACK = '-kernel inet_dist_use_interface {127,0,0,1}'
STARTED = b'Server startup complete'


class RabbitMQ(Broker):
    """
    A running RabbitMQ.

    Use `rabbitmq.up()` for the shared broker and `RabbitMQ.private()` for one of your own.
    """

    kind = 'rabbitmq'
    variable = 'RBFLY_URI'
    versions = tuple(install.SUITES)
    version_variable = 'RBFLY_RABBITMQ'

    def __init__(
        self,
        nodes: list[Node],
        *,
        sandbox: sandbox.Sandbox | None = None,
        epmd_port: int = 0,
        plugins: Sequence[str] = (),
        extra: Sequence[str] = (),
        cookie: str = '',
        progress: Progress | None = None,
        address: Address | None = None,
        uris: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sandbox, progress)
        self.nodes = nodes
        self.plugins = tuple(plugins)
        self._epmd_port = epmd_port
        self._extra = tuple(extra)
        self._cookie = cookie
        self._address = address
        self._uris = dict(uris or {})
        self._log_offsets: dict[int, int] = {}  # where the log of each node's last start begins

    # --- addresses ---

    @property
    def uri(self) -> str:
        """Stream URI of the first node."""
        return self._uris.get('RBFLY_URI') or self.nodes[0].uri

    @property
    def uris(self) -> list[str]:
        """Stream URIs of all nodes."""
        return [self.uri] if self.external else [node.uri for node in self.nodes]

    @property
    def tls_uri(self) -> str | None:
        """Stream URI of the first node's TLS listener."""
        return self._uris.get('RBFLY_TLS_URI') if self.external else self.nodes[0].tls_uri

    @property
    def amqp_uri(self) -> str | None:
        """AMQP 0.9.1 URI of the first node."""
        return self._uris.get('RBFLY_AMQP_URI') if self.external else self.nodes[0].amqp_uri

    @property
    def ca_file(self) -> Path | None:
        """Certificate of the authority that signed the server certificates."""
        if self.external:
            path = self._uris.get('RBFLY_TLS_CA')
            return Path(path) if path else None
        return self.srv / 'tls' / 'ca.pem'

    @property
    def client_cert(self) -> tuple[Path, Path]:
        """Certificate and key of the user `guest`, for the EXTERNAL mechanism."""
        return self.srv / 'tls' / 'client.pem', self.srv / 'tls' / 'client.key'

    def variables(self) -> dict[str, str]:
        variables = {
            'RBFLY_URI': self.uri,
            'RBFLY_TLS_URI': self.tls_uri,
            'RBFLY_TLS_CA': str(self.ca_file or ''),
            'RBFLY_AMQP_URI': self.amqp_uri,
        }
        if len(self.nodes) > 1:
            variables['RBFLY_URIS'] = ','.join(self.uris)
        return {name: value for name, value in variables.items() if value}

    @property
    def srv(self) -> Path:
        """The folder that the nodes see as /srv."""
        return self._own_sandbox.folder / 'srv'

    def log_file(self, node: int = 0) -> Path:
        """Path of a node's log."""
        n = self.nodes[node]
        return self.srv / n.folder / 'log' / f'{n.name}.log'

    # --- control ---

    def ctl(self, *args: str, node: int = 0, timeout: float = 60) -> str:
        """Run rabbitmqctl against a node and return its output."""
        return self.tool('rabbitmqctl', *args, node=node, timeout=timeout)

    def tool(self, name: str, *args: str, node: int = 0, timeout: float = 60) -> str:
        """Run one of RabbitMQ's tools (rabbitmqctl, rabbitmq-streams, ...) against a node."""
        return self._own_sandbox.run(
            [self._program(name), '--node', self.nodes[node].name, *args],
            self._node_environment(self.nodes[node]),
            user=USER,
            timeout=timeout,
        )

    def alive(self, node: int | None = None) -> bool:
        """Whether a node, or every node, is running."""
        if self._sandbox is None:
            return self._answers(self.nodes[0])
        if not self._sandbox.alive():
            return False
        nodes = self.nodes if node is None else [self.nodes[node]]
        return all(self._started(n) and not self._ended(n) for n in nodes)

    @property
    def release(self) -> str:
        """The full version reported by the first node; empty if the node does not answer."""
        return self._properties(self.nodes[0]).get('version', '')

    def start_node(self, node: int, *, timeout: float = START_TIMEOUT) -> None:
        """Start a node with its previous ports and data, and wait until it is ready."""
        self._launch(self.nodes[node])
        self._await_ready([self.nodes[node]], timeout)

    def stop_node(self, node: int, *, timeout: float = 60) -> None:
        """Shut a node down cleanly and wait until it has exited."""
        if not self.alive(node):
            return
        self.ctl('shutdown', node=node, timeout=timeout)
        self._await_end(self.nodes[node], timeout)

    def restart_node(self, node: int = 0, *, timeout: float = START_TIMEOUT) -> None:
        """Shut a node down cleanly and start it again."""
        self.stop_node(node)
        self.start_node(node, timeout=timeout)

    def kill_node(self, node: int = 0) -> None:
        """Kill a node without warning and wait until it has exited."""
        self._signal(node, 'KILL')
        self._await_end(self.nodes[node], 10)

    def pause_node(self, node: int = 0) -> None:
        """Suspend a node's process: its connections stay open, but nothing answers."""
        self._signal(node, 'STOP')
        if not wait_until(lambda: self._paused(node), 10):
            raise BrokerError(f'{self.nodes[node].name} is still running after 10 s')

    def resume_node(self, node: int = 0) -> None:
        """Resume a paused node."""
        self._signal(node, 'CONT')

    def isolate_node(self, node: int = 0) -> None:
        """Partition a node from the other nodes; clients can still reach all of them.

        This disconnects the node and sets another cookie for its peers, to prevent reconnects.
        """
        self._with_others(node, 'erlang:set_cookie(N, isolated), erlang:disconnect_node(N)')
        if peers := self.ctl('eval', 'nodes().', node=node).strip('[] \n'):
            raise BrokerError(f'{self.nodes[node].name} is still connected to {peers}')

    def join_node(self, node: int = 0) -> None:
        """End the partition of an isolated node."""
        self._with_others(node, 'erlang:set_cookie(N, erlang:get_cookie()), net_adm:ping(N)')

    def _with_others(self, node: int, code: str) -> None:
        others = ', '.join(f"'{other.name}'" for other in self.nodes if other.index != node)
        self.ctl('eval', f'[begin {code} end || N <- [{others}]].', node=node)

    def stop(self, *, orderly: bool = True, timeout: float = 30) -> None:
        """Stop all nodes and remove the data."""
        current = self._own_sandbox
        if orderly and current.alive():
            running = [n for n in self.nodes if self.alive(n.index)]
            with self._progress.step(f'stopping {len(running)} node(s)'):
                self._shut_down(running, timeout)
        self._end()

    # --- creation ---

    @classmethod
    def private(
        cls,
        nodes: int = 1,
        *,
        version: str | None = None,
        advertised_ports: Sequence[int | None] | None = None,
        advertised_hosts: Sequence[str | None] | None = None,
        advertised_tls_ports: Sequence[int | None] | None = None,
        plugins: Sequence[str] = (),
        config: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> RabbitMQ:
        """
        A RabbitMQ for this process; it ends when the process does, even if that is killed.

        Start it with `start` or by using it as a context manager. Its ports are known before
        that, so proxies can be put in front of the nodes: pass their ports as `advertised_ports`,
        where `None` stands for the node's own port.

        :param version: `4.0` or `4.3`; default: the value of RBFLY_RABBITMQ.
        """
        sweep()
        instance = f'private-{os.getpid()}-{secrets.token_hex(4)}'
        broker = _make(
            instance,
            cls.chosen(version),
            nodes,
            advertised_ports,
            advertised_hosts,
            advertised_tls_ports,
            plugins,
            config,
            progress or Progress(quiet=True),
        )
        broker._private = True
        return broker

    @classmethod
    @contextlib.contextmanager
    def joined(cls, name: str) -> Iterator[RabbitMQ]:
        """
        A RabbitMQ shared by several processes: the first one to enter starts it, and it ends when
        the last one has left, even if that is killed.

        :param name: instance name, `private-PID-...`, with the PID of a process that outlives it.
        """
        folder = run_folder(name)
        with locked('joined'):
            broker = cls.load(folder)
            if broker is None or not broker._complete or not broker._own_sandbox.hold():
                remove(folder)
                quiet = Progress(quiet=True)
                broker = _make(name, cls.chosen(), 1, None, None, None, (), (), quiet)
                broker._private = True
                broker.start()
        try:
            yield broker
        finally:
            with locked('joined'):
                if broker._own_sandbox.held_by_others():
                    broker._own_sandbox.release()
                else:
                    broker.stop(orderly=False)

    @classmethod
    def obstacle(cls) -> str | None:
        """The reason why no RabbitMQ can run here, or None if one can."""
        if cls.named() or cls.running() or sandbox.engine():
            return None
        return install.obstacle(cls.chosen())

    def start(self, *, timeout: float = START_TIMEOUT) -> None:
        """Start all nodes; in a cluster, the first one before the others, which join it."""
        current = self._own_sandbox
        try:
            self._write_files()
            write_state(current.folder, self.save())  # findable even if this is interrupted
            with self._progress.step(current.starting):
                current.start(
                    ['epmd', '-port', str(self._epmd_port), '-address', HOST],
                    self._environment(),
                    private=self._private,
                )
            current.run(['sh', '-c', CERTIFICATES], self._environment(), user=USER)
            first, others = self.nodes[0], self.nodes[1:]
            with self._progress.step('starting RabbitMQ'):
                self._launch(first)
                self._await_ready([first], timeout)
            if others:
                with self._progress.step(f'starting {len(others)} more node(s)'):
                    for node in others:
                        self._launch(node)
                    self._await_ready(others, timeout)
            self._complete = True
            write_state(current.folder, self.save())
        except BaseException:
            self._end()
            raise

    # --- state ---

    def save(self) -> dict[str, Any]:
        """The state that `load` needs."""
        return {
            'kind': self.kind,
            'complete': self._complete,
            'epmd_port': self._epmd_port,
            'plugins': self.plugins,
            'extra': self._extra,
            'cookie': self._cookie,
            'nodes': [dataclasses.asdict(node) for node in self.nodes],
            **self._own_sandbox.save(),
        }

    @classmethod
    def named(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """The broker that RBFLY_URI names, or None."""
        env = os.environ if environ is None else environ
        uri = env.get(cls.variable)
        if not uri:
            return None
        address = parse_uri(uri)
        names = (cls.variable, 'RBFLY_TLS_URI', 'RBFLY_TLS_CA', 'RBFLY_AMQP_URI')
        node = Node(0, '', address.port, host=address.host)
        uris = {name: env[name] for name in names if env.get(name)}
        return cls([node], address=address, uris=uris)

    @classmethod
    def load(cls, folder: Path, progress: Progress | None = None) -> Self | None:
        state = read_state(folder)
        if state is None:
            return None
        broker = cls(
            [Node(**node) for node in state['nodes']],
            sandbox=sandbox.load(folder, state),
            epmd_port=state['epmd_port'],
            plugins=state['plugins'],
            extra=state['extra'],
            cookie=state['cookie'],
            progress=progress,
        )
        broker._complete = bool(state['complete'])
        return broker

    def _details(self) -> dict[str, Any]:
        nodes = [
            {**dataclasses.asdict(node), 'running': self.alive(node.index)} for node in self.nodes
        ]
        running = all(node['running'] for node in nodes)
        return {'running': running, 'nodes': nodes, 'logs': str(self.srv)}

    # --- internals ---

    @property
    def _home(self) -> str | None:
        """RabbitMQ's folder, or None in a container, whose image sets it."""
        if not isinstance(self._own_sandbox, sandbox.Root):
            return None
        root = self._own_sandbox.root
        home = next(root.glob('usr/lib/rabbitmq/lib/rabbitmq_server-*'))
        return f'/{home.relative_to(root)}'

    def _program(self, name: str) -> str:
        # avoid Debian's wrapper scripts: they change some arguments
        return f'{self._home}/sbin/{name}' if self._home else name

    def _environment(self) -> dict[str, str]:
        return {
            'HOME': '/srv',
            'ERL_EPMD_PORT': str(self._epmd_port),
            'ERL_EPMD_ADDRESS': HOST,
            'RABBITMQ_CTL_ERL_ARGS': LOOPBACK,
            'RABBITMQ_CTL_DIST_PORT_MIN': '0',
            'RABBITMQ_CTL_DIST_PORT_MAX': '0',
        }

    def _node_environment(self, node: Node) -> dict[str, str]:
        base = f'/srv/{node.folder}'
        plugins = {'PLUGINS_DIR': f'{self._home}/plugins'} if self._home else {}
        return {
            **self._environment(),
            **plugins,
            'RABBITMQ_NODENAME': node.name,
            'RABBITMQ_CONFIG_FILE': f'{base}/rabbitmq.conf',
            'RABBITMQ_CONFIG_FILES': f'{base}/conf.d',  # empty, to ignore the package's own files
            'RABBITMQ_ENABLED_PLUGINS_FILE': f'{base}/enabled_plugins',
            'RABBITMQ_DIST_PORT': str(node.dist_port),
            'RABBITMQ_MNESIA_BASE': f'{base}/data',
            'RABBITMQ_LOG_BASE': f'{base}/log',
            'RABBITMQ_LOGS': f'{base}/log/{node.name}.log',
            'RABBITMQ_PID_FILE': f'{base}/pid',
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': LOOPBACK,
        }

    def _write_files(self) -> None:
        folder = self._own_sandbox.folder
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        for name in ('tls', *(node.folder for node in self.nodes)):
            (self.srv / name).mkdir(parents=True)
        cookie = self.srv / '.erlang.cookie'
        cookie.write_text(self._cookie)
        cookie.chmod(0o600)
        plugins = sorted({'rabbitmq_stream', *self.plugins})
        for node in self.nodes:
            base = self.srv / node.folder
            text = configuration(node, self.nodes, plugins, self._extra)
            (base / 'rabbitmq.conf').write_text(text)
            (base / 'conf.d').mkdir()
            (base / 'enabled_plugins').write_text(f'[{",".join(plugins)}].\n')

    def _started(self, node: Node) -> bool:
        return (self.srv / node.folder / 'node.log').exists()

    def _ended(self, node: Node) -> bool:
        return (self.srv / node.folder / 'node.exit').exists()

    def _launch(self, node: Node) -> None:
        log = self.log_file(node.index)
        self._log_offsets[node.index] = log.stat().st_size if log.exists() else 0
        (self.srv / node.folder / 'node.exit').unlink(missing_ok=True)
        self._own_sandbox.spawn(
            [self._program('rabbitmq-server')],
            self._node_environment(node),
            user=USER,
            out=f'/srv/{node.folder}/node',
        )

    def _await_ready(self, nodes: Sequence[Node], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        waiting = list(nodes)
        while waiting:
            waiting = [n for n in waiting if not self._is_ready(n)]
            for node in waiting:
                if self._ended(node) or not self._own_sandbox.alive():
                    raise BrokerError(f'{node.name} exited during startup:\n{self._tail(node)}')
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f'{node.name} was not ready after {timeout:.0f} s:\n{self._tail(node)}'
                    )
            if waiting:
                self._progress.update(self._tail(waiting[0], 1))
                time.sleep(0.1)

    def _is_ready(self, node: Node) -> bool:
        try:
            with open(self.log_file(node.index), 'rb') as log:
                log.seek(self._log_offsets.get(node.index, 0))
                if STARTED not in log.read():
                    return False
        except OSError:
            return False
        return self._answers(node)

    def _answers(self, node: Node) -> bool:
        return bool(self._properties(node))

    def _properties(self, node: Node) -> dict[str, str]:
        address = self._address or Address(node.host, node.stream_port)
        try:
            return peer_properties(address, timeout=2)
        except OSError:
            return {}

    def _all_answer(self, timeout: float = 20) -> bool:
        return wait_until(lambda: all(map(self._answers, self.nodes)), timeout, 0.2)

    def _tail(self, node: Node, lines: int = 15) -> str:
        """The last lines of a node's log."""
        for path in (self.log_file(node.index), self.srv / node.folder / 'node.log'):
            try:
                text = path.read_text(errors='replace').splitlines()
            except OSError:
                continue
            if text:
                return '\n'.join(text[-lines:])
        return self._own_sandbox.log()

    def _await_end(self, node: Node, timeout: float) -> None:
        if not wait_until(lambda: self._ended(node), timeout):
            raise BrokerError(f'{node.name} is still running after {timeout:.0f} s')

    def _signal(self, node: int, name: str) -> None:
        self._with_pid(node, f'kill -{name} $pid')

    def _paused(self, node: int) -> bool:
        # a thread that runs stops later than `kill` returns
        states = self._with_pid(node, 'grep -h ^State: /proc/$pid/task/*/status')
        return all('(stopped)' in state for state in states.splitlines())

    def _with_pid(self, node: int, command: str) -> str:
        pid = f'/srv/{self.nodes[node].folder}/pid'
        return self._own_sandbox.run(['sh', '-c', f'pid=$(cat {pid}) && {command}'])

    def _shut_down(self, nodes: Sequence[Node], timeout: float) -> None:
        """Ask all nodes at once to stop and wait up to `timeout` seconds."""
        current = self._own_sandbox
        program, env = self._program('rabbitmqctl'), current.environment(self._environment())
        stopping = [
            subprocess.Popen(
                current.command([program, '--node', n.name, 'shutdown'], env, user=USER),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for n in nodes
        ]
        wait_until(lambda: all(p.poll() is not None for p in stopping), timeout)
        for process in stopping:
            if process.poll() is None:
                process.kill()
            process.wait()


def _make(
    instance: str,
    version: str,
    nodes: int,
    advertised_ports: Sequence[int | None] | None,
    advertised_hosts: Sequence[str | None] | None,
    advertised_tls_ports: Sequence[int | None] | None,
    plugins: Sequence[str],
    config: Sequence[str],
    progress: Progress,
) -> RabbitMQ:
    if nodes < 1:
        raise ValueError('at least one node')
    epmd_port, *ports = free_ports(1 + 5 * nodes)
    members = make_nodes(nodes, ports, advertised_ports, advertised_hosts, advertised_tls_ports)
    folder = run_folder(instance)
    unique = f'{instance}-{secrets.token_hex(4)}'
    engine = sandbox.engine()
    place: sandbox.Sandbox
    if engine:
        image = IMAGE.format(version)
        progress.say(f'using {engine}, image {image}')
        place = sandbox.Container(folder, unique, engine, image, f'{USER}:{USER}')
    else:
        place = sandbox.Root(folder, unique, install.rabbitmq_root(version, progress))
    return RabbitMQ(
        members,
        sandbox=place,
        epmd_port=epmd_port,
        plugins=plugins,
        extra=config,
        cookie=secrets.token_hex(16),
        progress=progress,
    )


# --- the shared broker -------------------------------------------------------------------------


def up(
    nodes: int | None = None,
    *,
    version: str | None = None,
    plugins: Sequence[str] = (),
    config: Sequence[str] = (),
    progress: Progress | None = None,
) -> RabbitMQ:
    """Return the broker that RBFLY_URI names, or the shared one; start that if necessary."""
    progress = progress or Progress()
    if broker := RabbitMQ.named():
        address = broker._address or Address('', 0)
        try:
            peer = peer_properties(address)
        except OSError as error:
            raise BrokerError(
                f'RBFLY_URI={address}: no stream listener answers there: {error}'
            ) from None
        product = f'{peer.get("product")} {peer.get("version")}'
        if version and not peer.get('version', '').startswith(f'{version}.'):
            raise BrokerError(
                f'RBFLY_URI={address}: the broker is {product}, but {version} was requested'
            )
        progress.say(f'using RBFLY_URI: {product}')
        return broker
    version = RabbitMQ.chosen(version)
    name = RabbitMQ.shared(version)
    take_down = f'stop it first: python -m brokers down rabbitmq --version {version}'
    with locked(name, progress):
        if broker := RabbitMQ.running(version, progress):
            if nodes not in (None, len(broker.nodes)):
                raise BrokerError(
                    f'RabbitMQ is already running with {len(broker.nodes)} node(s); {take_down}'
                )
            if missing := sorted({*plugins} - {*broker.plugins, 'rabbitmq_stream'}):
                raise BrokerError(
                    f'RabbitMQ is already running without {", ".join(missing)}; {take_down}'
                )
            for node in broker.nodes:
                if not broker.alive(node.index):
                    with progress.step(f'restarting {node.name}'):
                        broker.start_node(node.index)
            if not broker._all_answer():
                raise BrokerError(f'RabbitMQ is running but does not answer; {take_down}')
            progress.say(f'RabbitMQ {broker.release} is already running')
            return broker
        RabbitMQ._clear(name)
        broker = _make(name, version, nodes or 1, None, None, None, plugins, config, progress)
        broker.start()
        progress.say(f'RabbitMQ {broker.release} is running')
        return broker


def cluster_members(broker: RabbitMQ) -> list[str]:
    """Names of the running cluster nodes, as seen by the first node."""
    status = json.loads(broker.ctl('cluster_status', '--formatter', 'json'))
    return sorted(status['running_nodes'])
