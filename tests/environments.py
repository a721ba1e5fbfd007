"""Virtual environments that hold only what a page of the documentation installs.

Their packages are those of the environment of the tests, so nothing is downloaded or built.
"""

import re
import sysconfig
import venv
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement

from tests.examples import DISTRIBUTION, installed


def python_for(name: str) -> str:
    """Return the interpreter for a program, such as `README.md:0`."""
    packages = [re.sub(r'^\.', DISTRIBUTION, item) for item in installed(name)]
    return f'{_environment(frozenset([DISTRIBUTION, *packages])).name}/bin/python'


@cache
def _environment(packages: frozenset[str]) -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix='rbfly-environment-')
    venv.create(folder.name, symlinks=True)
    bases = {'base': folder.name, 'platbase': folder.name}
    target = Path(sysconfig.get_path('purelib', 'venv', bases))
    found: dict[str, Distribution] = {}
    for package in packages:
        found.update(_resolve(Requirement(package)))
    for item in found.values():
        for top in {path.parts[0] for path in item.files or ()} - {'..', '__pycache__'}:
            _link(target / top, Path(str(item.locate_file(top))).resolve())
    return folder


def _link(link: Path, path: Path) -> None:
    """Link to a package; several packages may share the folder of a namespace."""
    if path.is_dir() and path.suffix != '.dist-info' and not (path / '__init__.py').exists():
        link.mkdir(exist_ok=True)
        for item in path.iterdir():
            if not (link / item.name).exists():
                _link(link / item.name, item)
    elif not link.exists():
        link.symlink_to(path)


def _resolve(requirement: Requirement) -> Iterator[tuple[str, Distribution]]:
    """Return a package and all that it requires, by name."""
    found = distribution(requirement.name)
    yield found.name.lower().replace('_', '-'), found
    for line in found.requires or ():
        needed = Requirement(line)
        extras = requirement.extras or {''}
        if needed.marker is None or any(needed.marker.evaluate({'extra': it}) for it in extras):
            yield from _resolve(needed)
