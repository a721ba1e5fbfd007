"""`rbfly broker`, where options of the group stand before it, or a shell completes it."""

from __future__ import annotations

import click

from ..testing.command import main


@click.command(
    'broker',
    context_settings={'ignore_unknown_options': True},
    add_help_option=False,
)
@click.argument('args', nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> int:
    """Run an in-memory broker until Ctrl-C."""
    return main(args)
