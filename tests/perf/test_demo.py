"""The demonstration needs only the package."""

import os
import subprocess
import sys


def test_demonstration_needs_no_broker() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith('RBFLY_')}
    result = subprocess.run(
        [sys.executable, '-m', 'perf', 'demo', '--count', '1500'],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    where, published, consumed = result.stdout.splitlines()
    assert where.startswith('on an in-memory broker')
    assert published.startswith('published 1,500 messages')
    assert consumed.startswith('consumed 1,500 messages')
