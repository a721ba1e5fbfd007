"""The report: documentation pages and figures, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from . import proofs
from .model import Report, ReportError

__all__ = ['Report', 'ReportError', 'write']

PAGE = 'performance.rst'
PROOFS = 'proofs.rst'
FIGURES = '_static/perf'


def write(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the pages and figures; return the files written.

    :param paths: result files of proofs (`.json`) and of the benchmark; if two of them measured
        the same kind of work, the report shows the later results.
    :param out: source folder of the documentation.
    :raises ReportError: no lane has results, or matplotlib is not installed.
    """
    proven = [path for path in paths if path.suffix == '.json']
    measured = [path for path in paths if path.suffix != '.json']
    written = []
    if proven:
        out.mkdir(parents=True, exist_ok=True)
        (out / PROOFS).write_text(proofs.compose(proofs.read(proven)), encoding='utf-8')
        written.append(out / PROOFS)
    return [*written, *(write_performance(measured, out) if measured else ())]


def write_performance(paths: Sequence[Path], out: Path) -> list[Path]:
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
