"""Publishes messages one by one."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        for _ in range(10):
            await publisher.send('hello')
        print('next id', publisher.message_id)


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
