"""The performance page, as reStructuredText."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

from .. import environment, stats
from ..lanes import Kind
from ..stats import Interval
from .cost import costs
from .figures import LATENCIES, QUANTILES, figure, label, overview
from .model import Lane, Report, Run
from .rst import (
    bullets,
    capital,
    code,
    document,
    heading,
    moment,
    names,
    paragraph,
    plain,
    sentence,
    table,
)
from .svg import Figure

LEVEL = f'{stats.LEVEL * 100:.0f} %'
STUDIES = 'studies'  # folder of their pages
LOAD = 0.5  # the page warns about a higher load per CPU

# RbFly's goals: two lanes, the minimum ratio of their rates, and the maximum ratio of CPU time.
GOALS: tuple[tuple[str, str, float, float | None], ...] = (
    ('rbfly-single', 'bare-uvloop-single', 0.98, 1.15),
    ('rbfly-batch', 'bare-uvloop-batch', 0.97, 1.35),
    ('rbfly-window', 'raw-socket-window', 0.9, None),
    ('rbfly-tasks-100', 'bare-uvloop-tasks-100', 0.75, None),
    ('rbfly-super-tasks', 'raw-socket-super-tasks', 0.75, None),
    ('rbfly-batches-consume', 'raw-socket-consume', 0.85, None),
    ('rbfly-encode-into-seed', 'msgspec-encode-seed', 0.8, None),
    ('rbfly-decode-seed', 'msgspec-decode-seed', 0.8, None),
    ('rbfly-decode-typed-order', 'msgspec-decode-typed-order', 1.0, None),
    ('rbfly-decode-typed-order', 'rbfly-decode-by-hand-order', 1.0, None),
    ('rbfly-cost-publish', 'raw-socket-cost-publish', 0.9, 1.3),
    ('rbfly-batches-cost-consume', 'raw-socket-cost-consume', 0.85, 1.2),
    ('rbfly-py3.14-py-single', 'bare-uvloop-py3.14-py-single', 0.98, 1.15),
    ('rbfly-py3.14-py-batch', 'bare-uvloop-py3.14-py-batch', 0.97, 1.35),
    ('rbfly-py3.14-py-window', 'raw-socket-py-window', 0.9, None),
    ('rbfly-py3.14-py-tasks-100', 'bare-uvloop-py3.14-py-tasks-100', 0.75, None),
    ('rbfly-py3.14-py-consume', 'rbfly-py-consume', 0.85, 1.2),
    ('rbfly-batches-py3.14-py-consume', 'raw-socket-py-consume', 0.85, None),
    ('rbfly-tls-window', 'rbfly-plain-window', 0.9, None),
    ('rbfly-tls-window-1k', 'rbfly-plain-window-1k', 0.9, None),
    *(
        (f'rbfly-batches-tls-{kind}', f'rbfly-batches-plain-{kind}', 0.8, None)
        for kind in ('consume', 'consume-100', 'consume-1k')
    ),
    ('rbfly-polling-single', 'bare-uvloop-polling-single', 0.9, None),
    ('rbfly-polling-batch', 'bare-uvloop-polling-batch', 0.85, None),
    *(
        (f'rbfly-polling-{kind}', f'rbfly-{kind}', 0.97, None)
        for kind in ('window', 'tasks-100', 'tasks-1000', 'consume')
    ),
    *(
        (f'rbfly-polling-far-{kind}', f'rbfly-far-{kind}', 0.97, 1.1)
        for kind in ('each-1', 'each-5', 'each-20', 'batch-1', 'batch-5', 'batch-20')
    ),
)

METHOD = (
    'Scenarios run one after the other. Each lane keeps its own process for all of its rounds; the'
    ' scenario ``processes`` uses several per lane. The process connects and warms up with one'
    ' round that is not recorded.',
    'Each round runs every lane once, one at a time. The seed and the number of the round determine'
    ' the order, which is shuffled so that a temporary slowdown of the machine affects all lanes'
    ' alike. In the scenario ``growth``, the most messages are published'
    ' in a single round.',
    'The clock (``perf_counter``) runs from before the first message until after the last confirm'
    ' or the last message consumed. Before it starts, the lane creates its messages and runs the'
    ' garbage collector.',
    'The broker confirms every published message, unless the kind of work is described as'
    ' unconfirmed. After each round, code that is independent of the measured libraries counts the'
    ' messages in the broker. If the count differs from what the lane reports, the lane has failed,'
    ' and this page says so.',
    'Latency is injected by a proxy. In each round the lane measures the round trip of one request,'
    ' and fails if it is shorter.',
    'Codec lanes repeat a statement with ``timeit``, which disables the garbage collector during'
    ' the measurement. The result of the statement is checked before and after.',
    'CPU is the user and system time of the process of a lane, per message. Memory is the peak of'
    ' its resident set while the clock runs.',
    'Floors and clients normally sleep until a confirm arrives; waking a halted processor takes'
    ' time. Lanes that *poll* ask for data in a loop, which is faster and uses more CPU. They are'
    ' compared with each other only.',
    f'Intervals are {LEVEL} percentile bootstrap intervals from {stats.RESAMPLES:,} resamples. A'
    ' ratio divides two medians over the rounds that both lanes completed; its interval comes from'
    ' resampling whole rounds.',
)

PUBLISHED = (
    '`RbFly 0.10 <https://wrobell.dcmod.org/rbfly/performance.html>`__: aiokafka 0.11.0 with'
    ' Kafka on ZooKeeper, rstream 0.20.6, Qpid Proton 0.39.0, uvloop; single messages and batches'
    ' of 100, each confirmed before the next; no floors.',
    '`rstream <https://github.com/rabbitmq-community/rstream#client-performances>`__: 1,000,000'
    ' messages by ``send_batch`` on 4 cores; its clock stops without waiting for confirms.',
)


def compose(report: Report) -> str:
    """Write the page."""
    lines = [
        '.. Written by `python -m perf report` from result files; do not edit.',
        '',
        *heading('Performance', '='),
        *introduction(report),
    ]
    found = studies(report)
    for scenario, about in report.scenarios.items():
        if scenario not in found:
            lines += heading(about.title)
            lines += paragraph(sentence(about.about))
            lines += results(report, scenario)
    if found:
        lines += heading('Studies')
        lines += paragraph('Each of these varies one thing, such as the size of messages:')
        lines += ('.. toctree::', '   :maxdepth: 1', '')
        lines += (*(f'   {STUDIES}/{scenario}' for scenario in found), '')
    lines += [*goals(report), *method(report), *surroundings(report)]
    lines += heading('Published elsewhere')
    lines += paragraph(
        'Rates measured on other machines, with other versions or settings, are not comparable:'
    )
    lines += bullets(PUBLISHED)
    lines += heading('Next')
    lines += paragraph(
        ':doc:`why-fast` explains these numbers, :doc:`/guides/speed` says what they mean for your'
        ' program, and :doc:`measuring` how to repeat them.'
    )
    return document(lines)


def studies(report: Report) -> list[str]:
    """The scenarios that have a page of their own."""
    return [name for name, about in report.scenarios.items() if about.axis]


def compose_study(report: Report, scenario: str) -> str:
    """Write the page of a study."""
    about = report.scenarios[scenario]
    lines = [
        '.. Written by `python -m perf report` from result files; do not edit.',
        '',
        *heading(about.title, '='),
        *paragraph(sentence(about.about)),
        *results(report, scenario),
        *paragraph(
            ':doc:`../performance` explains lanes, floors and intervals, and how this was measured.'
        ),
    ]
    return document(lines)


def introduction(report: Report) -> Iterator[str]:
    yield from paragraph(
        'The speed of RbFly, of other clients, and of programs without a client library. All'
        ' numbers are computed from result files, see Method_. Rates are medians over the rounds,'
        f' with {LEVEL} intervals in brackets and as lines in the figures. A *lane* is one library'
        ' doing one kind of work. A *floor* is a program without a client library that exchanges'
        ' the same frames with the broker: its rate is the most that broker, network and event loop'
        " allow. The last columns of tables divide RbFly's rate and CPU by those of the lane;"
        ' ratios of rates are bold where RbFly is slower.'
    )
    if found := overview(report):
        yield from embed(found, "RbFly's rate divided by the rates of other libraries")


def summary(run: Run) -> str:
    """A run, and what limits the significance of its numbers."""
    about = run.environment
    scenarios = names(dict.fromkeys(code(kind.scenario) for kind in run.kinds.values()))
    text = f'{code(run.label)}: {scenarios}; {run.settings.rounds} rounds, {moment(about["time"])}'
    load, cpus = about.get('load'), about.get('cpus')
    if load and cpus and load[0] > LOAD * cpus:
        text += f'; the machine was not idle: its load was {load[0]:.2f} on {cpus} CPUs'
    if run.settings.pinned:
        text += '; brokers and lanes ran on separate processors'
    if run.settings.when_idle:
        text += '; each round waited until the processors were idle'
    if str(about.get('revision') or '').endswith('+'):
        text += '; the checkout had uncommitted changes'
    incomplete = [ln.name for ln in run.lanes.values() if ln.rounds < run.results.rounds(ln.name)]
    if incomplete:
        text += f'; fewer rounds of {", ".join(map(code, incomplete))}'
    return text


# -- numbers


def number(value: float) -> str:
    if value < 0.1:
        return f'{value:#.2g}' if value else '0'
    return f'{value:.2f}' if value < 10 else f'{value:,.0f}'


def ratio(interval: Interval | None) -> str:
    """Format a ratio and its interval; bold if it is significantly below 1."""
    if interval is None:
        return ''
    text = f'{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]'
    return f'**{text}**' if interval.high < 1 else text


def verdict(interval: Interval | None, goal: float, most: bool = False) -> str:
    """Whether a goal is reached: by the whole interval, by part of it, or not at all.

    :param most: the goal is a maximum.
    """
    if interval is None:
        return 'unknown'
    low, high = (-interval.high, -interval.low) if most else (interval.low, interval.high)
    goal = -goal if most else goal
    return 'reached' if low >= goal else 'undecided' if high >= goal else 'not reached'


def goals(report: Report) -> Iterator[str]:
    rows = []
    for name, other_name, least_rate, most_cpu in GOALS:
        lane = report.lane(name)
        other = lane and (lane.run.measured.get(other_name) or report.lane(other_name))
        if lane and other:
            rate = lane.ratio(other)
            row = [code(name), code(other_name), ratio(rate), f'at least {least_rate}']
            rows.append([*row, verdict(rate, least_rate)])
            if most_cpu:
                cpu = lane.ratio(other, 'cpu_per_message')
                text = f'CPU {ratio(cpu).strip("*")}'
                rows.append(['', '', text, f'at most {most_cpu}', verdict(cpu, most_cpu, True)])
    if rows:
        yield from heading('Goals')
        yield from paragraph(
            "The project's own goals. A goal is *reached* if the whole interval meets it, and"
            ' *undecided* if only part of the interval does.'
        )
        yield from table(['lane', 'compared with', 'ratio', 'goal', 'reached?'], rows, 'perf')


def embed(figure: Figure, name: str) -> Iterator[str]:
    """A figure within the page."""
    yield from ('.. raw:: html', '')
    yield from (f'   {line}' for line in figure.lines(name))
    yield ''


def results(report: Report, scenario: str) -> Iterator[str]:
    """Figure and tables of a scenario."""
    about = report.scenarios[scenario]
    found = report.series(scenario)
    if found:
        yield from embed(figure(report, scenario), f'{about.title}; the tables have the numbers')
    for series, kinds in found.items():
        if text := about.series.get(series):
            yield from heading(f'{capital(text)} ({code(scenario)})', '~')
        if scenario == 'percentiles':
            yield from percentiles(report, kinds)
        elif series:
            yield from numbers(report, kinds, about.axis)
        else:
            for kind in kinds:
                yield from heading(f'{capital(kind.title)} ({code(kind.name)})', '~')
                if kind.metered:
                    yield from costs(report.of_kind(kind.name))
                else:
                    yield from numbers(report, [kind])
    if absent := report.absent(scenario):
        yield from paragraph('Not measured:')
        yield from bullets(f'{code(name)} {plain(why[:300])}' for name, why in absent.items())


def numbers(report: Report, kinds: Sequence[Kind], axis: str = '') -> Iterator[str]:
    """A table with a row for each lane of each kind of work, and RbFly's ratios to the lane."""
    sizes = len({size_of(kind) for kind in kinds}) > 1
    secure = any(kind.plain for kind in kinds)
    rows = []
    for kind in kinds:
        for i, lane in enumerate(report.of_kind(kind.name)):
            row = [plain(label(kind, kinds)) if not i else ''] if axis else []
            rate = f'{lane.rate.value:,.0f}'
            if lane.rounds > 1:
                rate += f' [{lane.rate.low:,.0f}, {lane.rate.high:,.0f}]'
            row += [plain(lane.library.title), rate]
            if sizes:
                row.append(number(lane.rate.value * size_of(kind) / 1e6))
            cpu = f'{lane.cpu:.2f}' if lane.cpu >= 1 else f'{lane.cpu:.3f}'
            row += [cpu, f'{lane.memory:.0f}', *ratios(report, lane)]
            if secure:
                row += [
                    ratio(lane.ratio(other)).strip('*')
                    if (other := report.lane(lane.plain))
                    else ''
                ]
            rows.append(row)
    head = [axis] if axis else []
    head += ['lane', 'messages/s', *(['MB/s'] if sizes else []), 'CPU µs/message', 'MiB']
    if not axis:
        count = report.of_kind(kinds[0].name)[0].run.settings.counts[kinds[0].name]
        yield from paragraph(f'{count:,} messages per round.')
        if len({lane.run for lane in report.of_kind(kinds[0].name)}) > 1:
            yield from paragraph(
                'Lanes that poll are from another run, and so are the rates of RbFly with which'
                ' they are compared.'
            )
    head += ['rate, RbFly ÷ lane', 'CPU, RbFly ÷ lane', *(['rate, ÷ plain'] if secure else [])]
    used = [any(row[i] for row in rows) for i in range(len(head))]  # no ratios without other lanes
    head, *rows = [list(compress(row, used)) for row in (head, *rows)]
    yield from table(head, rows, 'perf-numbers perf-axis' if axis else 'perf-numbers')


def size_of(kind: Kind) -> int:
    return kind.stored.size if kind.stored else kind.body


def ratios(report: Report, lane: Lane) -> tuple[str, str]:
    """RbFly's rate and CPU divided by those of a lane, of which both poll, or neither does."""
    ours = report.ours(lane.kind.name, lane.polls)
    if ours is lane and lane.polls:  # shows what polling costs and brings
        ours = lane.run.measured.get(lane.sleeping)
    if ours is None or ours is lane:
        return '', ''
    cpu = ours.ratio(lane, 'cpu_per_message')
    return ratio(ours.ratio(lane)), number(cpu.value) if cpu else ''


def percentiles(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """A table of latencies pooled over the rounds."""
    yield from paragraph(
        'Milliseconds from the time when a message was due, over all rounds. The timer that paces'
        ' all lanes accounts for up to 0.9 ms at 10,000 messages per second. A round is late if the'
        ' lane fell behind the rate.'
    )
    head = ['messages/s', 'lane', *(f'{what} {name}' for what in LATENCIES for name in QUANTILES)]
    rows = []
    for kind in kinds:
        for lane in report.of_kind(kind.name):
            row = [f'{kind.at:,}', plain(lane.library.title)]
            for what in LATENCIES:
                histogram = lane.histogram(what)
                row += [f'{histogram.quantile(q) * 1000:.2f}' for q in QUANTILES.values()]
            rows.append([*row, f'{len(lane.values("late"))} of {lane.rounds}'])
    yield from table([*head, 'late rounds'], rows, 'perf-numbers perf-axis')


# -- how


def method(report: Report) -> Iterator[str]:
    yield from heading('Method')
    yield from paragraph(
        'To repeat the measurements, install what the page "Measure it yourself" says, and run in a'
        ' checkout:'
    )
    yield from ('.. code-block:: sh', '')
    yield from (f'   python -m perf --repeat {run.label}' for run in report.runs)
    yield ''
    yield from bullets(METHOD)
    yield from paragraph('The result files:')
    yield from bullets(summary(run) for run in report.runs if run.kinds)
    yield from heading('How each library is used', '~')
    groups: dict[tuple[str, str, str], dict[str, None]] = {}
    for lane in report.all_lanes():
        kind, use = lane.kind, lane.use
        used = groups.setdefault((lane.library.title, use.loop, use.how), {})
        used[code(kind.scenario if kind.series else kind.name)] = None
    rows = [
        [plain(title), names(used), plain(loop), plain(how)]
        for (title, loop, how), used in groups.items()
    ]
    yield from table(['library', 'work', 'event loop', 'use'], rows, 'perf perf-text')


def facts(about: dict[str, Any]) -> dict[str, str]:
    """Machine and versions, as text."""
    texts = {}
    for name, value in about.items():
        if isinstance(value, dict):
            for key, item in value.items():
                texts[key] = ', '.join(item.values()) if isinstance(item, dict) else item
        elif isinstance(value, list):
            texts[name] = ', '.join(map(str, value))
        elif name == 'memory' and value:
            texts[name] = f'{value / 2**30:.1f} GiB'
        else:
            texts[name] = moment(str(value)) if name == 'time' else str(value or 'unknown')
    return texts


def surroundings(report: Report) -> Iterator[str]:
    """Machine, versions, and what changed before a run was resumed."""
    yield from heading('Environment')
    found = {run.results.path.name: facts(run.environment) for run in report.runs}
    names = dict.fromkeys(name for texts in found.values() for name in texts)
    rows = []
    for name in names:
        files: dict[str, list[str]] = {}
        for file, texts in found.items():
            if name in texts:
                files.setdefault(texts[name], []).append(file)
        first = plain(name)
        for text, same in files.items():
            where = 'all' if len(same) == len(found) else ', '.join(map(code, same))
            rows.append([first, plain(text), where])
            first = ''
    yield from table(['', 'value', 'result files'], rows, 'perf perf-text')
    resumed = []
    for run in report.runs:
        for later in run.results.resumed:
            changes = environment.differences(run.environment, later)
            what = f'changes: {"; ".join(changes)}' if changes else 'nothing had changed'
            resumed.append(f'{code(run.label)} was resumed {moment(later["time"])}; {plain(what)}.')
    if resumed:
        yield from bullets(resumed)
