"""doc/operating/logs.rst explains every line that RbFly logs, except those at the level DEBUG."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / 'doc' / 'operating' / 'logs.rst').read_text()
SOURCE = ROOT / 'src'
Function = ast.FunctionDef | ast.AsyncFunctionDef


LEVELS = ('debug', 'info', 'warning', 'error', 'exception', 'critical', 'log')
# Logs what may concern no client, or several.
NO_CLIENT = ('rbfly.net.observer', 'rbfly.otel._spans')


def events() -> set[str]:
    """The events that lines state as a field."""
    found = set[str]()
    for path in SOURCE.glob('rbfly/**/*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition('.')[2]
                place = {'facts': 1, '_facts': 0, '_warn': 1, '_log': 2}.get(name, 9)
                found |= {
                    str(item.value)
                    for item in node.args[place : place + 1]
                    if isinstance(item, ast.Constant)
                }
    lines = (SOURCE / 'rbfly' / 'net' / 'outage_log.py').read_text()
    return found | set(re.findall(r"'(\w+)', (?:lost|opening|waiting|failed|back)\)", lines))


def all_calls() -> list[tuple[str, str, list[ast.expr], Function]]:
    """The logger, the level, the text and its arguments, and the function of each call."""
    found = []
    for path in sorted(SOURCE.glob('rbfly/**/*.py')):
        name = '.'.join(path.relative_to(SOURCE).with_suffix('').parts)
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        for function in functions:
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and ast.unparse(node.func.value) == 'logger'
                    and node.func.attr in LEVELS
                ):
                    assert 'extra' in [item.arg for item in node.keywords], ast.unparse(node)
                    skip = node.func.attr == 'log'  # the first argument is the level
                    found.append((name, node.func.attr.upper(), node.args[skip:], function))
    return found


def calls() -> list[tuple[str, str]]:
    """The logger and the level of each call that the page has to explain."""
    return sorted(
        {
            ('.'.join(name.split('.')[:2]), level)
            for name, level, *_ in all_calls()
            if level != 'DEBUG'
        }
    )


def text_of(text: ast.expr, function: Function) -> str:
    """The text of a line: a constant, or the last constant that its variable is set to."""
    if isinstance(text, ast.Name):
        values = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text.id
        ]
        text = values[-1]
    assert isinstance(text, ast.Constant), ast.unparse(text)
    return str(text.value)


def test_calls_are_found() -> None:
    assert ('rbfly.streams', 'INFO') in calls()
    assert ('rbfly.net', 'LOG') in calls()
    written = sum(path.read_text().count(' logger.') for path in SOURCE.glob('rbfly/**/*.py'))
    others = ('isEnabledFor(', 'getLogger(', 'setLevel(', 'level ')
    assert written - len(all_calls()) == sum(
        path.read_text().count(f' logger.{name}')
        for path in SOURCE.glob('rbfly/**/*.py')
        for name in others
    )


def test_page_has_every_event() -> None:
    table = PAGE[PAGE.index('rbfly_event') :]
    found = events()
    assert {'lost', 'reconnected', 'confirms_overdue', 'handover_late', 'offset_gap'} <= found
    assert [event for event in sorted(found) if f'`{event}`' not in table] == []


@pytest.mark.parametrize(('name', 'level'), calls())
def test_page_has_the_logger_and_its_level(name: str, level: str) -> None:
    assert f'`{name}`' in PAGE
    if level != 'LOG':  # the lines on outages have a table of their own
        assert re.search(rf'\* - `{name}`\n +- {level}\n', PAGE)


@pytest.mark.parametrize(
    ('args', 'function'),
    [item[2:] for item in all_calls() if item[0] not in NO_CLIENT],
    ids=lambda item: item.name if isinstance(item, Function) else '',
)
def test_line_begins_with_the_name_of_the_client(args: list[ast.expr], function: Function) -> None:
    text, first, *_ = args
    assert text_of(text, function).startswith('%s')
    assert ast.unparse(first).endswith('prefix')
