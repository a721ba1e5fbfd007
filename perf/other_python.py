"""The second Python that the scenario `pythons` measures.

The environment variable RBFLY_PYTHON_3_14 has its command, such as `build/venv-py3.14/bin/python`.
RbFly and uvloop must be installed for both Pythons.
"""

import functools
import os
import shlex
import subprocess


def variable(version: str) -> str:
    """The environment variable with the command of this version."""
    return f'RBFLY_PYTHON_{version.replace(".", "_")}'


def command(version: str) -> tuple[str, ...]:
    """The command that starts this version; empty if none is configured."""
    return tuple(shlex.split(os.environ.get(variable(version), '')))


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
    real = found(words)
    if not real:
        return f'{variable(version)} does not start a Python with RbFly and uvloop'
    if not real.startswith(f'{version}.'):
        return f'{variable(version)} starts Python {real}, not Python {version}'
    return ''
