"""The report: a page of the documentation and its figures, from result files alone."""

from collections.abc import Sequence
from pathlib import Path

from .model import Report, ReportError

__all__ = ['Report', 'ReportError', 'write']

PAGE = 'performance.rst'
FIGURES = '_static/perf'


def write(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the page and the figures; return the files that were written.

    :param paths: result files; no kind of work may be in two of them.
    :param out: folder of the documentation's sources.
    :raises ReportError: the files do not go together, or matplotlib is not installed.
    """
    try:
        from . import figures, page
    except ModuleNotFoundError as ex:
        raise ReportError(
            f"{ex.name} not installed; pip install '.[doc]' in the checkout"
        ) from None

    report = Report.read(paths)
    folder = out / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [figure for figure in figures.FIGURES if figure.panels(report)]
    written = [path for figure in drawn for path in figures.draw(report, figure, folder)]
    for stale in {*folder.glob('*.svg'), *folder.glob('*.png')}.difference(written):
        stale.unlink()
    text = page.compose(report, {figure.scenario: figure for figure in drawn}, FIGURES)
    (out / PAGE).write_text(text, encoding='utf-8')
    return [out / PAGE, *written]
