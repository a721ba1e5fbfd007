"""Publishes batches of messages."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
        for start in range(0, 1000, 100):
            for i in range(start, start + 100):
                publisher.batch({'id': i})
            await publisher.flush()


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
