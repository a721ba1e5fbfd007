"""The page of proofs, as reStructuredText, created only from their result files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brokers import RabbitMQ
from perf.report.rst import bullets, code, heading, moment, paragraph, plain, table

from . import catalogue

__all__ = ['PageError', 'compose', 'read', 'write']

Proof = dict[str, Any]

# entries of `found` that the page shows elsewhere or that mean nothing to readers
OMITTED = ('proxies', 'seconds')


class PageError(Exception):
    """No page can be written from the result files."""


def write(paths: Sequence[Path], folder: Path) -> Path:
    """Write the page into a source folder of the documentation; return its path.

    :raises PageError: a file is not a valid result file.
    """
    text = compose(read(paths))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'proofs.rst'
    path.write_text(text, encoding='utf-8')
    return path


def read(paths: Sequence[Path]) -> list[Proof]:
    """Read result files of proofs.

    :raises PageError: a file is not a valid result file.
    """
    proofs = []
    for path in paths:
        try:
            proof = json.loads(path.read_text(encoding='utf-8'))
        except (OSError, ValueError) as ex:
            raise PageError(f'{path}: {ex}') from None
        if not isinstance(proof, dict) or (proof.get('type'), proof.get('format')) != ('proof', 1):
            raise PageError(f'{path}: not a result file of a proof in format 1')
        proofs.append(proof | {'label': path.name})
    return proofs


def compose(results: Sequence[Proof]) -> str:
    """Write the page.

    The titles of proofs come from :data:`proofs.catalogue.PROOFS` if they are still there.
    """
    lines = [
        '.. Written by `python -m proofs page` from result files; do not edit.',
        '',
        *heading('Proofs', '='),
        *paragraph(
            'A proof is a command that publishes or consumes messages while connections, brokers or'
            ' callers fail. Its seed determines all random choices. A proof *holds* if all of its'
            ' claims do. Messages are numbered; code independent of the client compares every'
            ' number stored or received with those sent. The nodes of the broker advertise the'
            ' ports of proxies, which inject faults and count the bytes that they forward. A'
            ' *floor* is a program without a client library that exchanges the same frames with the'
            ' broker.'
        ),
        *paragraph(
            'Everything on this page comes from the result files of these commands. The test suite'
            ' runs a short version of every proof.'
        ),
        *table(
            ['proof', 'verdict', 'settings', 'broker', 'seed', 'seconds'],
            map(row, results),
            'perf perf-text',
        ),
    ]
    for name in dict.fromkeys(proof['proof'] for proof in results):
        runs = [proof for proof in results if proof['proof'] == name]
        title = catalogue.PROOFS[name].title if name in catalogue.PROOFS else runs[0]['title']
        lines += heading(plain(f'{name}: {title}'))
        for run in runs:
            lines += section(run)
    lines += surroundings(results)
    return '\n'.join(lines).rstrip('\n') + '\n'


def row(proof: Proof) -> list[str]:
    settings = ', '.join(setting(name, value) for name, value in proof['settings'].items() if value)
    seconds = f'{proof["found"].get("seconds", 0):,.0f}'
    name, verdict = code(proof['proof']), plain(proof['verdict'])
    return [name, verdict, settings, broker(proof), f'{proof["seed"]}', seconds]


def broker(proof: Proof) -> str:
    if proof['settings'].get('on') == 'memory':
        return 'in memory'
    about = proof['environment']['brokers'].get('rabbitmq', {})
    return plain(f'{about.get("product", "")} {about.get("version", "")}')


def setting(name: str, value: Any) -> str:
    if value is True:
        return plain(name)
    return f'{plain(value)}' if isinstance(value, str) else f'{value:,} {plain(name)}'


def command(proof: Proof) -> str:
    """The command that repeats the proof."""
    words = catalogue.command(proof['proof'], proof['seed'], proof['settings'])
    series = broker(proof).partition(' ')[2].rpartition('.')[0]
    if series in RabbitMQ.versions[1:]:  # the first is what is started if none is named
        words = f'{RabbitMQ.version_variable}={series} {words}'
    return words


def section(proof: Proof) -> Iterator[str]:
    yield from ('.. code-block:: sh', '', f'   {command(proof)}', '')
    claims = [
        [plain(item['what']), 'yes' if item['holds'] else '**no**', plain(item['detail'])]
        for item in proof['checks']
    ]
    if claims:
        yield from table(['claim', 'holds?', 'observed'], claims, 'perf perf-text')
    if proof['error']:
        yield from paragraph(f'**Ended early**: {plain(proof["error"])}')
    rows = [
        [plain(name), format_value(value)]
        for name, value in proof['found'].items()
        if name not in OMITTED and value not in ([], {})
    ]
    if rows:
        yield from table(['measured', ''], rows, 'perf perf-text')


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


def surroundings(proofs: Sequence[Proof]) -> Iterator[str]:
    yield from heading('Environment')
    machines = dict.fromkeys(
        f'{about["cpus"]} CPUs, {about["cpu"]}, {about["kernel"]}, {about["python"]}'
        for about in (proof['environment'] for proof in proofs)
    )
    yield from bullets(map(plain, machines))
    rows = []
    for proof in proofs:
        about = proof['environment']
        rows.append(
            [
                code(proof['label']),
                moment(about['time']),
                plain(str(about['revision'])),
                broker(proof),
                plain(', '.join(f'{k} {v}' for k, v in about['libraries'].items())),
            ]
        )
    head = ['result file', 'ended', 'commit', 'broker', 'libraries']
    yield from table(head, rows, 'perf perf-text')
