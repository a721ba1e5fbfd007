"""Figures as SVG elements within a page, whose colours of text and background they use.

The colours of libraries are those of Okabe and Ito, which colour-blind people can distinguish; no
information is conveyed by colour alone.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 480
LEFT, RIGHT = 190, 405  # of the plot, between the names of rows and the numbers
ROW = 20
TITLE = 56  # characters per line
PLOT = 170  # height of a plot of curves
PAGE = 'var(--color-background-primary, #fff)'
TEXT = 'currentColor'
# corners of markers, and the angle of the first one in degrees
SHAPES = ((24, 0), (4, 45), (3, -90), (4, 0), (3, 90), (5, -90), (6, 0), (3, 0))
WIDE = 20  # a scale is logarithmic above this ratio of maximum to minimum


@dataclass(frozen=True)
class Mark:
    """A value with its interval, or the style of an entry of a legend.

    :ivar shape: index into :data:`SHAPES`.
    :ivar hollow: whether the marker is only an outline.
    """

    value: float = 0
    low: float = 0
    high: float = 0
    colour: str = TEXT
    shape: int = 0
    hollow: bool = False


class Scale:
    """Maps values to pixels, linearly from 0, or logarithmically if the values differ much."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool | None) -> None:
        least, most = min(values), max(values)
        self.log = most > WIDE * least if log is None else log
        self.start, self.end = start, end
        self.low = least / 1.15 if self.log else 0.0
        self.high = most * 1.15 if self.log else most * 1.05

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values, few enough to label them."""
        if not self.log:
            step = 10 ** math.floor(math.log10(self.high / 2))
            step *= next((n for n in (1, 2, 5) if self.high / (n * step) <= 5), 10)
            return [i * step for i in range(int(self.high / step) + 1)]
        factors = (1, 2, 5) if self.high < 100 * self.low else (1,)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [n * 10.0**i for i in decades for n in factors]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def short(number: float) -> str:
    """Format a number: 500, 2 k, 1.5 M."""
    for unit, sign in ((1e6, ' M'), (1e3, ' k')):
        if number >= unit:
            return f'{number / unit:g}{sign}'
    return f'{number:g}'


class Figure:
    """Panels below each other.

    :ivar y: where the next panel starts.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 0.0

    def lines(self, name: str) -> Iterator[str]:
        """The SVG, with a name for screen readers."""
        yield (
            f'<svg class="perf-figure" role="img" viewBox="0 0 {WIDTH} {self.y:.0f}"'
            f' width="{WIDTH}" fill="{TEXT}" stroke-width="1.2">'
        )
        yield f'<title>{escape(name)}</title>'
        yield from self.parts
        yield '</svg>'

    def rows(
        self,
        title: str,
        axis: str,
        rows: Sequence[tuple[str, Sequence[Mark]]],
        legend: Sequence[tuple[str, Mark]] = (),
        log: bool | None = None,
        line: float | None = None,
    ) -> None:
        """A panel of named rows, each with one mark and its number, or several marks.

        :param line: value to emphasize.
        """
        self.title(title)
        marks = [mark for _, found in rows for mark in found]
        scale = Scale([end for mark in marks for end in (mark.low, mark.high)], LEFT, RIGHT, log)
        top, bottom = self.y, self.y + ROW * len(rows)
        for tick in scale.ticks():
            self.line(scale(tick), top, scale(tick), bottom, 0.8 if tick == line else 0.2)
            self.text(scale(tick), bottom + 14, short(tick), 'middle')
        numbers = len(marks) == len(rows)
        for name, found in rows:
            middle = self.y + ROW / 2
            self.text(LEFT - 10, middle + 4, name, 'end')
            for mark in found:
                self.line(scale(mark.low), middle, scale(mark.high), middle)
                self.mark(mark, scale(mark.value), middle)
            if numbers:
                self.text(scale(found[0].high) + 9, middle + 4, f'{found[0].value:,.0f}')
            self.y += ROW
        scaled = ', logarithmic' if scale.log else ''
        self.text((LEFT + RIGHT) / 2, bottom + 30, axis + scaled, 'middle')
        self.y += 36
        self.legend(legend)

    def curves(
        self,
        title: str,
        axis: str,
        values: Sequence[str],
        curves: Sequence[tuple[str, Mark, Sequence[tuple[int, Mark]]]],
    ) -> None:
        """A panel of curves.

        :param values: names of the points on the horizontal axis.
        :param curves: names, styles, and marks by the number of their point.
        """
        self.title(title)
        marks = [mark for _, _, points in curves for _, mark in points]
        ends = [end for mark in marks for end in (mark.low, mark.high)]
        left, right, bottom = 60, WIDTH - 20, self.y + PLOT
        scale = Scale(ends, bottom, self.y, None)
        for tick in scale.ticks():
            self.line(left, scale(tick), right, scale(tick), 0.2)
            self.text(left - 6, scale(tick) + 4, short(tick), 'end')
        step = (right - left) / len(values)
        for i, value in enumerate(values):
            self.text(left + (i + 0.5) * step, bottom + 14, value, 'middle')
        for _, style, points in curves:
            places = [(left + (i + 0.5) * step, mark) for i, mark in points]
            path = ' '.join(f'{x:.1f},{scale(mark.value):.1f}' for x, mark in places)
            dashes = ' stroke-dasharray="4 3"' if style.hollow else ''
            line = f'<polyline points="{path}" fill="none" stroke="{style.colour}"{dashes}/>'
            self.parts.append(line)
            for x, mark in places:
                self.line(x, scale(mark.low), x, scale(mark.high))
                self.mark(mark, x, scale(mark.value))
        self.text((left + right) / 2, bottom + 30, axis, 'middle')
        self.y = bottom + 36
        self.legend([(name, style) for name, style, _ in curves])

    def legend(self, entries: Sequence[tuple[str, Mark]]) -> None:
        for i, (name, mark) in enumerate(entries):
            x, y = 30 + i % 2 * WIDTH / 2, self.y + 12 + i // 2 * 16
            self.mark(mark, x, y - 4)
            self.text(x + 12, y, name)
        self.y += 16 * math.ceil(len(entries) / 2) + 14

    def title(self, text: str) -> None:
        self.y += 8
        for line in textwrap.wrap(text[0].upper() + text[1:], TITLE):
            self.y += 16
            self.parts.append(
                f'<text x="4" y="{self.y - 4:.1f}" font-size="13" font-weight="bold">'
                f'{escape(line)}</text>'
            )
        self.y += 2

    def text(self, x: float, y: float, text: str, anchor: str = 'start') -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}">'
            f'{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, opacity: float = 1) -> None:
        self.parts.append(
            f'<path d="M{x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f}" stroke="{TEXT}" opacity="{opacity}"/>'
        )

    def mark(self, mark: Mark, x: float, y: float) -> None:
        corners, turn = SHAPES[mark.shape % len(SHAPES)]
        angles = [math.radians(turn + 360 / corners * i) for i in range(corners)]
        points = ' '.join(f'{x + 5 * math.cos(a):.1f},{y + 5 * math.sin(a):.1f}' for a in angles)
        fill = PAGE if mark.hollow else mark.colour
        self.parts.append(f'<polygon points="{points}" fill="{fill}" stroke="{TEXT}"/>')
