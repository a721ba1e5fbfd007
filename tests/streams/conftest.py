"""Fixtures of the tests of streams."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.fake import CLOSING, FakeBroker, Step


@pytest_asyncio.fixture
async def down() -> AsyncIterator[FakeBroker]:
    """A scripted broker that closes every connection before it is open; `handlers.clear()` ends
    that."""
    async with FakeBroker(at={Step.OPEN: CLOSING}) as fake:
        yield fake
