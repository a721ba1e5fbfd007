"""`rbfly doctor`: finds out why nothing arrives."""

from __future__ import annotations

import logging
import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from .connection import ConnectedCommand, target
from .output import has_colors, is_terminal, print_json
from .running import FAILED, run
from .values import Number

if TYPE_CHECKING:
    from .reachability import Finding

MIN_WIDTH = 50  # a narrower terminal folds lines itself
COLORS = {'ok': 'green', 'warning': 'yellow', 'failed': 'red'}


@click.command(cls=ConnectedCommand, short_help='Find out why nothing arrives.')
@click.argument('stream', required=False)
@click.option('-g', '--group', metavar='NAME', help='A group, or the name of a stored offset.')
@click.option('-n', '--name', metavar='NAME', help='The name of a publisher.')
@click.option('--filter', 'value', metavar='VALUE', help='A filter value that messages have.')
@click.option(
    '--watch',
    type=Number(min=0),
    metavar='SECONDS',
    help='How long to look whether offsets move, at most (default: 2, with a group 7).',
)
@click.option('--json', 'as_json', is_flag=True, help='Write JSON.')
def command(
    stream: str | None,
    group: str | None,
    name: str | None,
    value: str | None,
    watch: float | None,
    as_json: bool,
) -> int:
    """Find out why nothing arrives from STREAM, which may be a super stream. Without it, check only
    whether the broker can be reached.

    Checks the name and the port of each node, TLS, the user, the virtual host, the stream, its
    leader, the addresses that the nodes advertise, the rights, and whether messages are published
    and delivered. With a group, checks how far it is and whether it moves.

    It only reads: it joins no group, and stores nothing. Fails if one of the checks does.
    """
    from .diagnosis import Diagnosis, Question

    if stream is None and (group or name or value):
        raise click.UsageError('--group, --name and --filter need a stream')
    broker = target()
    logger = logging.getLogger('rbfly')
    if logger.level == logging.WARNING:  # which the findings tell
        logger.setLevel(logging.CRITICAL)
    question = Question(stream, group, name, value, watch)
    diagnosis = Diagnosis(broker, question, ignore if as_json else show)
    run(diagnosis.run())
    failed = [item for item in diagnosis.findings if item.result == 'failed']
    if as_json:
        print_json(
            {'stream': stream, 'ok': not failed, 'checks': [vars(i) for i in diagnosis.findings]}
        )
    else:
        print(f'\n{conclusion(diagnosis.findings)}', flush=True)
    return FAILED if failed else 0


def ignore(finding: Finding) -> None:
    """Show nothing."""


def show(finding: Finding) -> None:
    """Write a finding, and what to do about it."""
    head = f'{finding.result:8} {finding.check:13} '
    text = folded(printable(finding.detail), head, ' ' * len(head))
    if has_colors():
        result = click.style(finding.result, fg=COLORS[finding.result])
        text = text.replace(finding.result, result, 1)
    print(text, flush=True)
    if finding.advice:
        print(folded(printable(finding.advice), f'{"":8} -> ', f'{"":12}'), flush=True)


def printable(text: str) -> str:
    """Escape what would control the terminal: the text may come from any server."""
    return ''.join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def folded(text: str, first: str, others: str) -> str:
    """Return a text in lines that fit the terminal, or in one line for a pipe.

    :param first: what the first line begins with.
    :param others: what other lines begin with.
    """
    if not is_terminal():
        return first + text
    return textwrap.fill(
        text,
        max(shutil.get_terminal_size().columns, MIN_WIDTH),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def conclusion(findings: list[Finding]) -> str:
    """Return the last line."""
    parts = []
    for result, noun in (('failed', 'failed'), ('warning', 'warning')):
        count = sum(item.result == result for item in findings)
        if count:
            plural = 's' if noun == 'warning' and count > 1 else ''
            parts.append(f'{count} {noun}{plural}')
    if not parts:
        return 'all checks are ok'
    last = findings[-1]
    text = ', '.join(parts)
    if last.result == 'failed' and last.check in EARLY:
        text += '; the other checks need this one'
    return text


EARLY = 'name', 'port', 'TLS', 'user', 'virtual host', 'stream', 'leader'
