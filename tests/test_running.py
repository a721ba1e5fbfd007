"""An interrupted run names the tests that were running."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
TESTS = """
import os, signal

def test_that_ends(): pass
def test_that_is_interrupted(): os.kill(os.getpid(), signal.SIGINT)
"""


def test_interrupted_run_names_its_tests(tmp_path: Path) -> None:
    (tmp_path / 'test_it.py').write_text(TESTS)
    command = (sys.executable, '-m', 'pytest', '-q', '-p', 'tests.running', '-c', '/dev/null')
    done = subprocess.run(
        [*command, '--rootdir', str(tmp_path), '-p', 'no:cacheprovider', str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2  # interrupted
    _, listed = done.stdout.split('INTERRUPTED while these tests ran')
    assert '::test_that_is_interrupted\n' in listed
    assert '::test_that_ends\n' not in listed
