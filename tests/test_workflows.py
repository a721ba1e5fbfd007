"""The hosted workflows are valid, pinned, and have a job for each wheel of pyproject.toml."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.examples import PROJECT, ROOT
from tools import release, wheel_matrix

ACTIONLINT = 'github.com/rhysd/actionlint/cmd/actionlint@v1.7.12'
WORKFLOWS = sorted((ROOT / '.github' / 'workflows').glob('*.yml'))
PYPROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PYTHONS = [
    item.rpartition(' ')[2] for item in PROJECT['classifiers'] if 'Python :: 3.' in item
]  # fmt: skip


@pytest.fixture(scope='module')
def selected() -> dict[str, list[str]]:
    return {name: wheel_matrix.identifiers(name) for name in ('linux', 'macos', 'windows')}


@pytest.mark.go
def test_workflows_are_valid() -> None:
    command = ['go', 'run', ACTIONLINT, *map(str, WORKFLOWS)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, ''), shown.stderr


def test_actions_are_pinned_to_one_commit_each() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, pin in re.findall(r'uses: ([\w/-]+)@(.+)', path.read_text()):
            pins.setdefault(action, set()).add(pin)
    assert pins
    for action, found in pins.items():
        (pin,) = found
        assert re.fullmatch(r'[0-9a-f]{40}  # v\d+\.\d+\.\d+', pin), action


def test_programs_in_workflows_exist() -> None:
    text = ''.join(path.read_text() for path in WORKFLOWS)
    text += PYPROJECT['tool']['cibuildwheel']['test-command']
    programs = set(re.findall(r'(?:python|bash) (?:/project/|\{project\}/)?([\w.]+/[\w.]+)', text))
    assert programs
    assert not [name for name in programs if not (ROOT / name).is_file()]
    groups = set(re.findall(r'--group (?:\S+:)?(\w+)', text))
    assert groups | {*PYPROJECT['tool']['cibuildwheel']['test-groups']} <= {
        *PYPROJECT['dependency-groups']
    }


def test_each_python_has_a_wheel_on_each_system(selected: dict[str, list[str]]) -> None:
    for names in selected.values():
        found = [wheel_matrix.job(name) for name in names]
        kinds = {(job['runner'], job.get('libc')) for job in found}
        assert {(job['python'], job['runner'], job.get('libc')) for job in found} == {
            (python, *kind) for python in PYTHONS for kind in kinds
        }


def test_linux_has_two_processors_and_two_c_libraries(selected: dict[str, list[str]]) -> None:
    found = {(job['arch'], job['libc']) for job in map(wheel_matrix.job, selected['linux'])}
    assert found == {(arch, libc) for arch in ('x86_64', 'aarch64') for libc in ('glibc', 'musl')}


def test_matrix_is_what_a_workflow_reads(selected: dict[str, list[str]]) -> None:
    printed = subprocess.check_output(
        [sys.executable, 'tools/wheel_matrix.py'], cwd=ROOT, text=True
    )
    outputs = dict(line.split('=', 1) for line in printed.splitlines())
    linux = json.loads(outputs['linux'])['include']
    others = json.loads(outputs['others'])['include']
    assert [job['wheel'] for job in linux] == selected['linux']
    assert [job['wheel'] for job in others] == selected['macos'] + selected['windows']
    workflow = (ROOT / '.github/workflows/wheels.yml').read_text()
    for key in re.findall(r'\{\{ matrix\.(\w+)', workflow):
        assert key in linux[0]
    assert len({job['wheel'] for job in linux + others}) == len(linux + others)


def test_wheel_without_a_runner_is_refused() -> None:
    with pytest.raises(ValueError, match='no runner builds cp313-manylinux_s390x'):
        wheel_matrix.job('cp313-manylinux_s390x')


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout that can be released as 1.2.3."""
    (tmp_path / 'src' / 'rbfly').mkdir(parents=True)
    (tmp_path / 'src' / 'rbfly' / '__init__.py').write_text("__version__ = '1.2.3'\n")
    (tmp_path / 'CHANGELOG.md').write_text('# Changes\n\n## 1.2.3\n')
    urls = '[project]\nname = "x"\n[project.urls]\nSource = "a"\nSecurity = "b"\n'
    (tmp_path / 'pyproject.toml').write_text(urls)
    return tmp_path


def test_complete_release_lacks_nothing(ready: Path) -> None:
    assert release.missing('v1.2.3', ready) == []


@pytest.mark.parametrize(
    ('name', 'text', 'problem'),
    [
        ('pyproject.toml', '[project]\nname = "x"\n', 'no Source'),
        ('pyproject.toml', '[project]\n[project.urls]\nSource = "a"\n', 'no Security'),
        ('CHANGELOG.md', '## 1.2.3 (unreleased)\n', 'CHANGELOG.md'),
        ('CHANGELOG.md', '## 1.2.2\n', 'CHANGELOG.md'),
        ('src/rbfly/__init__.py', "__version__ = '1.2.3.dev0'\n", 'not that of the tag v1.2.3'),
    ],
)
def test_incomplete_release_is_stopped(ready: Path, name: str, text: str, problem: str) -> None:
    (ready / name).write_text(text)
    assert any(problem in line for line in release.missing('v1.2.3', ready))


def test_release_workflow_stops_without_these() -> None:
    """This checkout names no addresses yet, and its version is one of development."""
    command = [sys.executable, 'tools/release.py', 'v1.0.0']
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == bool(release.missing('v1.0.0'))
    assert shown.stdout.split('\n')[:-1] == (release.missing('v1.0.0') or [''])
