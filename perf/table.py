"""The tables that a run and a comparison print, as lines of text."""

from collections.abc import Iterator
from statistics import median

from . import cost_card, environment, lanes
from .cells import align, ratio
from .results import Results
from .stats import Interval, median_interval, ratio_interval

RATIOS = ('rate', 'cpu_per_message')
HEAD = ('lane', 'rounds', 'rate/s', '95 % interval', 'CPU us', 'peak MiB')


def rates(interval: Interval) -> str:
    return f'[{interval.low:,.0f}, {interval.high:,.0f}]'


def quotient(results: Results, name: str, other: str, column: str) -> str:
    """The ratio of two lanes; empty if the other one has failed or has no results."""
    found = None if other in results.failed() else results.ratio(name, other, column)
    return ratio(found) if found else ''


def summary(results: Results) -> Iterator[str]:
    """One table per kind of work: median rate, CPU, memory, and ratios to the floor or to RbFly."""
    settings = results.settings
    failed = results.failed()
    for kind in lanes.KINDS.values():
        chosen = [name for name in settings.lanes if lanes.find(name).kind == kind]
        if not chosen:
            continue
        of = 'floor' if kind.floor else 'rbfly'
        ours = next((name for name in chosen if name.startswith('rbfly')), '')
        secure = ('÷ plain', 'CPU ÷ plain') if kind.plain else ()
        rows: list[tuple[str, ...]] = [(*HEAD, f'÷ {of}', f'CPU ÷ {of}', *secure)]
        for name in chosen:
            values = list(results.column(name, 'rate').values())
            if name in failed or not values:
                continue
            rate = median_interval(values, settings.seed)
            cpu = median(results.column(name, 'cpu_per_message').values()) * 1e6
            peak = median(results.column(name, 'max_rss').values()) / 2**20
            cells = [name, str(len(values)), f'{rate.value:,.0f}', rates(rate)]
            cells += [f'{cpu:.2f}' if cpu >= 1 else f'{cpu:.3f}', f'{peak:.0f}']
            other = lanes.find(name).floor if kind.floor else ours
            if name != other:
                cells += [quotient(results, name, other, column) for column in RATIOS]
            cells += [of, ''] if name == other else []
            if secure:
                plain = lanes.find(name).plain
                cells += [quotient(results, name, plain, column) for column in RATIOS]
            rows.append(tuple(cells))
        count = settings.counts[kind.name]
        yield ''
        yield f'{kind.scenario}, {kind.name}: {kind.title}; {count:,} messages per round'
        if len(rows) > 1:
            yield from align(rows)
    yield from cost_card.card(results)
    for name, error in failed.items():
        yield ''
        yield f'FAILED {name}: {error}'
    for item in results.header['left_out']:
        yield ''
        yield f'left out {item["lane"]}: {item["reason"]}'


def compare(a: Results, b: Results) -> Iterator[str]:
    """The ratio of the second file's medians to the first's, lane by lane."""
    yield f'A: {a.path}  {a.header["environment"]["time"]}'
    yield f'B: {b.path}  {b.header["environment"]["time"]}'
    for line in environment.differences(a.header['environment'], b.header['environment']):
        yield f'different {line}'
    names = [name for name in a.settings.lanes if name in b.settings.lanes and name in lanes.LANES]
    rows: list[tuple[str, ...]] = [
        ('lane', 'rounds', 'A rate/s', 'B rate/s', 'B ÷ A', 'A CPU us', 'B CPU us', 'B ÷ A')
    ]
    notes = []
    for name in names:
        kind = lanes.find(name).kind.name
        if a.settings.counts[kind] != b.settings.counts[kind]:
            counts = f'{a.settings.counts[kind]:,} and {b.settings.counts[kind]:,}'
            notes.append(f'{name}: different numbers of messages per round: {counts}')
        cells = [name]
        lengths = ''
        for column, unit, form in (('rate', 1.0, ',.0f'), ('cpu_per_message', 1e6, '.2f')):
            over = list(b.column(name, column).values())
            under = list(a.column(name, column).values())
            if not over or not under:
                break
            lengths = f'{len(under)}, {len(over)}'
            cells += [format(median(under) * unit, form), format(median(over) * unit, form)]
            cells.append(ratio(ratio_interval(over, under, a.settings.seed)))
        else:
            rows.append((cells[0], lengths, *cells[1:]))
    if len(rows) == 1:
        yield 'no lane has results in both files'
        return
    yield ''
    yield from align(rows)
    yield from cost_card.compare(a, b)
    yield from notes
    for results, title in ((a, 'A'), (b, 'B')):
        for name, error in results.failed().items():
            yield f'FAILED in {title}: {name}: {error}'
