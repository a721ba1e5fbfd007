"""What `rbfly perf` shows: a table that changes, lines, and the summary."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import rbfly

from .histogram import Histogram
from .load import COUNTS, Load, Totals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999}
LATENCIES = {'confirm': 'confirm', 'end_to_end': 'end to end'}
SHORT = 0.5  # seconds; a shorter interval at the end has no line
PAGE = 20  # lines after which the head is repeated

HEAD = f"""\
{'messages per second':>27}{'confirm, ms':>24}{'end to end, ms':>22}
 time published confirmed  consumed{'    p50    p99  p99.9' * 2}"""


def milliseconds(seconds: float | None) -> str:
    """Return a duration with three digits, in milliseconds."""
    if seconds is None:
        return '-'
    value = seconds * 1000
    return f'{value:.{2 if value < 10 else 1 if value < 100 else 0}f}'


class Lines:
    """One line per interval, for a pipe or a file."""

    def __init__(self, load: Load, out: IO[str]) -> None:
        self._load = load
        self._out = out
        self._count = 0

    def show(self, interval: Totals) -> None:
        """Write the line of an interval.

        :raises BrokenPipeError: nobody reads it.
        """
        if self._count % PAGE == 0:
            print(HEAD, file=self._out)
        self._count += 1
        cells = [f'{self._load.totals.seconds:4.0f}s']
        cells += [f'{interval.rate(getattr(interval, name)):10,.0f}' for name in COUNTS]
        for name in LATENCIES:
            histogram: Histogram = getattr(interval, name)
            cells += [f'{milliseconds(histogram.quantile(q)):>7}' for q in QUANTILES.values()]
        print(''.join(cells), file=self._out, flush=True)

    def end(self) -> None:
        """Write the line of the last interval, and the summary."""
        if self._load.last is not None and self._load.last.seconds > SHORT:
            self.show(self._load.last)
        print(summary_text(self._load), file=self._out, flush=True)


class Table:
    """A table that changes once per interval, for a terminal."""

    def __init__(self, load: Load, console: Console, title: str) -> None:
        from rich.live import Live

        self._load = load
        self._title = title
        self._live = Live(console=console, auto_refresh=False)
        live_table(load, Totals(), title)  # imports what it needs, before anything is measured

    def show(self, interval: Totals) -> None:
        """Draw the rates and latencies of the last interval, and those since the start."""
        self._live.start()
        self._live.update(live_table(self._load, interval, self._title), refresh=True)

    def end(self) -> None:
        """Draw the summary."""
        self._live.start()
        self._live.update(live_table(self._load, None, self._title), refresh=True)
        self._live.stop()


def live_table(load: Load, interval: Totals | None, title: str) -> RenderableType:
    """Return the table of the last interval and of the whole run.

    :param interval: None at the end of the run.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    totals = load.totals
    last = interval is not None
    rates = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    rates.add_column('messages', style='bold', min_width=23)
    heads = ['last second', 'per second', 'total'] if last else ['per second', 'total']
    for name in heads:
        rates.add_column(name, justify='right', min_width=12)
    for name in COUNTS:
        count: int = getattr(totals, name)
        cells = [f'{load.rate(name):,.0f}', f'{count:,}']
        if interval is not None:
            cells.insert(0, f'[cyan]{interval.rate(getattr(interval, name)):,.0f}[/]')
        rates.add_row(name, *cells)
    blank = [''] * (len(heads) - 1)
    rates.add_row('in flight', *blank, f'{load.unconfirmed:,}')
    if totals.refused:
        rates.add_row('[red]refused[/]', *blank, f'[red]{totals.refused:,}[/]')

    times = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    times.add_column('latency in ms', style='bold', min_width=23)
    for name in [*QUANTILES, 'max']:
        times.add_column(name, justify='right', min_width=8)
    for name, label in LATENCIES.items():
        if interval is not None:
            add_latencies(times, f'{label}, last second', getattr(interval, name), 'cyan')
        add_latencies(times, label, getattr(totals, name), '')

    limit = f' of {load.settings.time:g}' if load.settings.time is not None else ''
    head = f'{title}, {totals.seconds:.0f}{limit} s' + (', Ctrl-C ends it' if last else '')
    return Group(Text(head, style='bold'), Text(), rates, Text(), times)


def add_latencies(grid: Any, label: str, histogram: Histogram, style: str) -> None:
    values = [histogram.quantile(q) for q in (*QUANTILES.values(), 1.0)]
    grid.add_row(label, *map(milliseconds, values), style=style)


def summary_text(load: Load) -> str:
    """Return the summary of a run for people."""
    totals = load.totals
    lines = [f'in {totals.seconds:.1f} s:']
    for name in COUNTS:
        lines.append(f'{name:11} {getattr(totals, name):12,}, {load.rate(name):,.0f} per second')
    for name, count in {'refused': totals.refused, 'unconfirmed': load.left}.items():
        if count:
            lines.append(f'{name:11} {count:12,}')
    for name, label in LATENCIES.items():
        histogram: Histogram = getattr(totals, name)
        if histogram.count:
            values = [
                f'{key} {milliseconds(histogram.quantile(q))} ms'
                for key, q in (QUANTILES | {'max': 1.0}).items()
            ]
            lines.append(f'{label:11} ' + ', '.join(values))
    return '\n'.join(lines)


def summary(load: Load) -> dict[str, Any]:
    """Return the summary of a run for programs; all durations are in seconds."""
    totals, settings = load.totals, load.settings
    options = {key: value for key, value in vars(settings).items() if value is not None}
    start = settings.offset
    offset = start.type.name.lower() if start.value is None else start.value
    options |= {'streams': [*settings.streams], 'offset': offset}
    return {
        'version': rbfly.__version__,
        'options': options,
        'seconds': round(totals.seconds, 3),
        'published': totals.published,
        'confirmed': totals.confirmed,
        'refused': totals.refused,
        'unconfirmed': load.left,
        'consumed': totals.consumed,
        'published_per_second': round(load.rate('published'), 1),
        'confirmed_per_second': round(load.rate('confirmed'), 1),
        'consumed_per_second': round(load.rate('consumed'), 1),
        'confirm_latency': latency(totals.confirm),
        'end_to_end_latency': latency(totals.end_to_end),
        'error': None if load.last_error is None else str(load.last_error),
    }


def latency(histogram: Histogram) -> dict[str, float | int | None]:
    found: dict[str, float | int | None] = {'count': histogram.count, 'mean': histogram.mean}
    found |= {name: histogram.quantile(q) for name, q in QUANTILES.items()}
    return found | {'max': histogram.quantile(1.0)}
