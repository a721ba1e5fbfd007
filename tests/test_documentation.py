"""Tables of the documentation say what the code does, and its pages are complete."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

import rbfly.error
from rbfly.amqp import decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import RbFlyError
from tests.examples import ROOT, page_name

GUIDES = ROOT / 'doc' / 'guides'
GENERATED = ('internals/performance.rst', 'internals/proofs.rst')
PAGES = [
    path
    for path in sorted((ROOT / 'doc').glob('*/*.rst'))
    if path.name != 'index.rst' and page_name(path) not in GENERATED
]
# Rows of the tree: its level, the class, and whether the call may be repeated.
ERRORS = re.findall(
    r'^   \* - (?:└(─*) )?:class:`~rbfly\.error\.(\w+)`\n     - .+\n     - (.+)$',
    (GUIDES / 'errors.rst').read_text(),
    re.M,
)
VALUES = re.findall(
    r'^   \* - `(.+)`\n     - .+\n     - `(.+)`$', (GUIDES / 'types.rst').read_text(), re.M
)
NAMES = {'datetime': datetime, 'UTC': UTC, 'UUID': UUID}


def test_tree_has_every_error() -> None:
    found = [getattr(rbfly.error, name) for name in rbfly.error.__all__]
    errors = {kind.__name__ for kind in found if issubclass(kind, RbFlyError)}
    assert len(ERRORS) == len(errors)
    assert {name for _, name, _ in ERRORS} == errors


def test_tree_is_that_of_the_classes() -> None:
    above = [RbFlyError]
    for dashes, name, _ in ERRORS[1:]:
        kind = getattr(rbfly.error, name)
        level = len(dashes) + 1
        assert kind.__bases__[0] is above[level - 1], name
        above[level:] = [kind]


@pytest.mark.parametrize(('name', 'answer'), [row[1:] for row in ERRORS[1:]])
def test_calls_may_be_repeated_as_the_tree_says(name: str, answer: str) -> None:
    """Errors whose class leaves that to each error have a longer answer than yes."""
    assert getattr(rbfly.error, name).retriable == answer.startswith('yes')


@pytest.mark.parametrize(('sent', 'received'), VALUES)
def test_values_come_back_as_the_table_says(sent: str, received: str) -> None:
    message = encode_amqp_bytes(stream_message_ctx(eval(sent, NAMES)))
    found, expected = decode_amqp(message).body, eval(received, NAMES)
    assert (found, type(found)) == (expected, type(expected))


def test_values_are_found() -> None:
    assert len(VALUES) > 10


@pytest.mark.parametrize('path', PAGES, ids=page_name)
def test_page_ends_with_where_to_go(path: Path) -> None:
    *_, last = re.split(r'^(.+)\n[-~]+$', path.read_text(), flags=re.M)[1:-1:2]
    assert last == 'Next'


def test_text_for_programs(tmp_path: Path) -> None:
    source, out = tmp_path / 'doc', tmp_path / 'html'
    source.mkdir()
    (source / 'conf.py').write_text("project = 'Shop'\nextensions = ['tools.llms']\n")
    (source / 'index.rst').write_text('Shop\n====\n\nSells tea.\n\n.. toctree::\n\n   guides\n')
    (source / 'guides.rst').write_text('Guides\n======\n\nHow to.\n\n.. toctree::\n\n   order\n')
    (source / 'order.rst').write_text('Order\n=====\n\nHow to *order* tea.\n\nIt is easy.\n')
    command = [sys.executable, '-m', 'sphinx', '-qW', '-b', 'html', str(source), str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    lines = (out / 'llms.txt').read_text().splitlines()
    assert lines[:3] == ['# Shop', '', '> Sells tea.']
    assert '## Guides' in lines
    assert '- [Order](order.html): How to order tea.' in lines
    assert 'It is easy.' in (out / 'llms-full.txt').read_text()
