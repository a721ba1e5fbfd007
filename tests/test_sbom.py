"""The SBOM of a wheel is a valid CycloneDX document, the same for each build of a source."""

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.examples import PROJECT
from tools import sbom

ABOUT = (PROJECT['name'], '1.0.0', PROJECT['description'], PROJECT['license'], '3.3.1')


def parsed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.document(*ABOUT))
    return found


@pytest.mark.parametrize('epoch', ['', '1700000000'])
def test_document_is_valid(monkeypatch: pytest.MonkeyPatch, epoch: str) -> None:
    monkeypatch.setenv('SOURCE_DATE_EPOCH', epoch)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom.document(*ABOUT)) is None


def test_document_names_what_a_scanner_looks_for() -> None:
    found = parsed()
    this = found['metadata']['component']
    assert this['purl'] == 'pkg:pypi/rbfly-streams@1.0.0'
    assert this['licenses'] == [{'license': {'id': 'Apache-2.0'}}]
    assert [item['purl'] for item in found['components']] == ['pkg:pypi/cython@3.3.1']


def test_document_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('SOURCE_DATE_EPOCH', '1700000000')
    assert sbom.document(*ABOUT) == sbom.document(*ABOUT)
    assert parsed()['metadata']['timestamp'] == '2023-11-14T22:13:20Z'
    monkeypatch.delenv('SOURCE_DATE_EPOCH')
    assert 'timestamp' not in parsed()['metadata']


def test_documents_of_different_versions_have_different_numbers() -> None:
    other = json.loads(sbom.document(ABOUT[0], '1.0.1', *ABOUT[2:]))
    assert other['serialNumber'] != parsed()['serialNumber']
