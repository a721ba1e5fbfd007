"""doc/operating/command-line.rst shows what the commands write, and describes all of them."""

import re

import click
import pytest

from rbfly.cli.formats import DIRECTIVES
from rbfly.cli.main import group
from rbfly.cli.places import parse_range
from rbfly.cli.profiles import KEYS
from tests.command_page import PAGE, outputs, same_every_time, sessions

TEXT = PAGE.read_text()


@pytest.fixture(scope='module')
def found() -> list[str]:
    return outputs(TEXT)


@pytest.mark.parametrize('number', range(len(sessions(TEXT))))
def test_output_of_the_page(number: int, found: list[str]) -> None:
    """To update the page, run `python -m tests.command_page`."""
    assert same_every_time(sessions(TEXT)[number]) == same_every_time(found[number])


def test_every_command_is_on_the_page() -> None:
    context = click.Context(group, info_name='rbfly')
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert f'`rbfly {name}' in TEXT or f'rbfly {name} ' in TEXT or name == 'broker'
        if isinstance(command, click.Group):
            for inner in command.commands:
                assert f'rbfly {name} {inner}' in TEXT or inner == 'delete', f'{name} {inner}'


def test_offsets_of_the_page_are_valid() -> None:
    table = TEXT[TEXT.index('`-o`  ') : TEXT.index('The broker keeps times')]
    offsets = re.findall(r'(?<![-\w])`([^`]+)`', table)
    offsets = [text for text in offsets if not text.startswith(('-o', '--'))]
    assert len(offsets) > 15
    for text in offsets:
        parse_range(text, 1e9 * 2)


def test_directives_of_the_page_exist() -> None:
    table = TEXT[TEXT.index('directive  ') : TEXT.index('A message that is not AMQP')]
    assert {*re.findall(r'`%(.)`', table)} == {*DIRECTIVES}


def test_keys_of_profiles_are_on_the_page() -> None:
    for key in KEYS:
        assert f'`{key}`' in TEXT
