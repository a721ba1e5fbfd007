"""Studies: a kind of work for several values of a parameter, as tables and conclusions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .model import OURS, TITLES, Kind, Lane, Report
from .reading import number, ratio
from .rst import bullets, code, heading, names, paragraph, plain, table

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
    'overview',
    'sections',
    'sooner',
]

QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}
SOONER = 0.95  # latencies above this fraction of RbFly's count as the same
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
        'Sizes of batches', 'messages in a batch', {'batch': 'each batch confirmed before the next'}
    ),
    'concurrent': Study(
        'Numbers of tasks', 'tasks', {'tasks': 'each task awaits the confirm of its message'}
    ),
    'latency': Study(
        'Distance to the broker',
        'ms there and back',
        {
            'each': 'each message confirmed before the next',
            'batch': 'batches of 100, each confirmed before the next',
            'flight': 'up to 10,000 unconfirmed',
            'unconfirmed': 'without confirms',
            'connection': 'a connection for each message',
        },
    ),
    'percentiles': Study('Percentiles at a fixed rate', 'messages a second', {'rate': ''}),
    'processes': Study(
        'Processes and publishers',
        'publishers in each process',
        {'1': 'one process', '2': 'two processes'},
        (
            ('Go study, peak', 1_082_014),
            ('Go study, sustained', 266_025),
            ('.NET talk', 88e6 / 12),
        ),
    ),
    'sizes': Study(
        'Sizes of bodies',
        'bytes of a body',
        {
            'send': 'published, each confirmed before the next',
            'many': 'published, up to 10,000 unconfirmed',
            'read': 'consumed',
        },
    ),
    'values': Study('Types of values', 'value', {'publish': 'published', 'read': 'consumed'}),
    'growth': Study(
        'Growth',
        'number',
        {
            'messages': 'messages published, one after the other by the same publisher',
            'streams': 'streams, with a publisher each',
            'subscriptions': 'subscriptions, all of the same client',
        },
    ),
}

# Kinds of work in the overview, and their names there.
OVERVIEW = {
    'single': 'each message confirmed',
    'batch': 'batches of 100',
    'concurrent-100': '100 tasks',
    'sizes-many-10': 'many unconfirmed',
    'clients-publish': 'many, other languages',
    'latency-each-10': 'each, 10 ms away',
    'latency-flight-10': 'many, 10 ms away',
    'processes-2-1': 'two processes',
    'sizes-read-10': 'consumed, 10 bytes',
    'sizes-read-10000': 'consumed, 10 KB',
    'clients-consume': 'consumed, other languages',
    'encode-seed': 'encoded',
    'decode-seed': 'decoded',
}


class Compared(NamedTuple):
    """A kind of work, and RbFly's results relative to its peers'."""

    title: str
    lane: Lane
    peers: list[Lane]


def overview(report: Report) -> list[Compared]:
    """RbFly relative to each peer, per kind of work."""
    rows = []
    for name, title in OVERVIEW.items():
        lanes = report.of_kind(name)
        ours = next((lane for lane in lanes if lane.is_ours), None)
        peers = [lane for lane in lanes if lane.is_peer and ours and ours.ratio(lane)]
        if ours and peers:
            rows.append(Compared(title, ours, peers))
    return rows


def libraries(report: Report, kinds: Sequence[Kind]) -> list[str]:
    """Libraries with results, in report order."""
    used = {lane.library for kind in kinds for lane in report.of_kind(kind.name)}
    order = list(TITLES)
    return sorted(used, key=lambda name: order.index(name) if name in order else len(order))


def lane_of(report: Report, kind: Kind, library: str) -> Lane | None:
    return next((lane for lane in report.of_kind(kind.name) if lane.library == library), None)


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
            yield from heading(f'{scenario}, {text}', '~')
        if scenario == 'percentiles':
            yield from percentiles(report, kinds)
            continue
        yield from rates(report, study, kinds)
        yield from bullets(reading(report, kinds))
    if scenario == 'latency':
        yield from bullets(trips(report))
    if study.marks:
        yield from paragraph(
            'Lines in the figure: rates as others have published them, of other machines, settings'
            ' and versions; not checked by us, and not comparable.'
        )
    absent = {
        name: why
        for kind in report.kinds(scenario)
        if (run := report.run_of(kind.name))
        for name, why in run.absent_of_kind(kind.name).items()
    }
    if absent:
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
    head = [study.axis, 'messages a round', *map(title, names)]
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
        yield from paragraph('The same in megabytes of bodies per second:')
        yield from each(
            report,
            study.axis,
            kinds,
            names,
            lambda kind, lane: number(lane.rate.value * kind.body / 1e6),
        )
    others = [name for name in names if name != OURS]
    if OURS in names and others:

        def ratio_to(kind: Kind, lane: Lane) -> str:
            ours = lane_of(report, kind, OURS)
            return ratio(ours.ratio(lane)) if ours else ''

        yield from paragraph(f'Rate of {title(OURS)} ÷ that of:')
        yield from each(report, study.axis, kinds, others, ratio_to)


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
        return 'everywhere'
    return f'at {", ".join(labels)}'


def reading(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """Where RbFly is ahead of each of the others, by the rules of the rest of the report."""
    for library in libraries(report, kinds):
        if library == OURS:
            continue
        compared = []
        for kind in kinds:
            ours, other = lane_of(report, kind, OURS), lane_of(report, kind, library)
            if ours and other and (interval := ours.ratio(other)):
                compared.append((plain(label(kind)), interval, other))
        if not compared:
            continue
        values = [interval.value for _, interval, _ in compared]
        span = f'{number(min(values))} to {number(max(values))} times'
        if compared[0][2].is_floor:
            yield f'{title(OURS)} has {span} the rate of {title(library)}.'
            continue
        parts = []
        for labels, text in (
            ([name for name, x, _ in compared if x.low > 1], 'is ahead {}'),
            ([name for name, x, _ in compared if x.low <= 1 <= x.high], 'cannot be told apart {}'),
            ([name for name, x, _ in compared if x.high < 1], '**is behind** {}'),
        ):
            if labels:
                parts.append(text.format(listed(labels, len(compared))))
        yield f'Beside {title(library)}, {title(OURS)} {"; ".join(parts)}: {span} its rate.'


def trips(report: Report) -> Iterator[str]:
    """The shortest round trip measured in any lane, for each injected delay."""
    least: dict[int, float] = {}
    for kind in report.kinds('latency'):
        for lane in report.of_kind(kind.name):
            for trip in lane.values('round_trip'):
                least[kind.at] = min(trip * 1000, least.get(kind.at, trip * 1000))
    texts = [f'{value:.2f} ms with {at} ms' for at, value in sorted(least.items())]
    yield (
        'Each lane measured a round trip in each round, by a request of its library that publishes'
        f' nothing; the least of all lanes was {"; ".join(texts)} injected.'
    )


def sooner(report: Report) -> str:
    """Where messages of others arrive sooner than RbFly's."""
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
                        f'{plain(lane.title)} at {label(kind)} a second, {names(sooner_at)}'
                    )
    if not parts:
        return 'Messages of no other library are confirmed or consumed sooner at a fixed rate.'
    return f'Sooner than this client at a fixed rate: {"; ".join(parts)}.'


def percentiles(report: Report, kinds: Sequence[Kind]) -> Iterator[str]:
    """A table of latencies pooled over the rounds."""
    yield from paragraph(
        'Milliseconds from when a message was due, pooled over all rounds; in brackets how many'
        ' times that of the floor. The wake-ups by which all lanes send add up to 0.9 ms at 10,000'
        ' messages a second.'
    )
    head = ['messages a second', 'lane']
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
        yield from paragraph(f'Did not keep the rate: {"; ".join(late)}.')
    else:
        yield from paragraph('Every lane kept the rate in every round.')
