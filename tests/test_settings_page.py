"""The page of settings has each argument, with its default, in the order of the signature."""

import ast
import importlib
import inspect
import re
from typing import Any

import pytest

from rbfly.protocol.offset import Offset
from rbfly.streams import AuthMechanism
from tests.examples import ROOT

PAGE = (ROOT / 'doc' / 'reference' / 'settings.rst').read_text()
# The functions, those from which they differ, and the rows of their tables.
TABLES = re.findall(
    r'^\.\. settings of ([\w.]+)(?:, where it differs from ([\w.]+))?\n\n'
    r'\.\. list-table::\n((?:   .*\n|\n)+)',
    PAGE,
    re.M,
)
CONSTANTS = {
    'AuthMechanism.PLAIN': AuthMechanism.PLAIN,
    'Offset.FIRST': Offset.FIRST,
    'required': inspect.Parameter.empty,
}


def documented(table: str) -> list[tuple[str, Any]]:
    """Return the names and the defaults in a table."""
    rows = re.findall(r'^   \* - `(\w+)`\n     - .+\n     - `?(.+?)`?\n     - .', table, re.M)
    assert len(rows) == table.count('   * - ') - 1
    return [
        (name, CONSTANTS[text] if text in CONSTANTS else ast.literal_eval(text))
        for name, text in rows
    ]


def settings(function: str) -> list[tuple[str, Any]]:
    """Return the names and the defaults of arguments."""
    module, _, name = function.rpartition('.')
    if module.rpartition('.')[2][0].isupper():
        module, _, owner = module.rpartition('.')
        found = getattr(getattr(importlib.import_module(module), owner), name)
    else:
        found = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(found).parameters.values()
    return [(item.name, item.default) for item in parameters if item.name != 'self']


@pytest.mark.parametrize(('function', 'base', 'table'), TABLES, ids=[item[0] for item in TABLES])
def test_settings_are_documented(function: str, base: str, table: str) -> None:
    known = settings(base) if base else []
    assert documented(table) == [item for item in settings(function) if item not in known]


def test_functions_that_open_something_are_documented() -> None:
    names = [function.removeprefix('rbfly.') for function, *_ in TABLES]
    assert names == [
        'streams.streams_client',
        'streams.StreamsClient.create_stream',
        'streams.SuperStream.create',
        'streams.StreamsClient.publisher',
        'streams.SuperStream.publisher',
        'streams.StreamsClient.subscribe',
        'streams.SuperStream.subscribe',
        'streams.Group',
        'streams.OffsetTracking',
        'processing.process',
        'processing.pipe',
    ]
