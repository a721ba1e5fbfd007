"""Skips tests whose requirements are missing (RabbitMQ, Go or Java), and lists them at the end.

Without RabbitMQ, tests use the in-memory broker, except those that need a RabbitMQ of their own or
have the marker `rabbitmq`. With RBFLY_TESTS=all, such tests fail; with RBFLY_TESTS=nightly, those
marked `nightly` run too.
"""

import os
import shutil
from collections import Counter
from typing import Any

import pytest

from brokers import RabbitMQ
from tests.sizes import NIGHTLY

OWN = {'own_broker', 'joined_broker', 'private_broker'}
BROKERS = {'broker', 'joined_broker', 'private_broker'}
HOW = {
    'RabbitMQ': 'run as root on Debian, or with docker or podman, or name a broker: '
    'RBFLY_URI=rabbitmq-stream://...',
    'Go': 'install it (package golang, https://go.dev)',
    'Java': 'install a JDK and Maven (packages default-jdk-headless, maven)',
}
MISSING = pytest.StashKey[dict[str, str]]()  # requirement: reason
NOT_RUN = pytest.StashKey[Counter[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--broker',
        choices=('rabbitmq', 'memory'),
        default='rabbitmq',
        help='broker of the tests (default: rabbitmq, or memory if there is none)',
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        'markers', 'rabbitmq: needs RabbitMQ; the in-memory broker is no substitute'
    )
    config.addinivalue_line('markers', 'go: needs Go')
    config.addinivalue_line('markers', 'java: needs a JDK and Maven')
    config.addinivalue_line('markers', 'nightly: runs with RBFLY_TESTS=nightly only')
    missing: dict[str, str | None] = {}
    everything = os.environ.get('RBFLY_TESTS') in ('all', 'nightly')
    if config.getoption('--broker') == 'memory':
        missing['RabbitMQ'] = '--broker memory'
    elif not everything:
        missing['RabbitMQ'] = RabbitMQ.obstacle()
    if not everything and shutil.which('go') is None:
        missing['Go'] = 'there is no program `go`'
    for name in ('javac', 'mvn'):
        if shutil.which(name) is None:
            missing['Java'] = f'there is no program `{name}`'
    config.stash[MISSING] = {what: why for what, why in missing.items() if why}
    config.stash[NOT_RUN] = Counter()


def in_memory(config: pytest.Config) -> bool:
    """Whether tests use the in-memory broker."""
    return 'RabbitMQ' in config.stash[MISSING]


def fixtures(item: pytest.Item) -> set[str]:
    """Names of the fixtures of a test, without its parameters."""
    parameters = item.callspec.params if hasattr(item, 'callspec') else ()
    return {*getattr(item, 'fixturenames', ())}.difference(parameters)


def needs(item: pytest.Item) -> set[str]:
    """Return the requirements of a test."""
    names = fixtures(item)
    if 'broker' in names:  # any broker will do, unless the test names another one
        names.discard('joined_broker')
        own = bool(names & OWN)
    else:
        own = bool(names & OWN) or item.get_closest_marker('broker') is not None
    found = set()
    if own or item.get_closest_marker('rabbitmq'):
        found.add('RabbitMQ')
    if item.get_closest_marker('go'):
        found.add('Go')
    if item.get_closest_marker('java'):
        found.add('Java')
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if BROKERS & fixtures(item):
            item.add_marker('broker')
    if not NIGHTLY and (long := [item for item in items if item.get_closest_marker('nightly')]):
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
    missing = config.stash[MISSING].keys()
    left = [item for item in items if needs(item) & missing]
    if not left:
        return
    items[:] = [item for item in items if not needs(item) & missing]
    config.hook.pytest_deselected(items=left)
    config.stash[NOT_RUN] = Counter(
        (min(needs(item) & missing), item.nodeid.partition('::')[0]) for item in left
    )
    if hasattr(config, 'workeroutput'):  # pytest-xdist: only the controller prints
        config.workeroutput['not_run'] = [*config.stash[NOT_RUN].items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, 'workeroutput', {})
    found = {tuple(key): count for key, count in output.get('not_run', ())}
    node.config.stash[NOT_RUN] |= Counter(found)


def pytest_unconfigure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin('terminalreporter')
    found = config.stash.get(NOT_RUN, Counter())
    if terminal is None or hasattr(config, 'workeroutput'):
        return
    for what in sorted({what for what, _ in found}):
        counts = {path: n for (need, path), n in sorted(found.items()) if need == what}
        title = f'NOT RUN: {sum(counts.values())} tests need {what}'
        terminal.write_sep('=', title, red=True, bold=True)
        for path, count in counts.items():
            terminal.write_line(f'{count:5} of {path}')
        terminal.write_line(f'why: {config.stash[MISSING][what]}')
        terminal.write_line(f'how: {HOW[what]}')
    if in_memory(config):
        terminal.write_line('All other tests that need a broker ran on the in-memory broker.')
