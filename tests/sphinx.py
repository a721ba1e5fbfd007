"""Builds pages of the report like the documentation."""

import re
import subprocess
import sys
from pathlib import Path

__all__ = ['build']


def build(source: Path, page: str, out: Path) -> str:
    """Build a folder with one page, with warnings as errors; return its HTML.

    Empty pages stand for those of the documentation that the page links to.
    """
    for name in re.findall(r':doc:`(.+?)`', (source / f'{page}.rst').read_text()):
        linked = source / f'{name.removeprefix("/")}.rst'
        linked.parent.mkdir(exist_ok=True)
        linked.write_text(f':orphan:\n\n{name}\n{"=" * len(name)}\n')
    (source / 'conf.py').write_text("html_theme = 'furo'\ndefault_role = 'code'\n")
    (source / 'index.rst').write_text(f'Test\n====\n\n.. toctree::\n\n   {page}\n')
    words = ['-qW', '--keep-going', '-b', 'html', str(source), str(out)]
    done = subprocess.run(
        [sys.executable, '-m', 'sphinx', *words], capture_output=True, text=True, check=False
    )
    assert done.stderr == ''
    assert done.returncode == 0
    return (out / f'{page}.html').read_text()
