"""The figures, by matplotlib: for a light and for a dark page, as SVG and as PNG.

Panels stand one above the other, so that a figure is as wide as a phone and its text stays
readable there.  Colours are those of Okabe and Ito, which colour-blind people can tell apart;
nothing is told by colour alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('agg')

import matplotlib.pyplot as plt
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .model import Lane, Report

__all__ = ['FIGURES', 'THEMES', 'Figure', 'Panel', 'alt', 'draw']

WIDTH = 4.4  # inches
BAR = 0.34  # inches of height for each
AROUND = 1.1  # inches of height around the bars of a panel
# a bar whose neighbour is this many times longer can no longer be read
WIDE = 20

# lines and text, how much of it the grid has, and the page behind
THEMES = {'light': ('#1b1b1b', 0.18, '#ffffff'), 'dark': ('#e8e8e8', 0.25, '#131416')}

COLOURS = {
    'rbfly': '#D55E00',
    'rbfly-amqp': '#D55E00',
    'rbfly-raw': '#E69F00',
    'rbfly-batches': '#D55E00',
    'rbfly-messages': '#E69F00',
    'rstream': '#009E73',
    'aiokafka': '#CC79A7',
    'proton': '#56B4E9',
    'msgspec': '#0072B2',
}
OTHER = '#9a9a9a'


@dataclass(frozen=True)
class Panel:
    """A part of a figure: lanes beside each other."""

    name: str
    about: str
    lanes: tuple[tuple[str, Lane], ...]


@dataclass(frozen=True)
class Figure:
    """What a figure shows of a scenario.

    :ivar parts: per panel its name and the kinds of work in it, with what these add to the name
        of a lane; without a name the panel has that of its kind.
    """

    scenario: str
    parts: tuple[tuple[str, dict[str, str]], ...]
    boxes: bool = False

    def panels(self, report: Report) -> list[Panel]:
        """The panels that have something to show."""
        found = []
        for name, kinds in self.parts:
            lanes = [
                (lane.title + addition, lane)
                for kind, addition in kinds.items()
                for lane in report.of_kind(kind)
                if lane.is_ours or not addition
            ]
            if lanes:
                kind = report.kind(lanes[0][1].kind)
                about = '' if name else kind.title
                found.append(Panel(name or kind.name, about, tuple(lanes)))
        return found


FIGURES = (
    Figure('publish', (('', {'single': ''}), ('', {'batch': ''}))),
    Figure('amqp', (('', {'single-format': ''}), ('', {'batch-format': ''})), boxes=True),
    Figure(
        'codec',
        (
            ('encode', {'encode-into-seed': ', into a buffer', 'encode-seed': ''}),
            ('decode', {'decode-seed': ''}),
        ),
    ),
    Figure('pipeline', (('', {'window': ''}),)),
    Figure('tasks', (('', {'tasks-100': ''}), ('', {'tasks-1000': ''}))),
    Figure('sub-entries', (('', {'sub-publish': ''}), ('', {'sub-consume': ''}))),
    Figure('consume', (('', {'consume': ''}),)),
)


def short(number: float, _: object = None) -> str:
    """Write a tick: 500, 2 k, 1.5 M."""
    for unit, sign in ((1e6, ' M'), (1e3, ' k')):
        if number >= unit:
            return f'{number / unit:g}{sign}'
    return f'{number:g}'


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
        line.set(color='#1b1b1b', linewidth=2)  # in a box that is coloured in both themes
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel('messages per second, each round a value')


def alt(report: Report, figure: Figure) -> str:
    """The figure in words."""
    kind = 'Box plot' if figure.boxes else 'Bar plot'
    parts = []
    for panel in figure.panels(report):
        lanes = [f'{title} {lane.rate.value:,.0f}' for title, lane in panel.lanes]
        about = f', {panel.about}' if panel.about else ''
        parts.append(f'{panel.name}{about}: {"; ".join(lanes)}.')
    return f'{kind} of messages per second, medians. {" ".join(parts)}'


def draw(report: Report, figure: Figure, folder: Path) -> Iterator[Path]:
    """Draw a figure in both themes; return the files."""
    panels = figure.panels(report)
    heights = [AROUND + BAR * len(panel.lanes) for panel in panels]
    words = alt(report, figure)
    pad = 18 if any(panel.about for panel in panels) else 6
    for theme, (colour, grid, page) in THEMES.items():
        style = {
            'axes.edgecolor': colour,
            'axes.labelcolor': colour,
            'axes.titlecolor': colour,
            'font.size': 10,
            'hatch.color': colour,
            'hatch.linewidth': 0.6,
            'svg.fonttype': 'path',
            'svg.hashsalt': 'rbfly',
            'text.color': colour,
            'xtick.color': colour,
            'ytick.color': colour,
        }
        with matplotlib.rc_context(style):  # type: ignore[arg-type]
            drawing, all_axes = plt.subplots(
                len(panels),
                1,
                squeeze=False,
                figsize=(WIDTH, sum(heights)),
                height_ratios=heights,
                layout=ConstrainedLayoutEngine(hspace=0.06),
            )
            for (axes,), panel in zip(all_axes, panels, strict=True):
                axes.patch.set_alpha(0)
                (boxes if figure.boxes else bars)(axes, panel, colour, page)
                axes.set_yticks(range(len(panel.lanes)), [title for title, _ in panel.lanes])
                axes.set_ylim(len(panel.lanes) - 0.4, -0.6)
                axes.set_title(panel.name, loc='left', fontsize=11, pad=pad, fontweight='bold')
                axes.xaxis.set_major_formatter(FuncFormatter(short))
                axes.grid(axis='x', color=colour, alpha=grid, linewidth=0.8)
                axes.set_axisbelow(True)
                axes.tick_params(axis='y', length=0)
                for side in ('top', 'right'):
                    axes.spines[side].set_visible(False)
            # the titles begin where the names of the lanes do, whatever room these take
            drawing.draw_without_rendering()
            drawing.set_layout_engine('none')
            for (axes,), panel in zip(all_axes, panels, strict=True):
                place = axes.get_position()
                left = (0.01 - place.x0) / place.width
                axes.set_title(
                    panel.name, loc='left', fontsize=11, pad=pad, fontweight='bold', x=left
                )
                axes.annotate(
                    panel.about,
                    (left, 1),
                    xytext=(0, 5),
                    xycoords='axes fraction',
                    textcoords='offset points',
                )
            for suffix in ('svg', 'png'):
                path = folder / f'{figure.scenario}-{theme}.{suffix}'
                about = {'Title': figure.scenario, 'Description': words}
                if suffix == 'svg':
                    about |= {'Date': None}  # type: ignore[dict-item]
                drawing.savefig(path, transparent=True, dpi=200, metadata=about)
                if suffix == 'svg':
                    name_svg(path, words)
                yield path
            plt.close(drawing)


def name_svg(path: Path, words: str) -> None:
    """Give an SVG the name that a screen reader reads."""
    text = path.read_text(encoding='utf-8')
    name = f' role="img">\n <title>{escape(words)}</title>'
    text = re.sub(r'(?<=<svg\b)([^>]*)>', lambda found: found[1] + name, text, count=1)
    text = re.sub(r'[ \t]+$', '', text, flags=re.M)
    path.write_text(text, encoding='utf-8')
