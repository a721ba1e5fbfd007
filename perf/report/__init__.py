"""The report: a page of the documentation, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from . import page
from .model import Report

__all__ = ['Report', 'write']


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
