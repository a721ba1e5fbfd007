"""Tests for the functions of .ci/run and .ci/nightly."""

import subprocess
from pathlib import Path

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


def test_aborted_run_leaves_no_process() -> None:
    """A signal to .ci/run ends the commands in the foreground and in the background."""
    command = ['bash', '-c', SCRIPT]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == 'started\n'
        process.terminate()
        assert process.communicate(timeout=60)[0] == ''  # no process has the pipe open
