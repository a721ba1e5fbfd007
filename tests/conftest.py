"""Chooses the event loop of each test, and fails tests that leak."""

import asyncio
import gc
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio

from tests.clock import ClockLoop
from tests.leaks import Snapshot
from tests.sizes import sized

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

pytest_plugins = ['tests.seed', 'tests.requirements', 'tests.brokers', 'tests.running']

# Files that take a minute start first, so that no worker runs one alone at the end.  Files that
# wait for a broker and files that compute alternate, so that the processors always have work.
LONGEST = (
    'test_package',
    'test_pyinstaller',
    'test_service',
    'test_prove',
    'test_proofs_faults',
    'test_proofs_leader',
    'test_exact',
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--loop',
        choices=('uvloop', 'asyncio', 'eager', 'both'),
        default='uvloop',
        help='event loop of the asyncio tests (default: uvloop); eager: asyncio, with eager tasks',
    )
    parser.addoption(
        '--traced', action='store_true', help='trace the messages of all clients (OpenTelemetry)'
    )


def trace_all() -> None:
    """Trace the messages of all clients that this process creates."""
    from opentelemetry.sdk.trace import TracerProvider

    from rbfly.otel import tracing
    from rbfly.streams.client import DEFAULTS

    DEFAULTS['tracing'] = tracing(TracerProvider(shutdown_on_exit=False))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption('--traced'):
        trace_all()
    hypothesis.settings.register_profile(
        'tests',
        max_examples=sized(40, 100),
        deadline=None,  # no test asserts a speed
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.data_too_large,
        ],
        derandomize=False,  # which is Hypothesis's default where CI is set
        print_blob=True,
    )
    hypothesis.settings.load_profile('tests')
    config.addinivalue_line('markers', 'both_loops: always run on asyncio and uvloop')
    config.addinivalue_line('markers', 'broker: needs a RabbitMQ; set by its fixtures')
    config.addinivalue_line('markers', 'long: takes minutes with sanitizers')
    config.addinivalue_line('markers', 'examples: the examples of the documentation')
    config.addinivalue_line('markers', 'own_clock: run on a virtual clock, see tests/clock.py')


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    if item.get_closest_marker('own_clock'):
        return {'own clock': ClockLoop}
    factories: dict[str, LoopFactory] = {'asyncio': asyncio.new_event_loop}
    if sys.platform != 'win32':  # uvloop is for POSIX
        import uvloop

        factories = {'uvloop': uvloop.new_event_loop, **factories}
    name = config.getoption('--loop')
    if name == 'both' or item.get_closest_marker('both_loops'):
        return factories
    if name == 'eager':
        return {name: eager_loop}
    return {name: factories[name]}


@pytest.fixture
def endless_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task lets others run because a busy machine has slowed it down."""
    from rbfly.streams._consume import waiter
    from rbfly.streams._publish import send_many

    for module in (waiter, send_many):
        monkeypatch.setattr(module, 'TURN', math.inf)


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    return loop


def spread(items: list[pytest.Item]) -> dict[Path, float]:
    """The place of each file, 0 to 1, among those that use a broker or among the others."""
    paths = [item.path for item in items]
    using = {item.path for item in items if item.get_closest_marker('broker')}
    places: dict[Path, float] = {}
    for part in ([p for p in paths if p in using], [p for p in paths if p not in using]):
        for number, path in enumerate(part):
            places.setdefault(path, number / len(part))
    return places


@pytest.hookimpl(trylast=True)  # after `broker` is set
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = spread(items)
    items.sort(key=lambda item: (item.path.stem not in LONGEST, places[item.path]))
    for item in items:
        if isinstance(item, pytest.Function) and pytest_asyncio.is_async_test(item):
            item.fixturenames.insert(0, 'tidy')


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(hypothesis.strategies.none())
def first_example(nothing: None) -> None:
    """Creates Hypothesis's random generator before `gc.freeze`; later it warns (Python 3.14)."""


def pytest_collection_finish() -> None:
    first_example()
    gc.collect()
    gc.freeze()  # each collection would take 0.1 s for the imported modules


@pytest_asyncio.fixture
async def tidy() -> AsyncIterator[None]:
    """Fails an asyncio test that leaves a task, a socket or an exception never retrieved."""
    strays: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
    before = Snapshot()
    yield
    await before.check()
    gc.collect()  # futures report exceptions never retrieved when they are deleted
    gc.freeze()  # each collection would visit the reports of all earlier tests
    assert not strays
