"""Kafka on loopback, for the benchmarks: one node in KRaft mode, shared or private."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from . import install, sandbox
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


def properties(port: int, controller_port: int, data: str) -> str:
    """The text of `server.properties`."""
    return '\n'.join(
        [
            'process.roles=broker,controller',
            'node.id=1',
            f'controller.quorum.voters=1@{HOST}:{controller_port}',
            f'listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}',
            f'advertised.listeners=PLAINTEXT://{HOST}:{port}',
            'controller.listener.names=CONTROLLER',
            'listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT',
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


class Kafka(Broker):
    """A running Kafka; `address` is HOST:PORT."""

    kind = 'kafka'
    variable = 'RBFLY_KAFKA'
    versions = (install.KAFKA_VERSION,)

    def __init__(
        self,
        port: int,
        *,
        host: str = HOST,
        controller_port: int = 0,
        sandbox: sandbox.Sandbox | None = None,
        java: str = 'java',
        jars: str = IMAGE_JARS,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(sandbox, progress)
        self.host = host
        self.port = port
        self._controller_port = controller_port
        self._java = java
        self._jars = jars

    @property
    def address(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{host}:{self.port}'

    def variables(self) -> dict[str, str]:
        return {self.variable: self.address}

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
            text = properties(self.port, self._controller_port, f'{base}/data')
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
        broker = cls(state['port'], sandbox=sandbox.load(folder, state), progress=progress)
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
    port, controller_port = free_ports(2)
    folder = run_folder(instance)
    unique = f'{instance}-{secrets.token_hex(4)}'
    if engine := sandbox.engine():
        progress.say(f'using {engine}, image {IMAGE}')
        return Kafka(
            port,
            controller_port=controller_port,
            progress=progress,
            sandbox=sandbox.Container(folder, unique, engine, IMAGE),
        )
    install.ensure_programs({'setsid': 'util-linux'}, progress)
    java = install.java(progress)
    jars = install.kafka_jars(progress)
    return Kafka(
        port,
        controller_port=controller_port,
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
