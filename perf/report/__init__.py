"""The report: documentation pages and figures, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from .model import Report, ReportError

__all__ = ['Report', 'ReportError', 'write']

PAGE = 'performance.rst'
FIGURES = '_static/perf'


def write(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the page and its figures; return the files written.

    :param paths: result files; if two of them measured the same kind of work, the report shows the
        later results.
    :param out: source folder of the documentation.
    :raises ReportError: no lane has results, or matplotlib is not installed.
    """
    try:
        from . import curves, figures, page, studies
    except ModuleNotFoundError as ex:
        raise ReportError(
            f"{ex.name} is not installed; run: pip install '.[doc]' in the checkout"
        ) from None

    report = Report.read(paths)
    folder = out / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [figure for figure in figures.FIGURES if figure.panels(report)]
    written = [path for figure in drawn for path in figures.draw(report, figure, folder)]
    if studies.overview(report):
        written += curves.draw_overview(report, folder)
    for scenario in studies.STUDIES:
        if report.of_study(scenario):
            written += curves.draw_study(report, scenario, folder)
    for stale in {*folder.glob('*.svg'), *folder.glob('*.png')}.difference(written):
        stale.unlink()
    text = page.compose(report, {figure.scenario: figure for figure in drawn}, FIGURES)
    (out / PAGE).write_text(text, encoding='utf-8')
    return [out / PAGE, *written]
