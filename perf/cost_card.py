"""The cost card: what a million messages cost each library, as lines of text."""

from collections.abc import Iterator
from typing import Any

from . import lanes
from .cells import align, ratio
from .results import Results
from .stats import Interval, median_interval, ratio_interval

# columns of results: their titles, and what a million messages cost if one costs 1
COSTS = {
    'cpu_per_message': ('client s', 1e6),
    'broker_cpu_per_message': ('broker s', 1e6),
    'sent_per_message': ('MB sent', 1.0),
    'received_per_message': ('MB received', 1.0),
}


def per_million(results: Results, lane: str, column: str) -> Interval | None:
    """What a million messages cost, in seconds or MB; None if that was not measured."""
    scale = COSTS[column][1]
    values = [value * scale for value in results.column(lane, column).values()]
    return median_interval(values, results.settings.seed) if values else None


def text(interval: Interval | None) -> str:
    if interval is None:
        return ''
    return f'{interval.value:.3g} [{interval.low:.3g}, {interval.high:.3g}]'


def metered(results: Results) -> list[lanes.Lane]:
    """The lanes whose costs were measured."""
    failed = results.failed()
    known = (lanes.find(name) for name in results.settings.lanes if name in lanes.LANES)
    return [
        lane
        for lane in known
        if lane.kind.metered and lane.name not in failed and results.column(lane.name, 'rate')
    ]


def card(results: Results) -> Iterator[str]:
    """A table for each metered kind of work, and the versions; nothing if there is none."""
    chosen = metered(results)
    head = ('lane', *(title for title, _ in COSTS.values()), 'client ÷ floor')
    for kind in dict.fromkeys(lane.kind for lane in chosen):
        rows: list[tuple[str, ...]] = [head]
        for lane in chosen:
            if lane.kind != kind:
                continue
            costs = [text(per_million(results, lane.name, column)) for column in COSTS]
            floor = results.ratio(lane.name, lane.floor, 'cpu_per_message')
            rows.append((lane.name, *costs, ratio(floor) if floor and not lane.is_floor else ''))
        yield ''
        yield f'cost of a million messages, {kind.title}'
        yield from align(rows)
    if chosen:
        about = results.header['environment']
        yield ''
        yield 'versions: ' + ', '.join(versions(about))


def versions(about: dict[str, Any]) -> Iterator[str]:
    """Versions of the libraries and brokers of a run."""
    for name, version in about.get('libraries', {}).items():
        yield f'{name} {version}'
    for name, facts in about.get('brokers', {}).items():
        yield f'{name} {facts.get("version", "")}'.rstrip()


def compare(a: Results, b: Results) -> Iterator[str]:
    """The ratio of the second file's costs to the first's, for the lanes that both have metered."""
    both = [lane.name for lane in metered(a) if lane in metered(b)]
    head = ('lane', *(f'{title}, B ÷ A' for title, _ in COSTS.values()))
    rows: list[tuple[str, ...]] = [head]
    for name in both:
        cells = [name]
        for column in COSTS:
            over, under = (list(results.column(name, column).values()) for results in (b, a))
            usable = over and under and all(under)
            cells.append(ratio(ratio_interval(over, under, a.settings.seed)) if usable else '')
        rows.append(tuple(cells))
    if both:
        yield ''
        yield from align(rows)
