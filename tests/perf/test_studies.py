"""Studies: their kinds of work, how they are run, and how the report presents their results.

The result file of these tests is synthetic.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from brokers import wire
from perf import histogram, lanes, report, runner, stats
from perf.delayed_broker import DelayedBroker
from perf.report.figures import LATENCIES, OVERVIEW
from perf.report.page import compose
from perf.results import Settings, Writer, read
from perf.store import RabbitStore
from tests.perf.test_perf import FakeStore, FakeWorker, header
from tests.sphinx import build

ROUNDS = 3
STUDIES = [*dict.fromkeys(kind.scenario for kind in lanes.KINDS.values() if kind.series)]


# -- kinds of work


def test_every_study_compares_rbfly_with_another_library() -> None:
    for scenario in STUDIES:
        used = {ln.library.name for ln in lanes.LANES.values() if ln.kind.scenario == scenario}
        assert 'rbfly' in used
        assert len(used) > 1 or scenario in ('values', 'growth')


def test_message_counts_divide_evenly() -> None:
    for lane in lanes.LANES.values():
        kind, part = lane.kind, lane.use.part
        for count in (kind.full, kind.quick):
            given = count if part == 1 else kind.whole(count * part)
            assert given % (kind.processes * kind.publishers * kind.tasks * kind.streams) == 0
            assert given % kind.frame == 0


def test_every_series_has_a_title() -> None:
    for kind in lanes.KINDS.values():
        if kind.series:
            assert kind.series in lanes.SCENARIOS[kind.scenario].series


def test_overview_names_existing_kinds_of_work() -> None:
    assert OVERVIEW.keys() <= lanes.KINDS.keys()


# -- the runner


class Slow(FakeWorker):
    """A worker that ends later than those created before it."""

    made = 0

    def __init__(self, lane: lanes.Lane) -> None:
        super().__init__(lane)
        Slow.made += 1
        self.number = Slow.made

    def answer(self, timeout: float) -> dict[str, Any]:
        found = super().answer(timeout)
        return found | {'ended': found['ended'] + self.number} if 'ended' in found else found


class Far1ms(FakeWorker):
    trip = 0.0011

    def answer(self, timeout: float) -> dict[str, Any]:
        found = super().answer(timeout)
        return found | {'round_trip': self.trip} if self.told == 'prepare' else found


class CountedStore(FakeStore):
    """Holds as many messages as the workers report."""

    def __init__(self, workers: list[tuple[str, FakeWorker]]) -> None:
        super().__init__()
        self.workers = workers
        self.moved: list[float] = []

    def far(self, milliseconds: float) -> None:
        self.moved.append(milliseconds)

    def count(self, stream: str) -> int:
        return sum(worker.stored for name, worker in self.workers if stream.endswith(name))


def run(
    path: Path,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[FakeWorker] = FakeWorker,
    count: int = 24_000,
) -> tuple[Any, CountedStore]:
    workers: list[tuple[str, FakeWorker]] = []

    def make(lane: lanes.Lane) -> FakeWorker:
        workers.append((lane.name, kind(lane)))
        return workers[-1][1]

    monkeypatch.setattr(runner, 'Worker', make)
    counts = {lanes.find(name).kind.name: count for name in names}
    settings = Settings(ROUNDS, 1, counts, names)
    writer = Writer.create(path, header(settings))
    store = CountedStore(workers)
    brokers = dict.fromkeys((lanes.find(name).broker for name in names), store)
    try:
        runner.run(settings, writer, brokers)  # type: ignore[arg-type]
    finally:
        writer.close()
    return read(path), store


def test_several_processes_are_timed_from_first_start_to_last_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow.made = 0
    results, _ = run(tmp_path / 'r.jsonl', ['rbfly-processes-2-1'], monkeypatch, Slow)
    assert results.failed() == {}
    (row, *_) = results.rows
    assert row['count'] == 24_000
    assert row['seconds'] == pytest.approx(2.1)  # one starts at 1.0, the other ends at 3.1
    assert row['cpu_user'] == pytest.approx(0.2)
    assert len(results.rows) == ROUNDS


def test_slow_library_handles_fewer_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _ = run(tmp_path / 'r.jsonl', ['rstream-concurrent-8'], monkeypatch)
    assert results.failed() == {}
    assert {row['count'] for row in results.rows} == {2_400}


def test_most_messages_are_published_in_a_single_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ['rbfly-growth-messages-10000000', 'rbfly-growth-messages-100000000']
    results, _ = run(tmp_path / 'r.jsonl', names, monkeypatch)
    found = Counter(row['lane'] for row in results.rows)
    assert found == {names[0]: ROUNDS, names[1]: 1}


def test_latency_is_injected_only_during_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, store = run(tmp_path / 'r.jsonl', ['rbfly-latency-each-1'], monkeypatch, Far1ms)
    assert results.failed() == {}
    assert store.moved == [0] + ROUNDS * [1]  # opened and warmed up nearby
    assert {row['round_trip'] for row in results.rows} == {0.0011}


def test_lane_fails_if_its_round_trip_is_below_the_injected_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _ = run(tmp_path / 'r.jsonl', ['rbfly-latency-each-5'], monkeypatch, Far1ms)
    assert results.failed() == {
        'rbfly-latency-each-5': 'round 1: round trip of 1.100 ms despite 5 ms of injected latency'
    }


def test_scenarios_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ['rbfly-processes-1-1', 'rbfly-latency-each-0', 'pika-processes-1-1']
    results, _ = run(tmp_path / 'r.jsonl', names, monkeypatch, Far1ms)
    found = [lanes.find(row['lane']).kind.scenario for row in results.rows]
    assert found == 6 * ['processes'] + 3 * ['latency']


def test_streams_that_are_spread_over_nodes_come_first() -> None:
    created: list[int] = []

    class Spread(FakeStore):
        def create_super(self, stream: str, partitions: list[str], nodes: int) -> None:
            created.append(nodes)

        def delete_super(self, stream: str) -> None:
            created.pop()

    chosen = [
        lanes.find(f'{library}-super-nodes-publish-{nodes}')
        for library in ('raw-socket', 'rbfly')
        for nodes in (1, 3)
    ]
    stores: Any = {'rabbitmq-cluster': Spread()}
    settings: Any = None
    with runner.streams(chosen, settings, stores, settings):
        assert created == [3, 3, 1, 1]
    assert not created


@pytest.mark.rabbitmq
def test_far_broker_delays_connections_through_its_proxies() -> None:
    with DelayedBroker() as far:
        store = RabbitStore(far.direct, far.uri)
        there = RabbitStore(far.uri)
        store.create('orders')
        far.delay(20)
        there.counted['orders'] = (0, 0)
        there.chunks['orders'] = 0
        assert there.count('orders') == 0
        assert far.proxies[0].bytes['down'] > 0
        store.delete('orders')
        for connection in (store.connection, there.connection):
            connection.close()
    with pytest.raises(wire.WireError, match='refused'):
        wire.Connection(far.direct)


# -- the report


def answer(lane: lanes.Lane, number: int, rate: float) -> dict[str, Any]:
    count = 1000
    found: dict[str, Any] = {
        'count': count,
        'seconds': count / rate,
        'cpu_user': 0.02,
        'cpu_sys': 0.0,
        'max_rss': 30 * 2**20,
    }
    if lane.kind.delay is not None:
        found['round_trip'] = lane.kind.delay / 1000 + 0.0005
    if lane.kind.rate:
        values = histogram.Histogram()
        for i in range(1000):
            values.add((i + 1) / 1000 / (2 if lane.is_floor else 1))
        found['histograms'] = {name: values.dump() for name in LATENCIES}
        if lane.library.name == 'rstream':
            found['late'] = 1.5
    return runner.record(lane, number, found)


def rate_of(lane: lanes.Lane) -> float:
    """RbFly has 1,000, floors twice that, peers half of it, except in batches of 1."""
    if lane.is_floor:
        return 2000
    if lane.library.name == 'rbfly':
        return 1000
    return 4000 if lane.kind.name == 'batch-size-1' else 500


def written(path: Path, scenarios: list[str]) -> Path:
    chosen = lanes.select([], scenarios)
    kinds = {lane.kind.name: lane.kind for lane in chosen}
    settings = Settings(ROUNDS, 7, {name: kind.full for name, kind in kinds.items()}, [])
    records: list[dict[str, Any]] = [
        {
            'type': 'header',
            'format': 2,
            'synthetic': True,
            'environment': {
                'time': '2026-01-01T00:00:00+00:00',
                'python': 'CPython 3.11.7',
                'cpu': 'synthetic',
                'libraries': {},
                'brokers': {},
            },
            'settings': {**asdict(settings), 'lanes': [lane.name for lane in chosen]},
            'left_out': [],
        }
    ]
    for lane in chosen:
        for number in range(1, lane.kind.part_of(ROUNDS) + 1):
            records.append(answer(lane, number, rate_of(lane) * (1 + number / 100)))
    path.write_text(''.join(json.dumps(record) + '\n' for record in records))
    return path


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, 'RESAMPLES', 40)


@pytest.fixture(scope='module')
def doc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('doc')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, 'RESAMPLES', 40)
        report.write([written(folder / 'r.jsonl', STUDIES)], folder)
    return folder


def table(doc: Path, scenario: str, number: int = 0) -> list[list[str]]:
    """The rows of a table of a scenario."""
    text = (doc / 'studies' / f'{scenario}.rst').read_text()
    found = text.split('.. list-table::')[number + 1].split('\n\n')[1]
    rows = re.split(r'^   \* -', found, flags=re.M)[1:]
    return [[cell.strip() for cell in re.split(r'\n     -', row)] for row in rows]


def test_table_contains_rates_and_ratios(doc: Path) -> None:
    head, *rows = table(doc, 'batch-size')
    assert head[:2] == ['messages per batch', 'lane']
    assert [row[0] for row in rows if row[0]] == ['1', '10', '50', '100', '200', '500', '1,000']
    first = {row[1]: row for row in rows[:4]}
    assert first['RbFly'][2:] == ['1,020 [1,010, 1,030]', '20.00', '30', '', '']
    assert first['rstream'][-2] == '**0.25 [0.25, 0.25]**'
    assert rows[5][-2] == '2.00 [2.00, 2.00]'


def test_table_tells_what_polling_costs_and_brings(doc: Path) -> None:
    _, *rows = table(doc, 'gaps')
    polling = [row for row in rows if row[1] == 'RbFly (busy polling)']
    assert len(polling) == 5
    assert {tuple(row[-2:]) for row in polling} == {('2.00 [2.00, 2.00]', '1.00')}


def test_bytes_per_second_are_shown_if_sizes_differ(doc: Path) -> None:
    head, first, *_ = table(doc, 'sizes')
    assert head[3] == 'MB/s'
    assert first[3] == '0.010'


def test_percentiles_cover_all_rounds(doc: Path) -> None:
    _, *rows = table(doc, 'percentiles')
    found = {row[1]: row for row in rows if row[0] == '1,000'}
    p50, p99, _ = map(float, found['RbFly'][2:5])
    assert p50 == pytest.approx(500, rel=0.02)
    assert p99 == pytest.approx(990, rel=0.02)
    assert found['RbFly'][-1] == '0 of 3'
    assert found['rstream'][-1] == '3 of 3'


def test_run_is_complete_with_one_round_of_the_most_messages(doc: Path) -> None:
    assert 'fewer rounds' not in (doc / 'performance.rst').read_text()
    row = table(doc, 'growth')[-1]
    assert row == ['100,000,000', 'RbFly', '1,010', '20.00', '30']


@pytest.mark.parametrize('scenario', STUDIES)
def test_every_study_has_a_figure(doc: Path, scenario: str) -> None:
    text = (doc / 'studies' / f'{scenario}.rst').read_text()
    figures = [ET.fromstring(svg) for svg in re.findall(r'(?s)<svg.*?</svg>', text)]
    title = lanes.SCENARIOS[scenario].title
    (figure,) = (item for item in figures if (item.findtext('title') or '').startswith(title))
    assert len(list(figure.iter('polygon'))) > 1
    assert float(figure.get('width') or 0) <= 480


def test_page_omits_scenarios_without_results(tmp_path: Path) -> None:
    text = compose(report.Report.read([written(tmp_path / 'r.jsonl', ['growth'])]))
    assert 'studies/batch-size' not in text
    assert 'RbFly and other libraries' not in text
    assert 'studies/growth' in text


def test_sphinx_builds_the_page(doc: Path, tmp_path: Path) -> None:
    assert build(doc, 'performance', tmp_path / 'html').count('class="perf-figure"') == 1
    for scenario in STUDIES:
        built = (tmp_path / 'html' / 'studies' / f'{scenario}.html').read_text()
        assert built.count('class="perf-figure"') == 1
