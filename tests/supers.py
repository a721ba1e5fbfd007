"""Super streams of the tests of publishing."""

from typing import Any

import rbfly.streams as rbs


async def stored(client: rbs.StreamsClient, partition: str) -> list[Any]:
    """Return the bodies of a partition."""
    found = client.subscribe(partition, offset=rbs.Offset.FIRST, until='now', timeout=20)
    return [body async for body in found]
