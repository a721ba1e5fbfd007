"""Print the build requirements and those of the named extras, for `pip install`."""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path('pyproject.toml').read_text())
extras = pyproject['project']['optional-dependencies']
requirements = {*pyproject['build-system']['requires']}
requirements.update(item for name in sys.argv[1:] for item in extras[name])
print(*sorted(requirements))
