"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from . import __doc__ as description
from .build import WORK, build_sdist, build_wheel, unpack_sdist
from .check import Failed, can_use_roots, check, table
from .target import add_arguments, targets


def say(text: str) -> None:
    print(text, flush=True)


def build(arguments: argparse.Namespace, work: Path = WORK) -> list[Path]:
    """Build the sdist, and the wheels of the selected targets."""
    out = arguments.out.absolute()
    sdist = build_sdist(out, work)
    say(f'{sdist.name}: {sdist.stat().st_size:,} bytes')
    built = [sdist]
    source = unpack_sdist(sdist, work)
    for target in targets(arguments.python, arguments.arch, arguments.libc):
        begun = time.monotonic()
        wheel = build_wheel(source, target, out, work)
        say(f'{wheel.name}: {wheel.stat().st_size:,} bytes, {time.monotonic() - begun:.0f} s')
        built.append(wheel)
    return built


def reproduce(arguments: argparse.Namespace) -> None:
    """Build everything again in a new folder, which knows no objects, and compare the bytes."""
    with tempfile.TemporaryDirectory(prefix='rbfly-wheels-') as folder:
        again = argparse.Namespace(**{**vars(arguments), 'out': Path(folder) / 'out'})
        differing = [
            path.name
            for path in build(again, Path(folder) / 'work')
            if path.read_bytes() != (arguments.out / path.name).read_bytes()
        ]
    if differing:
        raise SystemExit(f'not built to the same bytes: {" ".join(differing)}')
    say('built again to the same bytes')


def test(arguments: argparse.Namespace) -> None:
    """Test wheels, and the sdist where there is a compiler."""
    here = arguments.here or not can_use_roots()
    tests = not arguments.quick
    results, failed = [], []
    for file in arguments.files:
        try:
            results += check(file.absolute(), here, tests)
        except Failed as error:
            say(f'{file.name} failed in {error}')
            failed.append(file.name)
    say(table(results))
    if failed:
        raise SystemExit(f'failed: {" ".join(failed)}')


def everything(arguments: argparse.Namespace) -> None:
    """Build the selected wheels twice, compare the bytes, and test the wheels."""
    files = build(arguments)
    reproduce(arguments)
    test(argparse.Namespace(files=files, here=False, quick=False))


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tools.wheels', description=description)
    commands = parser.add_subparsers(required=True)
    for name, function, text in (
        ('all', everything, 'build the sdist and wheels twice, and test them'),
        ('build', build, 'build the sdist, and wheels from it'),
        ('reproduce', reproduce, 'build again, and compare the bytes with those in the folder'),
    ):
        command = commands.add_parser(name, help=text)
        add_arguments(command)
        command.add_argument('--out', type=Path, default=Path('dist'), help='default: dist')
        command.set_defaults(run=function)
    command = commands.add_parser('test', help='install wheels without a compiler, and test them')
    command.add_argument('files', type=Path, nargs='+', metavar='FILE')
    command.add_argument('--here', action='store_true', help='with the running Python')
    command.add_argument('--quick', action='store_true', help='run one program instead of tests')
    command.set_defaults(run=test)
    arguments = parser.parse_args()
    arguments.run(arguments)
    return 0


if __name__ == '__main__':
    sys.exit(main())
