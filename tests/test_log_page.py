"""doc/logs.rst explains every line that RbFly logs, except those at the level DEBUG."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / 'doc' / 'logs.rst').read_text()
SOURCE = ROOT / 'src'


def calls() -> list[tuple[str, str, ast.expr]]:
    """The logger, the level and the text of each call of a logger."""
    found = []
    for path in sorted(SOURCE.glob('rbfly/**/*.py')):
        name = '.'.join(path.relative_to(SOURCE).with_suffix('').parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == 'logger'
                and node.func.attr in ('info', 'warning', 'error', 'log')
            ):
                found.append((name, node.func.attr.upper(), node.args[0]))
    return found


def test_calls_are_found() -> None:
    assert ('rbfly.streams.watchdog', 'INFO') in [item[:2] for item in calls()]
    assert ('rbfly.net.outages', 'LOG') in [item[:2] for item in calls()]


@pytest.mark.parametrize(('name', 'level'), [item[:2] for item in calls()])
def test_page_has_the_logger_and_its_level(name: str, level: str) -> None:
    assert f'`{name}`' in PAGE
    if level != 'LOG':  # the lines on outages have a table of their own
        row = PAGE.split(f'* - `{name}`', 1)[1]
        assert level in row
