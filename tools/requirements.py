"""Print the build requirements and those of the named extras and groups, for `pip install`."""

import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

pyproject = tomllib.loads(Path('pyproject.toml').read_text())
named = pyproject['project']['optional-dependencies'] | pyproject['dependency-groups']


def required(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for item in named[name]:
            yield from [item] if isinstance(item, str) else required([item['include-group']])


print(shlex.join(sorted({*pyproject['build-system']['requires'], *required(sys.argv[1:])})))
