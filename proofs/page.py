"""The page of proofs, as reStructuredText, created only from their result files."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brokers import RabbitMQ
from perf.report.rst import bullets, code, document, heading, moment, paragraph, plain, table

from .catalogue import PROOFS, command
from .run import ProofError

Result = dict[str, Any]

# entries of `found` that the page shows elsewhere or that mean nothing to readers
OMITTED = ('proxies', 'seconds')
STYLE = 'perf perf-text'
CODE_WIDTH = 84
INTRODUCTION = (
    'A proof is a command that publishes or consumes messages while connections, brokers or'
    ' callers fail. Its seed determines all random choices. A proof *holds* if all of its'
    ' claims do. Messages are numbered; code independent of the client compares every'
    ' number stored or received with those sent. The nodes of the broker advertise the'
    ' ports of proxies, which inject faults and count the bytes that they forward. A'
    ' *floor* is a program without a client library that exchanges the same frames with the'
    ' broker.',
    'Everything on this page comes from the result files of these commands. The test suite'
    ' runs a short version of every proof.',
)


def write(paths: Sequence[Path], folder: Path) -> Path:
    """Write the page into a source folder of the documentation; return its path.

    :raises ProofError: a file is not a valid result file.
    """
    text = compose(read(paths))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'proofs.rst'
    path.write_text(text, encoding='utf-8')
    return path


def read(paths: Sequence[Path]) -> list[Result]:
    """Read result files.

    :raises ProofError: a file is not a valid result file.
    """
    results = []
    for path in paths:
        try:
            result = json.loads(path.read_text(encoding='utf-8'))
        except (OSError, ValueError) as ex:
            raise ProofError(f'{path}: {ex}') from None
        known = isinstance(result, dict) and [result.get(name) for name in ('type', 'format')]
        if known != ['proof', 1]:
            raise ProofError(f'{path}: not a result file of a proof in format 1')
        results.append(result | {'label': path.name})
    return results


def compose(results: Sequence[Result]) -> str:
    """The text of the page; titles come from `PROOFS` if they are still there."""
    lines = ['.. Written by `python -m proofs page` from result files; do not edit.', '']
    lines += heading('Proofs', '=')
    for text in INTRODUCTION:
        lines += paragraph(text)
    head = ['proof', 'verdict', 'settings', 'broker', 'seed', 'seconds']
    lines += table(head, map(row, results), STYLE)
    for name in dict.fromkeys(result['proof'] for result in results):
        runs = [result for result in results if result['proof'] == name]
        title = PROOFS[name].title if name in PROOFS else runs[0]['title']
        lines += heading(plain(f'{name}: {title}'))
        for run in runs:
            lines += section(run)
    lines += surroundings(results)
    lines += heading('Next')
    lines += paragraph(
        ':doc:`life` shows what happens to a message in these runs. :doc:`/guides/exactly-once` and'
        ' :doc:`/guides/outages` say what your program has to do.'
    )
    return document(lines)


def row(result: Result) -> list[str]:
    settings = ', '.join(shown(name, value) for name, value in result['settings'].items() if value)
    seconds = f'{result["found"].get("seconds", 0):,.0f}'
    name, verdict = code(result['proof']), plain(result['verdict'])
    return [name, verdict, settings, broker(result), f'{result["seed"]}', seconds]


def shown(name: str, value: Any) -> str:
    """A setting."""
    if isinstance(value, str):
        return plain(value)
    return plain(name) if value is True else f'{value:,} {plain(name)}'


def broker(result: Result) -> str:
    if result['settings'].get('on') == 'memory':
        return 'in memory'
    about = result['environment']['brokers'].get('rabbitmq', {})
    return plain(f'{about.get("product", "")} {about.get("version", "")}')


def section(result: Result) -> Iterator[str]:
    """The command, the claims and the measurements of a run."""
    words = command(result['proof'], result['seed'], result['settings'])
    series = broker(result).partition(' ')[2].rpartition('.')[0]
    if series in RabbitMQ.versions[1:]:  # the first is what is started if none is named
        words = f'{RabbitMQ.version_variable}={series} {words}'
    yield from ('.. code-block:: sh', '', *folded(words), '')
    claims = [
        [plain(item['what']), 'yes' if item['holds'] else '**no**', plain(item['detail'])]
        for item in result['checks']
    ]
    if claims:
        yield from table(['claim', 'holds?', 'observed'], claims, STYLE)
    if result['error']:
        yield from paragraph(f'**Ended early**: {plain(result["error"])}')
    rows = [
        [plain(name), format_value(value)]
        for name, value in result['found'].items()
        if name not in OMITTED and value not in ([], {})
    ]
    if rows:
        yield from table(['measured', ''], rows, STYLE)


def folded(command: str) -> Iterator[str]:
    """The lines of a code block with a command, which breaks before its options."""
    whole = command.replace(' ', '\0').replace('\0--', ' --')  # an option stays with its value
    *most, last = textwrap.wrap(
        whole,
        CODE_WIDTH,
        initial_indent='   ',
        subsequent_indent='       ',
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in (*(f'{line} \\' for line in most), last):
        yield line.replace('\0', ' ')


def format_value(value: Any) -> str:
    """Format a found value for readers."""
    if isinstance(value, dict):
        return '; '.join(f'{plain(str(name))} {format_value(item)}' for name, item in value.items())
    if isinstance(value, list):
        if len(value) == 3 and all(isinstance(item, float) for item in value):
            return f'{value[0]:g} [{value[1]:g}, {value[2]:g}]'  # with its interval
        return ', '.join(format_value(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'{value:,}'
    return plain(str(value))


def surroundings(results: Sequence[Result]) -> Iterator[str]:
    """The machines and versions of all runs."""
    yield from heading('Environment')
    machines = dict.fromkeys(
        f'{about["cpus"]} CPUs, {about["cpu"]}, {about["kernel"]}, {about["python"]}'
        for about in (result['environment'] for result in results)
    )
    yield from bullets(map(plain, machines))
    rows = []
    for result in results:
        about = result['environment']
        libraries = ', '.join(f'{name} {version}' for name, version in about['libraries'].items())
        ended, commit = moment(about['time']), plain(str(about['revision']))
        rows.append([code(result['label']), ended, commit, broker(result), plain(libraries)])
    yield from table(['result file', 'ended', 'commit', 'broker', 'libraries'], rows, STYLE)
