"""Print what the build and the named extras require, for `pip install` ahead of the package."""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path('pyproject.toml').read_text())
extras = pyproject['project']['optional-dependencies']
found = {*pyproject['build-system']['requires']}
found.update(item for name in sys.argv[1:] for item in extras[name])
print(*sorted(found))
