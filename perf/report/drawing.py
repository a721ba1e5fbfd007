"""Figures by matplotlib: for a light and for a dark page, as SVG and as PNG.

Panels stand one above the other, so that a figure is as wide as a phone and its text stays
readable there.  Colours are those of Okabe and Ito, which colour-blind people can tell apart;
nothing is told by colour alone.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('agg')

import matplotlib.pyplot as plt
from matplotlib.layout_engine import ConstrainedLayoutEngine

__all__ = ['COLOURS', 'OTHER', 'THEMES', 'Panel', 'legend', 'rows', 'save', 'short']

WIDTH = 4.4  # inches
TITLE = 50  # letters of a line
ABOUT = 580  # of the line below it, letters times points

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
    'pika': '#56B4E9',
    'aio-pika': '#0072B2',
    'go': '#56B4E9',
    'java': '#0072B2',
}
OTHER = '#9a9a9a'


@dataclass(frozen=True)
class Panel:
    """A part of a figure.

    :ivar height: inches.
    :ivar paint: draws into axes, given these and the colours of lines and of the page.
    :ivar grid: axis that has lines behind it.
    """

    name: str
    about: str
    height: float
    paint: Callable[[Any, str, str], None]
    grid: str = 'x'


def short(number: float, _: object = None) -> str:
    """Write a tick: 500, 2 k, 1.5 M."""
    for unit, sign in ((1e6, ' M'), (1e3, ' k')):
        if number >= unit:
            return f'{number / unit:g}{sign}'
    return f'{number:g}'


def title(panel: Panel) -> str:
    return textwrap.fill(panel.name, TITLE)


def rows(axes: Any, names: Sequence[str]) -> None:
    """Name what stands below each other."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis='y', length=0)


def legend(axes: Any, place: tuple[float, float], columns: int, **about: Any) -> None:
    """A legend below the axes."""
    axes.legend(
        loc='upper center',
        bbox_to_anchor=place,
        ncols=columns,
        fontsize=8,
        frameon=False,
        **about,
    )


def save(folder: Path, name: str, words: str, panels: Sequence[Panel]) -> Iterator[Path]:
    """Draw a figure in both themes; return the files.

    :param words: the figure in words.
    """
    pad = 18 if any(panel.about for panel in panels) else 6
    heights = [panel.height for panel in panels]
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
                panel.paint(axes, colour, page)
                axes.set_title(title(panel), loc='left', fontsize=11, pad=pad, fontweight='bold')
                axes.grid(axis=panel.grid, color=colour, alpha=grid, linewidth=0.8)
                axes.set_axisbelow(True)
                for side in ('top', 'right'):
                    axes.spines[side].set_visible(False)
            # the titles begin where the names of the lanes do, whatever room these take
            drawing.draw_without_rendering()
            drawing.set_layout_engine('none')
            for (axes,), panel in zip(all_axes, panels, strict=True):
                place = axes.get_position()
                left = (0.01 - place.x0) / place.width
                axes.set_title(
                    title(panel), loc='left', fontsize=11, pad=pad, fontweight='bold', x=left
                )
                axes.annotate(
                    panel.about,
                    (left, 1),
                    xytext=(0, 5),
                    xycoords='axes fraction',
                    textcoords='offset points',
                    fontsize=min(10, ABOUT / max(len(panel.about), 1)),
                )
            for suffix in ('svg', 'png'):
                path = folder / f'{name}-{theme}.{suffix}'
                about = {'Title': name, 'Description': words}
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
