"""`python -m perf` and `python -m brokers` in scripts: exit codes, and one line for an error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rbfly.testing import StreamBroker
from tests.command_line import LIMIT, environment, interruptible
from tests.examples import ROOT

NOWHERE = 'rabbitmq-stream://guest:guest@127.0.0.1:1/'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of brokers: none runs."""
    return tmp_path / 'cache'


def run(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-W', 'error', '-m', *command.split()],
        cwd=ROOT,
        env=environment(RBFLY_CACHE=str(folder), **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.parametrize(
    ('command', 'parts'),
    [
        ('perf bogus', ['python -m perf: ', "'bogus'", 'see `python -m perf --help`']),
        ('perf run --rounds 0', ['--rounds', 'see `python -m perf run --help`']),
        ('perf --lanes nothing', ['perf: no lane, library or kind nothing']),
        ('perf --scenario nothing', ['perf: no scenario nothing']),
        ('perf compare', ['python -m perf compare: ', 'required']),
        ('perf brokers bogus', ['python -m perf brokers: ', "'bogus'"]),
        ('brokers bogus', ['python -m brokers: ', "'bogus'"]),
        ('brokers up --nodes many', ['--nodes', 'see `python -m brokers up --help`']),
        ('brokers up kafka --nodes 3', ['brokers: Kafka does not support']),
        ('brokers exec rabbitmq', ['brokers: no command given']),
    ],
)
def test_wrong_arguments(command: str, parts: list[str], folder: Path) -> None:
    done = run(folder, command)
    assert (done.returncode, done.stdout) == (2, '')
    [line] = done.stderr.splitlines()
    assert all(part in line for part in parts)


@pytest.mark.parametrize(
    ('command', 'uri', 'parts'),
    [
        ('perf compare /none /none', '', ['cannot read /none']),
        ('perf demo', NOWHERE, ['127.0.0.1:1', 'python -m brokers up', '--uri']),
        ('perf demo', 'nonsense', ['RBFLY_URI', 'rabbitmq-stream://USER:PASSWORD@HOST']),
        ('perf --lanes rbfly-single', NOWHERE, ['127.0.0.1:1', 'refused']),
        ('perf --lanes rbfly-single', 'nonsense', ['rabbitmq-stream://USER:PASSWORD@HOST']),
        ('brokers up', NOWHERE, ['RBFLY_URI', '127.0.0.1:1']),
        ('brokers up', 'nonsense', ['rabbitmq-stream://USER:PASSWORD@HOST']),
    ],
)
def test_failure(command: str, uri: str, parts: list[str], folder: Path) -> None:
    done = run(folder, command, **({'RBFLY_URI': uri} if uri else {}))
    assert (done.returncode, done.stdout) == (1, '')
    [line] = done.stderr.splitlines()
    assert all(part in line for part in parts)


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    done = run(tmp_path / 'file' / 'cache', 'brokers up', RBFLY_INSTALL='0', RBFLY_ENGINE='none')
    assert (done.returncode, done.stdout) == (1, '')
    [line] = done.stderr.splitlines()
    assert str(tmp_path / 'file') in line


def test_option_names_the_broker(folder: Path, broker_uri: str) -> None:
    """It takes precedence over RBFLY_URI."""
    done = run(folder, f'perf demo --count 100 --uri {broker_uri}', RBFLY_URI=NOWHERE)
    assert done.returncode == 0, done.stderr
    assert 'consumed 100 messages' in done.stdout
    done = run(folder, f'perf --lanes rbfly-single --uri {NOWHERE}', RBFLY_URI=broker_uri)
    assert done.returncode == 1
    assert '127.0.0.1:1' in done.stderr


@pytest.mark.parametrize(
    ('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=['Ctrl-C', 'SIGTERM']
)
def test_interrupted(number: int, code: int, folder: Path) -> None:
    with StreamBroker() as broker:
        broker.silence()  # the demonstration waits for what it has published
        process = subprocess.Popen(
            [sys.executable, '-m', 'perf', 'demo', '--count', '1000', '--uri', broker.uri],
            cwd=ROOT,
            env=environment(RBFLY_CACHE=str(folder)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=interruptible,
        )
        with process:
            try:
                assert process.stderr is not None
                assert b'publish' in process.stderr.readline()
                process.send_signal(number)
                text = process.stderr.read().decode()
                assert process.wait(LIMIT) == code
            finally:
                process.kill()
    assert text.splitlines()[-1] == 'perf: interrupted'
    assert 'Traceback' not in text


@pytest.mark.parametrize('command', ['perf list', 'perf --help', 'brokers status', 'brokers -h'])
def test_reader_has_gone(command: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, '-m', *command.split()],
        cwd=ROOT,
        env=environment(RBFLY_CACHE=str(folder)),
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=LIMIT,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b'')
