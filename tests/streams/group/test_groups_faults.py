"""Consumer groups whose members lose their connections."""

import asyncio
from typing import Any
from uuid import uuid4

import rbfly.streams as rbs
from tests.inside import session_of

HANG = 20.0  # seconds; only a bug makes a test wait that long


async def test_member_that_joins_again_stores_its_offset(broker_uri: str, stream: str) -> None:
    group = f'group-{uuid4().hex[:8]}'
    tracking = rbs.OffsetTracking(every=5, interval=0)
    async with rbs.streams_client(broker_uri) as client, client.publisher(stream) as publisher:
        messages: Any = client.subscribe(
            stream, group=group, offset=rbs.Offset.FIRST, commit=tracking
        )
        await publisher.send_many(range(3))
        assert [await anext(messages) for _ in range(3)] == [0, 1, 2]
        session_of(messages).registration.connection._transport.abort()
        await publisher.send_many(range(3, 20))
        while await anext(messages) != 19:
            pass
        async with asyncio.timeout(HANG):
            while await client.read_offset(stream, group) is None:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.01)
        await messages.aclose()
