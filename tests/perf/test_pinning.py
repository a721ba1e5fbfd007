"""Brokers and lanes on separate processors."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from brokers.state import free_ports
from perf import CommandError, pinning, runner, runs
from perf.results import Settings, read
from perf.store import KafkaStore, Store
from tests.perf.test_benchmark import perf

SERVER = """
import socket, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
with socket.create_server(('127.0.0.1', 0)) as server:
    print(server.getsockname()[1], flush=True)
    input()
"""

pytestmark = pytest.mark.skipif(
    sys.platform != 'linux' or len(os.sched_getaffinity(0)) < 2,
    reason='--pin requires Linux and two processors',
)


@pytest.fixture
def listening() -> Iterator[tuple[int, dict[str, Store]]]:
    """A process with two threads that listens, and its store."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, '-c', SERVER], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield process.pid, {'kafka': KafkaStore(f'127.0.0.1:{port}')}
        process.communicate('\n')


def processors_of(pid: int) -> list[set[int]]:
    """The processors of each thread of a process."""
    return [os.sched_getaffinity(thread.id) for thread in psutil.Process(pid).threads()]


@pytest.mark.parametrize(
    ('cores', 'expected'),
    [
        (['0', '1'], ([0], [1])),
        (['0-1', '0-1'], ([0], [1])),
        (['0,4', '1,5', '2,6', '3,7'] * 2, ([0, 4, 1, 5], [2, 6, 3, 7])),
        (['0-1', '0-1', '2-3', '2-3', '4-5', '4-5'], ([0, 1], [2, 3, 4, 5])),
        (['0'], ([], [0])),
    ],
)
def test_halves_share_no_core(
    cores: list[str], expected: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, 'siblings', cores.__getitem__)
    assert pinning.halves(range(len(cores))) == expected


def test_processors_of_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(['0,2\n', '1\n', '0,2\n']):
        topology = tmp_path / f'cpu{number}/topology'
        topology.mkdir(parents=True)
        (topology / 'thread_siblings_list').write_text(text)
    monkeypatch.setattr(pinning, 'PROCESSORS', tmp_path)
    assert [*map(pinning.siblings, range(4))] == ['0,2', '1', '0,2', '3']
    assert pinning.halves(range(4)) == ([0, 2], [1, 3])


def test_broker_and_lanes_share_no_processor(listening: tuple[int, dict[str, Store]]) -> None:
    pid, stores = listening
    before = os.sched_getaffinity(0)
    with pinning.pinned(stores):
        lanes = os.sched_getaffinity(0)
        first, second = processors_of(pid)
        assert first == second
        assert first | lanes == before
        assert not first & lanes
        assert first
        assert lanes
    assert os.sched_getaffinity(0) == before
    assert processors_of(pid) == [before, before]


def refused(stores: dict[str, Store], message: str) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(CommandError, match=message), pinning.pinned(stores):
        pass
    assert os.sched_getaffinity(0) == before


def test_brokers_that_cannot_be_pinned(listening: tuple[int, dict[str, Store]]) -> None:
    _, stores = listening
    (port,) = free_ports(1)
    refused({'kafka': KafkaStore(f'127.0.0.1:{port}')}, f'no process listens on port {port}')
    refused({'kafka-cluster': stores['kafka']}, 'not possible with the broker kafka-cluster')


def test_machine_that_cannot_pin(
    listening: tuple[int, dict[str, Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stores = listening
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _pid: {0})
    refused(stores, 'at least two processors')
    monkeypatch.delattr(os, 'sched_setaffinity')
    refused(stores, 'requires Linux')


async def test_results_tell_that_a_run_was_pinned(memory_uri: str, tmp_path: Path) -> None:
    path = tmp_path / 'run.jsonl.xz'
    words = ('--lanes', 'rbfly-single', '--scale', '0.001', '--rounds', '1', '--out', str(path))
    await perf('--pin', *words, uri=memory_uri)
    assert read(path).settings.pinned
    await perf('report', str(path), '--out', str(tmp_path))
    assert 'separate processors' in (tmp_path / 'performance.rst').read_text()


def test_processes_that_end_meanwhile(listening: tuple[int, dict[str, Store]]) -> None:
    pid, stores = listening
    with pinning.pinned(stores):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie, which has no threads left
    pinning.move(2**22 + 1, os.sched_getaffinity(0))  # above the largest PID


def test_system_that_refuses(
    listening: tuple[int, dict[str, Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, stores = listening
    set_affinity = os.sched_setaffinity

    def refuse(thread: int, processors: Iterable[int]) -> None:
        if thread == os.getpid() and len(list(processors)) < before:
            raise PermissionError(1, 'Operation not permitted')
        set_affinity(thread, processors)

    before = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, 'sched_setaffinity', refuse)
    refused(stores, 'Operation not permitted')
    assert processors_of(pid) == 2 * [os.sched_getaffinity(0)]


def test_refused_run_leaves_no_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _pid: {0})
    settings = Settings(1, 1, {'single': 1}, ['rbfly-single'], pinned=True)
    with pytest.raises(CommandError, match='at least two processors'):
        runs.measure(tmp_path / 'run.jsonl', settings, [], None, {}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(('processors', 'polls'), [(2, False), (4, True)])
def test_client_that_would_not_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int, polls: bool
) -> None:
    """The busy polling of RbFly requires two processors; that of the floor does not."""
    names = ['raw-socket-polling-single', 'rbfly-polling-single']
    settings = Settings(1, 1, {'single': 1}, names, pinned=True)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _pid: set(range(processors)))
    monkeypatch.setattr(pinning, 'siblings', str)
    monkeypatch.setattr(runner, 'run', lambda *_: None)
    monkeypatch.setattr(os, 'sched_setaffinity', lambda *_: None)
    runs.measure(tmp_path / 'run.jsonl', settings, [], None, {}, {})
    results = read(tmp_path / 'run.jsonl.xz')
    assert results.settings.lanes == (names if polls else names[:1])
    left_out = [item['lane'] for item in results.header['left_out']]
    assert left_out == ([] if polls else names[1:])
    if not polls:  # a resumed run does not lose lanes silently
        with pytest.raises(CommandError, match='rbfly-polling-single: RbFly does not poll'):
            runs.measure(tmp_path / 'run.jsonl.xz', settings, [], results, {}, {})
