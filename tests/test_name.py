"""The distribution `rbfly-streams` has the package `rbfly`; another project has one too."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rbfly
from perf import lanes
from tests.examples import DISTRIBUTION, PAGES, PROJECT, ROOT, blocks

PACKAGE = Path(rbfly.__file__).parent
IMPORT = 'import sys; sys.path.insert(0, sys.argv[1]); import rbfly.amqp; print(rbfly.__file__)'
# Of the package index's `rbfly`, as pip leaves them where this project was installed over it.
FOREIGN = ['_buffer.cpython-311-x86_64-linux-gnu.so', '_codec.pyx', '_codec.pxd', '_buffer.c']


def import_from(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-I', '-c', IMPORT, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with a copy of the installed package, and with what Python and tools add to it."""
    shutil.copytree(PACKAGE, tmp_path / 'rbfly')
    for name in ('.mypy_cache', '__pycache__/_codec.cpython-311.pyc', 'tests/test_codec.py'):
        path = tmp_path / 'rbfly' / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize('name', FOREIGN)
def test_files_of_the_other_project_are_named_by_the_import(installed: Path, name: str) -> None:
    (installed / 'rbfly' / name).touch()
    shown = import_from(installed)
    assert shown.returncode
    error = shown.stderr.splitlines()[-1]
    assert error.startswith(f'ImportError: {installed / "rbfly"} contains files of another project')
    assert error.endswith(f'pip uninstall rbfly {DISTRIBUTION}; pip install {DISTRIBUTION}')


def test_clean_package_is_imported(installed: Path) -> None:
    shown = import_from(installed)
    assert shown.stdout.strip() == str(installed / 'rbfly' / '__init__.py')


def test_package_in_an_archive_is_imported(tmp_path: Path) -> None:
    archive = tmp_path / 'archive.zip'
    with zipfile.ZipFile(archive, 'w') as file:
        file.write(PACKAGE / '__init__.py', 'rbfly/__init__.py')
    command = IMPORT.replace('.amqp', '')
    shown = subprocess.check_output([sys.executable, '-I', '-c', command, archive], text=True)
    assert shown.strip() == str(archive / 'rbfly' / '__init__.py')


def test_no_module_of_this_project_has_a_foreign_name() -> None:
    """In the sources, with what the build adds to them, as well as in the installed package."""
    names = {path.name for folder in (PACKAGE, ROOT / 'src/rbfly') for path in folder.iterdir()}
    assert not [name for name in names if name.startswith(('_buffer.', '_codec.'))]


def test_distribution_has_the_version_of_the_package() -> None:
    assert importlib.metadata.version(DISTRIBUTION) == rbfly.__version__
    assert 'version' not in PROJECT


def test_what_the_documentation_installs_is_this_project() -> None:
    """A page that says `pip install rbfly` would install the other project."""
    pages = [*PAGES, *(ROOT / name for name in ('CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md'))]
    pages = [path for path in pages if path.exists()]
    commands = [code for path in pages for _, code in blocks(path, 'sh')]
    assert not [code for code in commands if re.search(r'pip install.* rbfly(?!-streams)\b', code)]
    named = {word for path in pages for word in re.findall(r'\brbfly-streams\b', path.read_text())}
    assert named == {DISTRIBUTION}


def test_benchmark_measures_this_project() -> None:
    assert lanes.DISTRIBUTION == DISTRIBUTION


def test_extras_in_the_documentation_exist() -> None:
    text = ''.join(path.read_text() for path in PAGES)
    named = set(re.findall(rf"pip install '(?:\.|{DISTRIBUTION})\[(\w+)\]'", text))
    assert named
    assert named <= PROJECT['optional-dependencies'].keys()


def test_dependency_groups_of_tools_exist() -> None:
    pyproject = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    text = ''.join(path.read_text() for path in [*PAGES, ROOT / 'Makefile'])
    named = re.findall(r'pip install[^\n]*--group (\w+)', text)
    assert {'perf'} <= {*named}
    assert {*named} <= pyproject['dependency-groups'].keys()
