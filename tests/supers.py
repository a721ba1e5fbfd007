"""Super streams of the tests of publishing."""

from collections.abc import Sequence
from typing import Any

import rbfly.streams as rbs
from rbfly.protocol import commands


async def create_super(client: rbs.StreamsClient, name: str, keys: Sequence[str]) -> list[str]:
    """Create a super stream with a partition for each binding key; return the partitions."""
    names = [f'{name}-{key}' for key in keys]
    connection = await client.get_protocol()
    await connection.request(commands.CreateSuperStream(name, tuple(names), tuple(keys), {}), 60)
    return names


async def delete_super(client: rbs.StreamsClient, name: str) -> None:
    connection = await client.get_protocol()
    try:
        await connection.request(commands.DeleteSuperStream(name), 60)
    except rbs.StreamDoesNotExist:
        pass


async def stored(client: rbs.StreamsClient, partition: str) -> list[Any]:
    """Return the bodies of a partition."""
    found = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now', timeout=20)
    return [body async for body in found]
