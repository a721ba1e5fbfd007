"""The support page says what CI runs, and names each Python and broker that RbFly supports."""

import re

from brokers import RabbitMQ
from tests.examples import PROJECT, ROOT

PAGE = (ROOT / 'doc' / 'reference' / 'support.rst').read_text()
# Columns of the rows: what it is, and whether and where it is tested.
ROWS = dict(re.findall(r'^   \* - (.+)\n     - (CI|nightly|expected|no)$', PAGE, re.M))
CI = (ROOT / '.ci' / 'run').read_text()
BASE = '3.11'  # of the environment that CI starts in


def versions(pattern: str) -> set[str]:
    """Return the versions in rows of this kind that CI tests."""
    found = ((re.fullmatch(pattern, name), where) for name, where in ROWS.items())
    return {match[1] for match, where in found if match and where == 'CI'}


def test_pythons_that_are_tested_are_those_of_ci() -> None:
    assert versions(r'CPython (3\.\d+)') == {BASE, *re.findall(r'build_python \S+ (\S+)', CI)}


def test_each_supported_python_has_a_row() -> None:
    named = [item.rpartition(' ')[2] for item in PROJECT['classifiers'] if ':: 3.' in item]
    assert named
    assert not [version for version in named if f'CPython {version}' not in ROWS]
    assert PROJECT['requires-python'] == f'>={named[0]}'


def test_brokers_that_are_tested_are_those_of_ci() -> None:
    assert versions(r'(\d\.\d+)') == {*RabbitMQ.versions}


def test_oldest_rabbitmq_of_the_readme_has_a_row() -> None:
    (oldest,) = re.findall(r'RabbitMQ (\d\.\d+) or newer', (ROOT / 'README.md').read_text())
    assert oldest in ROWS


def test_addresses_stand_in_the_metadata_only() -> None:
    """`[project.urls]` is their one place; a page that names another would be forgotten there."""
    urls = PROJECT.get('urls', {}).values()
    pages = [*(ROOT / 'doc').rglob('*.rst'), *ROOT.glob('*.md')]
    for path in pages:
        assert not [url for url in urls if url in path.read_text()], path.name
        assert not re.search(r'\bsecurity@|mailto:', path.read_text()), path.name
    assert all(name['name'] == 'RbFly contributors' for name in PROJECT['authors'])
