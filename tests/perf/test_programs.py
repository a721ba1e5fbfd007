"""The Go and Java workers, and how they are built."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from brokers import RabbitMQ
from perf import environment, programs
from perf.lanes import Stored
from perf.programs import Program, ProgramError
from perf.store import RabbitStore

HANG = 90.0  # seconds; the Java client may wait 10 s for each partition that it leaves
BOTH = [
    pytest.param('go', marks=pytest.mark.go),
    pytest.param('java', marks=pytest.mark.java),
]


class Worker:
    def __init__(self, program: str, kind: str) -> None:
        self.process = subprocess.Popen(
            programs.command(program, kind),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + '\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def measure(self, count: int) -> Any:
        assert self.ask(do='prepare', count=count) == {}
        asked = perf_counter()
        answer = self.ask(do='run')
        assert asked <= answer['begun'] < answer['ended'] <= perf_counter()
        assert answer['cpu_user'] >= 0
        assert answer['cpu_sys'] >= 0
        assert 1 < answer['max_rss'] / 2**20 < 4096
        return answer['count']

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(HANG)


@contextmanager
def started(program: str, kind: str) -> Iterator[Worker]:
    worker = Worker(program, kind)
    with worker.process:
        try:
            yield worker
        finally:
            worker.process.kill()


@pytest.mark.parametrize('program', BOTH)
def test_program_publishes(
    program: str, broker: RabbitMQ, store: RabbitStore, stream_name: str
) -> None:
    with started(program, 'window') as worker:
        opened = worker.ask(do='open', address=broker.uri, stream=stream_name)
        assert opened == {'loop': 'none'}
        assert worker.measure(25_001) == 25_001
        assert store.count(stream_name) == 25_001
        assert worker.measure(1) == 1
        assert store.count(stream_name) == 25_002
        assert worker.end() == 0


@pytest.mark.parametrize('program', BOTH)
def test_program_consumes(
    program: str, broker: RabbitMQ, store: RabbitStore, stream_name: str
) -> None:
    store.fill(stream_name, 24_000, Stored())
    with started(program, 'consume') as worker:
        assert worker.ask(do='open', address=broker.uri, stream=stream_name) == {'loop': 'none'}
        for count in (24_000, 9_001, 1):
            assert worker.measure(count) == count
        assert worker.end() == 0


@pytest.mark.parametrize('program', BOTH)
def test_program_consumes_what_it_published(
    program: str, broker: RabbitMQ, store: RabbitStore, stream_name: str
) -> None:
    """The program itself checks the last body."""
    for kind in ('window', 'consume'):
        with started(program, kind) as worker:
            worker.ask(do='open', address=broker.uri, stream=stream_name)
            assert worker.measure(12_000) == 12_000


@pytest.mark.parametrize('kind', ['window', 'consume'])
@pytest.mark.parametrize('program', BOTH)
def test_program_reports_a_missing_stream(
    program: str, kind: str, broker: RabbitMQ, stream_name: str
) -> None:
    with started(program, kind) as worker:
        answer = worker.ask(do='open', address=broker.uri, stream=stream_name)
        assert list(answer) == ['error']
        assert 'exist' in answer['error'].lower()
        assert worker.process.wait(HANG) == 1


@pytest.mark.parametrize('program', BOTH)
def test_program_refuses_unknown_commands_and_kinds(program: str) -> None:
    with started(program, 'window') as worker:
        assert 'open' in worker.ask(do='run')['error']
        assert worker.process.wait(HANG) == 1
    with started(program, 'other') as worker:
        assert 'other' in worker.ask(do='open')['error']
        assert worker.process.wait(HANG) == 1


@pytest.mark.parametrize('program', BOTH)
def test_program_exits_at_the_end_of_its_input(program: str) -> None:
    assert programs.missing(program) == ''
    with started(program, 'consume') as worker:
        assert worker.end() == 0


@pytest.mark.parametrize(
    ('program', 'client'),
    [
        pytest.param('go', '1.8.1, go 1.', marks=pytest.mark.go),
        pytest.param('java', '1.11.0, java ', marks=pytest.mark.java),
    ],
)
def test_version_of_client_and_language(program: str, client: str) -> None:
    assert programs.version(program).startswith(client)


# -- building


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source folder of a program that Python builds."""
    source = tmp_path / 'source'
    source.mkdir()
    (source / 'client').write_text('client v1.2\n')
    (source / 'make.py').write_text(
        'import pathlib, sys\n'
        "with open('../calls', 'a') as f:\n"
        "    f.write('.')\n"
        "(pathlib.Path(sys.argv[1]) / 'worker').write_text('made')\n"
    )
    add_program(monkeypatch, 'fake', source)
    monkeypatch.setattr(environment, 'folder', lambda: tmp_path)
    return source


def add_program(monkeypatch: pytest.MonkeyPatch, name: str, source: Path, needs: str = '') -> None:
    made = Program(
        source=source,
        needs={needs or sys.executable: ('Fake', 'package fake')},
        client=('client', r'client v(\S+)'),
        language=((sys.executable, '--version'), r'Python (\S+)'),
        build=(sys.executable, 'make.py', '{out}'),
        start=('start', '{out}/worker'),
    )
    monkeypatch.setitem(programs.PROGRAMS, name, made)


def calls(source: Path) -> int:
    return len((source.parent / 'calls').read_text())


def test_program_is_built_once(fake: Path, tmp_path: Path) -> None:
    made = programs.build('fake')
    assert made == programs.build('fake')
    assert made.parent == tmp_path / 'build' / 'programs'
    assert (made / 'worker').read_text() == 'made'
    assert programs.missing('fake') == ''
    assert programs.command('fake', 'window') == ['start', f'{made}/worker', 'window']
    assert programs.version('fake').startswith('1.2, fake 3.')
    assert calls(fake) == 1
    assert [*made.parent.iterdir()] == [made]


def test_program_is_rebuilt_when_its_sources_change(fake: Path) -> None:
    first = programs.build('fake')
    (fake / 'more').write_text('')
    assert programs.build('fake') != first
    (fake / 'more').unlink()
    assert programs.build('fake') == first
    assert calls(fake) == 2


def test_concurrent_builds_share_one_folder(fake: Path) -> None:
    script = fake / 'make.py'
    script.write_text(script.read_text() + 'import time\ntime.sleep(0.5)\n')
    with ThreadPoolExecutor(4) as pool:
        made = {*pool.map(programs.build, ['fake'] * 4)}
    (folder,) = made
    assert (folder / 'worker').read_text() == 'made'
    assert [*folder.parent.iterdir()] == [folder]


def test_failed_build_gives_its_reason(fake: Path, tmp_path: Path) -> None:
    (fake / 'make.py').write_text("import sys\nprint('started')\nsys.exit('disk full')\n")
    assert programs.missing('fake') == 'building fake failed: disk full'
    with pytest.raises(ProgramError, match='disk full'):
        programs.command('fake', 'window')
    assert [*(tmp_path / 'build' / 'programs').iterdir()] == []


def test_first_error_of_maven_is_the_reason() -> None:
    output = '\x1b[0m[ERROR] COMPILATION ERROR\n[ERROR] [Help 1] https://example.org\n'
    assert programs.reason(output) == 'COMPILATION ERROR'
    assert programs.reason('\n') == 'no message'


def test_missing_compiler_is_named(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_program(monkeypatch, 'absent', fake, needs='no-such-program')
    assert programs.missing('absent') == 'Fake is not installed; package fake'
    assert programs.version('absent') == '1.2'
    with pytest.raises(ProgramError, match='not installed'):
        programs.build('absent')
