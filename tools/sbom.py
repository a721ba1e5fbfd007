"""Write the CycloneDX document of a wheel (PEP 770), which lists the code in its extension modules.

The same source always gives the same document; the time is that of SOURCE_DATE_EPOCH, or left out.
`python tools/sbom.py WHEEL...` prints the components that the documents of wheels list.
"""

import json
import os
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from typing import Any


def purl(name: str, version: str) -> str:
    """Return the package URL of a distribution of the package index."""
    return f'pkg:pypi/{name.lower().replace("_", "-")}@{version}'


def component(name: str, version: str, text: str, licence: str) -> dict[str, Any]:
    """Describe a library."""
    return {
        'type': 'library',
        'bom-ref': purl(name, version),
        'name': name,
        'version': version,
        'description': text,
        'licenses': [{'license': {'id': licence}}],
        'purl': purl(name, version),
    }


def document(name: str, version: str, text: str, licence: str, cython: str) -> str:
    """Describe a wheel; `cython` is the version that translates its modules to C."""
    this = component(name, version, text, licence)
    translator = component(
        'Cython', cython, 'its support code is part of each extension module', 'Apache-2.0'
    )
    found: dict[str, Any] = {
        'bomFormat': 'CycloneDX',
        'specVersion': '1.6',
        'serialNumber': f'urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, this["purl"])}',
        'version': 1,
        'metadata': {'component': this, 'lifecycles': [{'phase': 'build'}]},
        'components': [translator],
        'dependencies': [
            {'ref': this['bom-ref'], 'dependsOn': [translator['bom-ref']]},
            {'ref': translator['bom-ref']},
        ],
    }
    if epoch := os.environ.get('SOURCE_DATE_EPOCH'):
        time = datetime.fromtimestamp(int(epoch), UTC)
        found['metadata']['timestamp'] = time.isoformat().replace('+00:00', 'Z')
    return json.dumps(found, indent=2) + '\n'


def documents(wheel: str | os.PathLike[str]) -> dict[str, str]:
    """Return the documents in a wheel, by file name."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name).decode()
            for name in archive.namelist()
            if '.dist-info/sboms/' in name
        }


def main() -> int:
    for wheel in sys.argv[1:]:
        found = documents(wheel)
        if not found:
            print(f'{wheel}: no SBOM', file=sys.stderr)
            return 1
        for name, text in found.items():
            parts = [
                f'{it["name"]} {it["version"]}' for it in json.loads(text).get('components', [])
            ]
            print(f'{wheel}: {name}: {", ".join(parts)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
