"""Run Python with a sanitizer build: `python tools/sanitize.py -m pytest tests/amqp`.

Create the build with `RBFLY_SANITIZE=1 pip install .` in its own virtualenv.  An interpreter can
only import it with the sanitizer libraries preloaded, which is what this script does.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

# uvloop and pytest keep memory until exit on purpose, so leak detection is off.  pymalloc is off
# because it hides accesses beyond the end of a block.
SETTINGS = {
    'PYTHONMALLOC': 'malloc',
    'ASAN_OPTIONS': 'detect_leaks=0:halt_on_error=1:abort_on_error=1:strict_init_order=1',
    'UBSAN_OPTIONS': 'print_stacktrace=1:halt_on_error=1',
}


def compiler() -> list[str]:
    return shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'gcc')[:1]


def library(name: str) -> str:
    """Ask the compiler for the path of a sanitizer library."""
    words = [*compiler(), f'-print-file-name={name}']
    path = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    if not path.is_absolute():
        sys.exit(f'{compiler()[0]} has no {name}; on Debian: apt-get install gcc libc6-dev')
    return str(path.resolve())


def check_build() -> None:
    spec = find_spec('rbfly')
    folders = spec.submodule_search_locations if spec else None
    modules = [path for folder in folders or () for path in Path(folder).rglob('*.so')]
    if not modules:
        sys.exit(f'{sys.executable} has no compiled rbfly; build it with RBFLY_SANITIZE=1')
    plain = [path for path in modules if b'__asan_init' not in path.read_bytes()]
    if plain:
        sys.exit(f'{plain[0]} is not a sanitizer build; rebuild with RBFLY_SANITIZE=1')


def main() -> None:
    check_build()
    preload = f'{library("libasan.so")}:{library("libubsan.so")}'
    environment = {**os.environ, **SETTINGS, 'LD_PRELOAD': preload}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


if __name__ == '__main__':
    main()
