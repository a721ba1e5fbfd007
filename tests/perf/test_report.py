"""Every number on the report's page comes from the result files.

The result files of these tests are synthetic.
"""

import json
import lzma
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf import CommandError, cli, lanes, report, runs, stats
from perf.report import figures, rst
from perf.report.page import GOALS, compose, verdict
from perf.stats import Interval
from tests.sphinx import build

ROOT = Path(__file__).resolve().parents[2]
SYNTHETIC = ROOT / 'tests' / 'data' / 'synthetic-results.jsonl.xz'

Record = dict[str, Any]
Change = Callable[[list[Record]], None]


def load() -> list[Record]:
    return [json.loads(line) for line in lzma.decompress(SYNTHETIC.read_bytes()).splitlines()]


def write_changed(folder: Path, change: Change = lambda _: None) -> Path:
    """Write a changed copy of the synthetic results."""
    records = load()
    change(records)
    path = folder / 'synthetic-results.jsonl'
    path.write_text(''.join(json.dumps(record) + '\n' for record in records))
    return path


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, 'RESAMPLES', 400)


def page(folder: Path, change: Change = lambda _: None) -> str:
    return compose(report.Report.read([write_changed(folder, change)]))


def section(text: str, kind: str) -> str:
    """The section of a kind of work."""
    return re.split(r'\n[~-]{4,}\n', text.split(f'(``{kind}``)\n~')[1])[0]


def row(text: str, first: str, number: int = 0) -> list[str]:
    """The other cells of the table row that starts with this cell."""
    found = re.findall(rf'^   \* - {re.escape(first)}\n((?:     -.*\n)*)', text, re.M)
    return [line.removeprefix('     -').strip() for line in found[number].splitlines()]


def prose(text: str) -> str:
    return ' '.join(text.split())


def faster(lane: str, times: float) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            if record.get('lane') == lane and record['type'] == 'result':
                record['seconds'] /= times

    return change


def without(lane: str) -> Change:
    """Leave a lane out."""

    def change(records: list[Record]) -> None:
        header = records[0]
        header['settings']['lanes'].remove(lane)
        header['left_out'].append({'lane': lane, 'reason': 'its *library* is missing'})
        records[1:] = [record for record in records[1:] if record.get('lane') != lane]

    return change


# -- numbers


def test_synthetic_data_is_marked_as_synthetic() -> None:
    header = load()[0]
    assert header['synthetic'] is True
    assert 'synthetic' in header['environment']['cpu']


def test_table_contains_medians_and_intervals(tmp_path: Path) -> None:
    # five rounds of 900, 950, 1000, 1050 and 1100
    single = section(page(tmp_path), 'single')
    assert row(single, 'RbFly') == ['1,000 [900, 1,100]', '50.00', '30', '', '']
    floor = row(single, 'asyncio protocol (floor)')
    assert floor[-2:] == ['**0.50 [0.50, 0.50]**', '1.25']
    assert row(single, 'rstream')[-2] == '2.00 [2.00, 2.00]'


def test_page_follows_the_file(tmp_path: Path) -> None:
    text = page(tmp_path, faster('rbfly-single', 7))
    assert row(text, 'RbFly')[0] == '7,000 [6,300, 7,700]'
    assert row(text, 'asyncio protocol (floor)')[-2] == '3.50 [3.50, 3.50]'


def test_every_number_changes_with_the_file(tmp_path: Path) -> None:
    """Two files that differ in every value have no number in common on their pages."""

    def other(records: list[Record]) -> None:
        header, *rows = records
        header['settings'].update(rounds=6, seed=99)
        header['settings']['counts'] = {k: 13 * v for k, v in header['settings']['counts'].items()}
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
            record['seconds'] /= source.uniform(2.1, 2.9)
            record['cpu_user'] *= source.uniform(2.1, 2.9)

    (tmp_path / 'a').mkdir()
    (tmp_path / 'b').mkdir()
    ours, theirs = page(tmp_path / 'a'), page(tmp_path / 'b', other)

    def measured(text: str) -> set[str]:
        text = re.sub(r'(?s)   <svg.*?</svg>', '', text)
        text = re.sub(r'(?s)How each library is used.*?Environment', '', text)
        text = text[: text.index('Published elsewhere')]
        # short numbers may coincide
        return {
            n for n in re.findall(r'\d[\d,.]*\d', text) if len(re.sub(r'\D', '', n).lstrip('0')) > 3
        }

    # the Python version and the number of resamples
    assert measured(ours) & measured(theirs) <= {'3.11.7', '1,000'}


def test_ratio_pairs_results_of_the_same_round() -> None:
    # rounds differ, but the lane has half the floor's rate in each of them
    both = report.Report.read([SYNTHETIC])
    lane, floor = both.lane('rbfly-single'), both.lane('bare-uvloop-single')
    assert lane is not None
    assert floor is not None
    found = lane.ratio(floor)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5), rel=1e-5)


def test_lanes_without_common_rounds_have_no_ratio(tmp_path: Path) -> None:
    def apart(records: list[Record]) -> None:
        for record in records[1:]:
            if record['lane'] == 'rstream-single':
                record['round'] += 100

    both = report.Report.read([write_changed(tmp_path, apart)])
    one, other = both.lane('rbfly-single'), both.lane('rstream-single')
    assert one is not None
    assert other is not None
    assert one.ratio(other) is None
    assert page(tmp_path, apart)


def test_lanes_that_poll_are_compared_with_each_other(tmp_path: Path) -> None:
    def polling(records: list[Record]) -> None:
        """Add lanes that poll, twice as fast as those that sleep; RbFly has 0.8 of the floor."""
        header, *rows = records
        for name, times in (('rbfly-single', 3.2), ('bare-uvloop-single', 2)):
            new = name.replace('-single', '-polling-single')
            header['settings']['lanes'].append(new)
            records += [
                {**record, 'lane': new, 'seconds': record['seconds'] / times}
                for record in rows
                if record['lane'] == name
            ]

    text = section(page(tmp_path, polling), 'single')
    assert row(text, 'polling asyncio protocol (floor)')[-2:] == ['**0.80 [0.80, 0.80]**', '1.25']
    rate, *_, costs, _ = row(text, 'RbFly (busy polling)')
    assert rate == '3,200 [2,880, 3,520]'
    assert costs == '**0.31 [0.31, 0.31]**'  # compared with RbFly that sleeps
    assert row(text, 'RbFly') == row(page(tmp_path), 'RbFly')


# -- missing results


def test_page_names_lanes_that_were_left_out(tmp_path: Path) -> None:
    text = page(tmp_path, without('rstream-single'))
    assert r'``rstream-single`` left out: its \*library\* is missing' in prose(text)


def test_page_names_a_failed_lane_but_omits_its_results(tmp_path: Path) -> None:
    def fail(records: list[Record]) -> None:
        records[:] = [
            r for r in records if (r.get('lane'), r.get('round')) != ('rstream-single', 5)
        ]
        failure = {'type': 'failure', 'lane': 'rstream-single', 'round': 5, 'error': 'it fell'}
        records.append(failure)

    text = page(tmp_path, fail)
    assert '``rstream-single`` failed: round 5: it fell' in prose(text)
    assert '- rstream\n' not in section(text, 'single')


def test_report_shows_the_later_results_of_a_kind_of_work(tmp_path: Path) -> None:
    def later(records: list[Record]) -> None:
        header = records[0]
        header['environment']['time'] = '2999-01-01T00:00:00+00:00'
        settings = header['settings']
        settings['counts'] = {'single': settings['counts']['single']}
        settings['lanes'] = [lane for lane in settings['lanes'] if lane.endswith('-single')]
        records[1:] = [r for r in records[1:] if r.get('lane') in settings['lanes']]

    path = write_changed(tmp_path, later)
    for files in ([SYNTHETIC, path], [path, SYNTHETIC]):
        found = report.Report.read(files)
        assert {lane.run.label for lane in found.of_kind('single')} == {path.name}
        others = [kind.name for kind in found.kinds() if kind.name != 'single']
        assert {lane.run.label for kind in others for lane in found.of_kind(kind)} == {
            report.Report.read([SYNTHETIC]).runs[0].label
        }
        assert len(others) == len(found.kinds()) - 1 == len(load()[0]['settings']['counts']) - 1


def test_report_shows_lanes_that_poll_of_another_run(tmp_path: Path) -> None:
    """A later run without them does not hide them: their ratios are those of their own run."""

    def poll(records: list[Record]) -> None:
        header, *rows = records
        name = 'rbfly-polling-single'
        header['environment']['time'] = '2000-01-01T00:00:00+00:00'
        header['settings']['lanes'].append(name)
        records += [row | {'lane': name} for row in rows if row['lane'] == 'rbfly-single']

    path = write_changed(tmp_path, poll)
    for files in ([SYNTHETIC, path], [path, SYNTHETIC]):
        found = report.Report.read(files)
        later = report.Report.read([SYNTHETIC])
        former = [lane.name for lane in found.all_lanes() if lane.run.label == path.name]
        assert former == ['rbfly-polling-single']
        assert {*found.kinds()} == {*later.kinds()}
        assert len(found.kinds()) == len(later.kinds())
        assert {lane.name for lane in found.all_lanes()} - {*former} == {
            lane.name for lane in later.all_lanes()
        }
        names = [lane.library.name for lane in found.of_kind('single')]
        assert names == sorted(names, key=list(lanes.LIBRARIES).index)
    text = section(report.write([SYNTHETIC, path], tmp_path / 'doc').read_text(), 'single')
    assert 'Lanes that poll are from another run' in prose(text)
    assert row(text, 'RbFly (busy polling)')[-2] == '1.00 [1.00, 1.00]'  # of RbFly in its run


def test_report_refuses_a_run_without_results(tmp_path: Path) -> None:
    def empty(records: list[Record]) -> None:
        del records[1:]

    with pytest.raises(CommandError, match='no lane has results'):
        report.Report.read([write_changed(tmp_path, empty)])


def test_command_reports_an_unreadable_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(['report', str(tmp_path / 'none.jsonl'), '--out', str(tmp_path)]) == 1
    assert 'cannot read' in capsys.readouterr().err
    assert cli.main(['report', str(SYNTHETIC), '--out', str(tmp_path)]) == 0
    assert str(tmp_path / 'performance.rst') in capsys.readouterr().out


def test_page_tells_what_limits_the_significance_of_a_run(tmp_path: Path) -> None:
    def change(records: list[Record]) -> None:
        records[0]['environment'].update(load=[7.5, 1, 1], revision='0123+')

    text = prose(page(tmp_path, change))
    assert '5 rounds' in text
    assert 'the machine was not idle: its load was 7.50 on 8 CPUs' in text
    assert 'the checkout had uncommitted changes' in text


# -- goals


@pytest.mark.parametrize(
    ('low', 'high', 'most', 'words'),
    [
        (0.97, 1.0, False, 'reached'),
        (0.9, 0.97, False, 'undecided'),
        (0.9, 0.96, False, 'not reached'),
        (0.9, 0.97, True, 'reached'),
        (0.9, 1.2, True, 'undecided'),
        (0.98, 1.2, True, 'not reached'),
    ],
)
def test_goals(low: float, high: float, most: bool, words: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high), 0.97, most) == words


def test_goals_name_existing_lanes() -> None:
    for lane, other, _, _ in GOALS:
        assert lane in lanes.LANES
        assert other in lanes.LANES


def test_page_contains_the_goals(tmp_path: Path) -> None:
    cells = row(page(tmp_path), '``rbfly-single``')
    expected = ['``bare-uvloop-single``', '**0.50 [0.50, 0.50]**', 'at least 0.98', 'not reached']
    assert cells == expected


# -- repeating the run


def test_command_on_the_page_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r'^   python -m perf (.*)$', page(tmp_path), re.M)
    assert found is not None
    monkeypatch.chdir(tmp_path)  # the file is not in the checkout: the page has only its name
    args = cli.parser().parse_args(['run', *found[1].split()])
    _, settings, left_out = runs.begin(args)
    header = load()[0]
    assert settings.rounds == header['settings']['rounds']
    assert settings.seed == header['settings']['seed']
    assert settings.counts == header['settings']['counts']
    asked = {*settings.lanes, *(item['lane'] for item in left_out)}
    assert asked == set(header['settings']['lanes'])


def test_page_tells_what_changed_before_a_run_was_resumed(tmp_path: Path) -> None:
    def resume(records: list[Record]) -> None:
        about = {**records[0]['environment'], 'time': '2026-01-02T00:00:00+00:00', 'cpus': 16}
        records.append({'type': 'resumed', 'environment': about})

    text = prose(page(tmp_path, resume))
    assert 'was resumed 2026-01-02 00:00:00 UTC; changes: cpus: 8 and 16' in text


def test_environment_names_the_files_that_differ(tmp_path: Path) -> None:
    def other(records: list[Record]) -> None:
        records[0]['environment']['cpu'] = 'another processor'

    text = compose(report.Report.read([SYNTHETIC, write_changed(tmp_path, other)]))
    environment = text.partition('\nEnvironment\n')[2]
    assert row(environment, 'python') == ['CPython 3.11.7', 'all']
    assert row(environment, 'cpu')[1] == f'``{SYNTHETIC.name}``'
    assert '     - another processor\n     - ``synthetic-results.jsonl``\n' in environment


def test_page_contains_no_absolute_path(tmp_path: Path) -> None:
    assert str(tmp_path) not in page(tmp_path)


# -- figures


def figures_in(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r'(?s)<svg.*?</svg>', text)]


def test_figures_have_a_name_and_numbers(tmp_path: Path) -> None:
    overview, publish, *others = figures_in(page(tmp_path))
    for figure in (overview, publish, *others):
        assert figure.get('role') == 'img'
        assert figure.findtext('title')
        assert float(figure.get('width') or 0) <= 480
    assert len(others) == 2
    texts = [element.text for element in publish.iter('text')]
    assert texts[texts.index('RbFly') :][:1] + texts[texts.index('1,000') :][:1] == [
        'RbFly',
        '1,000',
    ]


def test_figures_use_the_colours_of_the_page(tmp_path: Path) -> None:
    for figure in figures_in(page(tmp_path)):
        colours = {element.get('stroke') for element in figure.iter() if element.get('stroke')}
        assert 'currentColor' in colours
        assert not colours & {'#000', '#fff', 'black', 'white'}


def test_libraries_in_one_figure_have_different_colours() -> None:
    used = [figures.COLOURS[name] for name in ('rbfly', 'rstream', 'aiokafka', 'proton', 'msgspec')]
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

    report.write([write_changed(tmp_path, rude)], source)
    built = build(source, 'performance', tmp_path / 'html')
    assert built.count('class="perf-figure"') == 4
