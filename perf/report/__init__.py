"""The report: pages of the documentation, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from ..lanes import SCENARIOS
from . import figures, page
from .model import Report

__all__ = ['Report', 'draw', 'write']


def write(paths: Sequence[Path], folder: Path) -> Path:
    """Write the pages into a source folder of the documentation; return the path of the first.

    Each study has a page in the folder `studies`.

    :param paths: result files; if two of them measured the same kind of work, the report shows the
        later results.
    :raises CommandError: no lane has results.
    """
    report = Report.read(paths)
    text = page.compose(report)
    studies = folder / page.STUDIES
    studies.mkdir(parents=True, exist_ok=True)
    names = page.studies(report)
    for old in {*studies.glob('*.rst')} - {studies / f'{name}.rst' for name in names}:
        old.unlink()
    for name in names:
        study = page.compose_study(report, name)
        (studies / f'{name}.rst').write_text(study, encoding='utf-8')
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
