"""Publishes values of each type, and reads them."""

import asyncio
import sys
import uuid
from datetime import UTC, datetime

import rbfly.streams as rbs

VALUES: list[rbs.AMQPBody] = [
    None,
    True,
    2**40,
    1.5,
    'text',
    b'bytes',
    [1, 'two'],
    {'key': [1, 2]},
    datetime(2024, 10, 1, tzinfo=UTC),
    uuid.UUID(int=1),
    rbs.Symbol('symbol'),
]


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        for value in VALUES:
            await publisher.send(value)


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> None:
    found: list[rbs.AMQPBody] = []
    async for message in client.subscribe(stream, offset=rbs.Offset.FIRST):
        found.append(message)
        if len(found) == len(VALUES):
            break
    print(found == VALUES)


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
asyncio.run(read(client, sys.argv[2]))
