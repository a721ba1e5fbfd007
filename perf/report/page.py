"""The performance page, as reStructuredText."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import environment, lanes, stats
from . import studies
from .curves import overview_in_words, percentiles_in_words
from .drawing import THEMES
from .field import PUBLISHED
from .figures import FIGURES, Figure, alt
from .model import OURS, TITLES, Kind, Lane, Report, Run
from .reading import TARGETS, ahead, cautions, in_short, ratio, reading, verdict
from .rst import bullets, code, heading, moment, names, paragraph, plain, sentence, table

__all__ = ['compose']

LEVEL = f'{stats.LEVEL * 100:.0f} %'

# scenarios of the report; those without results are reported as missing
SCENARIOS = {
    'publish': 'Publishing to a broker',
    'amqp': 'AMQP and raw bytes',
    'codec': 'Encoding and decoding AMQP 1.0',
}
MORE = {
    'pipeline': 'Publishing with many messages in flight',
    'tasks': 'Publishing from many tasks',
    'sub-entries': 'Sub-entries',
    'consume': 'Consuming',
    'clients': 'Other languages',
}

BARS = f'Bars: median; lines: {LEVEL} interval; longer is faster.'
BOXES = (
    'Line: median; box: from the first quartile to the third; whiskers: up to 1.5 times the height'
    ' of the box; circles: the rounds outside.'
)
CURVES = f'Points: median of the rounds, or of all messages; lines: {LEVEL} interval.'

ABOUT = {
    'time': 'begun',
    'python': 'Python',
    'compiler': 'compiled by',
    'kernel': 'kernel',
    'machine': 'machine',
    'cpu': 'CPU',
    'cpus': 'CPUs',
    'memory': 'memory',
    'load': 'load (1, 5, 15 minutes)',
    'revision': 'commit',
}


def compose(report: Report, figures: Mapping[str, Figure], folder: str) -> str:
    """Write the page.

    :param figures: the drawn figures, by scenario.
    :param folder: their folder, relative to the page.
    """
    lines = [
        '.. Written by `python -m perf report` from result files; do not edit.',
        '',
        *heading('Performance', '='),
        *summary(report, folder),
    ]
    for scenario, title in {**SCENARIOS, **MORE}.items():
        if scenario in report.scenarios:
            lines += heading(title)
            lines += results(report, scenario, figures.get(scenario), folder)
        elif scenario in SCENARIOS:
            lines += heading(title)
            lines += paragraph(f'No result file has the scenario {code(scenario)}: not measured.')
    for scenario, study in studies.STUDIES.items():
        if report.of_study(scenario):
            lines += heading(study.title)
            lines += paragraph(sentence(report.scenarios[scenario]))
            lines += show(scenario, words_of(report, scenario), CURVES, folder)
            lines += studies.sections(report, scenario)
    lines += [*targets(report), *method(report), *surroundings(report), *field(report)]
    return '\n'.join(lines).rstrip('\n') + '\n'


# -- results


def summary(report: Report, folder: str) -> Iterator[str]:
    for run in report.runs:
        about = run.environment
        scenarios = names(dict.fromkeys(code(kind.scenario) for kind in run.kinds.values()))
        yield from paragraph(
            f'{code(run.label)}: {scenarios}, {run.rounds} rounds, begun {moment(about["time"])} on'
            f' {plain(str(about.get("cpus")))} CPUs ({plain(str(about.get("cpu")))}),'
            f' {plain(about["python"])}{brokers(about)}.'
        )
    yield from paragraph(
        'Everything on this page is computed from these files. Rates are medians of the rounds;'
        f' what stands in brackets is the {LEVEL} interval. A bar plot shows median and'
        ' interval. *Floor* lanes send the same frames as the clients with nothing around them:'
        ' what they reach is what broker, network and event loop leave to a client.'
    )
    if studies.overview(report):
        caption = (
            f'Points: ratio of the medians; lines: {LEVEL} interval. Each kind of work, and how'
            ' each library is used for it, is described below.'
        )
        yield from show('overview', overview_in_words(report), caption, folder)
    kinds = [kind for kind in report.kinds() if report.of_kind(kind.name)]
    drawn = {name for figure in FIGURES for _, names in figure.parts for name in names}
    yield from heading('In short')
    yield from bullets(
        [
            *(in_short(report, kind) for kind in kinds if kind.name in drawn),
            ahead(report, kinds),
            *([studies.sooner(report)] if report.of_study('percentiles') else []),
        ]
    )
    if warnings := list(cautions(report)):
        yield '.. admonition:: To be read with care'
        yield ''
        for text in bullets(warnings):
            yield textwrap.indent(text, '   ')


def brokers(about: dict[str, Any]) -> str:
    products = dict.fromkeys(
        f'{plain(str(broker.get("product", name)))} {plain(str(broker.get("version", "")))}'.strip()
        for name, broker in about.get('brokers', {}).items()
    )
    return f', {names(products)}' if products else ''


def results(report: Report, scenario: str, figure: Figure | None, folder: str) -> Iterator[str]:
    yield from paragraph(f'{sentence(report.scenarios[scenario])}')
    if figure:
        caption = BOXES if figure.boxes else BARS
        yield from show(figure.scenario, alt(report, figure), caption, folder)
    for kind in report.kinds(scenario):
        yield from heading(f'{kind.name}: {kind.count:,} messages a round', '~')
        yield from paragraph(sentence(kind.title))
        yield from numbers(report, kind)
        yield from bullets(reading(report, kind))
        run = report.run_of(kind.name)
        absent = run.absent_of_kind(kind.name) if run else {}
        if absent:
            yield from paragraph('Not measured:')
            yield from bullets(f'{code(name)} {plain(why[:300])}' for name, why in absent.items())


def words_of(report: Report, scenario: str) -> str:
    """Text alternative for the figure of a study."""
    if scenario == 'percentiles':
        return percentiles_in_words(report)
    return studies.medians(report, scenario)


def show(name: str, words: str, caption: str, folder: str) -> Iterator[str]:
    """A figure and its text alternative."""
    stem = f'{folder}/{name}'
    for theme in THEMES:
        yield f'.. image:: {stem}-{theme}.svg'
        yield f'   :class: only-{theme}'
        yield f'   :alt: {words}'
        yield ''
    pictures = names(f':download:`{theme} PNG <{stem}-{theme}.png>`' for theme in THEMES)
    yield '.. rst-class:: perf-caption'
    yield ''
    yield from paragraph(f'{caption} ({pictures})')


def cell(values: Any, form: str) -> str:
    return f'{values.value:{form}} [{values.low:{form}}, {values.high:{form}}]'


def numbers(report: Report, kind: Kind) -> Iterator[str]:
    """The table of a kind of work: rate, CPU, memory, and ratios to floor or reference."""
    lanes = report.of_kind(kind.name)
    if not lanes:
        yield from paragraph('No lane has results.')
        return
    # base of the ratios: floor, reference, or RbFly
    bases = [
        *(lane for lane in lanes if lane.library == kind.floor),
        *(lane for lane in lanes if lane.is_reference),
        *(lane for lane in lanes if lane.is_ours),
    ]
    base = bases[0] if bases else None
    titles = ['lane', 'messages/s', 'CPU µs/message', 'MiB']
    if base:
        of = 'floor' if base.library == kind.floor else plain(TITLES[base.library].split(' (')[0])
        titles += [f'rate ÷ {of}', f'CPU ÷ {of}']
    rows = []
    for lane in lanes:
        row = [
            plain(lane.title),
            cell(lane.rate, ',.0f'),
            cell(lane.cpu, '.2f' if lane.cpu.value >= 1 else '.3f'),
        ]
        row.append(f'{lane.memory:.0f}')
        if base:
            for column in ('rate', 'cpu_per_message'):
                row.append('1' if lane is base else ratio(lane.ratio(base, column)))
        rows.append(row)
    yield from table(titles, rows)


def targets(report: Report) -> Iterator[str]:
    rows = []
    for target in TARGETS:
        lane, other = report.lane(target.lane), report.lane(target.other)
        if not lane and not other and lanes.find(target.lane).kind.scenario not in SCENARIOS:
            continue  # optional on this page
        if not lane or not other:
            missing = target.other if lane else target.lane
            rows.append([code(target.lane), code(target.other), '', f'{code(missing)} is missing'])
            continue
        for column, title, goal in (
            ('rate', 'rate', target.rate),
            ('cpu_per_message', 'CPU', target.cpu),
        ):
            if goal:
                most = column != 'rate'
                interval = lane.ratio(other, column)
                text = f'{title} {ratio(interval)}; {"at most" if most else "at least"} {goal}'
                rows.append(
                    [code(lane.name), code(other.name), text, verdict(interval, goal, most)]
                )
    yield from heading('What it is to reach')
    yield from paragraph(
        'The goals that this client has set itself. One is reached if all of the interval is on'
        ' the right side of it, and reached within the interval if a part of it is.'
    )
    yield from table(['lane', 'beside', 'ratio and goal', 'reached?'], rows, 'perf')


# -- how


def command(run: Run) -> str:
    """The command that repeats the run."""
    kinds = run.kinds.values()
    scenarios = ','.join(dict.fromkeys(kind.scenario for kind in kinds))
    words = ['python -m perf', f'--scenario {scenarios}', f'--rounds {run.rounds}']
    words.append(f'--seed {run.seed}')
    scale = [f'{kind.name}={kind.count / kind.full:g}' for kind in kinds if not is_usual(kind, run)]
    if scale:
        words.append(f'--scale {",".join(scale)}')
    selected = {*run.lanes, *run.absent}
    usual = {name for name, ln in lanes.LANES.items() if ln.kind.scenario in scenarios.split(',')}
    if selected != usual:
        words.append(f'--lanes {",".join(sorted(selected))}')
    return ' \\\n       '.join(words)


def is_usual(kind: Kind, run: Run) -> bool:
    """Whether this is the default number of messages of a run."""
    known = lanes.KINDS.get(kind.name)
    if known is None:
        return False
    if like := run.kinds.get(known.like):
        return kind.count * like.full == like.count * kind.full
    return known.count(known.scale) == kind.count


def method(report: Report) -> Iterator[str]:
    yield from heading('What was done')
    yield from paragraph('After the set-up that the README tells, in the checkout:')
    yield '.. code-block:: sh'
    yield ''
    for run in report.runs:
        yield from (f'   {line}' for line in command(run).split('\n'))
    files = ' '.join(run.label for run in report.runs)
    yield f'   python -m perf report {files}'
    yield ''
    yield from bullets(
        [
            'One scenario is run after the other. Every lane has a process of its own for all of'
            ' its rounds, or several where that is the question. It connects, and does its work'
            ' once unrecorded, to warm up.',
            'Each round runs every lane once, one after the other, in an order shuffled by seed and'
            ' number of the round, so that what makes the machine slow for a while meets all lanes'
            ' alike. Growth has a single round.',
            'The clock (``perf_counter``) runs from before the first message to after the last'
            ' confirm. Messages are made, and the garbage collector run, before it starts.',
            'Every message published is confirmed by its broker, unless the lane says otherwise;'
            ' then the messages in the broker'
            ' are counted by other code than that which is measured. A lane whose count is not what'
            ' it said has failed and is named.',
            'What needs no broker is a statement that ``timeit`` repeats, which keeps the garbage'
            ' collector off meanwhile; what comes of it is checked before and after.',
            'CPU is user and system time of the process of the lane, per message; memory is the'
            ' peak of its resident set while the clock ran.',
            f'Intervals are {LEVEL} percentile bootstrap intervals of'
            f' {stats.RESAMPLES:,} resamples. Ratios are of medians, of the same rounds, whole'
            ' rounds being resampled.',
        ]
    )
    rows = [
        [
            code(kind.name),
            f'{kind.count:,}',
            f'{kind.full:,}',
            f'{kind.count / kind.full:.3g}',
            f'{kind.size:,}',
            f'{kind.warm_up:,}',
        ]
        for kind in report.kinds()
        if not kind.series
    ]
    head = ['kind of work', 'messages a round', 'at `--full`', 'scale', 'at once', 'to warm up']
    yield from table([plain(title) for title in head], rows)
    yield from heading('How each library is used', '~')
    yield from table(
        ['library', 'for', 'event loop', 'how'],
        (
            [plain(lanes[0].title), names(used_for(report, lanes)), loop, plain(how)]
            for (_, loop, how), lanes in grouped(report).items()
        ),
        'perf perf-text',
    )


def used_for(report: Report, lanes: Iterable[Lane]) -> Iterable[str]:
    """Kinds of work; for studies, only their names."""
    kinds = [report.kind(lane.kind) for lane in lanes]
    return dict.fromkeys(code(kind.scenario if kind.series else kind.name) for kind in kinds)


def grouped(report: Report) -> dict[tuple[str, str, str], list[Lane]]:
    """Lanes by library and usage."""
    groups: dict[tuple[str, str, str], list[Lane]] = {}
    for lane in report.all_lanes():
        groups.setdefault((lane.library, plain(lane.loop), lane.how), []).append(lane)
    return groups


def format_fact(name: str, value: Any) -> str:
    if value is None:
        return 'not known'
    if name == 'time':
        return moment(value)
    if name == 'memory':
        return f'{value / 2**30:.1f} GiB'
    if isinstance(value, list):
        return ', '.join(str(x) for x in value)
    return plain(str(value))


def version(broker: Mapping[str, str]) -> str:
    first = [broker[key] for key in ('product', 'version') if key in broker]
    rest = [text for key, text in broker.items() if key not in ('product', 'version')]
    return ', '.join([' '.join(first), *rest])


def surroundings(report: Report) -> Iterator[str]:
    """Machine, versions, and what changed before a run was resumed."""
    yield from heading('Environment')
    runs = report.runs
    rows = [
        [title, *(format_fact(name, run.environment.get(name)) for run in runs)]
        for name, title in ABOUT.items()
    ]
    for group, title in (('brokers', 'broker'), ('libraries', 'library')):
        keys = sorted({key for run in runs for key in run.environment.get(group, {})})
        for key in keys:
            row = [f'{title} {plain(key)}']
            for run in runs:
                value = run.environment.get(group, {}).get(key, '')
                row.append(plain(version(value) if isinstance(value, dict) else value))
            rows.append(row)
    yield from table(['', *(code(run.label) for run in runs)], rows, 'perf perf-text')
    resumed = []
    for run in runs:
        for later in run.environments[1:]:
            changes = environment.differences(run.environment, later)
            what = f'it then differed in {"; ".join(changes)}' if changes else 'nothing differed'
            resumed.append(
                f'{code(run.label)} was gone on with {moment(later["time"])}; {plain(what)}.'
            )
    if resumed:
        yield from bullets(resumed)


# -- others


def field(report: Report) -> Iterator[str]:
    yield from heading('How this differs from what others have published')
    yield from paragraph(
        'Rates of different machines, versions and settings are not comparable; what follows is to'
        ' tell how far apart they are. None of the figures of these reports is repeated here.'
    )
    head = ['', 'this page', *(f'`{plain(p.title)} <{p.address}>`__' for p in PUBLISHED)]
    rows = []
    libraries = {name for p in PUBLISHED for name in p.libraries}
    for name in sorted(libraries):
        ours = {run.environment['libraries'].get(name) for run in report.runs} - {None}
        row = [plain(name), plain(', '.join(sorted(map(str, ours)))) or 'not measured']
        rows.append([*row, *(p.libraries.get(name, '') for p in PUBLISHED)])
    kafka = [run.environment['brokers'].get('kafka') for run in report.runs]
    modes = {broker.get('mode', 'mode not told') for broker in kafka if broker}
    kafka_modes = plain(', '.join(sorted(modes))) or 'not measured'
    rows.append(['Kafka', kafka_modes, *(plain(p.kafka) for p in PUBLISHED)])
    counts = [
        f'{kind.name} {kind.count:,} a round'
        for kind in report.kinds()
        if kind.scenario != 'codec' and not kind.series
    ]
    rows.append(['messages', plain('; '.join(counts)), *(plain(p.counts) for p in PUBLISHED)])
    machines = {
        f'{run.environment.get("cpus")} CPUs, {run.environment.get("cpu")}' for run in report.runs
    }
    machine = plain('; '.join(sorted(machines)))
    rows.append(['hardware', machine, *(plain(p.hardware) for p in PUBLISHED)])
    rows.append(['besides', f'{code(OURS)} is this client', *(plain(p.notes) for p in PUBLISHED)])
    unknown = 'not known to us'
    yield from table(
        head, ([row[0], *(text or unknown for text in row[1:])] for row in rows), 'perf perf-text'
    )
