"""Studies: their kinds of work, how they are run, and how the report presents their results.

The result file of these tests is synthetic.
"""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from perf import histogram, lanes, report, runner, runs, stats, wire
from perf.far import Far
from perf.lanes import studies
from perf.report import studies as shown
from perf.report.page import compose
from perf.results import Settings, Writer, read
from perf.store import RabbitStore
from tests.perf.test_perf import FakeStore, FakeWorker, header
from tests.sphinx import build

SVG = '{http://www.w3.org/2000/svg}'
ROUNDS = 3
SCENARIOS = [*studies.SCENARIOS]


# -- kinds of work


def test_every_study_compares_rbfly_with_another_library() -> None:
    for scenario in studies.SCENARIOS:
        used = {ln.library.name for ln in lanes.LANES.values() if ln.kind.scenario == scenario}
        assert 'rbfly' in used
        assert len(used) > 1 or scenario in ('values', 'growth')
        assert scenario in shown.STUDIES or scenario in ('clients', 'super')


def test_message_counts_divide_evenly() -> None:
    for lane in lanes.LANES.values():
        kind, part = lane.kind, lane.library.part
        for count in (kind.full, kind.quick):
            given = count if part == 1 else kind.whole(count * part)
            assert given % (kind.processes * kind.publishers * kind.tasks * kind.streams) == 0
            assert given % kind.frame == 0


def test_every_series_has_a_title() -> None:
    for kind in studies.KINDS.values():
        if kind.series:
            assert kind.series in shown.STUDIES[kind.scenario].series


def test_overview_names_existing_kinds_of_work() -> None:
    assert shown.OVERVIEW.keys() <= lanes.KINDS.keys()


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


def test_growth_has_a_single_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = run(tmp_path / 'r.jsonl', ['rbfly-growth-messages-10000'], monkeypatch)
    assert [row['round'] for row in results.rows] == [1]


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
    assert [row['scenario'] for row in results.rows] == 6 * ['processes'] + 3 * ['latency']


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
    with Far() as far:
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
        'stored': count,
    }
    if lane.kind.delay is not None:
        found['round_trip'] = lane.kind.delay / 1000 + 0.0005
    if lane.kind.rate:
        values = histogram.Histogram()
        for i in range(1000):
            values.add((i + 1) / 1000 / (2 if lane.is_floor else 1))
        found['histograms'] = {name: values.dump() for name in shown.LATENCIES}
        if lane.library.name == 'rstream':
            found['late'] = 1.5
    return runner.record(lane, number, 1, found)


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
            'format': 1,
            'synthetic': True,
            'environment': {
                'time': '2026-01-01T00:00:00+00:00',
                'python': 'CPython 3.11.7',
                'cpu': 'synthetic',
                'libraries': {},
                'brokers': {},
            },
            'settings': {**settings.dump(), 'lanes': [lane.name for lane in chosen]},
            'scenarios': {name: lanes.SCENARIOS[name] for name in scenarios},
            'kinds': {name: runs.describe_kind(name) for name in kinds},
            'lanes': [runs.describe_lane(lane.name) for lane in chosen],
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
        report.write([written(folder / 'r.jsonl', SCENARIOS)], folder)
    return folder


def prose(doc: Path) -> str:
    return ' '.join((doc / 'performance.rst').read_text().split())


def rows(doc: Path, first: str) -> list[list[str]]:
    text = (doc / 'performance.rst').read_text()
    found = re.findall(rf'^   \* - {re.escape(first)}\n((?:     -.*\n)*)', text, re.M)
    return [[line.removeprefix('     -').strip() for line in x.splitlines()] for x in found]


def test_tables_contain_rates_and_ratios(doc: Path) -> None:
    rates, ratios, *_ = (row for row in rows(doc, '500') if len(row) in (5, 3))
    assert rates[0] == f'{lanes.KINDS["batch-size-500"].full:,}'
    assert rates[1] == '1,020 [1,010, 1,030]'
    assert ratios == ['2.00 [2.00, 2.00]', '2.00 [2.00, 2.00]', '0.50 [0.50, 0.50]']


def test_page_tells_where_rbfly_is_faster_and_slower(doc: Path) -> None:
    text = prose(doc)
    faster = 'is faster at 10, 50, 100, 200, 500, 1,000; **slower** at 1: 0.25 to 2.00 times'
    assert f'Compared with rstream, RbFly {faster} its rate.' in text
    assert 'RbFly reaches 0.50 times the rate of the asyncio protocol (floor).' in text
    assert 'with pika (AMQP 0.9.1), RbFly is faster throughout: 2.00 times' in text
    assert '``batch-size-1``' in text.split('Faster than RbFly:')[1].split('.')[0]


def test_page_tells_what_polling_costs_and_brings(doc: Path) -> None:
    rates, polling = rows(doc, '500')[-2:]
    assert rates == ['1,000', '1,020 [1,010, 1,030]', '510 [505, 515]']
    assert polling == ['20', '20', '0.50 [0.50, 0.50]', '1.00 [1.00, 1.00]']
    assert rows(doc, '20')[1] == polling
    assert 'busy polling) is' not in prose(doc)


def test_percentiles_cover_all_rounds(doc: Path) -> None:
    found = [row for row in rows(doc, '1,000') if len(row) == 7 and row[0] == 'RbFly']
    ((_, *values),) = found
    p50, p99, last = values[:3]
    assert float(p50.split()[0]) == pytest.approx(500, rel=0.02)
    assert float(p99.split()[0]) == pytest.approx(990, rel=0.02)
    assert re.fullmatch(r'\d+\.\d\d \[(1\.9|2\.0)\d\]', last)
    assert 'No other library has a lower latency than RbFly' in prose(doc)
    assert 'These lanes fell behind the rate: rstream at 1,000 in 3 of 3 rounds' in prose(doc)


def test_page_contains_the_shortest_round_trips(doc: Path) -> None:
    assert '0 ms: 0.50 ms; 1 ms: 1.50 ms; 5 ms: 5.50 ms' in prose(doc)


def test_page_tells_what_leaders_on_more_nodes_change(doc: Path) -> None:
    text = prose(doc)
    assert (
        'Rate with leaders on 3 nodes ÷ rate with all leaders on one: RbFly'
        ' 1.00 [1.00, 1.00]; blocking socket (floor) 1.00 [1.00, 1.00].' in text
    )
    assert 'share the processors of one machine' in text


def test_run_is_complete_with_one_round_of_growth(doc: Path) -> None:
    assert 'ended before its last round' not in prose(doc)
    (row,) = rows(doc, '100,000,000')
    assert row == ['100,000,000', '1,010', '20.00', '30']


def test_page_attributes_published_rates(doc: Path) -> None:
    assert 'rates published elsewhere, measured on other machines' in prose(doc)


@pytest.mark.parametrize('name', ['overview', 'clients', *shown.STUDIES])
def test_figures_fit_a_phone_screen(doc: Path, name: str) -> None:
    for theme in ('light', 'dark'):
        tree = ET.parse(doc / '_static' / 'perf' / f'{name}-{theme}.svg').getroot()
        title = tree.find(f'{SVG}title')
        assert title is not None
        assert 'RbFly' in (title.text or '')
        assert float((tree.get('width') or '').removesuffix('pt')) <= 320


def test_page_omits_scenarios_without_results(tmp_path: Path) -> None:
    path = written(tmp_path / 'r.jsonl', ['growth'])
    text = compose(report.Report.read([path]), {}, 'x')
    assert 'Batch size' not in text
    assert 'overview' not in text
    assert 'Growth' in text


def test_sphinx_builds_the_page(doc: Path, tmp_path: Path) -> None:
    built = build(doc, 'performance', tmp_path / 'html')
    images = re.findall(r'<img [^>]*src="_static/perf/|<img [^>]*alt=', built)
    assert len(images) >= 2 * (len(shown.STUDIES) + 2)
