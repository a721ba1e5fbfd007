"""The performance page, as reStructuredText."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import environment, lanes, stats
from ..lanes import POLLING
from . import studies
from .curves import overview_in_words, study_in_words
from .drawing import THEMES
from .field import PUBLISHED
from .figures import FIGURES, Figure, alt
from .model import OURS, TITLES, Kind, Lane, Report, Run
from .reading import TARGETS, ahead, cautions, in_short, ratio, reading, verdict
from .rst import bullets, capital, code, heading, moment, names, paragraph, plain, sentence, table

__all__ = ['compose']

LEVEL = f'{stats.LEVEL * 100:.0f} %'

# the page says of these scenarios if they have no results
SCENARIOS = {
    'publish': 'Publishing to a broker',
    'amqp': 'AMQP 1.0 compared with raw bytes',
    'codec': 'Encoding and decoding AMQP 1.0',
}
MORE = {
    'pipeline': 'Publishing with many messages in flight',
    'tasks': 'Publishing from many tasks',
    'sub-entries': 'Sub-entries',
    'consume': 'Consuming',
    'clients': 'Clients in other languages',
    'super': 'Super streams',
}

BARS = f'Bars: medians; lines: {LEVEL} intervals. Longer bars are faster.'
BOXES = (
    'Line: median; box: first to third quartile; whiskers: up to 1.5 times the length of the box;'
    ' circles: rounds outside the whiskers.'
)
CURVES = f'Points: medians over the rounds; lines: {LEVEL} intervals.'
PERCENTILES = 'Points: percentiles over all messages of all rounds.'

ABOUT = {
    'time': 'started',
    'python': 'Python',
    'compiler': 'compiler',
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
            lines += paragraph(f'Not measured: no result file contains {code(scenario)}.')
    for scenario, study in studies.STUDIES.items():
        if report.of_study(scenario):
            lines += heading(study.title)
            lines += paragraph(sentence(report.scenarios[scenario]))
            caption = PERCENTILES if scenario == 'percentiles' else CURVES
            lines += show(scenario, study_in_words(report, scenario), caption, folder)
            lines += studies.sections(report, scenario)
    lines += [*targets(report), *method(report), *surroundings(report), *field(report)]
    return '\n'.join(lines).rstrip('\n') + '\n'


# -- results


def summary(report: Report, folder: str) -> Iterator[str]:
    yield from paragraph(
        'The speed of RbFly, of other clients, and of programs without a client library.'
        ' The measurements come from these result files:'
    )
    for run in report.runs:
        about = run.environment
        scenarios = names(dict.fromkeys(code(kind.scenario) for kind in run.kinds.values()))
        yield from paragraph(
            f'{code(run.label)}: {scenarios}; {run.rounds} rounds, started'
            f' {moment(about["time"])} on'
            f' {plain(str(about.get("cpus")))} CPUs ({plain(str(about.get("cpu")))}),'
            f' {plain(about["python"])}{brokers(about)}.'
        )
    yield from paragraph(
        'All numbers on this page are computed from these files. Each rate is the median over the'
        f' rounds, followed by its {LEVEL} interval in brackets. A *lane* is one library doing one'
        ' kind of work. A *floor* is a program without a client library that exchanges the same'
        ' frames with the broker: its rate is the most that broker, network and event loop allow.'
    )
    if any(lane.polls for lane in report.all_lanes()):
        yield from paragraph(
            'Floors and clients normally sleep in the kernel until a confirm arrives; waking a'
            ' processor that has halted takes time, on a virtual machine often more than the'
            " broker's work. A floor that *polls* asks for data in a loop instead, which is faster"
            ' and uses more CPU. This page compares it only with RbFly with ``busy_poll``, which'
            ' also polls. A client that uses much CPU per message leaves processors less time to'
            ' halt, and may be faster than a floor that sleeps.'
        )
    if studies.overview(report):
        caption = (
            f'Points: ratios of medians; lines: {LEVEL} intervals. The sections below describe each'
            ' kind of work and how each library does it.'
        )
        yield from show('overview', overview_in_words(report), caption, folder)
    kinds = [kind for kind in report.kinds() if report.of_kind(kind.name)]
    drawn = {name for figure in FIGURES for _, names in figure.parts for name in names}
    yield from heading('Summary')
    yield from bullets(
        [
            *(in_short(report, kind) for kind in kinds if kind.name in drawn),
            ahead(report, kinds),
            *([studies.sooner(report)] if report.of_study('percentiles') else []),
        ]
    )
    if warnings := list(cautions(report)):
        yield '.. admonition:: Limits of these results'
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
        yield from heading(f'{capital(kind.title)} ({code(kind.name)})', '~')
        yield from paragraph(f'{kind.count:,} messages per round.')
        yield from numbers(report, kind)
        yield from bullets(reading(report, kind))
        yield from studies.not_measured(report, [kind])


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
    """The table for a kind of work: rate, CPU, memory, and ratios to the floor or reference."""
    lanes = report.of_kind(kind.name)
    if not lanes:
        yield from paragraph('No lane has results.')
        return
    # the denominator of the ratios: floor, reference or RbFly
    bases = [
        *(lane for lane in lanes if lane.library == kind.floor),
        *(lane for lane in lanes if lane.is_reference),
        *(lane for lane in lanes if lane.is_ours and not lane.polls),
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
            own = report.floor(lane) if base.library == kind.floor else base
            for column in ('rate', 'cpu_per_message'):
                row.append('1' if lane is own else ratio(lane.ratio(own, column) if own else None))
        rows.append(row)
    yield from table(titles, rows)


def targets(report: Report) -> Iterator[str]:
    rows = []
    for target in TARGETS:
        lane, other = report.lane(target.lane), report.lane(target.other)
        about = lanes.find(target.lane)
        if not lane and POLLING in about.library.name:
            continue  # as in early files
        if not lane and not other and about.kind.scenario not in SCENARIOS:
            continue  # the page does not require this scenario
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
    yield from heading('Goals')
    yield from paragraph(
        "The project's own goals. A goal is *reached* if the whole interval meets it, and"
        ' *undecided* if only part of the interval does.'
    )
    yield from table(['lane', 'compared with', 'ratio and goal', 'reached?'], rows, 'perf')


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
    """Whether the run used the default number of messages for this kind."""
    known = lanes.KINDS.get(kind.name)
    if known is None:
        return False
    if like := run.kinds.get(known.like):
        return kind.count * like.full == like.count * kind.full
    return known.count(known.scale) == kind.count


def method(report: Report) -> Iterator[str]:
    yield from heading('Method')
    yield from paragraph(
        'To repeat the measurements, set up a checkout as described in the README, and run there:'
    )
    yield '.. code-block:: sh'
    yield ''
    for run in report.runs:
        yield from (f'   {line}' for line in command(run).split('\n'))
    files = ' '.join(run.label for run in report.runs)
    yield f'   python -m perf report {files}'
    yield ''
    yield from bullets(
        [
            'Scenarios run one after the other. Each lane keeps its own process for all of its'
            ' rounds; the scenario ``processes`` uses several per lane. The process connects and'
            ' warms up with one round that is not recorded.',
            'Each round runs every lane once, one at a time. The seed and the number of the round'
            ' determine the order, which is shuffled so that a temporary slowdown of the machine'
            ' affects all lanes alike. The scenario ``growth`` has a single round.',
            'The clock (``perf_counter``) runs from before the first message until after the last'
            ' confirm or the last message consumed. Before it starts, the lane creates its messages'
            ' and runs the garbage collector.',
            'The broker confirms every published message, unless the kind of work is described as'
            ' unconfirmed. After each round, code that is independent of the measured libraries'
            ' counts the messages in the broker. If the count differs from what the lane reports,'
            ' the lane has failed, and this page says so.',
            'Codec lanes repeat a statement with ``timeit``, which disables the garbage collector'
            ' during the measurement. The result of the statement is checked before and after.',
            'CPU is the user and system time of the process of a lane, per message. Memory is the'
            ' peak of its resident set while the clock runs.',
            f'Intervals are {LEVEL} percentile bootstrap intervals from {stats.RESAMPLES:,}'
            ' resamples. A ratio divides two medians over the rounds that both lanes completed;'
            ' its interval comes from resampling whole rounds.',
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
    head = ['kind of work', 'messages per round', 'with `--full`', 'scale', 'batch', 'warm-up']
    yield from table([plain(title) for title in head], rows)
    yield from heading('How each library is used', '~')
    yield from table(
        ['library', 'kinds of work', 'event loop', 'use'],
        (
            [plain(lanes[0].title), names(used_for(report, lanes)), loop, plain(how)]
            for (_, loop, how), lanes in grouped(report).items()
        ),
        'perf perf-text',
    )


def used_for(report: Report, lanes: Iterable[Lane]) -> Iterable[str]:
    """Names of kinds of work; for a study, only the name of the study."""
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
        return 'unknown'
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
            what = f'changes: {"; ".join(changes)}' if changes else 'nothing had changed'
            resumed.append(f'{code(run.label)} was resumed {moment(later["time"])}; {plain(what)}.')
    if resumed:
        yield from bullets(resumed)


# -- others


def field(report: Report) -> Iterator[str]:
    yield from heading('Differences from published reports')
    yield from paragraph(
        'Rates measured on different machines, with different versions or settings, are not'
        ' comparable. This table shows how the conditions differ; it repeats none of the published'
        ' rates.'
    )
    head = ['', 'this page', *(f'`{plain(p.title)} <{p.address}>`__' for p in PUBLISHED)]
    rows = []
    libraries = {name for p in PUBLISHED for name in p.libraries}
    for name in sorted(libraries):
        ours = {run.environment['libraries'].get(name) for run in report.runs} - {None}
        row = [plain(name), plain(', '.join(sorted(map(str, ours)))) or 'not measured']
        rows.append([*row, *(p.libraries.get(name, '') for p in PUBLISHED)])
    kafka = [run.environment['brokers'].get('kafka') for run in report.runs]
    modes = {broker.get('mode', 'mode unknown') for broker in kafka if broker}
    kafka_modes = plain(', '.join(sorted(modes))) or 'not measured'
    rows.append(['Kafka', kafka_modes, *(plain(p.kafka) for p in PUBLISHED)])
    counts = [
        f'{kind.name} {kind.count:,} per round'
        for kind in report.kinds()
        if kind.scenario != 'codec' and not kind.series
    ]
    rows.append(['messages', plain('; '.join(counts)), *(plain(p.counts) for p in PUBLISHED)])
    machines = {
        f'{run.environment.get("cpus")} CPUs, {run.environment.get("cpu")}' for run in report.runs
    }
    machine = plain('; '.join(sorted(machines)))
    rows.append(['hardware', machine, *(plain(p.hardware) for p in PUBLISHED)])
    rows.append(['notes', f'{code(OURS)} is this client', *(plain(p.notes) for p in PUBLISHED)])
    unknown = 'unknown'
    yield from table(
        head, ([row[0], *(text or unknown for text in row[1:])] for row in rows), 'perf perf-text'
    )
