"""Kafka on loopback, for the benchmarks: one node in KRaft mode, shared or private."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from . import certificate, install, sandbox
from .broker import Broker
from .probe import kafka_answers, parse_kafka
from .state import (
    BrokerError,
    Progress,
    free_ports,
    locked,
    read_state,
    run_folder,
    sweep,
    write_state,
)

IMAGE = f'apache/kafka:{install.KAFKA_VERSION}'
IMAGE_JARS = '/opt/kafka/libs'
HOST = '127.0.0.1'
START_TIMEOUT = 90.0
# the options that Kafka's own start script sets, for a fair comparison
JAVA_OPTIONS = (
    '-Xms1G',
    '-Xmx1G',
    '-server',
    '-XX:+UseG1GC',
    '-XX:MaxGCPauseMillis=20',
    '-XX:InitiatingHeapOccupancyPercent=35',
    '-XX:+ExplicitGCInvokesConcurrent',
    '-Djava.awt.headless=true',
)
LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def properties(
    port: int, controller_port: int, tls_port: int, data: str, certificate: str, key: str
) -> str:
    """The text of `server.properties`, which contains the certificate and its key (PEM)."""
    return '\n'.join(
        [
            'process.roles=broker,controller',
            'node.id=1',
            f'controller.quorum.voters=1@{HOST}:{controller_port}',
            f'listeners=PLAINTEXT://{HOST}:{port},SSL://{HOST}:{tls_port},'
            f'CONTROLLER://{HOST}:{controller_port}',
            f'advertised.listeners=PLAINTEXT://{HOST}:{port},SSL://{HOST}:{tls_port}',
            'controller.listener.names=CONTROLLER',
            'listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT',
            'ssl.keystore.type=PEM',
            f'ssl.keystore.certificate.chain={one_line(certificate)}',
            f'ssl.keystore.key={one_line(key)}',
            f'log.dirs={data}',
            'offsets.topic.replication.factor=1',
            'transaction.state.log.replication.factor=1',
            'transaction.state.log.min.isr=1',
            'offsets.topic.num.partitions=4',
            'transaction.state.log.num.partitions=4',
            'group.initial.rebalance.delay.ms=0',
            '',
        ]
    )


def one_line(text: str) -> str:
    """A value of a properties file with several lines."""
    return text.replace('\n', '\\n')


class Kafka(Broker):
    """A running Kafka; `address` is HOST:PORT."""

    kind = 'kafka'
    variable = 'RBFLY_KAFKA'
    tls_variable = 'RBFLY_KAFKA_TLS'
    ca_variable = 'RBFLY_KAFKA_CA'
    versions = (install.KAFKA_VERSION,)

    def __init__(
        self,
        port: int,
        *,
        host: str = HOST,
        controller_port: int = 0,
        tls_port: int = 0,
        sandbox: sandbox.Sandbox | None = None,
        java: str = 'java',
        jars: str = IMAGE_JARS,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(sandbox, progress)
        self.host = host
        self.port = port
        self.tls_port = tls_port
        self._controller_port = controller_port
        self._java = java
        self._jars = jars

    @property
    def address(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{host}:{self.port}'

    @property
    def tls_address(self) -> str:
        """HOST:PORT of the TLS listener; empty if it is not known."""
        if self.external:
            return os.environ.get(self.tls_variable, '')
        return f'{HOST}:{self.tls_port}' if self.tls_port else ''

    @property
    def ca_file(self) -> Path | None:
        """Certificate of the authority of the TLS listener; None if it is not known."""
        if self.external:
            path = os.environ.get(self.ca_variable)
            return Path(path) if path else None
        return self._own_sandbox.folder / 'srv/server.pem'

    def variables(self) -> dict[str, str]:
        found = {
            self.variable: self.address,
            self.tls_variable: self.tls_address,
            self.ca_variable: str(self.ca_file or '') if self.tls_address else '',
        }
        return {name: value for name, value in found.items() if value}

    def alive(self) -> bool:
        """Whether Kafka is running and answers."""
        return (self._sandbox is None or self._sandbox.alive()) and kafka_answers(
            self.host, self.port
        )

    @classmethod
    def private(cls, *, progress: Progress | None = None) -> Kafka:
        """A Kafka for this process, which ends with the process; use as a context manager."""
        sweep()
        instance = f'private-{os.getpid()}-{secrets.token_hex(4)}'
        broker = _make(instance, progress or Progress(quiet=True))
        broker._private = True
        return broker

    def start(self, *, timeout: float = START_TIMEOUT) -> None:
        """Format the storage, start Kafka and wait until it is ready."""
        current = self._own_sandbox
        folder = current.folder
        try:
            (folder / 'srv').mkdir(parents=True)
            base = self._base
            chain, key = folder / 'srv/server.pem', folder / 'srv/server.key'
            certificate.make(chain, key)
            text = properties(
                self.port,
                self._controller_port,
                self.tls_port,
                f'{base}/data',
                chain.read_text(),
                key.read_text(),
            )
            (folder / 'srv/server.properties').write_text(text)
            (folder / 'srv/log4j.properties').write_text(LOG4J)
            write_state(folder, self.save())  # findable even if this is interrupted
            with self._progress.step(current.starting):
                current.start(self._main(), {'HOME': base}, private=self._private)
            with self._progress.step('starting Kafka'):
                deadline = time.monotonic() + timeout
                while not kafka_answers(self.host, self.port, timeout=2):
                    if not current.alive():
                        raise BrokerError(f'Kafka exited during startup:\n{current.log()}')
                    if time.monotonic() > deadline:
                        raise BrokerError(
                            f'Kafka was not ready after {timeout:.0f} s:\n{current.log()}'
                        )
                    self._progress.update(current.log().rpartition('\n')[2])
                    time.sleep(0.2)
            self._complete = True
            write_state(folder, self.save())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Kill Kafka and remove its data."""
        with self._progress.step('stopping Kafka'):
            self._end()

    def save(self) -> dict[str, Any]:
        """The state that `load` needs."""
        return {
            'kind': self.kind,
            'complete': self._complete,
            'port': self.port,
            'tls_port': self.tls_port,
            **self._own_sandbox.save(),
        }

    @classmethod
    def named(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """The broker that RBFLY_KAFKA names, or None."""
        address = (os.environ if environ is None else environ).get(cls.variable)
        if not address:
            return None
        host, port = parse_kafka(address)
        return cls(port, host=host)

    @classmethod
    def load(cls, folder: Path, progress: Progress | None = None) -> Self | None:
        state = read_state(folder)
        if state is None:
            return None
        broker = cls(
            state['port'],
            tls_port=state.get('tls_port', 0),  # a running one may have been started without TLS
            sandbox=sandbox.load(folder, state),
            progress=progress,
        )
        broker._complete = bool(state['complete'])
        return broker

    @property
    def _base(self) -> str:
        """The `srv` folder as seen by the broker."""
        current = self._own_sandbox
        return '/srv' if current.kind == 'container' else str(current.folder / 'srv')

    def _main(self) -> list[str]:
        base = self._base
        cluster = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip('=')
        java = [
            self._java,
            *JAVA_OPTIONS,
            f'-Dlog4j.configuration=file:{base}/log4j.properties',
            '-cp',
            f'{self._jars}/*',
        ]
        script = (
            'n=$1; shift; c=$1; shift; "$@" kafka.tools.StorageTool format -t "$c" '
            '-c "$n" && exec "$@" kafka.Kafka "$n"'
        )
        return ['sh', '-c', script, 'sh', f'{base}/server.properties', cluster, *java]


def _make(instance: str, progress: Progress) -> Kafka:
    install.ensure_programs({'openssl': 'openssl'}, progress)
    port, controller_port, tls_port = free_ports(3)
    folder = run_folder(instance)
    unique = f'{instance}-{secrets.token_hex(4)}'
    if engine := sandbox.engine():
        progress.say(f'using {engine}, image {IMAGE}')
        return Kafka(
            port,
            controller_port=controller_port,
            tls_port=tls_port,
            progress=progress,
            sandbox=sandbox.Container(folder, unique, engine, IMAGE),
        )
    install.ensure_programs({'setsid': 'util-linux'}, progress)
    java = install.java(progress)
    jars = install.kafka_jars(progress)
    return Kafka(
        port,
        controller_port=controller_port,
        tls_port=tls_port,
        sandbox=sandbox.Host(folder, unique),
        java=java,
        jars=str(jars),
        progress=progress,
    )


def up(*, progress: Progress | None = None) -> Kafka:
    """Return the broker that RBFLY_KAFKA names, or the shared one; start that if necessary."""
    progress = progress or Progress()
    if broker := Kafka.named():
        if not broker.alive():
            raise BrokerError(f'{broker.variable}={broker.address}: no Kafka answers there')
        progress.say(f'using {broker.variable}')
        return broker
    name = Kafka.shared()
    with locked(name, progress):
        if broker := Kafka.running(progress=progress):
            progress.say('Kafka is already running')
            return broker
        Kafka._clear(name)
        broker = _make(name, progress)
        broker.start()
        return broker
