"""Print the matrices of the workflow `wheels`: a job for each wheel that pyproject.toml selects.

The output is `linux=JSON` and `others=JSON`, as GITHUB_OUTPUT takes them; cibuildwheel is required.
"""

import json
import re
import subprocess
import sys

# The machine that builds each wheel, and on Linux the image that tests it.
RUNNERS = {
    'manylinux_x86_64': 'ubuntu-24.04',
    'manylinux_aarch64': 'ubuntu-24.04-arm',
    'musllinux_x86_64': 'ubuntu-24.04',
    'musllinux_aarch64': 'ubuntu-24.04-arm',
    'macosx_x86_64': 'macos-15-intel',
    'macosx_arm64': 'macos-15',
    'win_amd64': 'windows-2025',
}


def job(identifier: str) -> dict[str, str]:
    """Describe the job of a wheel, such as `cp313-musllinux_x86_64`."""
    found = re.fullmatch(r'cp3(\d+)-(([a-z]+)_(.+))', identifier)
    if not found or found[2] not in RUNNERS:
        raise ValueError(f'no runner builds {identifier}')
    result = {'wheel': identifier, 'runner': RUNNERS[found[2]], 'python': f'3.{found[1]}'}
    if found[3].endswith('linux'):
        musl = found[3] == 'musllinux'
        result |= {'arch': found[4], 'libc': 'musl' if musl else 'glibc'}
        result['image'] = f'python:{result["python"]}-{"alpine" if musl else "slim"}'
    return result


def identifiers(platform: str) -> list[str]:
    """Return the wheels for a platform; on any system."""
    command = [sys.executable, '-m', 'cibuildwheel', '--print-build-identifiers']
    return subprocess.check_output([*command, '--platform', platform], text=True).split()


def matrix(names: list[str]) -> str:
    return json.dumps({'include': [job(name) for name in names]}, separators=(',', ':'))


def main() -> None:
    print(f'linux={matrix(identifiers("linux"))}')
    print(f'others={matrix([*identifiers("macos"), *identifiers("windows")])}')


if __name__ == '__main__':
    main()
