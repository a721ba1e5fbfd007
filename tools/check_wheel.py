"""Run the tests of the installed wheel, with the in-memory broker: no RabbitMQ and no compiler.

The environment needs the dependency group `wheel`; arguments go to pytest.
"""

import subprocess
import sys
from pathlib import Path

import rbfly

ROOT = Path(__file__).resolve().parents[1]
TESTS = ['tests/amqp', 'tests/protocol', 'tests/net', 'tests/streams', 'tests/testing']
if sys.platform == 'linux':  # they use pseudo-terminals, and `rbfly tail` uses epoll
    TESTS.append('tests/cli')
# These need a compiler, or libraries that have no wheels for some systems.
WITHOUT = ['cimport', 'foreign_messages', 'foreign_values', 'proton']
WITHOUT_TEST = 'tests/streams/test_migration.py::test_migration_from_aiokafka'
SELECTED = 'not long and not examples'  # examples need what their pages install


def main() -> int:
    if Path(rbfly.__file__).is_relative_to(ROOT / 'src'):
        print('rbfly comes from the checkout, not from a wheel', file=sys.stderr)
        return 1
    print(f'rbfly {rbfly.__version__} in {Path(rbfly.__file__).parent}', flush=True)
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
    command += ['--broker', 'memory', '-m', SELECTED, '-n', 'auto', '--dist', 'loadfile']
    command += [f'--ignore=tests/amqp/test_{name}.py' for name in WITHOUT]
    command.append(f'--deselect={WITHOUT_TEST}')
    command += ['--loop', 'asyncio'] if sys.platform == 'win32' else []  # uvloop is for POSIX
    return subprocess.run([*command, *(sys.argv[1:] or TESTS)], cwd=ROOT, check=False).returncode


if __name__ == '__main__':
    sys.exit(main())
