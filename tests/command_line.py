"""Runs `rbfly` in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, '-X', 'dev', '-W', 'error', '-m', 'rbfly']


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without settings of the command line, and without a user's file."""
    names = {name for name in os.environ if name.startswith(('RBFLY_', '_RBFLY', 'XDG_'))}
    found = {name: value for name, value in os.environ.items() if name not in names}
    return found | {'RBFLY_CONFIG': os.devnull, 'COLUMNS': '100'} | variables


def rbfly(
    *args: str | Path, stdin: str | bytes = '', command: list[str] = COMMAND, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends.

    :param variables: of the environment.
    """
    done = subprocess.run(
        [*command, *map(str, args)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(**variables),
        timeout=60,
        check=False,
    )
    out, err = (data.decode(errors='surrogateescape') for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)
