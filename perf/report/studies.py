"""Studies: a kind of work for several values of a parameter, as tables and conclusions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import lanes
from .model import OURS, TITLES, Kind, Lane, Report, rank
from .reading import number, ratio
from .rst import bullets, capital, code, heading, names, paragraph, plain, table

__all__ = [
    'LATENCIES',
    'QUANTILES',
    'STUDIES',
    'Compared',
    'Study',
    'label',
    'lane_of',
    'libraries',
    'medians',
    'not_measured',
    'overview',
    'sections',
    'sooner',
]

POLLING = f'{OURS}{lanes.POLLING}'
QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}
SOONER = 0.95  # a latency counts as lower if it is below this fraction of RbFly's
LATENCIES = ('confirm', 'end to end')


@dataclass(frozen=True)
class Study:
    """How a study is shown.

    :ivar title: section heading.
    :ivar axis: what the values are.
    :ivar series: titles of the series.
    :ivar marks: rates that others have published, drawn as lines in the figure.
    """

    title: str
    axis: str
    series: dict[str, str]
    marks: tuple[tuple[str, float], ...] = ()


STUDIES = {
    'batch-size': Study(
        'Batch size', 'messages per batch', {'batch': 'each batch confirmed before the next'}
    ),
    'concurrent': Study(
        'Concurrent tasks', 'tasks', {'tasks': 'each task awaits the confirm of its message'}
    ),
    'far': Study(
        'Busy polling, with a distant broker',
        'round trip in ms',
        {
            'each': 'each message confirmed before the next',
            'batch': 'batches of 100, each confirmed before the next',
        },
    ),
    'gaps': Study(
        'Busy polling, with work between messages',
        'microseconds of work',
        {'gaps': 'each message confirmed before the work'},
    ),
    'latency': Study(
        'Network latency',
        'round trip in ms',
        {
            'each': 'each message confirmed before the next',
            'batch': 'batches of 100, each confirmed before the next',
            'flight': 'up to 10,000 messages in flight',
            'unconfirmed': 'without confirms',
            'connection': 'one connection per message',
        },
    ),
    'percentiles': Study('Latency at a fixed rate', 'messages per second', {'rate': ''}),
    'processes': Study(
        'Processes and publishers',
        'publishers per process',
        {'1': 'one process', '2': 'two processes'},
        (
            ('Go study, peak', 1_082_014),
            ('Go study, sustained', 266_025),
            ('.NET talk', 88e6 / 12),
        ),
    ),
    'sizes': Study(
        'Message size',
        'bytes per body',
        {
            'send': 'published, each confirmed before the next',
            'many': 'published, up to 10,000 messages in flight',
            'read': 'consumed',
        },
    ),
    'values': Study('Value types', 'value', {'publish': 'published', 'read': 'consumed'}),
    'super-nodes': Study(
        'Super streams in a cluster',
        'nodes that lead partitions',
        {'publish': 'published by key', 'consume': 'consumed from all partitions'},
    ),
    'growth': Study(
        'Growth',
        'number',
        {
            'messages': 'messages published by one publisher',
            'streams': 'streams with one publisher each',
            'subscriptions': 'subscriptions of one client',
        },
    ),
}

# The kinds of work in the overview, and their labels.
OVERVIEW = {
    'single': 'each message confirmed',
    'batch': 'batches of 100',
    'concurrent-100': '100 tasks',
    'sizes-many-10': '10,000 in flight',
    'clients-publish': '10,000 in flight, Go and Java',
    'latency-each-10': 'each confirmed, 10 ms latency',
    'latency-flight-10': '10,000 in flight, 10 ms latency',
    'processes-2-1': '10,000 in flight, two processes',
    'sizes-read-10': 'consumed, 10 bytes',
    'sizes-read-10000': 'consumed, 10 KB',
    'clients-consume': 'consumed, Go and Java',
    'encode-seed': 'encoded',
    'decode-seed': 'decoded',
}


class Compared(NamedTuple):
    """A kind of work, and RbFly's results relative to its peers'."""

    title: str
    lane: Lane
    peers: list[Lane]


def overview(report: Report) -> list[Compared]:
    """RbFly's rate relative to each peer's, per kind of work."""
    rows = []
    for name, title in OVERVIEW.items():
        if ours := report.ours(name):
            peers = [lane for lane in report.of_kind(name) if lane.is_peer and ours.ratio(lane)]
            if peers:
                rows.append(Compared(title, ours, peers))
    return rows


def libraries(report: Report, kinds: Sequence[Kind]) -> list[str]:
    """Libraries with results, in report order."""
    used = {lane.library for kind in kinds for lane in report.of_kind(kind.name)}
    return sorted(used, key=rank)


def lane_of(report: Report, kind: Kind, library: str) -> Lane | None:
    return report.lane(f'{library}-{kind.name}')


def label(kind: Kind) -> str:
    """The value that the study varies, or a description if it is not a number."""
    return f'{kind.at:,}' if kind.at or kind.series in STUDIES['latency'].series else kind.title


def title(library: str) -> str:
    return plain(TITLES.get(library, library))


def medians(report: Report, scenario: str) -> str:
    """Text alternative for a study: its medians."""
    parts = []
    for series, kinds in report.of_study(scenario).items():
        for library in libraries(report, kinds):
            lanes = [(kind, lane_of(report, kind, library)) for kind in kinds]
            rates = [f'{label(kind)}: {lane.rate.value:,.0f}' for kind, lane in lanes if lane]
            parts.append(f'{series}, {TITLES.get(library, library)}: {"; ".join(rates)}.')
    return f'{STUDIES[scenario].title}, messages per second, medians. {" ".join(parts)}'


# -- text


def sections(report: Report, scenario: str) -> Iterator[str]:
    """Tables and text of a study."""
    study = STUDIES[scenario]
    for series, kinds in report.of_study(scenario).items():
        if text := study.series[series]:
            yield from heading(f'{capital(text)} ({code(scenario)})', '~')
        if scenario == 'percentiles':
            yield from percentiles(report, kinds)
            continue
        yield from rates(report, study, kinds)
        yield from bullets(reading(report, kinds))
        if scenario == 'super-nodes':
            yield from bullets(spread(report, kinds))
    if scenario == 'latency':
        yield from bullets(trips(report))
    if study.marks:
        yield from paragraph(
            'The dotted lines in the figure are rates published elsewhere, measured on other'
            ' machines with other settings and versions. They were not verified and are not'
            ' comparable.'
        )
    yield from not_measured(report, report.kinds(scenario))


def not_measured(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    if absent := report.absent(kinds):
        yield from paragraph('Not measured:')
        yield from bullets(f'{code(name)} {plain(why[:300])}' for name, why in absent.items())


def cell(lane: Lane | None) -> str:
    if lane is None:
        return ''
    if lane.rounds == 1:
        return f'{lane.rate.value:,.0f}'
    return f'{lane.rate.value:,.0f} [{lane.rate.low:,.0f}, {lane.rate.high:,.0f}]'


def rates(report: Report, study: Study, kinds: Sequence[Kind]) -> Iterator[str]:
    """Tables of rates, bytes if sizes differ, and ratios; CPU and memory for a single library."""
    names = libraries(report, kinds)
    head = [study.axis, 'messages per round', *map(title, names)]
    rows = []
    for kind in kinds:
        row_lanes = [lane_of(report, kind, name) for name in names]
        row = [plain(label(kind)), f'{kind.count:,}', *map(cell, row_lanes)]
        if len(names) == 1 and (lane := row_lanes[0]):
            cpu = lane.cpu.value
            row += [f'{cpu:.2f}' if cpu >= 1 else f'{cpu:.3f}', f'{lane.memory:.0f}']
        rows.append(row)
    if len(names) == 1:
        head += ['CPU µs/message', 'MiB']
    yield from paragraph('Messages per second:')
    yield from table(head, rows)
    if len({kind.body for kind in kinds}) > 1:
        yield from paragraph('Megabytes per second, counting bodies only:')
        yield from each(
            report,
            study.axis,
            kinds,
            names,
            lambda kind, lane: number(lane.rate.value * kind.body / 1e6),
        )
    others = [name for name in names if name not in (OURS, POLLING)]
    if OURS in names and others:

        def ratio_to(kind: Kind, lane: Lane) -> str:
            ours = lane_of(report, kind, OURS)
            return ratio(ours.ratio(lane)) if ours else ''

        yield from paragraph(f'Rate of {title(OURS)} ÷ rate of:')
        yield from each(report, study.axis, kinds, others, ratio_to)
    if OURS in names and POLLING in names:
        yield from paragraph('CPU per message, and ratios of polling to sleeping:')
        yield from polling(report, study.axis, kinds)


def polling(report: Report, axis: str, kinds: Sequence[Kind]) -> Iterator[str]:
    """A table of what polling costs and brings."""
    rows = []
    for kind in kinds:
        ours, lane = lane_of(report, kind, OURS), lane_of(report, kind, POLLING)
        if ours and lane:
            cpu = (number(ours.cpu.value), number(lane.cpu.value))
            ratios = (ratio(lane.ratio(ours, column)) for column in ('rate', 'cpu_per_message'))
            rows.append([label(kind), *cpu, *ratios])
    head = [axis, 'CPU µs, sleeping', 'CPU µs, polling', 'rate, ratio', 'CPU, ratio']
    yield from table(head, rows)


def each(
    report: Report,
    axis: str,
    kinds: Sequence[Kind],
    names: Sequence[str],
    text: Callable[[Kind, Lane], str],
) -> Iterator[str]:
    """A table with one row per kind of work and one text per lane."""
    rows = []
    for kind in kinds:
        row_lanes = [lane_of(report, kind, name) for name in names]
        rows.append([plain(label(kind)), *(text(kind, lane) if lane else '' for lane in row_lanes)])
    yield from table([axis, *map(title, names)], rows)


def listed(labels: Sequence[str], of: int) -> str:
    if len(labels) == of:
        return ' throughout' if of > 1 else ''
    return f' at {", ".join(labels)}'


def reading(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """Where RbFly is faster than each other library, by the rules of :mod:`.reading`."""
    for library in libraries(report, kinds):
        if library in (OURS, POLLING):
            continue
        compared = []
        for kind in kinds:
            ours, other = lane_of(report, kind, OURS), lane_of(report, kind, library)
            if ours and other and (interval := ours.ratio(other)):
                compared.append((plain(label(kind)), interval, other))
        if not compared:
            continue
        values = [interval.value for _, interval, _ in compared]
        limits = dict.fromkeys(map(number, (min(values), max(values))))
        span = f'{" to ".join(limits)} times'
        if compared[0][2].is_floor:
            yield f'{title(OURS)} reaches {span} the rate of the {title(library)}.'
            continue
        parts = []
        for labels, text in (
            ([name for name, x, _ in compared if x.low > 1], 'faster{}'),
            (
                [name for name, x, _ in compared if x.low <= 1 <= x.high],
                'not significantly different{}',
            ),
            ([name for name, x, _ in compared if x.high < 1], '**slower**{}'),
        ):
            if labels:
                parts.append(text.format(listed(labels, len(compared))))
        yield (
            f'Compared with {title(library)}, {title(OURS)} is {"; ".join(parts)}: {span} its rate.'
        )


def trips(report: Report) -> Iterator[str]:
    """The shortest round trip measured in any lane, for each injected delay."""
    least: dict[int, float] = {}
    for kind in report.kinds('latency'):
        for lane in report.of_kind(kind.name):
            for trip in lane.values('round_trip'):
                least[kind.at] = min(trip * 1000, least.get(kind.at, trip * 1000))
    texts = [f'{at} ms: {value:.2f} ms' for at, value in sorted(least.items())]
    yield (
        'In each round, each lane timed one request that publishes nothing. The shortest round'
        f' trips of all lanes, by injected latency, are {"; ".join(texts)}.'
    )


def spread(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """How the rate of each library changes when more nodes lead the partitions."""
    first, *others = kinds
    for kind in others:
        parts = []
        for library in libraries(report, kinds):
            lane, base = lane_of(report, kind, library), lane_of(report, first, library)
            if lane and base:
                parts.append(f'{title(library)} {ratio(lane.ratio(base))}')
        yield (
            f'Rate with leaders on {label(kind)} nodes ÷ rate with all leaders on one:'
            f' {"; ".join(parts)}.'
        )


def sooner(report: Report) -> str:
    """Where other libraries have lower latencies than RbFly."""
    parts = []
    for kind in report.kinds('percentiles'):
        ours = lane_of(report, kind, OURS)
        for lane in report.of_kind(kind.name):
            if ours and lane.is_peer:
                sooner_at = [
                    f'{what} {name}'
                    for what in LATENCIES
                    for name, q in QUANTILES.items()
                    if lane.histogram(what).quantile(q) < SOONER * ours.histogram(what).quantile(q)
                ]
                if sooner_at:
                    parts.append(
                        f'{plain(lane.title)} at {label(kind)} per second, {names(sooner_at)}'
                    )
    if not parts:
        return 'No other library has a lower latency than RbFly at a fixed rate.'
    return f'Lower latency than RbFly at a fixed rate: {"; ".join(parts)}.'


def percentiles(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """A table of latencies pooled over the rounds."""
    yield from paragraph(
        'Milliseconds from the time when a message was due, over all rounds; the ratio to the'
        ' floor is in brackets. The timer that paces all lanes accounts for up to 0.9 ms at 10,000'
        ' messages per second.'
    )
    head = ['messages per second', 'lane']
    head += [f'{what} {name}' for what in LATENCIES for name in QUANTILES]
    rows = []
    for kind in kinds:
        lanes = report.of_kind(kind.name)
        floor = next((lane for lane in lanes if lane.is_floor), None)
        for lane in lanes:
            row = [label(kind), plain(lane.title)]
            for what in LATENCIES:
                histogram = lane.histogram(what)
                floor_histogram = floor.histogram(what) if floor and lane is not floor else None
                for q in QUANTILES.values():
                    value = histogram.quantile(q)
                    floor_ratio = (
                        f' [{number(value / floor_histogram.quantile(q))}]'
                        if floor_histogram
                        else ''
                    )
                    row.append(f'{value * 1000:.2f}{floor_ratio}')
            rows.append(row)
    yield from table(head, rows)
    late = [
        f'{plain(lane.title)} at {label(kind)} in {len(rounds)} of {lane.rounds} rounds'
        for kind in kinds
        for lane in report.of_kind(kind.name)
        if (rounds := lane.values('late'))
    ]
    if late:
        yield from paragraph(f'These lanes fell behind the rate: {"; ".join(late)}.')
    else:
        yield from paragraph('Every lane kept up with the rate in every round.')
