"""Run the examples of the documentation unchanged, except for the broker's address.

Examples with an in-memory broker run on that broker and on the broker of the tests.  The examples
of doc/testing.rst are tested in tests/testing.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = 'rabbitmq-stream://guest:guest@localhost:5552/'
IN_MEMORY = 'broker.uri'

pytestmark = pytest.mark.examples


def examples() -> list[tuple[str, str]]:
    found = []
    pages = {*(ROOT / 'doc').glob('*.rst')} - {ROOT / 'doc' / 'testing.rst'}
    for path in [ROOT / 'README.md', *sorted(pages)]:
        text = path.read_text()
        if path.suffix == '.md':
            blocks = re.findall(r'^```python\n(.*?)^```', text, re.M | re.S)
        else:
            blocks = re.findall(r'^\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)', text, re.M)
            blocks = [re.sub(r'^ {3}', '', block, flags=re.M) for block in blocks]
        found += [(f'{path.name}:{i}', block) for i, block in enumerate(blocks)]
    return found


def test_examples_are_found() -> None:
    assert 'README.md:0' in dict(examples())


@pytest.mark.parametrize(('name', 'code'), examples(), ids=[name for name, _ in examples()])
def test_example(name: str, code: str, broker_uri: str, stream_name: str) -> None:
    assert ADDRESS in code
    check(name, code.replace(ADDRESS, broker_uri).replace("'orders'", repr(stream_name)))
    if IN_MEMORY in code:
        code = code.replace(IN_MEMORY, repr(broker_uri))
        check(name, code.replace("'orders'", repr(stream_name + '-own')))


def check(name: str, code: str) -> None:
    result = subprocess.run(
        [sys.executable, '-X', 'dev', '-W', 'error', '-c', code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # On a busy machine, asyncio's debug mode logs that a callback took long.
    errors = [line for line in result.stderr.splitlines() if not line.startswith('Executing <')]
    assert not errors
    if name == 'README.md:0':
        lines = result.stdout.splitlines()
        assert lines[0] == "0 {'id': 1}"
        assert lines[-1] == "99 {'id': 100}"
        assert len(lines) == 100
