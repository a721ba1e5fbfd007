"""Publishes orders, and reads them from where it has stopped: with RbFly 0.10."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
        for i in range(10):
            publisher.batch({'id': i})
        await publisher.flush()


@rbs.connection
async def consume(client: rbs.StreamsClient, stream: str) -> None:
    after = rbs.Offset.reference('billing')
    try:
        async for order in client.subscribe(stream, offset=after, timeout=1):
            print(rbs.get_message_ctx().stream_offset, order)
            await client.write_offset(stream, 'billing')
    except TimeoutError:
        print('no more orders')


if __name__ == '__main__':
    _, what, uri, stream = sys.argv
    client = rbs.streams_client(uri)
    asyncio.run({'publish': publish, 'consume': consume}[what](client, stream))
