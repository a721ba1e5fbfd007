"""Publishes messages with ids of its own twice: the broker stores them once."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    for _ in range(2):
        async with client.publisher(
            stream, name='demo-dedup', cls=rbs.PublisherBatchFast
        ) as publisher:
            for i in range(1, 11):
                publisher.batch(rbs.stream_message_ctx(f'message {i}', publish_id=i))
            await publisher.flush()


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
