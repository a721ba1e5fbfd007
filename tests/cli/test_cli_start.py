"""`rbfly` without a command, without its extra, and with mistakes."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rbfly as package
from rbfly.testing import StreamBroker
from tests.command_line import COMMAND, environment, rbfly
from tests.examples import DISTRIBUTION

IMPORTED = """
import sys
from rbfly.__main__ import main
sys.argv = ['rbfly', *sys.argv[1:]]
try:
    code = main()
finally:
    names = {name.partition('.')[0] for name in sys.modules}
    names |= {name for name in sys.modules if name.startswith('rbfly.')}
    print(code, *names, file=sys.stderr)
"""


def test_help_imports_neither_the_client_nor_a_command() -> None:
    done = rbfly('--help', command=[sys.executable, '-c', IMPORTED])
    code, *names = done.stderr.split()
    assert code == '0'
    assert 'Commands:\n' in done.stdout
    commands = {f'rbfly.cli.{name}' for name in ('broker', 'tail', 'publish', 'stream', 'offset')}
    assert {*names} & ({'rich', 'asyncio', 'ssl', 'rbfly.streams'} | commands) == set()


def test_version() -> None:
    assert rbfly('--version').stdout.split()[-1] == package.__version__


def test_script_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group='console_scripts', name='rbfly')
    assert script.dist is not None
    assert script.dist.name == DISTRIBUTION
    assert script.value == 'rbfly.__main__:main'


@pytest.mark.parametrize('args', [['--help'], ['tail', 'orders'], []])
def test_missing_extra_is_named(args: list[str], tmp_path: Path) -> None:
    (tmp_path / 'click.py').write_text("raise ModuleNotFoundError('no click', name='click')")
    done = rbfly(*args, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ''
    (line,) = done.stderr.splitlines()
    assert 'extra `cli`' in line


def test_broker_works_without_the_extra(tmp_path: Path) -> None:
    (tmp_path / 'click.py').write_text("raise ModuleNotFoundError('no click', name='click')")
    done = rbfly('broker', '--help', PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith('usage: rbfly broker')


@pytest.mark.parametrize(
    ('args', 'expected'),
    [
        (['tial'], "rbfly: No such command 'tial'"),
        (['--nodes', '3', 'broker'], "rbfly: No such option '--nodes'"),
    ],
)
def test_mistake_is_one_line_that_names_the_help(args: list[str], expected: str) -> None:
    done = rbfly(*args)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(expected)
    assert line.endswith('(see `rbfly --help`)')


def test_broker_after_an_option() -> None:
    done = rbfly('--uri', 'rabbitmq-stream://localhost', 'broker', '--port', '70000')
    assert done.returncode == 1
    assert done.stderr == 'rbfly broker: port must be from 0 to 65535, not 70000\n'


def test_reader_of_the_help_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, '--help'],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b'')


def test_stdout_is_closed() -> None:
    script = ['sh', '-c', 'exec "$@" >&-', 'sh', sys.executable, '-m', 'rbfly']
    done = rbfly('--version', command=script)
    assert (done.returncode, done.stderr) == (0, '')


def test_stderr_is_closed() -> None:
    """Errors are not results."""
    script = ['sh', '-c', 'exec "$@" 2>&-', 'sh', sys.executable, '-m', 'rbfly']
    done = rbfly('tail', command=script)
    assert (done.returncode, done.stdout) == (2, '')


@pytest.mark.parametrize('args', ['--help', 'stream stats orders', 'publish orders'])
def test_standard_output_is_full(args: str) -> None:
    """There is one line, and no traceback."""
    script = ['sh', '-c', 'exec "$@" >/dev/full', 'sh', *COMMAND]
    with StreamBroker() as broker:
        broker.create_stream('orders')
        done = rbfly(*args.split(), command=script, RBFLY_URI=broker.uri)
    (line,) = done.stderr.splitlines()
    assert line.endswith('[Errno 28] No space left on device')
    assert done.returncode == 1
