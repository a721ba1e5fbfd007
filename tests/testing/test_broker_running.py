"""The in-memory broker starts and stops: in threads, event loops and forked children."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import ArgumentError, EventLoopError
from rbfly.testing import StreamBroker
from rbfly.testing.node import Node
from tests.leaks import Snapshot
from tests.raw_client import connect_and_open

HANG = 20.0  # seconds; only a bug makes a test wait that long
ROOT = Path(__file__).resolve().parents[2]


def within_time(function: Callable[[], object]) -> None:
    """Call a function in a thread; fail if it hangs."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as ex:
            failed.append(ex)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive(), f'{function} hangs'
    if failed:
        raise failed[0]


async def connect(memory: StreamBroker) -> None:
    async with connect_and_open(memory.uri):
        pass


def check_usable(memory: StreamBroker) -> None:
    """Start the broker, connect to it, and stop it."""
    with memory:
        asyncio.run(connect(memory))
    assert not memory.running


class Interrupted(BaseException):
    """Raised by a signal handler."""


def test_methods_before_the_broker_starts() -> None:
    memory = StreamBroker()
    memory.create_stream('orders')
    memory.publish('orders', 1, 2)
    assert memory.messages('orders') == [1, 2]
    assert memory.published == 2


# -- on_event


@pytest.mark.both_loops
async def test_error_of_on_event_is_reported_to_the_loop() -> None:
    before = Snapshot(futures=True)
    reported: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context['exception']))

    def on_event(text: str) -> None:
        raise ValueError(text)

    async with asyncio.timeout(HANG):
        async with StreamBroker(on_event=on_event) as memory:
            await connect(memory)
    assert [type(item) for item in reported] == [ValueError, ValueError]
    assert 'opened' in str(reported[0])
    assert 'closed' in str(reported[1])
    await before.check()


def test_error_of_on_event_is_logged_by_a_broker_in_a_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_event(text: str) -> None:
        raise ValueError(text)

    with caplog.at_level(logging.ERROR, 'asyncio'):
        within_time(lambda: check_usable(StreamBroker(on_event=on_event)))
    assert 'ValueError: connection 0.1 opened' in caplog.text


def test_stop_from_on_event() -> None:
    memory = StreamBroker(on_event=lambda text: memory.stop())
    before = threading.active_count()
    memory.start()

    async def use() -> None:
        async with connect_and_open(memory.uri) as client:
            assert await client.receive() is None

    within_time(lambda: asyncio.run(use()))
    within_time(memory.stop)
    assert threading.active_count() == before
    assert not memory.running


# -- starting


def test_signal_during_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def open_and_interrupt(*args: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        return node_open(*args)

    node_open = Node.open
    memory = StreamBroker()
    before = threading.active_count()
    handler = signal.signal(signal.SIGALRM, interrupt)
    watchdog = threading.Timer(HANG, os._exit, [1])  # nothing else ends a start that hangs
    watchdog.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Node, 'open', open_and_interrupt)
            with pytest.raises(Interrupted):
                memory.start()
    finally:
        watchdog.cancel()
        watchdog.join()
        signal.signal(signal.SIGALRM, handler)
    assert not memory.running
    check_usable(memory)
    assert threading.active_count() == before


def test_start_from_several_threads() -> None:
    def start(_: int) -> bool:
        try:
            memory.start()
        except EventLoopError:
            return False
        return True

    before = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            memory = StreamBroker()
            assert sorted(pool.map(start, range(8))) == [False] * 7 + [True]
            asyncio.run(connect(memory))
            within_time(memory.stop)
            assert not memory.running
    assert threading.active_count() == before


def test_stop_from_several_threads() -> None:
    for _ in range(20):
        memory = StreamBroker()
        memory.start()
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(lambda _: memory.stop(), range(4))] == [None] * 4  # noqa: B023
        assert not memory.running


def test_ports_above_65535() -> None:
    with pytest.raises(ArgumentError, match='port'):
        StreamBroker(port=65535, nodes=2)
    assert StreamBroker(port=65534, nodes=2).port == 65534


# -- stopping


@pytest.mark.both_loops
async def test_async_context_stops_the_thread() -> None:
    before = threading.active_count()
    memory = StreamBroker()
    memory.start()
    async with asyncio.timeout(HANG):
        await memory.__aexit__(None, None, None)
    assert not memory.running
    await asyncio.get_running_loop().shutdown_default_executor()
    assert threading.active_count() == before


async def test_stop_in_another_event_loop() -> None:
    async with StreamBroker() as memory:
        with pytest.raises(EventLoopError, match='another event loop'):
            await asyncio.to_thread(asyncio.run, memory.__aexit__(None, None, None))
        await connect(memory)


def test_methods_while_the_event_loop_is_not_running() -> None:
    """As with an asynchronous fixture of a blocking test."""
    loop = asyncio.new_event_loop()
    memory = StreamBroker()
    loop.run_until_complete(memory.__aenter__())
    within_time(lambda: memory.create_stream('orders'))
    within_time(lambda: memory.publish('orders', 1))
    loop.run_until_complete(connect(memory))
    assert memory.messages('orders') == [1]
    loop.run_until_complete(memory.__aexit__(None, None, None))
    loop.close()


@pytest.fixture
def collected() -> Iterator[None]:
    yield
    gc.collect()  # so that the sockets of the closed loop warn now, not in another test


@pytest.mark.filterwarnings('ignore::ResourceWarning')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.usefixtures('collected')
def test_event_loop_closed_before_the_broker() -> None:
    async def leave() -> None:
        await memory.__aenter__()
        client = rbs.streams_client(memory.uri)
        await client.create_stream('orders')
        publisher = await left.enter_async_context(client.publisher('orders'))
        await publisher.send(1)

    from contextlib import AsyncExitStack

    left = AsyncExitStack()
    memory = StreamBroker()
    asyncio.run(leave())
    assert not memory.running
    assert memory.connections == 0
    assert memory.messages('orders') == [1]
    memory.publish('orders', 2)
    memory.advance(1)
    memory.cut()
    memory.heal()
    port = memory.port
    check_usable(memory)
    assert memory.port == port
    asyncio.run(memory.__aexit__(None, None, None))
    assert memory.messages('orders') == [1, 2]


FORK = """
import asyncio, os, sys
from rbfly.testing import StreamBroker

def child(*functions):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    for function in functions:
        try:
            print(function())
        except BaseException as ex:
            print(type(ex).__name__)
    sys.stdout.flush()
    os._exit(0)

with StreamBroker() as broker:
    child(lambda: broker.streams, lambda: broker.create_stream('orders'), broker.start, broker.stop)
    broker.create_stream('orders')
    print(broker.streams)
child(lambda: broker.streams)

async def main():
    async with StreamBroker() as broker:
        child(lambda: broker.streams, lambda: asyncio.run(broker.wait_for('orders', 1)))
asyncio.run(main())
"""


def test_forked_child() -> None:
    command = [sys.executable, '-W', 'ignore::DeprecationWarning', '-c', FORK]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    refused = 'EventLoopError'
    assert done.stdout.split() == [
        *[refused] * 3, 'None', "['orders']", "['orders']", refused, refused,
    ], done.stderr  # fmt: skip
