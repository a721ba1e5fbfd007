"""Figures that compare kinds of work: bar plots and box plots."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from . import drawing
from .drawing import COLOURS, OTHER, short
from .model import Lane, Report

__all__ = ['FIGURES', 'Figure', 'Panel', 'alt', 'draw']

BAR = 0.34  # height per bar in inches
AROUND = 1.1  # height around the bars of a panel in inches
# the scale is logarithmic above this ratio of longest to shortest bar
WIDE = 20


@dataclass(frozen=True)
class Panel:
    """A panel of a figure: lanes to compare."""

    name: str
    about: str
    lanes: tuple[tuple[str, Lane], ...]


@dataclass(frozen=True)
class Figure:
    """The figure of a scenario.

    :ivar parts: the name of each panel, and its kinds of work with the suffix that each adds to
        lane names; a panel without a name uses the title of its kind.
    """

    scenario: str
    parts: tuple[tuple[str, dict[str, str]], ...]
    boxes: bool = False

    def panels(self, report: Report) -> list[Panel]:
        """The panels for which there are results."""
        panels = []
        for name, kinds in self.parts:
            lanes = [
                (lane.title + addition, lane)
                for kind, addition in kinds.items()
                for lane in report.of_kind(kind)
                if (lane.is_ours or not addition) and not lane.polls
            ]
            if lanes:
                title = name or report.kind(lanes[0][1].kind).title
                head, _, about = title.partition(', ')
                panels.append(Panel(head[0].upper() + head[1:], about, tuple(lanes)))
        return panels


FIGURES = (
    Figure('publish', (('', {'single': ''}), ('', {'batch': ''}))),
    Figure('amqp', (('', {'single-format': ''}), ('', {'batch-format': ''})), boxes=True),
    Figure(
        'codec',
        (
            ('a small map, encoded', {'encode-into-seed': ', into a buffer', 'encode-seed': ''}),
            ('a small map, decoded', {'decode-seed': ''}),
        ),
    ),
    Figure('pipeline', (('', {'window': ''}),)),
    Figure('tasks', (('', {'tasks-100': ''}), ('', {'tasks-1000': ''}))),
    Figure('sub-entries', (('', {'sub-publish': ''}), ('', {'sub-consume': ''}))),
    Figure('consume', (('', {'consume': ''}),)),
    Figure('clients', (('', {'clients-publish': ''}), ('', {'clients-consume': ''}))),
    Figure('super', (('', {'super-publish': ''}), ('', {'super-consume': ''}))),
)


def bars(axes: Any, panel: Panel, colour: str, page: str) -> None:
    lanes = [lane for _, lane in panel.lanes]
    rates = [lane.rate for lane in lanes]
    log = max(r.value for r in rates) > WIDE * min(r.value for r in rates)
    end = max(r.high for r in rates)
    start = 10 ** (len(str(int(min(r.low for r in rates)))) - 1) / 2 if log else 0
    if log:
        axes.set_xscale('log')
        axes.set_xlim(start, start * (end / start) ** 1.35)
    else:
        axes.set_xlim(0, end * 1.3)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    for y, lane in enumerate(lanes):
        rate = lane.rate
        axes.barh(
            y,
            rate.value - start,
            left=start,
            height=0.68,
            color='none' if lane.is_floor else COLOURS.get(lane.library, OTHER),
            hatch='////' if lane.is_floor else None,
            edgecolor=colour,
            linewidth=0.8,
        )
        spread = [[rate.value - rate.low], [rate.high - rate.value]]
        for line, width in ((page, 3.4), (colour, 1.4)):
            axes.errorbar(
                rate.value,
                y,
                xerr=spread,
                fmt='none',
                ecolor=line,
                elinewidth=width,
                capsize=3 + width / 4,
                capthick=width,
            )
        axes.annotate(
            f'{rate.value:,.0f}',
            (rate.high, y),
            xytext=(5, 0),
            textcoords='offset points',
            va='center',
            color=colour,
        )
    axes.set_xlabel(f'messages per second{", logarithmic" if log else ""}')


def boxes(axes: Any, panel: Panel, colour: str, page: str) -> None:
    drawn = axes.boxplot(
        [lane.values('rate') for _, lane in panel.lanes],
        positions=range(len(panel.lanes)),
        orientation='horizontal',
        widths=0.6,
        patch_artist=True,
        flierprops={'marker': 'o', 'markersize': 3, 'markeredgecolor': colour},
        manage_ticks=False,
    )
    for (_, lane), box in zip(panel.lanes, drawn['boxes'], strict=True):
        box.set(facecolor=COLOURS.get(lane.library, OTHER), edgecolor=colour)
    for part in ('whiskers', 'caps'):
        for line in drawn[part]:
            line.set(color=colour)
    for line in drawn['medians']:
        line.set(color='#1b1b1b', linewidth=2)  # the box has the same fill in both themes
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel('messages per second, one value per round')


def alt(report: Report, figure: Figure) -> str:
    """Text alternative for the figure."""
    kind = 'Box plot' if figure.boxes else 'Bar plot'
    parts = []
    for panel in figure.panels(report):
        lanes = [f'{title} {lane.rate.value:,.0f}' for title, lane in panel.lanes]
        about = f', {panel.about}' if panel.about else ''
        parts.append(f'{panel.name}{about}: {"; ".join(lanes)}.')
    return f'{kind} of messages per second, medians. {" ".join(parts)}'


def draw(report: Report, figure: Figure, folder: Path) -> Iterator[Path]:
    """Draw a figure in both themes; return the files."""
    panels = [
        drawing.Panel(
            panel.name,
            panel.about,
            AROUND + BAR * len(panel.lanes),
            partial(paint, boxes if figure.boxes else bars, panel),
        )
        for panel in figure.panels(report)
    ]
    yield from drawing.save(folder, figure.scenario, alt(report, figure), panels)


def paint(kind: Any, panel: Panel, axes: Any, colour: str, page: str) -> None:
    """Draw the lanes of a panel in rows."""
    kind(axes, panel, colour, page)
    drawing.rows(axes, [title for title, _ in panel.lanes])
    axes.xaxis.set_major_formatter(FuncFormatter(short))
