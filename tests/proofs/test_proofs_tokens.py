"""The short version of the proof of tokens holds."""

from collections.abc import Iterator

import pytest

from proofs import tokens
from tests.proofs.short_runs import Beds, beds, holds

pytestmark = pytest.mark.broker


@pytest.fixture
def make() -> Iterator[Beds]:
    yield from beds(1)


async def test_tokens_are_renewed(make: Beds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, 'LIFETIME', 15)  # a fifth is left when the renewal begins
    await holds(make, 'token', seconds=18)
