"""Print the build requirements and those of the named extras and groups, for `pip install`."""

import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / 'pyproject.toml').read_text())
NAMED = PROJECT['project']['optional-dependencies'] | PROJECT['dependency-groups']


def required(names: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of extras and groups."""
    for name in names:
        for item in NAMED[name]:
            yield from [item] if isinstance(item, str) else required([item['include-group']])


if __name__ == '__main__':
    build: list[str] = PROJECT['build-system']['requires']
    print(shlex.join(sorted({*build, *required(sys.argv[1:])})))
