"""Print the build requirements and those of the named extras and groups, for `pip install`."""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path('pyproject.toml').read_text())
named = pyproject['project']['optional-dependencies'] | pyproject['dependency-groups']
requirements = {*pyproject['build-system']['requires']}
requirements.update(item for name in sys.argv[1:] for item in named[name])
print(*sorted(requirements))
