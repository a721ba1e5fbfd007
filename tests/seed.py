"""Draws the seed of a run, from which all random choices of the tests follow.

Each run has a new seed unless `--seed` or RBFLY_SEED names one. A run prints it first, and prints
for each failure the command that repeats that test. A test derives its random numbers from the seed
and its own name, so it can be repeated alone. Hypothesis starts from the same seed in every test.
"""

import os
import random
import shlex
from collections.abc import Generator

import pytest
from hypothesis.internal.conjecture import providers

OPTIONS = ('--loop', '--broker')  # that affect a test


def seed_of_run() -> int:
    """The seed of this run; the workers of pytest-xdist share it."""
    return int(os.environ['RBFLY_SEED'])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--seed', type=int, help='repeat a run with its seed (default: RBFLY_SEED, or a new one)'
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose the seed before workers start and before Hypothesis reads its own."""
    seed = config.getoption('--seed')
    if seed is not None:
        os.environ['RBFLY_SEED'] = str(seed)
    elif not os.environ.get('RBFLY_SEED'):
        os.environ['RBFLY_SEED'] = str(random.SystemRandom().randrange(10**9))
    if config.getoption('--hypothesis-seed') is None:
        config.option.hypothesis_seed = str(seed_of_run())
    # Hypothesis also draws constants of imported modules, which differ when a test runs alone.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin('terminalreporter')
    if terminal is not None:
        terminal.write_line(f'seed: {seed_of_run()} (repeat this run with --seed {seed_of_run()})')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        words = ['python', '-m', 'pytest', f'--seed={seed_of_run()}']
        chosen = {name: item.config.getoption(name, None) for name in OPTIONS}
        words += [f'{name}={value}' for name, value in chosen.items() if value]
        report.sections.append(('Repeat with', shlex.join([*words, item.nodeid])))
    return report


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that follow from the seed of the run and the name of the test."""
    return random.Random(f'{seed_of_run()} {request.node.nodeid}')
