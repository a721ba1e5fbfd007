"""Fixtures of pytest, outside `rbfly.testing`: only a test that uses them imports the broker.

async def test_orders(rbfly_broker, rbfly_stream):
    async with streams_client(rbfly_broker.uri) as client:
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from .testing import StreamBroker


@pytest.fixture
def rbfly_broker() -> Iterator[StreamBroker]:
    """A rbfly.testing.StreamBroker for this test, in its own thread."""
    from .testing import StreamBroker

    with StreamBroker() as broker:
        yield broker


@pytest.fixture
def rbfly_stream(rbfly_broker: StreamBroker) -> str:
    """The name of an empty stream of `rbfly_broker`."""
    name = 'rbfly-stream'
    rbfly_broker.create_stream(name)
    return name


@pytest.fixture
def rbfly_stream_name(rbfly_broker: StreamBroker) -> Iterator[str]:
    """A new name for a stream of `rbfly_broker`, which the program under test creates itself.

    After the test, the fixture deletes the stream.
    """
    name = f'rbfly-{uuid4()}'
    yield name
    if name in rbfly_broker.streams:
        rbfly_broker.delete_stream(name)
