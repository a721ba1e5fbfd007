"""Tests for the functions of .ci/run and .ci/nightly."""

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
SCRIPT = """
. .ci/common
brokers() { :; }
trap end EXIT
exec 3>&1  # which the command in the background keeps open
begin test sleep 600
begin limited limit 10m sleep 600
bash -c 'echo started; exec sleep 600'
"""

# Like `timeout` when a signal ends it before it knows the PID of its command.
TIMEOUT = """
timeout() {
    python3 -c 'if 1:
        import os, subprocess
        os.setpgid(0, 0)
        with subprocess.Popen(["sleep", "600"], pass_fds=[3]):
            os.write(3, b"started\\n")
    '
}
"""


@pytest.mark.parametrize(('before', 'count'), [('', 1), (TIMEOUT, 2)], ids=['ready', 'starting'])
def test_aborted_run_leaves_no_process(before: str, count: int) -> None:
    """A signal to .ci/run ends the commands in the foreground and in the background."""
    command = ['bash', '-c', before + SCRIPT]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(count):
            assert process.stdout.readline() == 'started\n'
        process.terminate()
        assert process.communicate(timeout=60)[0] == ''  # no process has the pipe open
