"""Fixtures of the tests of processing."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest_asyncio

import rbfly.streams as rbs
from tests.streams.conftest import clients, group, super_stream

__all__ = ['clients', 'dead', 'group', 'super_stream']


@pytest_asyncio.fixture
async def dead(client: rbs.StreamsClient) -> AsyncIterator[str]:
    """A stream for dead letters."""
    name = f'dead-{uuid4().hex[:12]}'
    await client.create_stream(name)
    yield name
    await client.delete_stream(name)
