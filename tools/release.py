"""Print what a tag still needs before its release: `python tools/release.py v1.0.0`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What users of a release need: where its source is, and where to report a vulnerability.
URLS = ('Source', 'Security')


def missing(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps a tag from being released."""
    project = tomllib.loads((root / 'pyproject.toml').read_text())['project']
    version = re.search(
        r"^__version__ = '(.+)'", (root / 'src/rbfly/__init__.py').read_text(), re.M
    )
    changes = re.search(r'^## (.+)', (root / 'CHANGELOG.md').read_text(), re.M)
    found = [
        f'pyproject.toml: [project.urls] has no {name}'
        for name in URLS
        if name not in project.get('urls', {})
    ]
    if not version or tag != f'v{version[1]}':
        found.append(f'src/rbfly/__init__.py: the version is not that of the tag {tag}')
    if not changes or changes[1].split()[0] != tag.removeprefix('v') or '(' in changes[1]:
        found.append(f'CHANGELOG.md: does not begin with {tag.removeprefix("v")}, released')
    return found


if __name__ == '__main__':
    problems = missing(sys.argv[1])
    print(*problems, sep='\n')
    sys.exit(bool(problems))
