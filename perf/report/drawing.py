"""Draw figures with matplotlib, for light and dark pages, as SVG and PNG.

Panels are stacked, so that a figure is no wider than a phone's screen and its text stays readable
there.  The colours are those of Okabe and Ito, which colour-blind people can distinguish; no
information is conveyed by colour alone.
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
TITLE = 50  # maximum characters per line
ABOUT = 580  # width of the line below it, in characters times points

# colour of lines and text, opacity of the grid, colour of the page
THEMES = {'light': ('#1b1b1b', 0.18, '#ffffff'), 'dark': ('#e8e8e8', 0.25, '#131416')}

COLOURS = {
    'rbfly': '#D55E00',
    'rbfly-amqp': '#D55E00',
    'rbfly-raw': '#E69F00',
    'rbfly-batches': '#D55E00',
    'rbfly-messages': '#E69F00',
    'rbfly-polling': '#0072B2',
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
    """A panel of a figure.

    :ivar height: in inches.
    :ivar paint: draws into the axes; called with them and the colours of lines and page.
    :ivar grid: axis with grid lines.
    """

    name: str
    about: str
    height: float
    paint: Callable[[Any, str, str], None]
    grid: str = 'x'


def short(number: float, _: object = None) -> str:
    """Format a tick: 500, 2 k, 1.5 M."""
    for unit, sign in ((1e6, ' M'), (1e3, ' k')):
        if number >= unit:
            return f'{number / unit:g}{sign}'
    return f'{number:g}'


def title(panel: Panel) -> str:
    return textwrap.fill(panel.name, TITLE)


def rows(axes: Any, names: Sequence[str]) -> None:
    """Label the rows."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis='y', length=0)


def legend(axes: Any, place: tuple[float, float], columns: int, **about: Any) -> None:
    """Draw a legend below the axes."""
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

    :param words: text alternative for the figure.
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
            # align the titles with the lane names, whatever width these take
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
    """Add a name for screen readers to an SVG."""
    text = path.read_text(encoding='utf-8')
    name = f' role="img">\n <title>{escape(words)}</title>'
    text = re.sub(r'(?<=<svg\b)([^>]*)>', lambda match: match[1] + name, text, count=1)
    text = re.sub(r'[ \t]+$', '', text, flags=re.M)
    path.write_text(text, encoding='utf-8')
