"""The report: a page of the documentation, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from ..lanes import SCENARIOS
from . import figures, page
from .model import Report

__all__ = ['Report', 'draw', 'write']


def write(paths: Sequence[Path], folder: Path) -> Path:
    """Write the page into a source folder of the documentation; return its path.

    :param paths: result files; if two of them measured the same kind of work, the report shows the
        later results.
    :raises CommandError: no lane has results.
    """
    text = page.compose(Report.read(paths))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'performance.rst'
    path.write_text(text, encoding='utf-8')
    return path


def draw(path: Path, scenario: str) -> Path:
    """Write the figure of a scenario beside its result file; return its path (SVG).

    :raises CommandError: no lane has results.
    """
    found = figures.figure(Report.read([path]), scenario)
    text = '\n'.join(found.lines(SCENARIOS[scenario].title))
    text = text.replace('<svg ', '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    path = path.with_name(path.name.partition('.')[0] + '.svg')
    path.write_text(text + '\n', encoding='utf-8')
    return path
