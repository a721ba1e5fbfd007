"""The examples of the documentation work as they stand, but for the broker's address.

Those that bring a broker along work without another one, and with it.

Those of doc/testing.rst bring their broker along, see tests/testing.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = 'rabbitmq-stream://guest:guest@localhost:5552/'
OWN = 'broker.uri'

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


def test_there_are_examples() -> None:
    assert 'README.md:0' in dict(examples())


@pytest.mark.parametrize(('name', 'code'), examples(), ids=[name for name, _ in examples()])
def test_example(name: str, code: str, broker_uri: str, stream_name: str) -> None:
    assert ADDRESS in code
    check(name, code.replace(ADDRESS, broker_uri).replace("'orders'", repr(stream_name)))
    if OWN in code:
        code = code.replace(OWN, repr(broker_uri))
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
    # On a machine that has more to do, a turn of the loop may take long, and asyncio says so.
    said = [line for line in result.stderr.splitlines() if not line.startswith('Executing <')]
    assert not said
    if name == 'README.md:0':
        lines = result.stdout.splitlines()
        assert lines[0] == "0 {'id': 1}"
        assert lines[-1] == "99 {'id': 100}"
        assert len(lines) == 100
