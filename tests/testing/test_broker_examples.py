"""The tests in doc/testing.rst pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / 'doc' / 'testing.rst'

pytestmark = pytest.mark.examples


def examples() -> list[str]:
    blocks = re.findall(r'^\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)', PAGE.read_text(), re.M)
    return [re.sub(r'^ {3}', '', block, flags=re.M) for block in blocks]


def test_examples(tmp_path: Path) -> None:
    for number, code in enumerate(examples()):
        (tmp_path / f'test_example_{number}.py').write_text(code)
    expected = sum(code.count('def test_') for code in examples())
    options = ['-o', 'asyncio_mode=auto', '-o', 'asyncio_default_fixture_loop_scope=function']
    options += ['-W', 'error', '-p', 'no:cacheprovider', '-p', 'no:xdist']
    result = subprocess.run(
        [sys.executable, '-X', 'dev', '-m', 'pytest', '-q', *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    assert f'{expected} passed' in result.stdout
    assert expected >= 8
