"""A Sphinx extension that writes the documentation as plain text, for programs that read it.

`llms.txt` lists the pages with their first sentences, `llms-full.txt` contains their text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.writers.text import TextTranslator

# thousands of rows of tables
RESULTS = ('internals/performance', 'internals/studies/', 'internals/proofs')


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect('build-finished', write)
    return {'parallel_read_safe': True}


def write(app: Sphinx, error: Exception | None) -> None:
    """Write both files beside the pages."""
    if error is not None or app.builder.format != 'html':
        return
    folder = Path(app.outdir)
    (folder / 'llms.txt').write_text(index(app), encoding='utf-8')
    texts = [text_of(app, name) for name in pages(app) if not name.startswith(RESULTS)]
    (folder / 'llms-full.txt').write_text('\n\n'.join(texts), encoding='utf-8')


def pages(app: Sphinx, name: str = '') -> Iterator[str]:
    """Yield the names of all pages, in the order of the table of contents."""
    name = name or str(app.config.root_doc)
    yield name
    for child in app.env.toctree_includes.get(name, []):
        yield from pages(app, child)


def index(app: Sphinx) -> str:
    root = str(app.config.root_doc)
    lines = [f'# {app.config.project}', '', f'> {summary(app, root)}']
    for part in app.env.toctree_includes.get(root, []):
        lines += ['', f'## {app.env.titles[part].astext()}', '']
        lines += [
            f'- [{app.env.titles[name].astext()}]({app.builder.get_target_uri(name)}):'
            f' {summary(app, name)}'
            for name in pages(app, part)
        ]
    return '\n'.join(lines) + '\n'


def summary(app: Sphinx, name: str) -> str:
    """Return the first paragraph of a page, which says what the page is for."""
    document: Any = app.env.get_doctree(name)
    paragraphs = (node for node in document.findall() if node.tagname == 'paragraph')
    return ' '.join(next(paragraphs).astext().split())


def text_of(app: Sphinx, name: str) -> str:
    document: Any = app.env.get_and_resolve_doctree(name, app.builder)
    builder: Any = app.builder  # the translator needs nothing that only builders of text have
    visitor = TextTranslator(document, builder)
    document.walkabout(visitor)
    return visitor.body
