"""Run the examples of the documentation unchanged, except for the broker's address.

Each one runs in an environment that holds only what its page has installed before it.

Examples with an in-memory broker run on that broker and on the broker of the tests.  Those that
only define `main(client)` run with the program that the documentation shows for them.  Examples for
pytest run in tests/testing, and the service in tests/test_service.py.  Programs that run until they
are stopped, with a function `work`, are tested in test_workers.py.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.environments import python_for
from tests.examples import DISTRIBUTION, MAIN, PAGES, RUNNER, examples, is_test, page_name

ADDRESS = 'rabbitmq-stream://guest:guest@localhost:5552/'
IN_MEMORY = 'broker.uri'
WORKER = 'async def work('  # in programs that run until they are stopped
WIDTH = 88  # characters of code that fit on a page in a window of 1,200 pixels

pytestmark = pytest.mark.examples

OTHERS = ('recipes/web-service.rst',)  # tests of their own run these
EXAMPLES = [
    (name, code)
    for name, code in examples()
    if not name.startswith(OTHERS) and WORKER not in code and not is_test(code)
]
(RUN,) = [code for _, code in EXAMPLES if RUNNER in code]
# A page that shows what a program prints says so between the two.
OUTPUT = re.compile(
    r'^\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)It prints:\n\n'
    r'\.\. code-block:: text\n\n((?: {3}.*\n|\n)+)',
    re.M,
)
OUTPUTS = [
    (page_name(path), code, output)
    for path in PAGES
    for code, output in OUTPUT.findall(path.read_text())
]
IN_MEMORY_RUN = """

import asyncio
from rbfly.testing import StreamBroker

async def run(uri: str) -> None:
    async with rbs.streams_client(uri) as client:
        await client.create_stream('orders')
        await main(client)

with StreamBroker() as broker:
    asyncio.run(run(broker.uri))
"""


def test_examples_are_found() -> None:
    assert 'README.md:0' in dict(EXAMPLES)
    texts = [page.read_text() for page in PAGES]
    count = sum(text.count(':: python\n') + text.count('```python\n') for text in texts)
    assert len(examples()) == count


@pytest.mark.parametrize(
    ('name', 'expected'),
    [('README.md:0', {DISTRIBUTION}), ('guides/speed.rst:0', {DISTRIBUTION, 'uvloop'})],
)
def test_environment_holds_only_what_the_page_installs(name: str, expected: set[str]) -> None:
    program = 'import importlib.metadata as m; print(*(item.name for item in m.distributions()))'
    printed = subprocess.check_output([python_for(name), '-c', program], text=True)
    assert {*printed.split()} == expected


@pytest.mark.parametrize('path', PAGES[1:], ids=page_name)
def test_no_code_is_wider_than_the_page(path: Path) -> None:
    blocks = re.findall(
        r'^\.\. code-block:: (?:python|text)\n\n((?: {3}.*\n|\n)+)', path.read_text(), re.M
    )
    lines = [line[3:] for block in blocks for line in block.splitlines()]
    for included in re.findall(r'^\.\. literalinclude:: (.+)$', path.read_text(), re.M):
        lines += (path.parent / included).read_text().splitlines()
    assert not [line for line in lines if len(line) > WIDTH]


@pytest.mark.parametrize(('name', 'code'), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_example(name: str, code: str, broker_uri: str, stream_name: str, tmp_path: Path) -> None:
    python = python_for(name)

    def check_on_broker(code: str) -> None:
        code = code.replace(ADDRESS, broker_uri)
        check(name, python, code.replace("'orders'", repr(stream_name)), tmp_path)

    example = tmp_path / 'example.py'
    if ADDRESS in code:
        example.write_text('async def main(client: object) -> None:\n    print(client)\n')
        check_on_broker(code)
    else:
        assert MAIN in code
        example.write_text(code.replace("'orders'", repr(stream_name)))
        check_on_broker(RUN)
    if IN_MEMORY in code:
        code = code.replace(IN_MEMORY, repr(broker_uri))
        check(name, python, code.replace("'orders'", repr(stream_name + '-own')), tmp_path)


@pytest.mark.parametrize(('name', 'code', 'expected'), OUTPUTS, ids=[item[0] for item in OUTPUTS])
def test_output_of_example(name: str, code: str, expected: str) -> None:
    code = textwrap.dedent(code)
    if MAIN in code:
        code += IN_MEMORY_RUN
    printed = subprocess.check_output([sys.executable, '-c', code], text=True, timeout=60)
    assert printed.strip() == textwrap.dedent(expected).strip()


def check(name: str, python: str, code: str, folder: Path) -> None:
    result = subprocess.run(
        [python, '-X', 'dev', '-W', 'error', '-c', code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # On a busy machine, asyncio's debug mode logs that a callback took long.
    errors = [line for line in result.stderr.splitlines() if 'Executing <' not in line]
    assert not errors
    if name == 'README.md:0':
        lines = result.stdout.splitlines()
        assert lines[0] == "0 {'id': 1}"
        assert lines[-1] == "99 {'id': 100}"
        assert len(lines) == 100
