"""The parts of the benchmark that need no broker: statistics, result files, runner, options."""

import asyncio
import importlib.metadata
import json
import random
import signal
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from brokers import wire
from perf import (
    CommandError,
    broker_address,
    cli,
    clients,
    environment,
    instructions,
    kafka,
    lanes,
    runner,
    runs,
    table,
    worker,
)
from perf.clients.base import Target, Work
from perf.clients.codec import APP_PROPERTIES, MESSAGES, PROPERTIES, Case, Codec
from perf.clients.values import encoded
from perf.results import Results, Settings, Writer, read
from perf.stats import median_interval, ratio_interval
from rbfly.amqp import decode_amqp

ROOT = Path(__file__).resolve().parents[2]


# -- statistics


def test_median_interval_contains_the_median() -> None:
    source = random.Random(1)
    values = [source.gauss(100, 10) for _ in range(50)]
    found = median_interval(values, seed=1)
    assert found.low < found.value < found.high
    assert found == median_interval(values, seed=1)


def test_interval_of_equal_values_is_a_point() -> None:
    found = median_interval([5.0] * 10)
    assert (found.value, found.low, found.high) == (5, 5, 5)


def test_interval_contains_the_true_median_at_its_level() -> None:
    source = random.Random(7)
    hits = 0
    for i in range(60):
        found = median_interval([source.gauss(0, 1) for _ in range(40)], seed=i)
        hits += found.low <= 0 <= found.high
    assert hits >= 52


def test_paired_ratio_is_narrow_when_rounds_are_slow_together() -> None:
    source = random.Random(3)
    speed = [source.uniform(0.5, 1.5) for _ in range(40)]
    over = [90 * s * source.uniform(0.99, 1.01) for s in speed]
    under = [100 * s for s in speed]
    paired = ratio_interval(over, under, paired=True)
    apart = ratio_interval(over, under)
    assert paired.value == apart.value
    assert paired.low < 0.9 < paired.high
    assert paired.high - paired.low < (apart.high - apart.low) / 2


def test_paired_samples_must_have_the_same_length() -> None:
    with pytest.raises(ValueError, match='different lengths'):
        ratio_interval([1.0, 2.0], [1.0], paired=True)


# -- order of the rounds


def test_order_is_shuffled_by_the_seed() -> None:
    names = [f'lane{i}' for i in range(6)]
    orders = [tuple(runner.order(5, i, names)) for i in range(1, 61)]
    assert orders == [tuple(runner.order(5, i, names)) for i in range(1, 61)]
    assert all(sorted(o) == names for o in orders)
    assert len(set(orders)) > 50
    assert orders != [tuple(runner.order(6, i, names)) for i in range(1, 61)]


def test_every_lane_comes_first_in_some_rounds() -> None:
    names = list('abcd')
    first = Counter(runner.order(1, i, names)[0] for i in range(400))
    assert min(first.values()) > 60


# -- result files


SETTINGS = Settings(3, 42, {'single': 500}, ['raw-socket-single', 'bare-uvloop-single'])


def header(settings: Settings = SETTINGS) -> dict[str, Any]:
    return {
        'environment': {'time': '2026-01-01T00:00:00+00:00', 'python': 'CPython 3.11.7'},
        'settings': asdict(settings),
        'left_out': [{'lane': 'rstream-single', 'reason': 'rstream not installed; install it'}],
    }


def row(lane: str, number: int, rate: float = 1000.0) -> dict[str, Any]:
    answer = {
        'count': 500, 'seconds': 500 / rate, 'cpu_user': 0.02, 'cpu_sys': 0.005,
        'max_rss': 30 * 2**20,
    }  # fmt: skip
    return runner.record(lanes.find(lane), number, answer)


def filled(path: Path, rates: dict[str, float], settings: Settings = SETTINGS) -> Results:
    writer = Writer.create(path, header(settings))
    for number in range(1, settings.rounds + 1):
        for lane, rate in rates.items():
            writer.write(row(lane, number, rate + number))
    writer.close()
    return read(path)


def test_results_are_read_back(tmp_path: Path) -> None:
    results = filled(tmp_path / 'a' / 'r.jsonl', {'raw-socket-single': 1000})
    assert results.settings == SETTINGS
    assert results.done() == {('raw-socket-single', i) for i in (1, 2, 3)}
    rates = results.column('raw-socket-single', 'rate')
    assert rates == pytest.approx({1: 1001, 2: 1002, 3: 1003}, rel=1e-5)
    cpu = results.column('raw-socket-single', 'cpu_per_message')
    assert list(cpu.values()) == pytest.approx(3 * [50e-6])


def test_complete_run_is_compressed_and_can_be_resumed(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / 'r.jsonl.xz', header())
    writer.write(row('raw-socket-single', 1))
    assert [path.name for path in tmp_path.iterdir()] == ['r.jsonl']
    writer.pack()
    assert [path.name for path in tmp_path.iterdir()] == ['r.jsonl.xz']
    with pytest.raises(CommandError, match='--resume'):
        Writer.create(tmp_path / 'r.jsonl', header())
    writer = Writer.resume(read(tmp_path / 'r.jsonl.xz'))
    writer.write(row('raw-socket-single', 2))
    writer.pack()
    assert [path.name for path in tmp_path.iterdir()] == ['r.jsonl.xz']
    assert read(tmp_path / 'r.jsonl.xz').done() == {('raw-socket-single', i) for i in (1, 2)}


def test_compressed_file_has_the_latencies_of_all_rounds_in_one_result(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / 'r.jsonl', header())
    for number, bucket in ((1, '-700'), (2, '-700'), (3, '-650')):
        writer.write(row('raw-socket-single', number) | {'histograms': {'confirm': {bucket: 5}}})
    writer.pack()
    found = [row.get('histograms') for row in read(tmp_path / 'r.jsonl.xz').rows]
    assert found == [None, None, {'confirm': {'-700': 10, '-650': 5}}]


def test_incomplete_last_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / 'r.jsonl'
    filled(path, {'raw-socket-single': 1000})
    whole = path.read_bytes()
    for cut in range(1, 80):
        path.write_bytes(whole[:-cut])
        results = read(path)
        assert len(results.rows) == 2
    writer = Writer.resume(results)
    writer.write(row('raw-socket-single', 3))
    writer.close()
    assert len(read(path).done()) == 3


def test_result_file_is_not_overwritten(tmp_path: Path) -> None:
    filled(tmp_path / 'r.jsonl', {})
    with pytest.raises(CommandError, match='--resume'):
        Writer.create(tmp_path / 'r.jsonl', header())


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'no header'),
        ('{"type": "result"}\n', 'no header'),
        ('[1]\n', 'no header'),
        ('hello\n', 'not JSON lines'),
        ('{"type": "header", "format": 99}\n', 'format 99'),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / 'r.jsonl').write_text(text)
    with pytest.raises(CommandError, match=message):
        read(tmp_path / 'r.jsonl')


def test_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'r.jsonl.xz').write_text('hello\n')
    with pytest.raises(CommandError, match='not compressed'):
        read(tmp_path / 'r.jsonl.xz')


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match='No such file'):
        read(tmp_path / 'r.jsonl')


def test_lane_with_all_its_rounds_has_not_failed(tmp_path: Path) -> None:
    results = filled(tmp_path / 'r.jsonl', {'raw-socket-single': 1000})
    results.add({'type': 'failure', 'lane': 'raw-socket-single', 'round': 2, 'error': 'once'})
    results.add({'type': 'failure', 'lane': 'bare-uvloop-single', 'round': 0, 'error': 'refused'})
    assert results.failed() == {'bare-uvloop-single': 'refused'}


# -- tables


def test_summary_contains_medians_ratios_and_missing_lanes(tmp_path: Path) -> None:
    results = filled(tmp_path / 'r.jsonl', {'raw-socket-single': 2000, 'bare-uvloop-single': 1000})
    results.add({'type': 'failure', 'lane': 'rbfly-single', 'round': 2, 'error': 'lost 3'})
    text = '\n'.join(table.summary(results))
    assert '2,002' in text
    assert '2.00 [2.00, 2.00]' in text
    assert 'floor' in text
    assert 'FAILED rbfly-single: round 2: lost 3' in text
    assert 'left out rstream-single: rstream not installed; install it' in text


def test_summary_omits_numbers_of_failed_lanes(tmp_path: Path) -> None:
    results = filled(tmp_path / 'r.jsonl', {'bare-uvloop-single': 1000})
    writer = Writer.resume(results)
    writer.write(row('raw-socket-single', 1))
    writer.write({'type': 'failure', 'lane': 'raw-socket-single', 'round': 2, 'error': 'lost'})
    writer.close()
    lines = [line for line in table.summary(results) if 'raw-socket' in line]
    assert lines == ['FAILED raw-socket-single: round 2: lost']


def test_summary_compares_lanes_that_poll_with_floors_that_poll(tmp_path: Path) -> None:
    rates: dict[str, float] = {
        'rbfly-single': 900,
        'bare-uvloop-single': 1000,
        'rbfly-polling-single': 1500,
        'bare-uvloop-polling-single': 2000,
    }
    results = filled(tmp_path / 'r.jsonl', rates, Settings(3, 42, {'single': 500}, list(rates)))
    found = {line.split()[0]: line for line in table.summary(results) if '-single' in line}
    assert ' 0.90 [' in found['rbfly-single']
    assert ' 0.75 [' in found['rbfly-polling-single']
    assert found['bare-uvloop-single'].endswith('floor')
    assert found['bare-uvloop-polling-single'].endswith('floor')


def test_compare_prints_ratios_and_differences(tmp_path: Path) -> None:
    a = filled(tmp_path / 'a.jsonl', {'raw-socket-single': 1000, 'bare-uvloop-single': 500})
    other = Settings(3, 1, {'single': 900}, ['raw-socket-single'])
    b = filled(tmp_path / 'b.jsonl', {'raw-socket-single': 1500}, other)
    b.header['environment']['python'] = 'CPython 3.13.0'
    text = '\n'.join(table.compare(a, b))
    assert 'different python: CPython 3.11.7 and CPython 3.13.0' in text
    assert '1.50 [1.50, 1.50]' in text
    assert 'different numbers of messages per round: 500 and 900' in text
    assert 'bare-uvloop' not in text


def test_compare_says_when_files_have_no_lane_in_common(tmp_path: Path) -> None:
    a = filled(tmp_path / 'a.jsonl', {'raw-socket-single': 1000})
    b = filled(tmp_path / 'b.jsonl', {'bare-uvloop-single': 1500})
    assert list(table.compare(a, b))[-1] == 'no lane has results in both files'


# -- lanes


def test_every_lane_is_in_a_scenario_and_its_floor_exists() -> None:
    for name, lane in lanes.LANES.items():
        assert lane.name == name
        assert lane.kind.scenario in lanes.SCENARIOS
        if lane.kind.floor:
            assert f'{lane.kind.floor}-{lane.kind.name}' in lanes.LANES
        if not lane.library.program:
            assert (ROOT / 'perf' / 'clients' / f'{lane.use.module}.py').exists()


def test_message_counts_are_multiples_of_the_batch_size() -> None:
    batch = lanes.KINDS['batch']
    assert batch.count(1) == 1_000_000
    assert batch.count(0.20004) == 200_000
    assert batch.count(1e-9) == 100
    for kind in lanes.KINDS.values():
        assert kind.quick % kind.size == 0
        assert kind.warm_up % kind.size == 0


@pytest.mark.parametrize(
    ('given', 'scenarios', 'expected'),
    [
        (['raw-socket-single'], [], ['raw-socket-single']),
        (['bare-uvloop'], ['publish'],
         ['bare-uvloop-single', 'bare-uvloop-batch', 'bare-uvloop-sub-batch']),
        (['window'], [], ['raw-socket-window', 'rbfly-window', 'rbfly-polling-window']),
        (['raw-socket-[sb][ia]*', 'bare-uvloop-batch'], ['publish'],
         ['raw-socket-single', 'raw-socket-batch', 'bare-uvloop-batch']),
        ([], ['pipeline'], ['raw-socket-window', 'rbfly-window', 'rbfly-polling-window']),
        ([], [], list(lanes.LANES)),
    ],
)  # fmt: skip
def test_select(given: list[str], scenarios: list[str], expected: list[str]) -> None:
    assert [lane.name for lane in lanes.select(given, scenarios)] == expected


def test_select_lists_known_names() -> None:
    with pytest.raises(CommandError, match='rabbit; lanes are raw-socket-single'):
        lanes.select(['rabbit'], [])
    with pytest.raises(CommandError, match='no scenario sing; there are publish'):
        lanes.select([], ['sing'])


def test_other_project_named_rbfly_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == 'rbfly':
            return '0.11.0'
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr('importlib.metadata.version', version)
    assert 'in the checkout' in lanes.missing(lanes.find('rbfly-single'))


def test_missing_distributions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, 'version', lambda name: None if name == 'msgpack' else '1.0')
    assert lanes.missing(lanes.find('aiokafka-single')).startswith('msgpack not installed; pip')
    assert lanes.missing(lanes.find('raw-socket-single')) == ''


# -- options


def parse(*argv: str) -> Any:
    return cli.parser().parse_args(['run', *argv])


def counts(*argv: str) -> dict[str, int]:
    return runs.counts(parse(*argv), {'single', 'batch'})


def test_scale_quick_and_full() -> None:
    assert counts() == {'single': 10_000, 'batch': 200_000}
    assert counts('--full') == {'single': 200_000, 'batch': 1_000_000}
    assert counts('--quick') == {'single': 500, 'batch': 20_000}
    assert counts('--scale', '0.5') == {'single': 100_000, 'batch': 500_000}
    assert counts('--scale', 'single=0.01') == {'single': 2_000, 'batch': 200_000}
    assert counts('--quick', '--scale', 'batch=1') == {'single': 500, 'batch': 1_000_000}


@pytest.mark.parametrize(
    'argv',
    [
        ['--scale', 'x'],
        ['--scale', '0'],
        ['--scale', 'nan'],
        ['--scale', 'inf'],
        ['--scale', 'other=1'],
        ['--scale', ''],
        ['--rounds', '0'],
        ['--rounds', 'ten'],
        ['--quick', '--full'],
    ],
)
def test_wrong_options_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2
    assert 'Traceback' not in capsys.readouterr().err


def test_run_is_the_default_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def do_run(args: Any) -> int:
        given.append(args.rounds)
        return 0

    monkeypatch.setattr(cli, 'do_run', do_run)
    assert cli.main(['--rounds', '7']) == 0
    assert cli.main(['run', '--rounds', '8']) == 0
    assert cli.main([]) == 0
    assert given == [7, 8, None]


def test_codec_lanes_start_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_broker(broker: str) -> str:
        raise AssertionError(broker)

    monkeypatch.setattr(broker_address, 'find', no_broker)
    monkeypatch.setattr(lanes, 'missing', lambda library: '')
    monkeypatch.setattr(runner, 'Worker', FakeWorker)
    out = tmp_path / 'r.jsonl.xz'
    argv = ['--lanes', '*-seed', '--rounds', '3', '--seed', '1', '--out', str(out)]
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    assert '÷ rbfly' in text
    assert 'rbfly-encode-into-seed' in text
    assert 'floor' not in text
    results = read(out)
    assert len(results.rows) == 3 * len(results.settings.lanes)


def test_missing_broker_does_not_affect_codec_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_broker(broker: str) -> str:
        raise CommandError('no broker')

    monkeypatch.setattr(broker_address, 'find', no_broker)
    monkeypatch.setattr(lanes, 'missing', lambda library: '')
    monkeypatch.setattr(runner, 'Worker', FakeWorker)
    argv = ['--rounds', '1', '--out', str(tmp_path / 'r.jsonl')]
    assert cli.main(['--lanes', 'rbfly-single,rbfly-decode-seed', *argv]) == 0
    assert 'left out rbfly-single: no broker' in capsys.readouterr().out
    assert cli.main(['--lanes', 'rbfly-single', *argv]) == 1
    assert 'perf: no broker' in capsys.readouterr().err


def test_lanes_without_their_library_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, 'version', lambda name: None)
    _, settings, left_out = runs.begin(parse('--scenario', 'publish', '--seed', '9'))
    assert {lanes.find(name).use.module for name in settings.lanes} == {
        'raw_socket',
    }
    assert settings.seed == 9
    assert {item['lane'] for item in left_out} >= {'rbfly-single', 'rstream-batch'}


def test_resume_uses_the_settings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / 'r.jsonl'
    filled(path, {'raw-socket-single': 1000})
    out = ('--resume', '--out', str(path))
    assert runs.resumed(parse(*out)).settings == SETTINGS
    same = ('--rounds', '3', '--seed', '42', '--lanes', ','.join(SETTINGS.lanes), '--quick')
    assert runs.resumed(parse(*out, *same)).settings == SETTINGS


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (['--rounds', '4'], 'rounds 3'),
        (['--seed', '4'], 'seed 42'),
        (['--full'], 'single 500'),
        (['--pin'], 'no --pin'),
        (['--when-idle'], 'no --when-idle'),
        (['--lanes', 'raw-socket-single'], 'lanes raw-socket-single,bare-uvloop-single'),
    ],
)
def test_resume_refuses_other_settings(tmp_path: Path, argv: list[str], message: str) -> None:
    path = tmp_path / 'r.jsonl'
    filled(path, {})
    with pytest.raises(CommandError, match=message):
        runs.resumed(parse('--resume', '--out', str(path), *argv))


def test_resume_continues_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, 'results_folder', lambda: tmp_path)
    with pytest.raises(CommandError, match='no run to resume'):
        runs.resumed(parse('--resume'))
    filled(tmp_path / '20260101-000000.jsonl', {})
    filled(tmp_path / '20260102-000000.jsonl', {})
    assert runs.resumed(parse('--resume')).path.name == '20260102-000000.jsonl'


def test_repeat_uses_the_settings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / 'r.jsonl'
    counts = {**SETTINGS.counts, 'kind-of-old': 7}
    settings = replace(SETTINGS, lanes=[*SETTINGS.lanes, 'lane-of-old'], counts=counts)
    filled(path, {}, settings)
    found, repeated, left_out = runs.begin(parse('--repeat', str(path), '--out', 'new.jsonl'))
    assert found == Path('new.jsonl')
    absent = {item['lane'] for item in left_out}
    lanes_left = [name for name in SETTINGS.lanes if name not in absent]
    assert repeated == replace(SETTINGS, lanes=lanes_left)


def test_repeat_refuses_lanes_that_no_longer_exist(tmp_path: Path) -> None:
    path = tmp_path / 'r.jsonl'
    filled(path, {}, replace(SETTINGS, lanes=['lane-of-old']))
    with pytest.raises(CommandError, match='its lanes no longer exist'):
        runs.begin(parse('--repeat', str(path)))


@pytest.mark.parametrize(
    'option', ['--scenario=publish', '--lanes=rbfly', '--rounds=4', '--seed=0', '--scale=0.1',
               '--quick', '--full', '--pin', '--when-idle', '--resume'],
)  # fmt: skip
def test_repeat_refuses_other_settings(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'r.jsonl'
    filled(path, {})
    assert cli.main(['--repeat', str(path), option]) == 2
    assert f'leave out {option.partition("=")[0]}' in capsys.readouterr().err


def test_help_needs_only_the_standard_library() -> None:
    for argv in (['--help'], ['run', '--help'], ['list']):
        done = subprocess.run(
            [sys.executable, '-I', '-S', '-c',
             f'import sys; sys.path.insert(0, {str(ROOT)!r}); from perf.cli import main;'
             f' sys.exit(main({argv!r}))'],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        known = ('--lanes', 'raw-socket', 'compare', 'publish-cuts')
        assert any(word in done.stdout for word in known)


def test_environment_is_json(tmp_path: Path) -> None:
    found = environment.describe({'uvloop': '1'}, {'rabbitmq': {'version': '4.0.5'}})
    assert json.loads(json.dumps(found)) == found
    other = {**found, 'cpus': 99, 'load': [], 'libraries': {'uvloop': '2', 'rstream': '1'}}
    assert environment.differences(found, other) == [
        f'cpus: {found["cpus"]} and 99',
        'libraries, uvloop: 1 and 2',
    ]


# -- the runner, with a fake worker


class FakeWorker:
    """A worker that stores and reports as many messages as requested."""

    def __init__(self, lane: lanes.Lane) -> None:
        self.process = self
        self.count = 0
        self.stored = 0
        self.told = ''

    def tell(self, command: dict[str, Any]) -> None:
        self.told = command['do']
        self.count = command.get('count', self.count)

    def answer(self, timeout: float) -> dict[str, Any]:
        if self.told == 'run':
            self.stored += self.count
        done = {'count': self.count, 'cpu_user': 0.1, 'cpu_sys': 0.0, 'max_rss': 1}
        return {**done, 'begun': 1.0, 'ended': 1.1} if self.told == 'run' else {}

    def kill(self) -> None:
        pass

    def end(self) -> None:
        pass


class FakeStore:
    address = 'nowhere'
    ca_file = ''

    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.counts: Iterator[int] = iter(())

    def far(self, milliseconds: float) -> None:
        assert milliseconds == 0

    def create(self, stream: str) -> None:
        self.streams.add(stream)

    def delete(self, stream: str) -> None:
        self.streams.remove(stream)

    def count(self, stream: str) -> int:
        return next(self.counts)


def run_fake(
    path: Path, counts: list[int], monkeypatch: pytest.MonkeyPatch, results: Results | None = None
) -> tuple[Results, FakeStore]:
    monkeypatch.setattr(runner, 'Worker', FakeWorker)
    settings = Settings(3, 1, {'single': 500}, ['raw-socket-single'])
    writer = Writer.resume(results) if results else Writer.create(path, header(settings))
    store = FakeStore()
    store.counts = iter(counts)
    try:
        runner.run(settings, writer, {'rabbitmq': store})  # type: ignore[dict-item]
    finally:
        writer.close()
    return read(path), store


def test_runner_counts_stored_messages_after_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, store = run_fake(tmp_path / 'r.jsonl', [200, 700, 1200, 1700], monkeypatch)
    assert results.failed() == {}
    assert len(results.rows) == 3
    assert list(store.counts) == []
    assert not store.streams


def test_runner_fails_a_lane_that_lost_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, store = run_fake(tmp_path / 'r.jsonl', [200, 700, 1199], monkeypatch)
    error = 'round 2: the broker holds 1,199 messages instead of 1,200'
    assert results.failed() == {'raw-socket-single': error}
    assert len(results.rows) == 1
    assert 'FAILED raw-socket-single' in capsys.readouterr().err
    assert not store.streams


def test_runner_resumes_with_the_missing_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / 'r.jsonl'
    run_fake(path, [200, 700, 9], monkeypatch)
    results, _ = run_fake(path, [200, 700, 1200], monkeypatch, read(path))
    assert [r['round'] for r in results.rows] == [1, 2, 3]
    assert results.failed() == {}


def test_runner_deletes_streams_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: FakeStore, stream: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeStore, 'count', interrupted)
    deleted: list[str] = []
    monkeypatch.setattr(FakeStore, 'delete', lambda self, stream: deleted.append(stream))
    with pytest.raises(KeyboardInterrupt):
        run_fake(tmp_path / 'r.jsonl', [], monkeypatch)
    assert len(deleted) == 1


# -- the process of a lane


def ask(process: runner.Worker, command: dict[str, Any], timeout: float) -> dict[str, Any]:
    process.tell(command)
    return process.answer(timeout)


def test_worker_reports_why_it_ended() -> None:
    lane = lanes.find('raw-socket-single')
    found = runner.Worker(lane)
    try:
        command = {'do': 'open', 'address': 'http://localhost', 'stream': 's'}
        with pytest.raises(runner.LaneError, match='BrokerError: not a stream URI'):
            ask(found, command, 60)
        with pytest.raises(runner.LaneError, match='its process ended'):
            ask(found, command, 60)
    finally:
        found.end()


def test_worker_without_an_answer_times_out(tmp_path: Path) -> None:
    found = runner.Worker(lanes.find('raw-socket-single'))
    found.process.send_signal(signal.SIGSTOP)  # a fast worker could answer before the test asks
    try:
        with pytest.raises(runner.LaneError, match='no answer'):
            ask(found, {'do': 'prepare', 'count': 1}, 0)
    finally:
        found.process.kill()
        found.end()


def test_measure_times_only_run() -> None:
    seen: list[str] = []

    class Recorder(Work):
        async def open(self) -> None: ...

        async def prepare(self, count: int) -> None:
            seen.append(f'prepare {count}')

        async def run(self) -> int:
            seen.append('run')
            return 5

        async def finish(self) -> None:
            seen.append('finish')

        async def close(self) -> None: ...

    found = asyncio.run(worker.measure(Recorder(lanes.KINDS['single'], Target('', ''))))
    assert seen == ['run', 'finish']
    assert found['count'] == 5
    assert found['begun'] <= found['ended'] < found['begun'] + 60
    assert found['max_rss'] > 2**20


# -- the wire


def test_tls_needs_the_certificate_of_the_authority() -> None:
    with pytest.raises(wire.WireError, match='TLS: pass the certificate'):
        wire.Connection('rabbitmq-stream+tls://h/')


def test_publish_frame() -> None:
    (data,) = wire.publish_frames([b'0123456789'], 1, first_id=7)
    assert data.hex() == (
        '00000024' '0002' '0001' '00' '00000001'
        '0000000000000007' '0000000f' '005375a00a' + b'0123456789'.hex()
    )  # fmt: skip
    assert [len(f) for f in wire.publish_frames([b'x' * 10] * 300, 100)] == [13 + 100 * 27] * 3


def test_long_body_is_a_vbin32() -> None:
    assert wire.data_section(b'x' * 256) == b'\x00Su\xb0\x00\x00\x01\x00' + b'x' * 256


def confirm(count: int) -> bytes:
    ids = b''.join(struct.pack('>Q', i) for i in range(count))
    return struct.pack('>IHHBI', 9 + len(ids), wire.PUBLISH_CONFIRM, 1, 0, count) + ids


def test_properties_are_read_by_the_codec() -> None:
    ctx = decode_amqp(encoded(lanes.Stored(properties=True), 7))
    assert ctx.body == b'0000000007'
    assert ctx.app_properties == APP_PROPERTIES
    found = {name: str(getattr(ctx.properties, name)) for name in PROPERTIES}
    assert found == PROPERTIES


def test_confirms_are_counted_however_the_data_is_split() -> None:
    heartbeat = struct.pack('>IHH', 4, 0x17, 1)
    data = confirm(3) + heartbeat + confirm(100) + confirm(1)
    for step in (1, 2, 7, 13, 50, len(data)):
        rest, total = b'', 0
        for i in range(0, len(data), step):
            rest += data[i : i + step]
            count, used = wire.confirmed(rest)
            total += count
            rest = rest[used:]
        assert (total, rest) == (104, b'')


def test_publish_error_is_not_a_confirm() -> None:
    body = struct.pack('>BIQH', 0, 1, 5, 0x12)
    data = struct.pack('>IHH', 4 + len(body), wire.PUBLISH_ERROR, 1) + body
    with pytest.raises(wire.WireError, match='0x12'):
        wire.confirmed(confirm(1) + data)


class Pieces:
    """A socket that returns its data in pieces."""

    def __init__(self, data: bytes, step: int) -> None:
        self.data = data
        self.step = step
        self.sent = b''

    def recv_into(self, view: memoryview) -> int:
        n = min(self.step, len(view), len(self.data))
        view[:n] = self.data[:n]
        self.data = self.data[n:]
        return n

    def recv(self, size: int) -> bytes:
        piece, self.data = self.data[: self.step], self.data[self.step :]
        return piece

    def sendall(self, data: bytes) -> None:
        self.sent += data


def deliver(chunk_id: int, records: int, size: int, number: int = 0) -> bytes:
    entries = bytes(size)
    chunk = struct.pack(
        '>BBHIqQQIIIBBH', 0x50, 0, records, records, 0, 1, chunk_id, zlib.crc32(entries), size,
        0, 0, 0, 0,
    )  # fmt: skip
    return struct.pack('>IHHB', 5 + len(chunk) + size, wire.DELIVER, 1, number) + chunk + entries


@pytest.mark.parametrize('step', [1, 3, 48, 1000, 10**7])
def test_chunks_are_read_however_the_data_is_split(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, 'READ_SIZE', 200)
    connection = wire.Connection.__new__(wire.Connection)
    answer = struct.pack('>IHHIH', 10, 0x800C, 1, 1, 1)
    sizes = [10, 700, 0, 90, 150]
    data = b''.join(deliver(i * 10, i + 1, size) for i, size in enumerate(sizes))
    connection.socket = Pieces(data + answer, step)  # type: ignore[assignment]
    connection.rest = b''
    found = []
    chunks = connection.chunks()
    for chunk in chunks:
        found.append(chunk)
        if len(found) == 4:
            break
    chunks.close()
    assert found == [(0, 1), (10, 2), (20, 3), (30, 4)]
    assert connection.socket.sent.count(b'\x00\x09\x00\x01\x00\x00\x01') == 4  # type: ignore[attr-defined]
    assert connection.request(wire.UNSUBSCRIBE, b'\x00') == b''


def test_credit_goes_to_the_subscription_of_the_chunk() -> None:
    connection = wire.Connection.__new__(wire.Connection)
    answer = struct.pack('>IHHIH', 10, 0x8007, 1, 1, 1)
    data = answer + deliver(0, 1, 10) + answer + deliver(0, 2, 10, 3) + deliver(10, 3, 10)
    connection.socket = Pieces(data, 1000)  # type: ignore[assignment]
    connection.rest = b''
    chunks = connection.chunks()
    assert [next(chunks) for _ in range(3)] == [(0, 1), (0, 2), (10, 3)]
    credit = [bytes.fromhex(f'0000000700090001{number:02x}0001') for number in (0, 3, 0)]
    assert connection.socket.sent == b''.join(credit)  # type: ignore[attr-defined]


def test_refused_subscription_raises() -> None:
    connection = wire.Connection.__new__(wire.Connection)
    answer = struct.pack('>IHHIH', 10, 0x8007, 1, 1, 2)
    connection.socket = Pieces(answer, 1000)  # type: ignore[assignment]
    connection.rest = b''
    with pytest.raises(wire.WireError, match='refused a subscription'):
        next(connection.chunks())


def test_kafka_records_are_counted_by_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(address: str, key: int, body: bytes) -> bytes:
        assert key == 2
        which = struct.unpack('>q', body[-8:])[0]
        offset = 120 if which == kafka.LATEST else 20
        topic = struct.pack('>h', 3) + b'abc'
        return struct.pack('>i', 1) + topic + struct.pack('>iihqq', 1, 0, 0, -1, offset)

    monkeypatch.setattr(kafka, 'request', request)
    assert kafka.count('localhost:9092', 'abc') == 100


# -- codecs


CODEC_LANES = [lane for lane in lanes.LANES.values() if not (lane.broker or lane.use.python)]


@pytest.mark.parametrize('lane', CODEC_LANES, ids=lambda lane: lane.name)
def test_codec_decodes_what_it_encodes(lane: lanes.Lane) -> None:
    if reason := lanes.missing(lane):
        pytest.skip(reason)
    work = clients.make(lane, Target('', ''))

    async def turn() -> dict[str, Any]:
        await work.prepare(10)
        return await worker.measure(work)

    assert asyncio.run(turn())['count'] == 10


def test_seed_statements_are_fixed() -> None:
    pytest.importorskip('msgspec')
    statements = {}
    for name in ('rbfly-encode-into', 'rbfly-decode', 'msgspec-encode', 'msgspec-decode'):
        work = clients.make(lanes.find(f'{name}-seed'), Target('', ''))
        assert isinstance(work, Codec)
        statements[name] = work.case.statement
    assert statements == {
        'rbfly-encode-into': 'encode_amqp(buffer, stream_message_ctx(data))',
        'rbfly-decode': 'decode_amqp(raw).body',
        'msgspec-encode': 'encode(data)',
        'msgspec-decode': 'decode(raw)',
    }
    data = {'large-int': 2**31 - 1, 'small-list': [1, 2, 3], 'bin-string': b'abc'}
    assert MESSAGES['seed'].body == data


def test_nested_document_has_100_values() -> None:
    def count(value: Any) -> int:
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        return sum(map(count, value)) if isinstance(value, list) else 1

    assert count(MESSAGES['nested'].body) == 100
    assert len(MESSAGES['properties'].properties) == 5
    assert len(MESSAGES['properties'].app_properties) == 10


def test_case_checks_its_result() -> None:
    Case('x = 2; x + y', {'y': 3}, 5).check()
    Case('y', {'y': 'a' * 1000}, 1000, len).check()
    with pytest.raises(ValueError, match=r"y gives 'aaaa.*\.\.\., not 5"):
        Case('y', {'y': 'a' * 1000}, 5).check()


def test_instructions_are_the_difference_of_two_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(instructions, 'check', lambda: None)
    monkeypatch.setattr(instructions, 'run', lambda lane, count, out: 10**6 + count * len(lane))
    names = ['rbfly-decode-seed', 'rbfly-decode-properties']
    found = instructions.measure(names, 100)
    assert found == {name: len(name) for name in names}
    path = tmp_path / 'i.json'
    instructions.store(path, found)
    assert instructions.load(path) == found
    text = '\n'.join(instructions.report(found, {**found, names[0]: 34.0}))
    assert '0.500' in text
    assert f'decoding a body alone: {23 / 17:.2f}' in text


def test_instructions_are_read_from_callgrind_files() -> None:
    assert instructions.total('events: Ir\nfn=(1) main\n0 12\nsummary: 123456\n') == 123456
    assert instructions.total('events: Ir\ntotals: 77\n') == 77
    with pytest.raises(CommandError, match='contains no total'):
        instructions.total('events: Ir\n')


def test_instructions_need_valgrind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr('shutil.which', lambda name: None)
    assert cli.main(['instructions', '--out', str(tmp_path / 'i.json')]) == 1
    assert 'valgrind is not installed' in capsys.readouterr().err
    (tmp_path / 'i.json').write_text('[]')
    with pytest.raises(CommandError, match='not written by'):
        instructions.load(tmp_path / 'i.json')
