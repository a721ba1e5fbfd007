"""Figures of studies: curves, percentiles, and an overview of RbFly and its peers."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from . import drawing
from .drawing import COLOURS, OTHER, short
from .model import FLOORS, TITLES, Kind, Lane, Report
from .studies import (
    LATENCIES,
    QUANTILES,
    STUDIES,
    Compared,
    label,
    lane_of,
    libraries,
    medians,
    overview,
)

__all__ = ['draw_overview', 'draw_study', 'overview_in_words', 'study_in_words']

OVERVIEW = 'overview'
CURVES = 2.3  # height in inches
ENTRY = 0.2  # height of a legend row in inches
ROW = 0.34
AROUND = 1.1
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '*')
WIDE = 10  # the scale is logarithmic above this ratio of maximum to minimum
DECADES = 200  # and above this ratio only powers of ten have ticks
STYLES = {'p50': 'o', 'p99': 's', 'p99.9': '^'}
MORE = {'rbfly-batches': '#E69F00'}  # colours that differ from those of bar plots


def colour_of(library: str) -> str:
    return MORE.get(library) or COLOURS.get(library, OTHER)


def marker_of(library: str) -> str:
    return MARKERS[list(TITLES).index(library) % len(MARKERS)] if library in TITLES else 'o'


def curves(
    report: Report, kinds: Sequence[Kind], axis: str, marks: Any, axes: Any, colour: str, page: str
) -> None:
    """Draw rates against the values of a study, one curve per library."""
    numbers = all(label(kind) == f'{kind.at:,}' for kind in kinds)
    seen = [rate for _, rate in marks]
    shown = libraries(report, kinds)
    for library in shown:
        results = [(i, lane_of(report, kind, library)) for i, kind in enumerate(kinds)]
        points = [(i, lane.rate) for i, lane in results if lane]
        seen += [end for _, rate in points for end in (rate.low, rate.high)]
        floor = library in FLOORS
        axes.errorbar(
            [i for i, _ in points],
            [rate.value for _, rate in points],
            yerr=[
                [rate.value - rate.low for _, rate in points],
                [rate.high - rate.value for _, rate in points],
            ],
            color=colour if floor else colour_of(library),
            linestyle='' if not numbers else '--' if floor else '-',
            linewidth=1 if floor else 1.6,
            marker=marker_of(library),
            markersize=4,
            markerfacecolor=page if floor else None,
            capsize=2,
            label=TITLES.get(library, library),
        )
    for name, rate in marks:
        axes.axhline(rate, color=colour, linewidth=0.8, linestyle=':')
        axes.annotate(
            f'{name} {rate:,.0f}',
            (0.02, rate),
            xycoords=('axes fraction', 'data'),
            xytext=(0, 2),
            textcoords='offset points',
            fontsize=8,
        )
    if max(seen) > WIDE * min(seen):
        axes.set_yscale('log')
        if max(seen) < DECADES * min(seen):
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.05 * max(seen))
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    names = [
        kind.name.removeprefix(f'{kind.scenario}-{kind.series}-').replace('-', '\n')
        for kind in kinds
    ]
    axes.set_xticks(range(len(kinds)), [short(kind.at) for kind in kinds] if numbers else names)
    axes.set_xlabel(axis)
    axes.set_ylabel('messages per second')
    if len(shown) > 1:
        drawing.legend(axes, (0.4, -0.24), 2)


def percentiles(lanes: Sequence[Lane], what: str, axes: Any, colour: str, page: str) -> None:
    """Draw the percentiles of each lane in a row."""
    for y, lane in enumerate(lanes):
        histogram = lane.histogram(what)
        values = {name: histogram.quantile(q) * 1000 for name, q in QUANTILES.items()}
        axes.plot(list(values.values()), [y] * len(values), color=colour, linewidth=0.8, zorder=1)
        for name, value in values.items():
            axes.plot(
                value,
                y,
                marker=STYLES[name],
                markersize=7,
                color=page if lane.is_floor else colour_of(lane.library),
                markeredgecolor=colour,
            )
    axes.set_xscale('log')
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.set_xlabel('milliseconds, logarithmic')
    drawing.rows(axes, [lane.title for lane in lanes])
    styles = [
        Line2D([], [], marker=style, color=colour, linestyle='', label=name)
        for name, style in STYLES.items()
    ]
    drawing.legend(axes, (0.35, -0.3), 3, handles=styles)


def ratios(rows: Sequence[Compared], axes: Any, colour: str, page: str) -> None:
    """Draw RbFly's rates relative to its peers, one row per kind of work."""
    used: dict[str, str] = {}
    for y, (_, ours, peers) in enumerate(rows):
        for peer in peers:
            interval = ours.ratio(peer)
            assert interval is not None
            used[peer.library] = peer.title
            axes.errorbar(
                interval.value,
                y,
                xerr=[[interval.value - interval.low], [interval.high - interval.value]],
                marker=marker_of(peer.library),
                color=colour_of(peer.library),
                markeredgecolor=colour,
                markersize=7,
                capsize=2,
            )
    axes.axvline(1, color=colour, linewidth=1.2)
    axes.set_xscale('log')
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("RbFly's rate ÷ peer's rate")
    drawing.rows(axes, [compared.title for compared in rows])
    styles = [
        Line2D(
            [],
            [],
            linestyle='',
            marker=marker_of(name),
            color=colour_of(name),
            label=text,
            markeredgecolor=colour,
        )
        for name, text in used.items()
    ]
    drawing.legend(axes, (-0.1, -0.12), 2, handles=styles)


def draw_study(report: Report, scenario: str, folder: Path) -> Iterator[Path]:
    """Draw a study, one panel per series; return the files."""
    study = STUDIES[scenario]
    panels = []
    for series, kinds in report.of_study(scenario).items():
        if scenario == 'percentiles':
            for kind in kinds:
                lanes = report.of_kind(kind.name)
                panels += [
                    drawing.Panel(
                        f'{kind.at:,} messages per second',
                        f'until the {what}' if what == 'confirm' else what,
                        AROUND + 0.3 + ROW * len(lanes),
                        partial(percentiles, lanes, what),
                    )
                    for what in LATENCIES
                ]
            continue
        rows = -(-len(libraries(report, kinds)) // 2)
        panels.append(
            drawing.Panel(
                study.series[series],
                '',
                CURVES + AROUND + ENTRY * rows,
                partial(curves, report, kinds, study.axis, study.marks),
                grid='y',
            )
        )
    yield from drawing.save(folder, scenario, study_in_words(report, scenario), panels)


def study_in_words(report: Report, scenario: str) -> str:
    """Text alternative for a study."""
    if scenario != 'percentiles':
        return medians(report, scenario)
    parts = []
    for kind in report.kinds('percentiles'):
        for lane in report.of_kind(kind.name):
            values = [
                f'{what} {name} {lane.histogram(what).quantile(q) * 1000:.2f}'
                for what in LATENCIES
                for name, q in QUANTILES.items()
            ]
            parts.append(f'{lane.title} at {kind.at:,} per second: {", ".join(values)}.')
    return f'Percentiles in milliseconds. {" ".join(parts)}'


def overview_in_words(report: Report) -> str:
    """Text alternative for the overview."""
    parts = []
    for title, ours, peers in overview(report):
        intervals = [(peer.title, ours.ratio(peer)) for peer in peers]
        texts = [f'{name} {interval.value:.2f}' for name, interval in intervals if interval]
        parts.append(f'{title}: {"; ".join(texts)}.')
    return f"RbFly's rate divided by its peers' rates. {' '.join(parts)}"


def draw_overview(report: Report, folder: Path) -> Iterator[Path]:
    """Draw RbFly relative to its peers, one row per kind of work; return the files."""
    rows = overview(report)
    peers = {peer.library for compared in rows for peer in compared.peers}
    panel = drawing.Panel(
        'RbFly compared with its peers',
        'right of the line: RbFly is faster',
        AROUND + ROW * len(rows) + ENTRY * len(peers) / 2,
        partial(ratios, rows),
    )
    yield from drawing.save(folder, OVERVIEW, overview_in_words(report), [panel])
