"""
Install the brokers, once, into the cache folder.

Each installation is made in a temporary folder and renamed when complete, so an interrupted one is
never mistaken for a finished one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .sandbox import UNSHARE
from .state import BrokerError, Progress, cache_folder, making, run_shown

# RabbitMQ versions and the Debian releases that package them
SUITES = {'4.0': 'trixie', '4.3': 'forky'}
PACKAGES = ('rabbitmq-server', 'openssl', 'ca-certificates')
# increment the trailing number when the contents change
RABBITMQ_FOLDER = 'rabbitmq-{}-1'

# programs and the packages that provide them
TO_ENTER = dict.fromkeys(('nsenter', 'setpriv', 'setsid', 'unshare'), 'util-linux')
TO_INSTALL = {**TO_ENTER, 'debootstrap': 'debootstrap', 'mount': 'mount'}

# environment variable of commands in a root filesystem: the RabbitMQ version of that filesystem
INSIDE = 'RBFLY_INSIDE'

KAFKA_VERSION = '3.8.0'
KAFKA_FOLDER = f'kafka-{KAFKA_VERSION}-1'
KAFKA_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

JAVA_PACKAGES = ('openjdk-17-jre-headless', 'openjdk-21-jre-headless')


def apt_install(packages: Sequence[str], progress: Progress) -> None:
    """Install Debian packages on this system; if that fails, update the lists and retry."""
    env = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
    install = ['apt-get', 'install', '--yes', '--no-install-recommends', *packages]
    with progress.step(f'installing {" ".join(packages)}'):
        try:
            run_shown(install, progress, env=env)
        except BrokerError:
            run_shown(['apt-get', 'update'], progress, env=env)
            run_shown(install, progress, env=env)


def missing(programs: Mapping[str, str]) -> dict[str, str]:
    return {prog: package for prog, package in programs.items() if not shutil.which(prog)}


def can_install() -> bool:
    """Whether to install Debian packages; targets of make say if they do."""
    wanted = os.environ.get('RBFLY_INSTALL') != '0'
    return wanted and os.geteuid() == 0 and shutil.which('apt-get') is not None


def missing_text(programs: Mapping[str, str]) -> str:
    """The error text for missing programs that cannot be installed."""
    names = ', '.join(f'{prog} (package {package})' for prog, package in programs.items())
    return (
        f'missing: {names}; install them, or run as root on Debian, '
        'or start a container engine (docker or podman)'
    )


def ensure_programs(programs: Mapping[str, str], progress: Progress) -> None:
    """Ensure that programs exist; `programs` maps each to the package that provides it."""
    absent = missing(programs)
    if absent and can_install():
        apt_install(sorted({*absent.values()}), progress)
        absent = missing(programs)
    if absent:
        raise BrokerError(missing_text(absent))


def obstacle(version: str) -> str | None:
    """The reason why this RabbitMQ version cannot run in a root filesystem here, or None."""
    if inside := os.environ.get(INSIDE):
        if inside != version:
            return f'this root filesystem has RabbitMQ {inside}; {version} is not available in it'
        return None
    if os.geteuid() != 0:
        return (
            'no container engine is available, and only root can run RabbitMQ without one: '
            'start docker or podman, run as root, or set RBFLY_URI to use a running broker'
        )
    absent = missing(TO_ENTER if root_of(version).is_dir() else TO_INSTALL)
    if absent and not can_install():
        return missing_text(absent)
    if not absent and subprocess.run([*UNSHARE, 'true'], capture_output=True).returncode:
        return 'root cannot create namespaces here; in a container, run it as privileged'
    return None


def root_of(version: str) -> Path:
    return cache_folder() / RABBITMQ_FOLDER.format(SUITES[version])


def rabbitmq_root(version: str, progress: Progress) -> Path:
    """The root filesystem with this RabbitMQ version; install it if necessary."""
    if reason := obstacle(version):
        raise BrokerError(reason)
    if INSIDE in os.environ:
        return Path('/')
    suite, root = SUITES[version], root_of(version)
    if root.is_dir():
        ensure_programs(TO_ENTER, progress)
        return root
    with making(root, progress, 'install-rabbitmq') as temporary:
        if temporary is None:
            return root
        ensure_programs(TO_INSTALL, progress)
        temporary.chmod(0o755)
        command = [
            *UNSHARE,
            'debootstrap',
            '--variant=minbase',
            f'--include={",".join(PACKAGES)}',
            suite,
            str(temporary),
            os.environ.get('RBFLY_DEBIAN_MIRROR', ''),
            str(suite_script(suite)),
        ]
        with progress.step(f'installing RabbitMQ {version} (debootstrap {suite}, once)'):
            run_shown(command, progress)
            prepare_root(temporary)
    return root


def suite_script(suite: str, scripts: Path = Path('/usr/share/debootstrap/scripts')) -> Path:
    """The debootstrap script of a Debian release; trixie's if debootstrap lacks it."""
    script = scripts / suite
    return script if script.exists() else scripts / 'trixie'


def prepare_root(root: Path) -> None:
    """Complete a new root filesystem."""
    (root / 'etc/hosts').write_text('127.0.0.1 localhost\n::1 localhost\n')
    for folder in ('srv', 'proc', 'dev', 'checkout'):
        (root / folder).mkdir(exist_ok=True)
    # keep packages from starting services when they are installed
    policy = root / 'usr/sbin/policy-rc.d'
    policy.write_text('#!/bin/sh\nexit 101\n')
    policy.chmod(0o755)
    shutil.rmtree(root / 'var/cache/apt/archives', ignore_errors=True)
    (root / 'var/cache/apt/archives/partial').mkdir(parents=True)


def java_version(java: str) -> int:
    """Major version of a Java program; 0 if it does not run."""
    try:
        result = subprocess.run([java, '-version'], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_java_version(result.stderr + result.stdout)


def parse_java_version(text: str) -> int:
    """The major version in the output of `java -version`."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else 0


def find_java() -> str | None:
    """A Java that runs Kafka 3.8: 17 to 23 (24 removed the security manager)."""
    candidates = [shutil.which('java') or '']
    if home := os.environ.get('JAVA_HOME'):
        candidates.insert(0, f'{home}/bin/java')
    candidates += sorted(str(p) for p in Path('/usr/lib/jvm').glob('*/bin/java'))
    return next((c for c in candidates if c and 17 <= java_version(c) < 24), None)


def java(progress: Progress) -> str:
    """A suitable Java; install one if necessary."""
    program = find_java()
    if program is None and can_install():
        for package in JAVA_PACKAGES:
            try:
                apt_install([package], progress)
            except BrokerError as error:
                progress.say(str(error).splitlines()[0])
            else:
                break
        program = find_java()
    if program is None:
        raise BrokerError(
            f'missing: Java 17 or 21 (package {" or ".join(JAVA_PACKAGES)}); install it, '
            'or start a container engine (docker or podman)'
        )
    return program


def kafka_jars(progress: Progress) -> Path:
    """The folder with Kafka's jars; fetch them with Maven if necessary."""
    jars = cache_folder() / KAFKA_FOLDER
    if jars.is_dir():
        return jars
    with making(jars, progress, 'install-kafka') as temporary:
        if temporary is None:
            return jars
        ensure_programs({'mvn': 'maven'}, progress)
        (temporary / 'pom.xml').write_text(KAFKA_POM)
        with progress.step(f'fetching Kafka {KAFKA_VERSION} (Maven, once)'):
            run_shown(
                [
                    'mvn',
                    '--batch-mode',
                    '--no-transfer-progress',
                    'dependency:copy-dependencies',
                    '-DincludeScope=runtime',
                    f'-DoutputDirectory={temporary}',
                ],
                progress,
                cwd=temporary,
            )
            if not list(temporary.glob(f'kafka_2.13-{KAFKA_VERSION}.jar')):
                raise BrokerError('Maven succeeded but did not download the Kafka jars')
    return jars
