"""The tests in the documentation pass as printed, with what their page installs before them."""

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.environments import python_for
from tests.examples import ROOT, blocks, examples, is_test

pytestmark = pytest.mark.examples


def test_examples(tmp_path: Path) -> None:
    pages = {name.partition(':')[0] for name, code in examples() if is_test(code)}
    (settings,) = {code for page in pages for _, code in blocks(ROOT / 'doc' / page, 'toml')}
    (tmp_path / 'pyproject.toml').write_text(settings)
    programs = [(name, code) for name, code in examples() if is_test(code)]
    files: dict[str, list[str]] = defaultdict(list)
    for number, (name, code) in enumerate(programs):
        file = f'test_example_{number}.py'
        (tmp_path / file).write_text(code)
        files[python_for(name)].append(file)
    for python, names in files.items():
        result = subprocess.run(
            [python, '-X', 'dev', '-m', 'pytest', '-q', '-W', 'error', *names],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        expected = sum((tmp_path / name).read_text().count('def test_') for name in names)
        assert result.returncode == 0, result.stdout + result.stderr
        assert f'{expected} passed' in result.stdout
    assert len(programs) >= 8
