"""The tests in doc/testing.rst pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import examples

pytestmark = pytest.mark.examples


def test_examples(tmp_path: Path) -> None:
    programs = [code for name, code in examples() if name.startswith('testing.rst')]
    for number, code in enumerate(programs):
        (tmp_path / f'test_example_{number}.py').write_text(code)
    expected = sum(code.count('def test_') for code in programs)
    options = ['-o', 'asyncio_mode=auto', '-o', 'asyncio_default_fixture_loop_scope=function']
    options += ['-W', 'error', '-p', 'no:cacheprovider', '-p', 'no:xdist']
    result = subprocess.run(
        [sys.executable, '-X', 'dev', '-m', 'pytest', '-q', *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    assert f'{expected} passed' in result.stdout
    assert expected >= 8
