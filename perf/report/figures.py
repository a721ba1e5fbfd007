"""The figures of the page: one for each scenario, and an overview."""

from collections.abc import Sequence

from ..lanes import LIBRARIES, Kind
from .cost import panel
from .model import Lane, Report, rank
from .svg import Figure, Mark, short

COLOURS = {
    'rbfly': '#D55E00',
    'rbfly-amqp': '#D55E00',
    'rbfly-raw': '#E69F00',
    'rbfly-submit': '#E69F00',
    'rbfly-atomic': '#E69F00',
    'rbfly-body': '#E69F00',
    'rbfly-batches': '#E69F00',
    'rbfly-views': '#56B4E9',
    'rbfly-py3.14': '#0072B2',
    'rbfly-body-py3.14': '#F0E442',
    'rbfly-batches-py3.14': '#56B4E9',
    'rbfly-messages': '#F0E442',
    'rbfly-traced': '#0072B2',
    'rbfly-spans': '#56B4E9',
    'rbfly-metrics': '#CC79A7',
    'rbfly-polling': '#0072B2',
    'rstream': '#009E73',
    'aiokafka': '#CC79A7',
    'confluent': '#56B4E9',
    'rbfly-aiofastnet': '#0072B2',
    'proton': '#56B4E9',
    'msgspec': '#0072B2',
    'msgspec-py3.14': '#009E73',
    'pika': '#56B4E9',
    'aio-pika': '#0072B2',
    'go': '#56B4E9',
    'java': '#0072B2',
}
OTHER = '#9a9a9a'
QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}
LATENCIES = ('confirm', 'end to end')

# Of scenarios with many kinds of work, those that the figure shows.
DRAWN = {
    'codec': ('encode-into-seed', 'encode-seed', 'decode-seed'),
    'consume': ('consume',),
    'pythons': ('py-single', 'py-batch', 'py-window', 'py-consume'),
    'tls': ('tls-batch', 'tls-window', 'tls-consume'),
}

# The kinds of work in the overview.
OVERVIEW = {
    'single': 'each message confirmed',
    'batch': 'batches of 100',
    'concurrent-100': '100 tasks',
    'sizes-many-10': '10,000 in flight',
    'clients-publish': '10,000 in flight, Go, Java',
    'latency-each-10': 'confirmed, 10 ms latency',
    'latency-flight-10': 'in flight, 10 ms latency',
    'processes-2-1': 'in flight, two processes',
    'sizes-read-10': 'consumed, 10 bytes',
    'sizes-read-10000': 'consumed, 10 KB',
    'clients-consume': 'consumed, Go, Java',
    'encode-seed': 'encoded',
    'decode-seed': 'decoded',
}


def style(lane: Lane, value: float = 0, low: float = 0, high: float = 0) -> Mark:
    colour = 'currentColor' if lane.library.is_floor else COLOURS.get(lane.library.name, OTHER)
    return Mark(value, low, high, colour, rank(lane.library.name), lane.library.is_floor)


def rate(lane: Lane) -> Mark:
    return style(lane, lane.rate.value, lane.rate.low, lane.rate.high)


def label(kind: Kind, kinds: Sequence[Kind]) -> str:
    """The value that a study varies, or a description if it is not a number."""
    return f'{kind.at:,}' if any(other.at for other in kinds) else kind.title


def overview(report: Report) -> Figure | None:
    """RbFly's rate relative to each peer's."""
    rows, legend = [], {}
    for name, text in OVERVIEW.items():
        ours, marks = report.ours(name), []
        for peer in report.of_kind(name):
            if ours and peer.is_peer and (ratio := ours.ratio(peer)):
                marks.append(style(peer, ratio.value, ratio.low, ratio.high))
                legend[peer.library.title] = style(peer)
        if marks:
            rows.append((text, marks))
    if not rows:
        return None
    figure = Figure()
    axis = "RbFly's rate ÷ other library's rate"
    figure.rows('RbFly and other libraries', axis, rows, list(legend.items()), log=True, line=1)
    return figure


def figure(report: Report, scenario: str) -> Figure:
    """The rates, or latencies, of a scenario."""
    figure = Figure()
    about = report.scenarios[scenario]
    for series, kinds in report.series(scenario).items():
        if not series:
            for kind in kinds:
                if kind.name in DRAWN.get(scenario, (kind.name,)):
                    shown = [lane for lane in report.of_kind(kind.name) if not lane.polls]
                    if kind.metered:
                        panel(figure, kind.title, shown)
                    else:
                        bars(figure, kind.title, [(lane.library.title, lane) for lane in shown])
        elif scenario == 'percentiles':
            for kind in kinds:
                latencies(figure, report, kind)
        elif any(kind.at for kind in kinds):
            curves(figure, report, about.series[series], about.axis, kinds)
        else:
            names = [kind.name.removeprefix(f'{scenario}-{series}-') for kind in kinds]
            shown = [report.of_kind(kind.name)[0] for kind in kinds]
            bars(figure, about.series[series], list(zip(names, shown, strict=True)))
    return figure


def bars(figure: Figure, text: str, lanes: Sequence[tuple[str, Lane]]) -> None:
    rows = [(name, [rate(lane)]) for name, lane in lanes]
    if rows:
        figure.rows(text, 'messages per second', rows)


def curves(figure: Figure, report: Report, text: str, axis: str, kinds: Sequence[Kind]) -> None:
    lanes = [(i, lane) for i, kind in enumerate(kinds) for lane in report.of_kind(kind.name)]
    found = []
    for library in sorted({lane.library.name for _, lane in lanes}, key=rank):
        of_library = [(i, lane) for i, lane in lanes if lane.library.name == library]
        marks = [(i, rate(lane)) for i, lane in of_library]
        found.append((LIBRARIES[library].title, style(of_library[0][1]), marks))
    figure.curves(
        text, f'messages per second, by {axis}', [short(kind.at) for kind in kinds], found
    )


def latencies(figure: Figure, report: Report, kind: Kind) -> None:
    for what in LATENCIES:
        rows = []
        for lane in report.of_kind(kind.name):
            histogram = lane.histogram(what)
            values = [histogram.quantile(q) * 1000 for q in QUANTILES.values()]
            colour = style(lane).colour
            rows.append(
                (lane.library.title, [Mark(x, x, x, colour, i) for i, x in enumerate(values)])
            )
        legend = [(name, Mark(shape=i)) for i, name in enumerate(QUANTILES)]
        text = f'{kind.at:,} messages per second, {what}'
        figure.rows(text, 'milliseconds', rows, legend, log=True)
