"""Fixtures of the tests of streams."""

from collections.abc import AsyncIterator

import pytest_asyncio

import rbfly.streams as rbs
from tests.fake import CLOSING, FakeBroker, Step
from tests.supers import super_stream_of


@pytest_asyncio.fixture
async def down() -> AsyncIterator[FakeBroker]:
    """A scripted broker that closes every connection before it is open; `handlers.clear()` ends
    that."""
    async with FakeBroker(at={Step.OPEN: CLOSING}) as fake:
        yield fake


@pytest_asyncio.fixture
async def super_stream(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A super stream of three partitions."""
    async with super_stream_of(client, 3) as name:
        yield name
