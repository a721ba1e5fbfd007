"""The other Python of the scenario `pythons`, for which RbFly is installed, too.

The variable RBFLY_PYTHON_3_14 names its command, such as `build/venv-py3.14/bin/python`.
"""

import functools
import os
import shlex
import subprocess

VARIABLE = 'RBFLY_PYTHON_{}'


def variable(version: str) -> str:
    """The environment variable with the command of this version."""
    return VARIABLE.format(version.replace('.', '_'))


def command(version: str) -> list[str]:
    """The command that starts this version; empty if none is configured."""
    return shlex.split(os.environ.get(variable(version), ''))


@functools.cache
def found(words: tuple[str, ...]) -> str:
    """The version that a command starts, such as 3.14.2; empty if it fails."""
    code = 'import platform, rbfly, uvloop; print(platform.python_version())'
    try:
        done = subprocess.run([*words, '-c', code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return '' if done.returncode else done.stdout.strip()


def missing(version: str) -> str:
    """Return what to do before this version can be used; empty if nothing is missing."""
    words = command(version)
    if not words:
        return f'{variable(version)} is not set to the command of a Python {version} with RbFly'
    real = found(tuple(words))
    if not real.startswith(f'{version}.'):
        what = f'starts Python {real}' if real else 'does not start a Python with RbFly and uvloop'
        return f'{variable(version)} {what}, not Python {version}'
    return ''
