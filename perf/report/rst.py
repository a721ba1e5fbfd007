"""Format text as reStructuredText."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 96
SPECIAL = re.compile(r'([\\*_|`\[\]<>])')
# code in backquotes, if reStructuredText allows it there
QUOTED = re.compile(r'(?<![\w`])`([^`\s](?:[^`]*[^`\s])?)`(?![\w`])')
# what would start a list, directive or field
OPENING = re.compile(r'([-+*•‣:]|\.\.|\(?\w+[.)])(\s|$)')


def plain(text: str) -> str:
    """Escape a text so that it appears literally; text in backquotes becomes code."""
    parts = QUOTED.split(' '.join(text.split()))
    escaped = [code(part) if i % 2 else SPECIAL.sub(r'\\\1', part) for i, part in enumerate(parts)]
    result = ''.join(escaped)
    return f'\\{result}' if OPENING.match(result) else result


def names(items: Iterable[str]) -> str:
    """Join names: `a`, `b` and `c`."""
    *most, last = items
    return f'{", ".join(most)} and {last}' if most else last


def capital(text: str) -> str:
    return plain(text[0].upper() + text[1:])


def sentence(text: str) -> str:
    return f'{capital(text)}.'


def code(text: str) -> str:
    return f'``{text}``' if text else ''


def moment(time: str) -> str:
    """Format an ISO 8601 time."""
    return time.replace('T', ' ').replace('+00:00', ' UTC')


def document(lines: Iterable[str]) -> str:
    """Return the text of a page."""
    return '\n'.join(lines).rstrip('\n') + '\n'


def heading(text: str, line: str = '-') -> Iterator[str]:
    yield from (text, line * len(text), '')


def wrap(text: str, indent: str = '', first: str = '') -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraph(text: str) -> Iterator[str]:
    """A paragraph of a text that is already markup."""
    yield from (wrap(text), '')


def bullets(texts: Iterable[str]) -> Iterator[str]:
    """A list of texts that are already markup."""
    for text in texts:
        yield wrap(text, '  ', '* ')
    yield ''


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], style: str = 'perf-numbers'
) -> Iterator[str]:
    """A table of cells that are already markup."""
    yield '.. list-table::'
    yield '   :header-rows: 1'
    yield f'   :class: {style}'
    yield ''
    for row in (head, *rows):
        for i, cell in enumerate(row):
            yield f'   {" " if i else "*"} - {cell}'.rstrip()
    yield ''
