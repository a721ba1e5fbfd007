"""The report: every number on its page comes from the result files.

The result files here are synthetic: made for these tests, measured by nobody.
"""

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf import cli, lanes, report, stats
from perf.report import drawing, figures, reading, rst
from perf.report.page import compose
from perf.stats import Interval
from tests.sphinx import build

ROOT = Path(__file__).resolve().parents[2]
SYNTHETIC = ROOT / 'tests' / 'data' / 'synthetic-results.jsonl'
SVG = '{http://www.w3.org/2000/svg}'

Record = dict[str, Any]
Change = Callable[[list[Record]], None]


def load() -> list[Record]:
    return [json.loads(line) for line in SYNTHETIC.read_text().splitlines()]


def changed(folder: Path, change: Change = lambda _: None) -> Path:
    """A copy of the synthetic results, changed."""
    records = load()
    change(records)
    path = folder / 'synthetic-results.jsonl'
    path.write_text(''.join(json.dumps(record) + '\n' for record in records))
    return path


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, 'RESAMPLES', 400)


def page(folder: Path, change: Change = lambda _: None) -> str:
    found = report.Report.read([changed(folder, change)])
    drawn = {figure.scenario: figure for figure in figures.FIGURES if figure.panels(found)}
    return compose(found, drawn, report.FIGURES)


def row(text: str, first: str, number: int = 0) -> list[str]:
    """The cells of a row of a table, by its first cell."""
    found = re.findall(rf'^   \* - {re.escape(first)}\n((?:     -.*\n)*)', text, re.M)
    return [line.removeprefix('     -').strip() for line in found[number].splitlines()]


def prose(text: str) -> str:
    return ' '.join(text.split())


def faster(lane: str, times: float) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            if record.get('lane') == lane and record['type'] == 'result':
                record['rate'] *= times
                record['seconds'] /= times

    return change


def without(lane: str) -> Change:
    """The lane was left out."""

    def change(records: list[Record]) -> None:
        header = records[0]
        header['settings']['lanes'].remove(lane)
        header['lanes'] = [item for item in header['lanes'] if item['lane'] != lane]
        header['left_out'].append({'lane': lane, 'reason': 'its *library* is not here'})
        records[1:] = [record for record in records[1:] if record.get('lane') != lane]

    return change


# -- numbers


def test_the_data_say_that_they_are_synthetic() -> None:
    header = load()[0]
    assert header['synthetic'] is True
    assert 'synthetic' in header['environment']['cpu']


def test_medians_and_intervals_stand_in_the_table(tmp_path: Path) -> None:
    # five rounds of 900, 950, 1000, 1050 and 1100
    rate, cpu, memory, of_floor, cpu_of_floor = row(page(tmp_path), 'RbFly')
    assert rate == '1,000 [900, 1,100]'
    assert cpu == '50.00 [50.00, 50.00]'
    assert memory == '30'
    assert of_floor == '0.50 [0.50, 0.50]'
    assert cpu_of_floor == '1.25 [1.25, 1.25]'


def test_page_follows_the_file(tmp_path: Path) -> None:
    text = page(tmp_path, faster('rbfly-single', 7))
    rate, _, _, of_floor, _ = row(text, 'RbFly')
    assert rate == '7,000 [6,300, 7,700]'
    assert of_floor == '3.50 [3.50, 3.50]'
    assert 'RbFly 7,000 messages/s' in prose(text)


def test_every_number_changes_with_the_file(tmp_path: Path) -> None:
    """What is left when all that the file says is another thing is text."""

    def other(records: list[Record]) -> None:
        header, *rows = records
        header['settings'].update(rounds=6, seed=99)
        header['settings']['counts'] = {k: 13 * v for k, v in header['settings']['counts'].items()}
        for kind in header['kinds'].values():
            kind.update(full=17 * kind['full'], warm_up=77, size=7)
        about = header['environment']
        about.update(
            time='2031-02-03T04:05:06+00:00',
            revision='fedcba987',
            cpus=64,
            memory=2**36,
            load=[9.5, 8.5, 7.5],
        )
        about['libraries'] = dict.fromkeys(about['libraries'], '77.7')
        about['brokers'] = {'rabbitmq': {'product': 'RabbitMQ', 'version': '77.8'}}
        source = random.Random(3)
        for record in rows:
            record['rate'] *= source.uniform(2.1, 2.9)
            record['cpu_per_message'] *= source.uniform(2.1, 2.9)

    (tmp_path / 'a').mkdir()
    (tmp_path / 'b').mkdir()
    ours, theirs = page(tmp_path / 'a'), page(tmp_path / 'b', other)

    def measured(text: str) -> set[str]:
        text = text[: text.index('How this differs from')]
        # those of few digits may be the same by chance
        return {
            n for n in re.findall(r'\d[\d,.]*\d', text) if len(re.sub(r'\D', '', n).lstrip('0')) > 3
        }

    # Python, what a window is, and how it is used
    assert measured(ours) & measured(theirs) <= {'3.11.7', '1,000'}


def test_intervals_of_ratios_are_of_the_same_rounds() -> None:
    # each is half the floor in its own round, though rounds differ
    both = report.Report.read([SYNTHETIC])
    lane, floor = both.lane('rbfly-single'), both.lane('bare-uvloop-single')
    assert lane is not None
    assert floor is not None
    assert lane.ratio(floor) == Interval(0.5, 0.5, 0.5)


def test_ratio_needs_rounds_in_common(tmp_path: Path) -> None:
    def apart(records: list[Record]) -> None:
        for record in records[1:]:
            if record['lane'] == 'rstream-single':
                record['round'] += 100

    both = report.Report.read([changed(tmp_path, apart)])
    one, other = both.lane('rbfly-single'), both.lane('rstream-single')
    assert one is not None
    assert other is not None
    assert one.ratio(other) is None
    assert page(tmp_path, apart)


# -- what is missing


def test_lane_that_was_left_out_is_named(tmp_path: Path) -> None:
    text = page(tmp_path, without('rstream-single'))
    assert r'``rstream-single`` left out: its \*library\* is not here' in prose(text)


def test_lane_that_failed_is_named_and_not_shown(tmp_path: Path) -> None:
    def fail(records: list[Record]) -> None:
        records[:] = [
            r for r in records if (r.get('lane'), r.get('round')) != ('rstream-single', 5)
        ]
        failure = {'type': 'failure', 'lane': 'rstream-single', 'round': 5, 'error': 'it fell'}
        records.append(failure)

    text = page(tmp_path, fail)
    assert '``rstream-single`` failed: round 5: it fell' in prose(text)
    single = text[text.index('single: 500') : text.index('batch: 20,000')]
    assert '- rstream\n' not in single


def test_missing_scenario_is_said_to_be_missing(tmp_path: Path) -> None:
    def publish_only(records: list[Record]) -> None:
        header = records[0]
        kept = {name for name, kind in header['kinds'].items() if kind['scenario'] == 'publish'}
        header['kinds'] = {name: header['kinds'][name] for name in kept}
        header['lanes'] = [item for item in header['lanes'] if item['kind'] in kept]
        names = {item['lane'] for item in header['lanes']}
        records[1:] = [record for record in records[1:] if record['lane'] in names]

    text = page(tmp_path, publish_only)
    assert 'No result file has the scenario ``codec``: not measured.' in text
    assert 'No result file has the scenario ``amqp``: not measured.' in text
    assert 'codec-light.svg' not in text
    assert '``rbfly-decode-seed`` is missing' in text


def test_figures_of_an_earlier_report_go(tmp_path: Path) -> None:
    stale = tmp_path / '_static' / 'perf' / 'consume-light.svg'
    stale.parent.mkdir(parents=True)
    stale.touch()
    report.write([SYNTHETIC], tmp_path)
    assert not stale.exists()


def test_same_work_in_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(report.ReportError, match='single is in'):
        report.write([SYNTHETIC, changed(tmp_path)], tmp_path)


def test_run_without_results_is_refused(tmp_path: Path) -> None:
    def empty(records: list[Record]) -> None:
        del records[1:]

    with pytest.raises(report.ReportError, match='no lane has results'):
        report.Report.read([changed(tmp_path, empty)])


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['report', str(tmp_path / 'none.jsonl'), '--out', str(tmp_path)]) == 2
    assert 'cannot read' in capsys.readouterr().err
    assert cli.main(['report', str(SYNTHETIC), '--out', str(tmp_path)]) == 0
    assert str(tmp_path / 'performance.rst') in capsys.readouterr().out


# -- the reading


def test_peer_that_is_ahead_is_named(tmp_path: Path) -> None:
    text = prose(page(tmp_path, faster('rstream-single', 9)))
    assert '**rstream is ahead** of RbFly' in text
    assert 'Ahead of this client in rate: rstream in ``single``' in text


def test_we_are_ahead_by_the_same_rule(tmp_path: Path) -> None:
    text = prose(page(tmp_path))
    assert 'RbFly is ahead of rstream: 2.00 [2.00, 2.00] times its rate' in text
    assert '**rstream is ahead**' not in text


def test_equal_rates_cannot_be_told_apart(tmp_path: Path) -> None:
    text = prose(page(tmp_path, faster('rstream-single', 2)))
    assert 'RbFly and rstream cannot be told apart' in text


@pytest.mark.parametrize(
    ('times', 'words'),
    [
        (1.0, 'the client costs the rest'),
        (1.9, 'the broker and the round trips to it are the limit'),
        (2.0, 'the broker and the round trips to it are the limit'),
        (2.5, 'something is counted wrongly'),
    ],
)
def test_floor_tells_what_the_limit_is(tmp_path: Path, times: float, words: str) -> None:
    text = page(tmp_path, faster('rbfly-single', times))
    single = text[text.index('single: 500') : text.index('batch: 20,000')]
    assert words in prose(single)


def test_without_floor_nothing_is_said_of_the_limit(tmp_path: Path) -> None:
    text = prose(page(tmp_path, without('bare-uvloop-single')))
    assert 'The floor lane ``bare-uvloop-single`` has no result' in text


def test_few_rounds_are_cautioned(tmp_path: Path) -> None:
    text = prose(page(tmp_path))
    assert 'has 5 rounds, fewer than 30' in text


@pytest.mark.parametrize(
    ('low', 'high', 'most', 'words'),
    [
        (0.97, 1.0, False, 'reached'),
        (0.9, 0.97, False, 'reached within the interval'),
        (0.9, 0.96, False, 'not reached'),
        (1.0, 0.97, True, 'reached'),
        (0.9, 1.2, True, 'reached within the interval'),
        (0.98, 1.2, True, 'not reached'),
    ],
)
def test_goals(low: float, high: float, most: bool, words: str) -> None:
    assert reading.verdict(Interval((low + high) / 2, low, high), 0.97, most) == words


def test_goals_are_of_lanes_that_there_are() -> None:
    for target in reading.TARGETS:
        assert target.lane in lanes.LANES
        assert target.other in lanes.LANES


# -- the run, told so that it can be done again


def test_command_to_repeat_makes_the_same_run(tmp_path: Path) -> None:
    text = page(tmp_path)
    found = re.search(r'^   python -m perf \\\n((?: {10}.*\n)+)', text, re.M)
    assert found is not None
    words = found[1].replace('\\\n', ' ').split()
    args = cli.parser().parse_args(['run', *words])
    _, settings, left_out = cli.begin(args)
    header = load()[0]
    assert settings.rounds == header['settings']['rounds']
    assert settings.seed == header['settings']['seed']
    assert settings.counts == header['settings']['counts']
    asked = {*settings.lanes, *(item['lane'] for item in left_out)}
    assert asked == set(header['settings']['lanes'])


def test_run_describes_its_kinds() -> None:
    header = load()[0]
    for name, about in header['kinds'].items():
        assert about.keys() <= cli.describe_kind(name).keys()


def test_resumed_run_tells_what_differed(tmp_path: Path) -> None:
    def resume(records: list[Record]) -> None:
        about = {**records[0]['environment'], 'time': '2026-01-02T00:00:00+00:00', 'cpus': 16}
        records.append({'type': 'resumed', 'environment': about})

    text = prose(page(tmp_path, resume))
    assert 'was gone on with 2026-01-02 00:00:00 UTC; it then differed in cpus: 8 and 16' in text


def test_no_absolute_path_is_told(tmp_path: Path) -> None:
    assert str(tmp_path) not in page(tmp_path)


# -- figures


@pytest.fixture(scope='module')
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('report')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, 'RESAMPLES', 400)
        report.write([SYNTHETIC], folder)
    return folder / '_static' / 'perf'


@pytest.mark.parametrize('scenario', ['publish', 'amqp', 'codec'])
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_figures_are_pictures_with_a_name(drawn: Path, scenario: str, theme: str) -> None:
    tree = ET.parse(drawn / f'{scenario}-{theme}.svg').getroot()
    assert tree.tag == f'{SVG}svg'
    assert tree.get('role') == 'img'
    title = tree.find(f'{SVG}title')
    assert title is not None
    assert title.text is not None
    assert 'RbFly' in title.text
    png = (drawn / f'{scenario}-{theme}.png').read_bytes()
    assert png.startswith(b'\x89PNG\r\n\x1a\n')
    assert png.endswith(b'IEND\xaeB`\x82')


def test_figures_are_as_wide_as_a_phone(drawn: Path) -> None:
    for path in drawn.glob('*.svg'):
        width = ET.parse(path).getroot().get('width') or ''
        assert float(width.removesuffix('pt')) <= 320


def test_every_image_has_words_with_its_numbers(drawn: Path) -> None:
    text = (drawn.parent.parent / 'performance.rst').read_text()
    images = re.findall(r'^\.\. image:: (.*)\n((?:   .*\n)+)', text, re.M)
    assert len(images) == 8
    for name, options in images:
        assert (drawn.parent.parent / name).exists()
        assert ':alt: ' in options
        assert ':class: only-' in options
    assert 'batches of 100: rstream' in images[0][1]
    assert 'RbFly 1,000; rstream 500' in images[2][1]


def test_figures_are_the_same_for_the_same_file(tmp_path: Path, drawn: Path) -> None:
    again = report.Report.read([SYNTHETIC])
    list(figures.draw(again, figures.FIGURES[0], tmp_path))
    for path in tmp_path.glob('*.svg'):
        assert (drawn / path.name).read_text() == path.read_text()


def test_colours_are_apart() -> None:
    used = [drawing.COLOURS[name] for name in ('rbfly', 'rstream', 'aiokafka', 'proton', 'msgspec')]
    assert len(set(used)) == len(used)


# -- text


@pytest.mark.parametrize(
    ('text', 'markup'),
    [
        ('a*b_c|d', r'a\*b\_c\|d'),
        ('use `f(*x)` here', 'use ``f(*x)`` here'),
        ('one ` only', r'one \` only'),
        ('`f`s', r'\`f\`s'),
        ('` f `', r'\` f \`'),
        ('- a', r'\- a'),
        ('1. a', r'\1. a'),
        ('3.11', '3.11'),
    ],
)
def test_text_is_escaped(text: str, markup: str) -> None:
    assert rst.plain(text) == markup


def test_sphinx_builds_the_page(tmp_path: Path) -> None:
    source = tmp_path / 'doc'
    source.mkdir()

    def rude(records: list[Record]) -> None:
        without('rstream-single')(records)
        records[0]['environment']['cpu'] = 'synthetic *`|CPU_ <x>'
        error = 'ValueError: `*|x_ ' * 40
        records[:] = [r for r in records if (r.get('lane'), r.get('round')) != ('rstream-batch', 5)]
        failure = {'type': 'failure', 'lane': 'rstream-batch', 'round': 5, 'error': error}
        records.append(failure)

    report.write([changed(tmp_path, rude)], source)
    built = build(source, 'performance', tmp_path / 'html')
    assert len(re.findall(r'<img [^>]*alt="B', built)) == 6
