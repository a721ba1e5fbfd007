"""The report: pages of the documentation, created from result files only."""

from collections.abc import Sequence
from pathlib import Path

from . import page, proofs
from .model import Report, ReportError

__all__ = ['SOURCES', 'Report', 'ReportError', 'write']

SOURCES = tuple(Path(__file__).parent.glob('*.py'))  # of the pages


def write(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the pages; return the files written.

    :param paths: result files of proofs (`.json`) and of the benchmark; if two of them measured
        the same kind of work, the report shows the later results.
    :param out: source folder of the documentation.
    :raises ReportError: no lane has results.
    """
    proven = [path for path in paths if path.suffix == '.json']
    measured = [path for path in paths if path.suffix != '.json']
    pages = {}
    if proven:
        pages[out / 'proofs.rst'] = proofs.compose(proofs.read(proven))
    if measured:
        pages[out / 'performance.rst'] = page.compose(Report.read(measured))
    out.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding='utf-8')
    return list(pages)
