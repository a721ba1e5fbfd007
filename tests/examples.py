"""The programs of the documentation; `python -m tests.examples FOLDER` writes them to a folder."""

import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
DISTRIBUTION: str = PROJECT['name']
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'doc').rglob('*.rst'))]
MAIN = 'async def main(client: rbs.StreamsClient) -> None:'
RUNNER = 'from example import main'  # the program that runs those with `main(client)`


def blocks(path: Path, language: str = 'python') -> list[tuple[int, str]]:
    """Return where each code block of a page begins, and its code."""
    if path.suffix == '.md':
        pattern = rf'^```{language}\n(.*?)^```'
    else:
        pattern = rf'^\.\. code-block:: {language}\n\n((?: {{3}}.*\n|\n)+)'
    found = re.finditer(pattern, path.read_text(), re.M | re.S if path.suffix == '.md' else re.M)
    indent = 0 if path.suffix == '.md' else 3
    return [(item.start(), re.sub(rf'^ {{{indent}}}', '', item[1], flags=re.M)) for item in found]


def page_name(path: Path) -> str:
    """Return the name of a page, such as `README.md` or `guides/testing.rst`."""
    return str(path.relative_to(ROOT)).removeprefix('doc/')


def examples() -> list[tuple[str, str]]:
    """Return the name and the code of each program, such as `README.md:0`."""
    return [
        (f'{page_name(path)}:{i}', code)
        for path in PAGES
        for i, (_, code) in enumerate(blocks(path))
    ]


def is_test(code: str) -> bool:
    """Whether a program is for pytest."""
    return 'def test_' in code


def installed(name: str) -> list[str]:
    """Return the packages that a page installs before a program; the checkout is `.`."""
    page, _, number = name.partition(':')
    (path,) = [path for path in PAGES if page_name(path) == page]
    before = blocks(path)[int(number)][0]
    return [
        package
        for start, code in blocks(path, 'sh')
        if start < before
        for arguments in re.findall(r'^pip install (.+)$', code, re.M)
        for package in shlex.split(arguments, comments=True)
    ]


def write(folder: Path) -> None:
    """Write each program to a file, and one that RUNNER can import to `example.py`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, code in examples():
        (folder / f'{re.sub("[.:/-]", "_", name)}.py').write_text(code)
        if MAIN in code:
            (folder / 'example.py').write_text(code)


if __name__ == '__main__':
    write(Path(sys.argv[1]))
