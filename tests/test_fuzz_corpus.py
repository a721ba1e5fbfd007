"""The archives of fuzz inputs change only if the inputs do."""

from pathlib import Path

import pytest

from fuzz import run


@pytest.mark.parametrize('target', run.TARGETS)
def test_archive_that_is_unpacked_and_packed_is_the_same(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run.KEPT / f'{target}.zip').read_bytes()
    monkeypatch.setattr(run, 'BUILD', tmp_path)
    inputs = [path.read_bytes() for path in run.unpack(target).iterdir()]
    monkeypatch.setattr(run, 'KEPT', tmp_path)
    assert run.pack(target, inputs).read_bytes() == before
    assert len(inputs) > 200
    assert max(map(len, inputs)) <= run.MAX_LEN[target]
