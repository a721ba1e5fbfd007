"""Cells of the tables that runs print."""

from collections.abc import Iterator, Sequence

from .stats import Interval


def align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Pad the columns: the first is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield '  '.join(cells).rstrip()


def ratio(interval: Interval) -> str:
    return f'{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]'
