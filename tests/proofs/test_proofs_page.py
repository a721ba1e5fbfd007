"""The page of proofs contains what the result files say; these tests write the files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proofs import cli
from proofs import page as proofs_page
from proofs.catalogue import PROOFS
from proofs.run import ProofError, Run
from tests.sphinx import build


def result(
    folder: Path, name: str = 'publish-cuts', version: str = '4.0.5', **settings: Any
) -> Path:
    """Write a result file like a run does."""
    run = Run(PROOFS[name], 7, **settings)
    run.check('stored in order', True)
    run.check('every send returned', False, '9 of 10')
    run.found |= {'stored': 1_234_567, 'seconds': 12.6, 'proxies': [{'port': 1}]}
    run.found['0 ms, send'] = {'rate': 5000, 'ratio': [0.9, 0.85, 0.95]}
    path = folder / f'{name}.json'
    run.write(path, {'product': 'RabbitMQ', 'version': version})
    return path


def page(folder: Path, *paths: Path) -> str:
    assert proofs_page.write(paths, folder) == folder / 'proofs.rst'
    return ' '.join((folder / 'proofs.rst').read_text().split())


def test_page_contains_claims_and_measurements(tmp_path: Path) -> None:
    text = page(tmp_path, result(tmp_path))
    assert '- stored in order - yes' in text
    assert '- every send returned - **no** - 9 of 10' in text
    assert '- stored - 1,234,567' in text
    assert '- 0 ms, send - rate 5,000; ratio 0.9 [0.85, 0.95]' in text
    assert 'port' not in text.partition('measured')[2]
    assert '- fails' in text
    assert 'RabbitMQ 4.0.5' in text


def test_page_contains_the_error_of_a_proof(tmp_path: Path) -> None:
    path = result(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {'error': 'ProofError: stuck *'}))
    assert r'**Ended early**: ProofError: stuck \*' in page(tmp_path, path)


def test_command_on_the_page_repeats_the_run(tmp_path: Path) -> None:
    text = page(tmp_path, result(tmp_path, messages=500, by='flush', unnamed=True))
    found = re.search(r'python -m proofs (publish-cuts .*?--unnamed)', text)
    assert found is not None
    args = cli.parser().parse_args(found[1].replace('\\ ', '').split())
    assert (args.seed, args.messages, args.cuts, args.by) == (7, 500, 50, 'flush')


def test_long_command_breaks_before_options(tmp_path: Path) -> None:
    path = result(tmp_path, 'consume-nodes', '4.3.6', messages=1_000_000, cuts=6, how='partition')
    page(tmp_path, path)
    lines = (tmp_path / 'proofs.rst').read_text().splitlines()
    first = lines.index('.. code-block:: sh') + 2
    command = lines[first : lines.index('', first)]
    assert len(command) > 1
    assert max(map(len, command)) <= 88
    assert all(line.endswith(' \\') for line in command[:-1])
    assert all(line.strip().startswith('--') for line in command[1:])
    assert not command[-1].endswith('\\')


def test_page_and_command_name_the_broker(tmp_path: Path) -> None:
    text = page(tmp_path, result(tmp_path, 'consume-nodes', '4.3.6', how='roll'))
    assert '- RabbitMQ 4.3.6 - 7 -' in text
    assert 'RBFLY_RABBITMQ=4.3 python -m proofs consume-nodes' in text
    text = page(tmp_path, result(tmp_path, 'soak', '4.3.0', on='memory'))
    assert '- in memory - 7 -' in text
    assert 'RBFLY_RABBITMQ' not in text


def test_report_refuses_other_json_files(tmp_path: Path) -> None:
    path = tmp_path / 'other.json'
    for text in ('{', '[]', '{"type": "proof", "format": 2}'):
        path.write_text(text)
        with pytest.raises(ProofError, match=r'other\.json'):
            proofs_page.read([path])


def test_sphinx_builds_the_page(tmp_path: Path) -> None:
    path = result(tmp_path, by='send-many')
    source = tmp_path / 'doc'
    page(source, path, result(tmp_path, 'tasks'))
    html = build(source, 'proofs', tmp_path / 'html')
    assert '1,234,567' in html
