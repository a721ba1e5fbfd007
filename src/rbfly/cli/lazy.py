"""A group of commands, each of which is imported when it runs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """A command that is not imported yet.

    :param help: its line in the list of commands.
    :param module: absolute name of its module.
    :param attribute: its name in the module.
    """

    help: str
    module: str
    attribute: str = 'command'

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(self.module), self.attribute)
        return command


class LazyGroup(click.Group):
    """A group whose commands are described by a table.

    :param table: the commands by name, in the order of the help; those whose module is missing are
        left out.
    """

    def __init__(self, *args: Any, table: dict[str, Lazy], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table: dict[str, Lazy] = {
            name: item for name, item in table.items() if find_spec(item.module)
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.table[cmd_name].load() if cmd_name in self.table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section('Commands'):
            formatter.write_dl([(name, item.help) for name, item in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=item.help)
            for name, item in self.table.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
