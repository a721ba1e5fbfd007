"""The command `rbfly`: its options and commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import rbfly

from ..closed_pipe import flush_output
from .connection import connection_options
from .lazy import Lazy, LazyGroup
from .running import guarded

COMPLETE = '_RBFLY_COMPLETE'  # environment variable of click's shell completion
EPILOG = 'The options also stand after a command: rbfly tail orders --uri URI.'

COMMANDS = {
    'publish': Lazy('Publish lines of files or of standard input.', 'rbfly.cli.publish'),
    'tail': Lazy('Show the messages of a stream.', 'rbfly.cli.tail'),
    'copy': Lazy('Copy a stream to another one.', 'rbfly.cli.copy'),
    'lag': Lazy('Show what a group has left to read.', 'rbfly.cli.lag'),
    'stream': Lazy('Create, delete and inspect streams.', 'rbfly.cli.stream'),
    'super-stream': Lazy('Create, delete and inspect super streams.', 'rbfly.cli.super_stream'),
    'offset': Lazy('Show, store and reset stored offsets.', 'rbfly.cli.offset'),
    'perf': Lazy('Put load on a broker, and measure it.', 'rbfly.cli.perf'),
    'doctor': Lazy('Find out why nothing arrives.', 'rbfly.cli.doctor'),
    'broker': Lazy('Run an in-memory broker for development.', 'rbfly.cli.broker'),
}

group: LazyGroup = LazyGroup(
    'rbfly',
    table=COMMANDS,
    params=connection_options(of_group=True),
    help='Tools for RabbitMQ Streams.',
    epilog=EPILOG,
    context_settings={'help_option_names': ['-h', '--help'], 'max_content_width': 100},
)
click.version_option(rbfly.__version__, prog_name='rbfly')(group)


def main(args: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit code."""
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, 'rbfly', COMPLETE, instruction)

    # Not in the encoding of a locale or a code page.  Without a buffer, as with PYTHONUNBUFFERED,
    # Python would lose the rest of what can be written only in part.
    original = sys.stdout  # which closes the descriptor when it is released
    sys.stdout = open(  # noqa: SIM115 - until the process ends
        original.fileno(), 'w', encoding='utf-8', errors='surrogateescape', closefd=False
    )

    def call() -> object:
        with group.make_context('rbfly', [*args]) as context:
            return group.invoke(context)

    try:
        return guarded(call)
    finally:
        flush_output()
