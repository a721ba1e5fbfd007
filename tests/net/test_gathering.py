"""How the parts of a frame reach a transport."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rbfly.net.gathering import gather_to


class Pausing(asyncio.Transport):
    """A transport that records what it is given."""

    def __init__(self, closing: bool = False) -> None:
        super().__init__()
        self.closing = closing
        self.written: list[object] = []

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(list_of_data)
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self) -> None:
        """As asyncio does."""


class NeverPausing(Pausing):
    def writelines(self, list_of_data: Any) -> None:
        self.written.append(list_of_data)


PARTS = [b'head', b'body', b'next head']


def gathered(transport: Pausing, module: str, monkeypatch: pytest.MonkeyPatch) -> Sequence[object]:
    monkeypatch.setattr(type(transport), '__module__', module)
    gather_to(transport)(PARTS)
    return transport.written


@pytest.mark.parametrize('module', ['asyncio.selector_events', 'uvloop.loop'])
def test_transport_gathers_them(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(Pausing(), module, monkeypatch) == [PARTS]


def test_transport_of_asyncio_that_would_never_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of CPython 3.12.0 to 3.12.8 (CVE-2024-12254)."""
    found = gathered(NeverPausing(), 'asyncio.selector_events', monkeypatch)
    assert found == [b'headbodynext head']
    assert gathered(NeverPausing(), 'uvloop.loop', monkeypatch) == [PARTS]


def test_parts_are_joined_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be records of their own."""
    transport = Pausing()
    monkeypatch.setattr(transport, 'get_extra_info', {'sslcontext': object()}.get)
    assert gathered(transport, 'asyncio.sslproto', monkeypatch) == [b'headbodynext head']


def test_closing_transport_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until CPython 3.13.5, asyncio would then watch a socket that it has closed."""
    assert gathered(Pausing(closing=True), 'asyncio.selector_events', monkeypatch) == []
