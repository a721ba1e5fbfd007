"""Super streams of the tests."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import rbfly.streams as rbs
from rbfly.testing import StreamBroker


@contextlib.asynccontextmanager
async def broker_of_orders(partitions: int) -> AsyncIterator[StreamBroker]:
    """A broker with a node for each partition of `orders`, which has its only replica."""
    async with StreamBroker(nodes=partitions) as broker:
        broker.create_super_stream('orders', partitions=partitions, initial_cluster_size='1')
        yield broker


@contextlib.asynccontextmanager
async def super_stream_of(client: rbs.StreamsClient, partitions: int) -> AsyncIterator[str]:
    name = f'super-{uuid4().hex[:12]}'
    await client.super_stream(name).create(partitions=partitions)
    try:
        yield name
    finally:
        await client.super_stream(name).delete()


def subscribe_to(
    client: rbs.StreamsClient, stream: str, *, super_stream: bool = False, **options: Any
) -> Any:
    """Subscribe to a stream or to a super stream."""
    if super_stream:
        return client.super_stream(stream).subscribe(**options)
    return client.subscribe(stream, **options)


async def read_partition(client: rbs.StreamsClient, partition: str) -> list[Any]:
    """Return the bodies of a partition."""
    found = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now', timeout=20)
    return [body async for body in found]
