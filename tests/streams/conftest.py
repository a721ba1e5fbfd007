"""Fixtures of the tests of streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from brokers import RabbitMQ
from brokers.proxy import Proxy
from tests.fake_broker import CLOSING, FakeBroker, Step
from tests.group_members import NewClient
from tests.super_streams import super_stream_of


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


@pytest.fixture
def group() -> str:
    """A name for a consumer group."""
    return f'group-{uuid4().hex[:8]}'


@pytest_asyncio.fixture
async def clients(broker_uri: str) -> AsyncIterator[NewClient]:
    """Creates clients, as several processes would have them; the fixture closes them."""
    made: list[rbs.StreamsClient] = []

    def new() -> rbs.StreamsClient:
        made.append(rbs.streams_client(broker_uri))
        return made[-1]

    yield new
    for client in made:
        await client.disconnect()


@pytest_asyncio.fixture
async def proxy(broker: RabbitMQ) -> AsyncIterator[Proxy]:
    """A proxy to the broker."""
    parts = urlsplit(broker.uri)
    async with Proxy((parts.hostname or '', parts.port or 0)) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def alarmed(private_broker: Callable[[], RabbitMQ]) -> AsyncIterator[RabbitMQ]:
    """A private broker; its alarms are cleared afterwards."""
    broker = private_broker()
    yield broker
    for setting in (('set_disk_free_limit', '50MB'), ('set_vm_memory_high_watermark', '0.6')):
        await asyncio.to_thread(broker.ctl, *setting)
